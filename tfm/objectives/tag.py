"""Predict something for each token that is read, with both sides in view."""

from typing import Any

import numpy as np

from tfm.data.dataset import Dataset, Examples
from tfm.objectives.base import Batch, Objective, int32


class Tag(Objective):
    """A tag, or, of a pair, the target token that stands at the same position."""

    families = ("encoder", "recurrent")
    forms = ("pairs", "tags")

    @property
    def head(self) -> dict[str, Any]:
        return {"outputs": ("tag",), "shape": "N:N"}

    def refuses(self, dataset: Dataset) -> str | None:
        if dataset.form == "text":
            return "would show the wanted tokens: they are the next ones"
        if dataset.form == "pairs" and not dataset.aligned:
            return "needs a target for each position of the source, but their lengths differ"
        return super().refuses(dataset)

    def sizes(self, dataset: Dataset) -> dict[str, int]:
        return {"vocab": dataset.vocab, "classes": dataset.vocab}

    def prepare(self, examples: Examples, dataset: Dataset, rng: np.random.Generator) -> Batch:
        return tagged(examples, dataset)


def tagged(examples: Examples, dataset: Dataset) -> Batch:
    tokens, longest = examples.tokens, dataset.max_length
    tags = examples.tags if examples.target is None else examples.target.ids
    inputs = {"tokens_BT": int32(tokens.padded(longest)), "valid_BT": tokens.valid(longest)}
    weights_BT = inputs["valid_BT"]
    if examples.scored is not None:
        weights_BT = tokens.padded(longest, examples.scored)
    return Batch(inputs, int32(tokens.padded(longest, tags)), weights_BT.astype(np.float32))
