"""Generation: BLEU, chrF and exact matches of generated targets, by source length."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfm.config.names import UserError
from tfm.config.spec import to_spec
from tfm.data.dataset import Dataset
from tfm.data.mixture import Mixture
from tfm.data.reader import Reader
from tfm.decode.spec import DecodeSpec
from tfm.decode.writer import Writer
from tfm.evaluate.evaluator import Declared, EvalContext, Evaluator, Result
from tfm.metric import HIGH, Metric
from tfm.objectives.base import EXACT, Objective

EDGES = (10, 20, 30, 50)  # of source lengths, in tokens


@dataclasses.dataclass(frozen=True)
class Scoring:
    """How sacrebleu counts: `tokenize` is 13a, intl, char, zh, …"""

    lower: bool = False
    tokenize: str = "13a"


METRICS = (
    Metric("bleu", HIGH, most=100.0, headline=True),
    Metric("chrf", HIGH, most=100.0, headline=True),
    EXACT,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation(Evaluator):
    """Generates the target of each source; slices are ranges of source lengths, in tokens."""

    beams: int = 1
    max_new: int | None = None  # None: twice the longest target and 10
    decoding: dict | None = None  # other settings of DecodeSpec
    lower: bool = False  # ignore case
    tokenize: str = "13a"  # sacrebleu's tokenizer

    def declares(self, spec: Any, objective: Objective, dataset: Dataset | None) -> Declared:
        return METRICS

    def refuses(self, spec: Any, objective: Objective, dataset: Dataset) -> str | None:
        if dataset.form not in ("pairs", "vectors"):
            return "needs pairs of texts, a source and its target"
        if not spec.decodes or not objective.writes:
            return "needs a model that generates text"
        to_spec(DecodeSpec, self.settings)
        return None

    @property
    def settings(self) -> dict[str, Any]:
        settings = {"beams": self.beams, "max_new": self.max_new, **(self.decoding or {})}
        return {name: x for name, x in settings.items() if x is not None}

    def evaluate(self, context: EvalContext, dataset: Dataset) -> Result:
        source = context.source(self.split)
        scoring = Scoring(self.lower, self.tokenize)
        tree = generation(context, source, dataset, self.settings, scoring)
        if isinstance(source, Mixture):
            parts = {name: _metrics(part) for name, part in tree.items()}
            means = {x.name: float(np.mean([p[x.name] for p in parts.values()])) for x in METRICS}
            return Result(means, parts, {"parts": tree})
        slices = tree.pop("by_source_length")
        details = {name: x for name, x in tree.items() if name not in _metrics(tree)}
        return Result(_metrics(tree), slices, details)


def _metrics(tree: dict[str, Any]) -> dict[str, float]:
    return {metric.name: tree[metric.name] for metric in METRICS}


def generation(
    context: EvalContext,
    source: Any,
    dataset: Dataset,
    settings: dict[str, Any],
    scoring: Scoring,
) -> dict[str, Any]:
    """Returns the scores of generated targets for the rows of `dataset`, which `source` opened; for
    a mixture, those of each part."""
    if isinstance(source, Mixture):
        if not dataset.parts:
            raise UserError("--generate: a mixture is measured on valid or test, part by part")
        return {
            name: _measured(context, part, settings, scoring)
            for name, part in dataset.parts.items()
        }
    return _measured(context, dataset, settings, scoring)


def references(reader: Reader, dataset: Dataset) -> list[str]:
    """Returns the targets as the files have them. Targets that are not from files are decoded."""
    rows = np.arange(len(dataset))
    if dataset.target_texts is not None:
        return dataset.target_texts(rows)
    examples = dataset.take(rows)
    target = examples.tokens if examples.target is None else examples.target
    return [reader.decode(ids) for ids in target.sequences()]


def _measured(
    context: EvalContext, dataset: Dataset, settings: dict[str, Any], scoring: Scoring
) -> dict[str, Any]:
    objective, reader = context.objective, context.reader
    examples = dataset.take(np.arange(len(dataset)))
    sources: Any = examples.tokens.sequences() if examples.vectors is None else examples.vectors
    prompts = [objective.begin(reader, one.tolist()) for one in sources]
    ends = objective.ends(reader, prompts[0])
    writer = Writer.of(context.spec, context.variables, ends, objective.prefix)
    rooms = [room for room in map(writer.room, prompts) if room is not None]
    most = min([2 * (dataset.max_target or dataset.max_length) + 10, *rooms])
    spec = writer.settings(prompts, {"max_new": most, **settings})
    written = [sequences[:1] for sequences in writer.write(prompts, spec, context.batch)]
    said = [
        objective.answer(reader, prompt, one[0].tokens if one else [])
        for prompt, one in zip(prompts, written, strict=True)
    ]
    wanted, lengths = references(reader, dataset), examples.tokens.lengths
    return {
        **scores(said, wanted, scoring),
        "cut_at_max_new": sum(not (one and one[0].ended) for one in written),
        "settings": dataclasses.asdict(spec),
        "by_source_length": by_length(said, wanted, lengths, scoring),
    }


def scores(
    said: Sequence[str], wanted: Sequence[str], scoring: Scoring, signatures: bool = True
) -> dict[str, Any]:
    """Computes BLEU and chrF by sacrebleu, with its signatures (Post 2018), and exact matches."""
    from sacrebleu.metrics import BLEU, CHRF

    if scoring.tokenize not in BLEU.TOKENIZERS:
        known = ", ".join(sorted(map(str, BLEU.TOKENIZERS)))
        raise UserError(f"--tokenize={scoring.tokenize}: sacrebleu knows {known}")
    bleu = BLEU(lowercase=scoring.lower, tokenize=scoring.tokenize)
    chrf = CHRF(lowercase=scoring.lower)
    out: dict[str, Any] = {
        "bleu": bleu.corpus_score(list(said), [list(wanted)]).score,
        "chrf": chrf.corpus_score(list(said), [list(wanted)]).score,
        "exact": float(np.mean(_exact(said, wanted, scoring.lower))),
    }
    if signatures:
        out["signatures"] = {"bleu": str(bleu.get_signature()), "chrf": str(chrf.get_signature())}
    return out


def _exact(said: Sequence[str], wanted: Sequence[str], lower: bool) -> list[bool]:
    """Compares texts without spaces around them and, with `lower`, without case."""

    def plain(text: str) -> str:
        return text.strip().lower() if lower else text.strip()

    return [plain(one) == plain(other) for one, other in zip(said, wanted, strict=True)]


def by_length(
    said: Sequence[str], wanted: Sequence[str], length_N: np.ndarray, scoring: Scoring
) -> dict[str, dict[str, Any]]:
    """Returns the scores of sources of similar lengths."""
    group_N = np.searchsorted(EDGES, length_N)
    out = {}
    for group in np.unique(group_N):
        rows = np.flatnonzero(group_N == group).tolist()
        texts, targets = ([side[row] for row in rows] for side in (said, wanted))
        low = EDGES[group - 1] + 1 if group else 1
        high = f"–{EDGES[group]}" if group < len(EDGES) else " and more"
        metrics = scores(texts, targets, scoring, signatures=False)
        out[f"{low}{high} tokens"] = {"examples": len(rows), **metrics}
    return out
