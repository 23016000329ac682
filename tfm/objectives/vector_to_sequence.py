"""Write the sequence that a vector stands for, as a caption for an image.  Vinyals et al. 2015."""

from typing import Any

import numpy as np

from tfm.data.dataset import Dataset, Examples
from tfm.objectives.base import Batch, Objective
from tfm.objectives.seq2seq import shifted


class VectorToSequence(Objective):
    """The model begins from the vector and, as in seq2seq, reads the target shifted right."""

    families = ("recurrent",)
    forms = ("vectors",)
    labels_in = "tokens_BT"
    by_position = True

    @property
    def head(self) -> dict[str, Any]:
        return {"shape": "1:N", "classes": None}

    def sizes(self, dataset: Dataset) -> dict[str, int]:
        return {"vocab": dataset.vocab, "vector": dataset.vector or 0}

    def prepare(self, examples: Examples, dataset: Dataset, rng: np.random.Generator) -> Batch:
        tokens_BT, valid_BT, labels_BT = shifted(
            examples.tokens, dataset.max_length, dataset.special
        )
        inputs = {"tokens_BT": tokens_BT, "valid_BT": valid_BT, "vector_BD": examples.vectors}
        return Batch(inputs, labels_BT, valid_BT.astype(np.float32))
