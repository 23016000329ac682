"""Predict the next token, of a text or of the rest of it.

Bengio et al. 2003; prefix language models: Liu et al. 2018, Raffel et al. 2020, §3.2.1.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from tfm.config.names import UserError
from tfm.data.dataset import Dataset, Examples
from tfm.data.reader import Prompt, Reader
from tfm.evaluate.metric import Metric
from tfm.objectives.base import (
    BITS,
    Batch,
    Objective,
    Rng,
    Sums,
    Targets,
    numbers_refused,
    tagged,
    text_given,
    text_metrics,
    text_rows,
    vocab_with_labels,
)
from tfm.objectives.seq2seq import Seq2Seq


class NextToken(Objective):
    """Predicts text token by token. A pair is one sequence with a separator between its sides, of
    which the second is predicted; so is a label. A tag is predicted where the data ask for one.

    Hidden from each prediction are the tokens after it.
    """

    families: ClassVar[tuple[str, ...]] = ("decoder", "recurrent")
    forms: ClassVar[tuple[str, ...]] = ("text", "pairs", "labels", "tags")
    labels_in = "tokens_BT"
    by_position = True
    writes = True

    @property
    def head(self) -> dict[str, Any]:
        return {"shape": "N:N", "classes": None}  # classes are not the vocabulary

    def refuses(self, dataset: Dataset) -> str | None:
        if dataset.form == "tags" and dataset.tags is not None:
            return "predicts tokens, but the tags are not tokens"
        return super().refuses(dataset) or numbers_refused(dataset)

    def sizes(self, dataset: Dataset) -> dict[str, int]:
        return {"vocab": vocab_with_labels(dataset)}

    def prepare(self, examples: Examples, dataset: Dataset, rng: Rng) -> Batch:
        if dataset.form == "tags":
            return tagged(examples, dataset)
        if dataset.form == "text":
            return next_tokens(self.predicted(examples, dataset, rng))
        return joined(examples, dataset, rng)

    def predicted(self, examples: Examples, dataset: Dataset, rng: Rng) -> Targets:
        return _after(examples, dataset, np.ones(1, np.int64))

    def declares(self, dataset: Dataset | None = None) -> tuple[Metric, ...]:
        known = None if dataset is None else text_metrics(0.0, dataset)
        bits = (metric for metric in BITS if known is None or metric.name in known)
        return (*super().declares(dataset), *bits)

    def metrics(self, sums: Sums, dataset: Dataset) -> dict[str, float]:
        metrics = super().metrics(sums, dataset)
        return metrics | text_metrics(metrics["loss"], dataset)

    def read(
        self, reader: Reader, text: str | None, target: str | None = None, task: int | None = None
    ) -> Prompt:
        if text is None and self.continues(reader) and reader.start is not None:
            return self.begin(reader, [reader.start])
        prompt = self.begin(reader, reader.encode(text_given(text), task))
        if reader.form == "tags":
            return prompt
        tokens, asked = prompt.tokens, 1
        if not self.continues(reader):
            asked = len(tokens)
            tokens = [*tokens, *([] if target is None else reader.ids(target))]
        elif target is not None:
            raise UserError("--target is for models that translate; this one reads one text")
        last = -1 if target is None or not reader.ends else reader.ends[0]
        labels = [-1] * (asked - 1) + [*tokens[asked:], last]
        return prompt._replace(tokens=tokens, labels=labels)

    def begin(self, reader: Reader, ids: Sequence[Any]) -> Prompt:
        pair = reader.form in ("pairs", "labels")
        ids = [*ids, *reader.between] if pair else list(ids)
        return Prompt(ids, prefix=len(ids) if self.prefix and pair else None)

    def continues(self, reader: Reader) -> bool:
        return reader.form == "text"


@dataclasses.dataclass(frozen=True)
class PrefixLM(NextToken):
    """Predicts the rest of a text from its beginning, whose tokens see one another. The prefix of
    a text is a share of its tokens, or of a length that is drawn: any that leaves a token. Of a
    pair it is the source with its separator.

    Hidden from each prediction are the tokens after it. The model is given the length of the
    prefix (`prefix_B`), and joins it to its mask; only what follows the prefix is scored.
    """

    share: float | None = None

    families = ("decoder",)
    forms = ("text", "pairs", "labels")
    prefix = True

    def __post_init__(self) -> None:
        if self.share is not None and not 0 < self.share < 1:
            raise UserError(f"prefix_lm: share={self.share} must be between 0 and 1")

    def prepare(self, examples: Examples, dataset: Dataset, rng: Rng) -> Batch:
        if dataset.form == "text":
            length_B = self._lengths(examples, rng)
            batch = next_tokens(_after(examples, dataset, length_B))
        else:
            length_B = examples.tokens.lengths + 1
            batch = joined(examples, dataset, rng)
        return batch.replace(inputs={**batch.inputs, "prefix_B": length_B.astype(np.int32)})

    def predicted(self, examples: Examples, dataset: Dataset, rng: Rng) -> Targets:
        return _after(examples, dataset, self._lengths(examples, rng))

    def _lengths(self, examples: Examples, rng: Rng) -> np.ndarray:
        most_B = np.maximum(examples.tokens.lengths - 1, 1)
        if self.share is None:
            return rng.integers(1, most_B + 1)
        return np.clip(np.round(examples.tokens.lengths * self.share), 1, most_B).astype(np.int64)


def _after(examples: Examples, dataset: Dataset, length_B: np.ndarray) -> Targets:
    """Returns rows of which all but the first `length_B` tokens are predicted."""
    rows = text_rows(examples, dataset)
    follows_BT = np.arange(rows.tokens_BT.shape[1]) >= length_B[:, None]
    return rows._replace(predicted_BT=rows.predicted_BT & follows_BT)


def next_tokens(rows: Targets) -> Batch:
    """Returns all tokens but the last as inputs, and at each the next one as its label."""
    # What is valid as a label follows something, so the token before it is valid as an input.
    inputs = {"tokens_BT": rows.tokens_BT[:, :-1], "valid_BT": rows.valid_BT[:, 1:]}
    return Batch(inputs, rows.tokens_BT[:, 1:], rows.predicted_BT[:, 1:].astype(np.float32))


def joined(examples: Examples, dataset: Dataset, rng: Rng) -> Batch:
    """Joins pairs: the source, a separator, and the target, which is predicted."""
    special = dataset.special._replace(bos=dataset.special.sep)
    pair = Seq2Seq().prepare(examples, dataclasses.replace(dataset, special=special), rng)
    source_valid_BS = pair.inputs["source_valid_BS"]
    decoder_valid_BT = pair.inputs["decoder_valid_BT"]
    begin_B1 = source_valid_BS.sum(1, keepdims=True)
    place_BT = begin_B1 + np.arange(decoder_valid_BT.shape[1])

    def after(x_BS: np.ndarray, x_BT: np.ndarray) -> np.ndarray:
        x_BL = np.zeros((len(x_BT), x_BS.shape[1] + x_BT.shape[1]), x_BT.dtype)
        x_BL[:, : x_BS.shape[1]] = x_BS
        np.put_along_axis(x_BL, place_BT, x_BT, 1)
        return x_BL

    nothing_BS = np.zeros_like(source_valid_BS)
    inputs = {
        "tokens_BT": after(pair.inputs["source_BS"], pair.inputs["decoder_input_BT"]),
        "valid_BT": after(source_valid_BS, decoder_valid_BT),
    }
    return Batch(inputs, after(nothing_BS, pair.labels), after(nothing_BS, pair.weights))
