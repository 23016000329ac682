"""Predict the rest of a text from its beginning, which is seen from both sides.

Liu et al. 2018; Raffel et al. 2020, §3.2.1.
"""

import dataclasses

import numpy as np

from tfm.config.names import UserError
from tfm.data.dataset import Dataset, Examples
from tfm.objectives.base import Batch, Targets
from tfm.objectives.next_token import NextToken, joined, next_tokens
from tfm.objectives.text import text_rows


@dataclasses.dataclass(frozen=True)
class PrefixLM(NextToken):
    """The tokens of the prefix see one another; those after it see what came before. Of a text the
    prefix is a share of its tokens, or as long as is drawn: any length that leaves a token. Of a
    pair it is the source with its separator.

    What is hidden from each prediction are the tokens after it. The model is told how long the
    prefix is (`prefix_B`), and joins that to its mask; only what follows the prefix is scored.
    """

    share: float | None = None

    families = ("decoder",)
    forms = ("text", "pairs", "labels")

    def __post_init__(self) -> None:
        if self.share is not None and not 0 < self.share < 1:
            raise UserError(f"prefix_lm: share={self.share} must be between 0 and 1")

    def prepare(self, examples: Examples, dataset: Dataset, rng: np.random.Generator) -> Batch:
        if dataset.form == "text":
            length_B = self._lengths(examples, rng)
            batch = next_tokens(_after(examples, dataset, length_B))
        else:
            length_B = examples.tokens.lengths + 1
            batch = joined(examples, dataset, rng)
        return batch.replace(inputs={**batch.inputs, "prefix_B": length_B.astype(np.int32)})

    def predicted(self, examples: Examples, dataset: Dataset, rng: np.random.Generator) -> Targets:
        return _after(examples, dataset, self._lengths(examples, rng))

    def _lengths(self, examples: Examples, rng: np.random.Generator) -> np.ndarray:
        most_B = np.maximum(examples.tokens.lengths - 1, 1)
        if self.share is None:
            return rng.integers(1, most_B + 1)
        return np.clip(np.round(examples.tokens.lengths * self.share), 1, most_B).astype(np.int64)


def _after(examples: Examples, dataset: Dataset, length_B: np.ndarray) -> Targets:
    rows = text_rows(examples, dataset)
    follows_BT = np.arange(rows.tokens_BT.shape[1]) >= length_B[:, None]
    return rows._replace(predicted_BT=rows.predicted_BT & follows_BT)
