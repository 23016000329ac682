"""Predict the next token.  Bengio et al. 2003."""

import dataclasses
from typing import Any, ClassVar

import numpy as np

from tfm.data.dataset import Dataset, Examples
from tfm.objectives.base import Batch, Objective, Targets
from tfm.objectives.seq2seq import Seq2Seq, numbers_refused, vocab_with_labels
from tfm.objectives.tag import tagged
from tfm.objectives.text import TextMetrics, text_rows


class NextToken(TextMetrics, Objective):
    """Text is predicted token by token. Of a pair, both sides are one sequence with a separator
    between, and the second is predicted; so is a label. A tag is predicted where it is wanted.

    What is hidden from each prediction are the tokens after it.
    """

    families: ClassVar[tuple[str, ...]] = ("decoder", "recurrent")
    forms: ClassVar[tuple[str, ...]] = ("text", "pairs", "labels", "tags")
    labels_in = "tokens_BT"
    by_position = True

    @property
    def head(self) -> dict[str, Any]:
        return {"shape": "N:N", "classes": None}  # classes are not the vocabulary

    def refuses(self, dataset: Dataset) -> str | None:
        if dataset.form == "tags" and dataset.tags is not None:
            return "predicts tokens, but the tags are not tokens"
        return super().refuses(dataset) or numbers_refused(dataset)

    def sizes(self, dataset: Dataset) -> dict[str, int]:
        return {"vocab": vocab_with_labels(dataset)}

    def prepare(self, examples: Examples, dataset: Dataset, rng: np.random.Generator) -> Batch:
        if dataset.form == "tags":
            return tagged(examples, dataset)
        if dataset.form == "text":
            return next_tokens(self.predicted(examples, dataset, rng))
        return joined(examples, dataset, rng)

    def predicted(self, examples: Examples, dataset: Dataset, rng: np.random.Generator) -> Targets:
        rows = text_rows(examples, dataset)
        follows_T = np.arange(rows.tokens_BT.shape[1]) > 0
        return rows._replace(predicted_BT=rows.predicted_BT & follows_T)


def next_tokens(rows: Targets) -> Batch:
    """All tokens but the last are read, and at each the next one is the label."""
    # What is valid as a label follows something, so the token before it is valid as an input.
    inputs = {"tokens_BT": rows.tokens_BT[:, :-1], "valid_BT": rows.valid_BT[:, 1:]}
    return Batch(inputs, rows.tokens_BT[:, 1:], rows.predicted_BT[:, 1:].astype(np.float32))


def joined(examples: Examples, dataset: Dataset, rng: np.random.Generator) -> Batch:
    """A pair as one sequence: the source, a separator, and the target, which is predicted."""
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
