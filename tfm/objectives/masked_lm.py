"""Predict tokens that are hidden, with both sides in view.  BERT, Devlin et al. 2019, §3.1."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from jax import Array
from jax import numpy as jnp

from tfm.config.names import UserError
from tfm.data.dataset import Dataset, Examples
from tfm.data.draws import Draws, hashed, key_of
from tfm.data.reader import MASK, Prompt, Reader
from tfm.evaluate.metric import HIGH, LOW, Metric
from tfm.objectives.base import (
    COUNTED,
    Batch,
    Losses,
    Objective,
    Rng,
    Sums,
    Targets,
    cross_entropy,
    softmax,
    text_given,
    text_rows,
    without_last,
)
from tfm.objectives.classify import Pair


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

    def _rows(self, examples: Examples, dataset: Dataset) -> Targets:
        return without_last(text_rows(examples, dataset))

    def _chosen(self, examples: Examples, dataset: Dataset, draws: Any) -> Targets:
        rows = self._rows(examples, dataset)
        chosen_BT = rows.predicted_BT & (draws.random(rows.tokens_BT.shape) < self.rate)
        if dataset.special.mask is not None:
            ids = [id_ for id_ in dataset.special if id_ not in (None, dataset.special.unk)]
            chosen_BT &= ~np.isin(rows.tokens_BT, ids)
        return rows._replace(predicted_BT=chosen_BT)


PAIR = (
    Metric("pair_loss", LOW, unit="nats"),
    Metric("pair_accuracy", HIGH, most=1.0, headline=True),
)


@dataclasses.dataclass(frozen=True)
class Bert(MaskedLM):
    """Predicts hidden tokens of two sentences and their class: whether the second follows the
    first. The loss is the mean of both losses.  Devlin et al. 2019, §3.1.

    The class is the label of the first token, which is never hidden, and neither is a separator;
    it weighs as much as all hidden tokens of a batch divided by its examples. Metrics named pair_…
    are of the class, accuracy and perplexity of the hidden tokens.
    """

    forms = ("labels",)
    by_position = False
    chooses = False

    @property
    def head(self) -> Mapping[str, Any]:
        return {"outputs": ("masked_lm", "pair"), "types": 2}

    def refuses(self, dataset: Dataset) -> str | None:
        return Objective.refuses(self, dataset) or Pair().refuses(dataset)

    def sizes(self, dataset: Dataset) -> dict[str, int]:
        return {**super().sizes(dataset), "classes": dataset.classes or 0}

    def _rows(self, examples: Examples, dataset: Dataset) -> Targets:
        rows = text_rows(examples, dataset)
        hideable_BT = rows.predicted_BT & (rows.tokens_BT != dataset.special.sep)
        return rows._replace(predicted_BT=hideable_BT & (np.arange(rows.tokens_BT.shape[1]) > 0))

    def prepare(self, examples: Examples, dataset: Dataset, rng: Rng) -> Batch:
        batch, pair = (
            super().prepare(examples, dataset, rng),
            Pair().prepare(examples, dataset, rng),
        )
        labels_BT, weights_BT = np.array(batch.labels), np.array(batch.weights)
        labels_BT[:, 0] = pair.labels
        weights_BT[:, 0] = max(weights_BT.sum(), 1) / len(weights_BT)
        inputs = {**batch.inputs, "types_BT": pair.inputs["types_BT"]}
        return Batch(inputs, labels_BT, weights_BT)

    def loss(self, logits: Any, batch: Batch, label_smoothing: Array | None = None) -> Losses:
        labels_BT, weights_BT = jnp.asarray(batch.labels), jnp.asarray(batch.weights)
        weight_B = weights_BT[:, 0]
        first = batch.replace(labels=labels_BT[:, 0], weights=jnp.sign(weight_B))
        rest = batch.replace(weights=weights_BT.at[:, 0].set(0))
        pair = cross_entropy(logits["pair"], first, label_smoothing)
        masked = cross_entropy(logits["masked_lm"], rest, label_smoothing)
        sums = {name: x + weight_B * pair[name] for name, x in masked.items()}
        sums |= {f"pair_{name}": pair[name] for name in COUNTED}
        return sums | {f"masked_{name}": masked[name] for name in COUNTED}

    def declares(self, dataset: Dataset | None = None) -> tuple[Metric, ...]:
        return (*super().declares(dataset), *PAIR)

    def metrics(self, sums: Sums, dataset: Dataset) -> dict[str, float]:
        masked, pair = ({x: sums[f"{part}_{x}"] for x in COUNTED} for part in ("masked", "pair"))
        metrics, of_pairs = super().metrics(masked, dataset), super().metrics(pair, dataset)
        return {
            **metrics,
            "loss": (metrics["loss"] + of_pairs["loss"]) / 2,
            "exact": float(np.mean(sums["correct"] == sums["count"])),
            "pair_loss": of_pairs["loss"],
            "pair_accuracy": of_pairs["accuracy"],
        }


class _ByRow:
    """The two draws of a NumPy generator that masking needs, as functions of the row's number."""

    def __init__(self, row_B: np.ndarray):
        self.draws = Draws(hashed(key_of(0, "masked"), row_B))

    def random(self, shape: tuple[int, int]) -> np.ndarray:
        return self.draws.uniform(shape[1:])

    def integers(self, low: int, high: int, shape: tuple[int, int], _: Any) -> np.ndarray:
        return self.draws.integers(low, high, shape[1:])
