"""What a model writes, beside what it should: BLEU, chrF and exact matches, by source length."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfm.config.names import UserError
from tfm.config.spec import to_spec
from tfm.data.dataset import Dataset
from tfm.data.mixture import Mixture
from tfm.decode.spec import DecodeSpec
from tfm.decode.writer import Prompt
from tfm.run.text import TextWriter, text_writer

EDGES = (10, 20, 30, 50)  # of source lengths, in tokens


@dataclasses.dataclass(frozen=True)
class Scoring:
    """How sacrebleu counts: `tokenize` is 13a, intl, char, zh, …"""

    lower: bool = False
    tokenize: str = "13a"


def generation(
    loaded: Any,
    source: Any,
    dataset: Dataset,
    settings: dict[str, Any],
    scoring: Scoring,
    batch: int,
) -> dict[str, Any]:
    """Of the rows of `dataset`, which `source` opened: scores of what the model writes. Of a
    mixture, those of each part."""
    if dataset.form != "pairs" or dataset.decode is None:
        raise UserError("--generate: it is for pairs of texts, a source and its target")
    if isinstance(source, Mixture):
        parts = list(dataset.parts.items())
        if not parts:
            raise UserError("--generate: a mixture is measured on valid or test, part by part")
        return {
            name: _measured(
                text_writer(loaded, number if source.tells else None),
                references(part),
                *(part, settings, scoring, batch),
            )
            for number, (name, part) in enumerate(parts)
        }
    wanted = references(dataset)
    return _measured(text_writer(loaded), wanted, dataset, settings, scoring, batch)


def references(dataset: Dataset) -> list[str]:
    """Returns the targets as the files have them. Targets that are not from files are decoded."""
    rows = np.arange(len(dataset))
    if dataset.target_texts is not None:
        return dataset.target_texts(rows)
    target = dataset.take(rows).target
    assert dataset.decode is not None
    assert target is not None
    return [dataset.decode(ids) for ids in target.split()]


def _measured(
    writer: TextWriter,
    wanted: Sequence[str],
    dataset: Dataset,
    settings: dict[str, Any],
    scoring: Scoring,
    batch: int,
) -> dict[str, Any]:
    tokens = dataset.take(np.arange(len(dataset))).tokens
    rows = np.split(tokens.ids, np.cumsum(tokens.lengths)[:-1])
    if writer.first is not None:
        prompts = [Prompt([writer.first], row.tolist()) for row in rows]
    else:
        prompts = [Prompt([*row.tolist(), *writer.after]) for row in rows]
    if "max_new" not in settings:
        rooms = [room for room in map(writer.writer.room, prompts) if room is not None]
        settings = {**settings, "max_new": min([2 * dataset.max_target + 10, *rooms])}
    spec = to_spec(DecodeSpec, settings, "--")
    found = writer.writer.write(prompts, spec, batch)
    said = [
        writer.text(prompt, ones[0].tokens if ones else [])
        for prompt, ones in zip(prompts, found, strict=True)
    ]
    cut = sum(not (ones and ones[0].ended) for ones in found)
    return {
        **scores(said, wanted, scoring),
        "cut_at_max_new": cut,
        "settings": dataclasses.asdict(spec),
        "by_source_length": by_length(said, wanted, tokens.lengths, scoring),
    }


def scores(
    said: Sequence[str], wanted: Sequence[str], scoring: Scoring, signatures: bool = True
) -> dict[str, Any]:
    """BLEU and chrF by sacrebleu, with its signatures (Post 2018), and the share of exact texts."""
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
    """Spaces around a text do not count, nor its case with `lower`."""

    def plain(text: str) -> str:
        return text.strip().lower() if lower else text.strip()

    return [plain(one) == plain(other) for one, other in zip(said, wanted, strict=True)]


def by_length(
    said: Sequence[str], wanted: Sequence[str], length_N: np.ndarray, scoring: Scoring
) -> list[dict[str, Any]]:
    """The same scores, of sources of similar lengths."""
    group_N = np.searchsorted(EDGES, length_N)
    found = []
    for group in np.unique(group_N):
        rows = np.flatnonzero(group_N == group).tolist()
        one, other = ([side[row] for row in rows] for side in (said, wanted))
        low = EDGES[group - 1] + 1 if group else 1
        high = f"–{EDGES[group]}" if group < len(EDGES) else " and more"
        found.append(
            {
                "tokens": f"{low}{high}",
                "examples": len(rows),
                **scores(one, other, scoring, signatures=False),
            }
        )
    return found
