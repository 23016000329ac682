"""Predict the next token.  Bengio et al. 2003."""

import math
from typing import Any

import numpy as np

from tfm.data.dataset import BOS, Dataset, Examples
from tfm.objectives.base import Batch, Objective, Sums, int32
from tfm.objectives.seq2seq import Seq2Seq, vocab_with_labels
from tfm.objectives.tag import tagged

SEP = BOS


class NextToken(Objective):
    """Text is predicted token by token. Of a pair, both sides are one sequence with a separator
    between, and the second is predicted; so is a label. A tag is predicted where it is wanted."""

    families = ("decoder", "recurrent")
    forms = ("text", "pairs", "labels", "tags")
    labels_in = "tokens_BT"

    @property
    def head(self) -> dict[str, Any]:
        return {"shape": "N:N", "classes": None}  # classes are not the vocabulary

    def sizes(self, dataset: Dataset) -> dict[str, int]:
        return {"vocab": vocab_with_labels(dataset)}

    def prepare(self, examples: Examples, dataset: Dataset, rng: np.random.Generator) -> Batch:
        if dataset.form == "tags":
            return tagged(examples, dataset)
        if dataset.form == "text":
            return _text(examples, dataset)
        return _joined(Seq2Seq().prepare(examples, dataset, rng))

    def metrics(self, sums: Sums, dataset: Dataset) -> dict[str, float]:
        out = super().metrics(sums, dataset)
        if dataset.bytes_per_token is not None:
            out["bits_per_byte"] = out["loss"] / math.log(2) / dataset.bytes_per_token
        return out


def _text(examples: Examples, dataset: Dataset) -> Batch:
    tokens, longest = examples.tokens, dataset.max_length
    tokens_BT, valid_BT = int32(tokens.padded(longest)), tokens.valid(longest)
    scored_BT = valid_BT
    if examples.scored is not None:
        scored_BT = tokens.padded(longest, examples.scored)
    # What is valid as a label follows something, so the token before it is valid as an input.
    inputs = {"tokens_BT": tokens_BT[:, :-1], "valid_BT": valid_BT[:, 1:]}
    return Batch(inputs, tokens_BT[:, 1:], scored_BT[:, 1:].astype(np.float32))


def _joined(pair: Batch) -> Batch:
    """One sequence: the source, and directly after it what the decoder reads, from SEP on."""
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
