"""Predict tokens that are hidden, with both sides in view.  BERT, Devlin et al. 2019, §3.1."""

import dataclasses
from typing import Any

import numpy as np

from tfm.data.dataset import Dataset, Examples
from tfm.names import UserError
from tfm.objectives.base import Batch, Objective, int32


@dataclasses.dataclass(frozen=True)
class MaskedLM(Objective):
    """Of the tokens, a share `rate` is chosen to be predicted. Of those, a share `masked` becomes
    the mask token, a share `random` any token, and the rest stays.

    The mask's id comes after those of the data. A window of text has one token more than its
    length, for objectives that predict the next one; here the last is not read.
    """

    rate: float = 0.15
    masked: float = 0.8
    random: float = 0.1

    families = ("encoder",)
    same_vocab = True  # the mask's id comes after the data's own
    forms = ("text",)

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise UserError(f"masked_lm: rate={self.rate} must be between 0 and 1")
        if min(self.masked, self.random) < 0 or self.masked + self.random > 1:
            raise UserError(
                f"masked_lm: masked={self.masked} and random={self.random} must be shares of 1"
            )

    @property
    def head(self) -> dict[str, Any]:
        return {"outputs": ("masked_lm",)}

    def sizes(self, dataset: Dataset) -> dict[str, int]:
        return {"vocab": dataset.vocab + 1}

    def shown(self, examples: Examples, dataset: Dataset, rng: np.random.Generator) -> np.ndarray:
        """Those that stay, so that a token in view may be right."""
        _, _, chosen_BT, fate_BT = self._choose(examples, dataset, rng)
        return chosen_BT & (fate_BT >= self.masked + self.random)

    def prepare(self, examples: Examples, dataset: Dataset, rng: np.random.Generator) -> Batch:
        labels_BT, valid_BT, chosen_BT, fate_BT = self._choose(examples, dataset, rng)
        any_BT = rng.integers(0, dataset.vocab, labels_BT.shape, np.int32)
        tokens_BT = np.where(fate_BT < self.masked + self.random, any_BT, labels_BT)
        tokens_BT = np.where(fate_BT < self.masked, np.int32(dataset.vocab), tokens_BT)
        tokens_BT = np.where(chosen_BT, tokens_BT, labels_BT)
        inputs = {"tokens_BT": tokens_BT, "valid_BT": valid_BT}
        return Batch(inputs, labels_BT, chosen_BT.astype(np.float32))

    def _choose(
        self, examples: Examples, dataset: Dataset, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The tokens, which of them are real, which are to be predicted, and a number from 0 to 1
        for what becomes of each of these."""
        tokens, longest = examples.tokens, dataset.max_length
        labels_BT, valid_BT = int32(tokens.padded(longest)), tokens.valid(longest)
        allowed_BT = valid_BT
        if examples.scored is not None:
            allowed_BT = tokens.padded(longest, examples.scored)
        labels_BT, valid_BT, allowed_BT = (x[:, :-1] for x in (labels_BT, valid_BT, allowed_BT))
        chosen_BT = allowed_BT & (rng.random(labels_BT.shape) < self.rate)
        return labels_BT, valid_BT, chosen_BT, rng.random(labels_BT.shape)
