"""Predict the class of a whole sequence."""

from typing import Any

import numpy as np

from tfm.data.dataset import Dataset, Examples
from tfm.objectives.base import Batch, Objective, int32


class Classify(Objective):
    families = ("encoder", "recurrent", "bag", "convolution")
    forms = ("labels",)

    @property
    def head(self) -> dict[str, Any]:
        return {"outputs": ("classify",), "shape": "N:1"}

    def sizes(self, dataset: Dataset) -> dict[str, int]:
        return {"vocab": dataset.vocab, "classes": dataset.classes or 0}

    def prepare(self, examples: Examples, dataset: Dataset, rng: np.random.Generator) -> Batch:
        assert examples.labels is not None
        tokens, longest = examples.tokens, dataset.max_length
        inputs = {"tokens_BT": int32(tokens.padded(longest)), "valid_BT": tokens.valid(longest)}
        return Batch(inputs, int32(examples.labels), np.ones(len(tokens), np.float32))
