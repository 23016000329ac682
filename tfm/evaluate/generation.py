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
from tfm.evaluate.evaluator import EvalContext, Evaluator, Result
from tfm.evaluate.metric import HIGH, Metric
from tfm.objectives.base import EXACT, Objective

EDGES = (10, 20, 30, 50)  # of source lengths, in tokens
METRICS = (
    Metric("bleu", HIGH, most=100.0, headline=True),
    Metric("chrf", HIGH, most=100.0, headline=True),
    EXACT,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation(Evaluator):
    """Generates the target of each source; slices are ranges of source lengths, in tokens."""

    computes = METRICS
    beams: int = 1
    max_new: int | None = None  # None: twice the longest target and 10
    decoding: dict | None = None  # other settings of DecodeSpec
    lower: bool = False  # ignore case
    tokenize: str = "13a"  # sacrebleu's tokenizer: 13a, intl, char, zh, …

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
        """Compares generated targets with the data's; the parts of a mixture one by one."""
        if isinstance(context.source(self.split), Mixture):
            if not dataset.parts:
                raise UserError("--generate: a mixture is measured on valid or test, part by part")
            trees = {name: self._measure(context, part) for name, part in dataset.parts.items()}
            parts = {name: _metrics(tree) for name, tree in trees.items()}
            means = {x.name: float(np.mean([p[x.name] for p in parts.values()])) for x in METRICS}
            return Result(means, parts, {"parts": trees})
        tree = self._measure(context, dataset)
        slices, metrics = tree.pop("by_source_length"), _metrics(tree)
        details = {name: x for name, x in tree.items() if name not in metrics}
        return Result(metrics, slices, details)

    def _measure(self, context: EvalContext, dataset: Dataset) -> dict[str, Any]:
        objective, reader = context.objective, context.reader
        examples = dataset.take(np.arange(len(dataset)))
        sources: Any = examples.tokens.sequences() if examples.vectors is None else examples.vectors
        prompts = [objective.begin(reader, source.tolist()) for source in sources]
        ends = objective.ends(reader, prompts[0])
        writer = Writer.of(context.spec, context.variables, ends, objective.prefix)
        rooms = [room for room in map(writer.room, prompts) if room is not None]
        most = min([2 * (dataset.max_target or dataset.max_length) + 10, *rooms])
        spec = writer.settings(prompts, {"max_new": most, **self.settings})
        written = [sequences[:1] for sequences in writer.write(prompts, spec, context.batch)]
        texts = [
            objective.answer(reader, prompt, best[0].tokens if best else [])
            for prompt, best in zip(prompts, written, strict=True)
        ]
        targets = references(reader, dataset)
        return {
            **self._scores(texts, targets),
            "cut_at_max_new": sum(not (best and best[0].ended) for best in written),
            "settings": dataclasses.asdict(spec),
            "by_source_length": self._by_length(texts, targets, examples.tokens.lengths),
        }

    def _scores(
        self, texts: Sequence[str], targets: Sequence[str], signatures: bool = True
    ) -> dict[str, Any]:
        """Computes BLEU and chrF by sacrebleu, with its signatures (Post 2018), and exact matches.

        Exact matches ignore spaces around a text and, with `lower`, case.
        """
        from sacrebleu.metrics import BLEU, CHRF

        if self.tokenize not in BLEU.TOKENIZERS:
            known = ", ".join(sorted(map(str, BLEU.TOKENIZERS)))
            raise UserError(f"--tokenize={self.tokenize}: sacrebleu knows {known}")
        bleu = BLEU(lowercase=self.lower, tokenize=self.tokenize)
        chrf = CHRF(lowercase=self.lower)
        pairs = [[x.strip().lower() if self.lower else x.strip() for x in pair]
                 for pair in zip(texts, targets, strict=True)]  # fmt: skip
        out: dict[str, Any] = {
            "bleu": bleu.corpus_score(list(texts), [list(targets)]).score,
            "chrf": chrf.corpus_score(list(texts), [list(targets)]).score,
            "exact": float(np.mean([text == target for text, target in pairs])),
        }
        if signatures:
            named = {"bleu": bleu, "chrf": chrf}
            out["signatures"] = {name: str(x.get_signature()) for name, x in named.items()}
        return out

    def _by_length(
        self, texts: Sequence[str], targets: Sequence[str], length_N: np.ndarray
    ) -> dict[str, dict[str, Any]]:
        """Returns the scores of sources of similar lengths."""
        group_N = np.searchsorted(EDGES, length_N)
        out = {}
        for group in np.unique(group_N):
            rows = np.flatnonzero(group_N == group).tolist()
            some, wanted = ([side[row] for row in rows] for side in (texts, targets))
            low = EDGES[group - 1] + 1 if group else 1
            high = f"–{EDGES[group]}" if group < len(EDGES) else " and more"
            scores = self._scores(some, wanted, signatures=False)
            out[f"{low}{high} tokens"] = {"examples": len(rows), **scores}
        return out


def _metrics(tree: dict[str, Any]) -> dict[str, float]:
    return {metric.name: tree[metric.name] for metric in METRICS}


def references(reader: Reader, dataset: Dataset) -> list[str]:
    """Returns the targets as the files have them. Targets that are not from files are decoded."""
    rows = np.arange(len(dataset))
    if dataset.target_texts is not None:
        return dataset.target_texts(rows)
    examples = dataset.take(rows)
    target = examples.tokens if examples.target is None else examples.target
    return [reader.decode(ids) for ids in target.sequences()]
