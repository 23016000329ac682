"""Predict tokens that are hidden, with both sides in view.  BERT, Devlin et al. 2019, §3.1."""

import dataclasses
from typing import Any

import numpy as np

from tfm.config.names import UserError
from tfm.data.dataset import Dataset, Examples
from tfm.data.draws import Draws, hashed, key_of
from tfm.data.reader import MASK, Prompt, Reader
from tfm.objectives.base import (
    Batch,
    Objective,
    Rng,
    Targets,
    softmax,
    text_given,
    text_rows,
    without_last,
)


@dataclasses.dataclass(frozen=True)
class MaskedLM(Objective):
    """Chooses a share `rate` of the tokens to be predicted. Of those, a share `masked` becomes the
    mask token, a share `random` any token, and the rest stays. With `static`, a row is masked in
    the same way whenever it comes, as if it were masked once and stored; otherwise it is masked
    anew at each step (Liu et al. 2019, §4.1).

    Hidden are the chosen tokens that do not stay: each prediction sees everything else.

    The mask is the tokenizer's, whose special tokens are never chosen; without one, the mask's id
    comes after those of the data. The last token of a window is not read.
    """

    rate: float = 0.15
    masked: float = 0.8
    random: float = 0.1
    static: bool = False

    families = ("encoder",)
    same_vocab = True  # the mask's id may come after the data's
    forms = ("text",)
    by_position = True
    fills = True
    output = "masked_lm"

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise UserError(f"masked_lm: rate={self.rate} must be between 0 and 1")
        if min(self.masked, self.random) < 0 or self.masked + self.random > 1:
            raise UserError(
                f"masked_lm: masked={self.masked} and random={self.random} must be shares of 1"
            )

    def added(self, dataset: Dataset) -> tuple[str, ...]:
        return (MASK,) if dataset.special.mask is None else ()

    def shown(self, examples: Examples, dataset: Dataset, rng: Rng) -> np.ndarray:
        """Returns the tokens that stay, so that a token in view may be right."""
        draws = self._draws(examples, rng)
        chosen_BT = self._chosen(examples, dataset, draws).predicted_BT
        return chosen_BT & (draws.random(chosen_BT.shape) >= self.masked + self.random)

    def prepare(self, examples: Examples, dataset: Dataset, rng: Rng) -> Batch:
        draws = self._draws(examples, rng)
        labels_BT, valid_BT, chosen_BT = self._chosen(examples, dataset, draws)
        shape = labels_BT.shape
        fate_BT = draws.random(shape)
        any_BT = draws.integers(0, dataset.vocab, shape, np.int32)
        mask = dataset.vocab if dataset.special.mask is None else dataset.special.mask
        tokens_BT = np.where(fate_BT < self.masked + self.random, any_BT, labels_BT)
        tokens_BT = np.where(fate_BT < self.masked, np.int32(mask), tokens_BT)
        tokens_BT = np.where(chosen_BT, tokens_BT, labels_BT)
        inputs = {"tokens_BT": tokens_BT, "valid_BT": valid_BT}
        return Batch(inputs, labels_BT, chosen_BT.astype(np.float32))

    def predicted(self, examples: Examples, dataset: Dataset, rng: Rng) -> Targets:
        return self._chosen(examples, dataset, self._draws(examples, rng))

    def read(self, reader: Reader, text: str | None) -> Prompt:
        ids, places = reader.with_marks(text_given(text), lambda _: reader.mask)
        labels = [-1 if place in places else id_ for place, id_ in enumerate(ids)]
        return Prompt(ids, places=places, labels=labels)

    def filled(
        self, reader: Reader, prompt: Prompt, output: Any, top: int
    ) -> list[list[dict[str, Any]]]:
        masks = []
        for p_V in softmax(np.asarray(output, np.float32))[list(prompt.places or ())]:
            best = np.argsort(-p_V, kind="stable")[:top].tolist()
            masks.append(
                [{"token": reader.name(i), "id": i, "probability": float(p_V[i])} for i in best]
            )
        return masks

    def _draws(self, examples: Examples, rng: Rng) -> Any:
        if not self.static:
            return rng
        assert examples.rows is not None
        return _ByRow(examples.rows)

    def _chosen(self, examples: Examples, dataset: Dataset, draws: Any) -> Targets:
        rows = without_last(text_rows(examples, dataset))
        chosen_BT = rows.predicted_BT & (draws.random(rows.tokens_BT.shape) < self.rate)
        if dataset.special.mask is not None:
            ids = [id_ for id_ in dataset.special if id_ not in (None, dataset.special.unk)]
            chosen_BT &= ~np.isin(rows.tokens_BT, ids)
        return rows._replace(predicted_BT=chosen_BT)


class _ByRow:
    """The two draws of a NumPy generator that masking needs, as functions of the row's number."""

    def __init__(self, row_B: np.ndarray):
        self.draws = Draws(hashed(key_of(0, "masked"), row_B))

    def random(self, shape: tuple[int, int]) -> np.ndarray:
        return self.draws.uniform(shape[1:])

    def integers(self, low: int, high: int, shape: tuple[int, int], _: Any) -> np.ndarray:
        return self.draws.integers(low, high, shape[1:])
