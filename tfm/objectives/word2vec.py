"""Predict a word from a word near it, or from all near it.  Mikolov et al. 2013a, 2013b."""

import dataclasses
from typing import Any

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp

from tfm.data.dataset import Dataset, Examples
from tfm.models.spec import KINDS
from tfm.names import UserError, pick
from tfm.objectives.base import Batch, Objective, int32


@dataclasses.dataclass(frozen=True)
class Word2Vec(Objective):
    """One word in the middle of each example, and those at a distance of at most `window`; how far
    is drawn from 1 to `window`, as in word2vec.c.

    With `negatives`, the true word is told from that many others, drawn from the noise of the
    words in the batch; without, from the whole vocabulary.
    """

    kind: str = "skip_gram"
    window: int = 5
    negatives: int | None = None

    families = ("word2vec",)
    forms = ("text",)

    def __post_init__(self) -> None:
        pick(KINDS, self.kind, "kind")
        for option in ("window", "negatives"):
            value = getattr(self, option)
            if value is not None and value < 1:
                raise UserError(f"word2vec: {option}={value} must be at least 1")

    @property
    def head(self) -> dict[str, Any]:
        return {"kind": self.kind}

    @property
    def smooths(self) -> bool:  # type: ignore[override]
        return self.negatives is None

    def prepare(self, examples: Examples, dataset: Dataset, rng: np.random.Generator) -> Batch:
        tokens = examples.tokens
        tokens_BT = int32(tokens.padded(dataset.max_length))
        count = len(tokens_BT)
        middle_B1 = rng.integers(0, tokens.lengths)[:, None]
        offset_C = np.concatenate([np.arange(-self.window, 0), np.arange(1, self.window + 1)])
        place_BC = middle_B1 + offset_C
        valid_BC = np.abs(offset_C) <= rng.integers(1, self.window + 1, (count, 1))
        valid_BC = valid_BC & (place_BC >= 0) & (place_BC < tokens.lengths[:, None])
        if self.kind == "cbow":
            around_BC = np.take_along_axis(tokens_BT, place_BC % dataset.max_length, 1)
            inputs, wanted_B1 = {"words_BC": around_BC, "valid_BC": valid_BC}, middle_B1
        else:
            one_B1 = np.argmax(rng.random(valid_BC.shape) * valid_BC, 1)[:, None]
            wanted_B1 = np.take_along_axis(place_BC, one_B1, 1)
            inputs = {"words_BC": np.take_along_axis(tokens_BT, middle_B1, 1)}
        labels_B, weights_B = np.take_along_axis(tokens_BT, wanted_B1, 1)[:, 0], np.ones(count)
        if examples.scored is not None:
            scored_BT = tokens.padded(dataset.max_length, examples.scored)
            weights_B = np.take_along_axis(scored_BT, wanted_B1, 1)[:, 0]
        if self.negatives is not None:
            noise_V = noise(np.bincount(tokens.ids, minlength=dataset.vocab)).astype(np.float64)
            shape = count, self.negatives
            others_BN = rng.choice(dataset.vocab, shape, p=noise_V / noise_V.sum())
            inputs["candidates_BN"] = np.concatenate([labels_B[:, None], int32(others_BN)], 1)
            labels_B = np.zeros_like(labels_B)
        return Batch(inputs, labels_B, weights_B.astype(np.float32))

    def loss(
        self, logits: Array, batch: Batch, label_smoothing: Array | None = None
    ) -> dict[str, Array]:
        if self.negatives is None:
            return super().loss(logits, batch, label_smoothing)
        correct = (jnp.argmax(logits, -1) == 0).astype(jnp.float32)
        out = {"loss": negative_sampling_loss(logits), "correct": correct, "count": 1.0}
        return {name: x * batch.weights for name, x in out.items()}


def negative_sampling_loss(logits_BN: Array) -> Array:
    """−log σ(true) − Σ log σ(−noise) for each example.  Mikolov et al. 2013b, eq. 4.

    The first candidate is the true word, the others were sampled from the noise.
    """
    true_B, noise_BN = logits_BN[:, 0], logits_BN[:, 1:]
    return -jax.nn.log_sigmoid(true_B) - jnp.sum(jax.nn.log_sigmoid(-noise_BN), axis=1)


def noise(counts_V: Any, power: float = 0.75) -> Any:
    """The unigram distribution, raised to a power and normalised.  Mikolov et al. 2013b, §2.2."""
    weight_V = counts_V.astype(np.float32) ** power
    return weight_V / weight_V.sum()
