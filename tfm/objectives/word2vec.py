"""Predict a word from a word near it, or from all near it.  Mikolov et al. 2013a, 2013b."""

import dataclasses
import functools
from typing import Any

import numpy as np
from jax import Array
from jax import numpy as jnp

from tfm.config.names import UserError, pick
from tfm.data.dataset import Dataset, Examples, Ragged
from tfm.data.reader import Prompt, Reader
from tfm.models.spec import KINDS
from tfm.objectives.base import (
    Batch,
    Losses,
    Objective,
    Rng,
    Targets,
    cross_entropy,
    int32,
    text_rows,
)
from tfm.ops.fast import softplus
from tfm.ops.masks import near

COUNTED_ROWS = 2000  # of data that do not know their counts


@dataclasses.dataclass(frozen=True)
class Word2Vec(Objective):
    """Predicts words from words at a distance of at most `window`; for each centre word the
    distance is drawn from 1 to `window`, as in word2vec.c. With `subsample`, t, a word of frequency
    f is dropped from the text with probability 1 − √(t/f) − t/f, before distances are counted.

    With `negatives`, k, every word of an example is the centre once, and each true pair is compared
    with k words of noise, drawn from the unigram distribution to the power 3/4. All pairs of an
    example share `pool` words of noise with weight k / pool: the expectation is the same (Ji et al.
    2016, §3.2), and all logits of an example are one matrix product.

    Without `negatives`, each example has one centre word, and the softmax is over the vocabulary.

    Hidden is the word that is predicted; a word that occurs twice may predict itself.
    """

    kind: str = "skip_gram"
    window: int = 5
    negatives: int | None = None
    subsample: float | None = None
    pool: int = 64

    families = ("word2vec",)
    forms = ("text",)

    def __post_init__(self) -> None:
        pick(KINDS, self.kind, "kind")
        for option in ("window", "negatives", "pool"):
            value = getattr(self, option)
            if value is not None and value < 1:
                raise UserError(f"word2vec: {option}={value} must be at least 1")
        if self.subsample is not None and not 0 < self.subsample < 1:
            raise UserError(f"word2vec: subsample={self.subsample} must be between 0 and 1")

    @property
    def head(self) -> dict[str, Any]:
        return {"kind": self.kind}

    @property
    def smooths(self) -> bool:  # type: ignore[override]
        return self.negatives is None

    chooses = smooths

    def prepare(self, examples: Examples, dataset: Dataset, rng: Rng) -> Batch:
        if self.subsample is not None:
            tokens, scored = examples.tokens, examples.scored
            kept = rng.random(len(tokens.ids)) < kept_share(dataset, self.subsample)[tokens.ids]
            row = np.repeat(np.arange(len(tokens)), tokens.lengths)
            tokens = Ragged(tokens.ids[kept], np.bincount(row[kept], minlength=len(tokens)))
            scored = None if scored is None else scored[kept]
            examples = dataclasses.replace(examples, tokens=tokens, scored=scored)
        rows = text_rows(examples, dataset)
        if self.negatives is None:
            return self._one(rows, examples.tokens.lengths, rng)
        return self._every(rows, dataset, rng)

    def read(self, reader: Reader, text: str | None) -> Prompt:
        raise UserError(
            "word2vec reads no text: its model has no layers, and a word's vector is looked up; "
            "tfm neighbors compares vectors"
        )

    def _every(self, rows: Targets, dataset: Dataset, rng: Rng) -> Batch:
        """Returns a batch in which every word is the centre. Labels are window sizes; weights are
        the numbers of pairs, or 1 for the whole context."""
        words_BT, valid_BT, scored_BT = rows
        count, length = words_BT.shape
        reach_BT = rng.integers(1, self.window + 1, (count, length), np.int32)
        reach_BT *= scored_BT
        below_BT = np.pad(np.cumsum(valid_BT, 1), ((0, 0), (1, 0)))
        place_T = np.arange(length)
        first_BT = np.maximum(place_T - reach_BT, 0)
        last_BT = np.minimum(place_T + reach_BT, length - 1) + 1
        pairs_BT = np.take_along_axis(below_BT, last_BT, 1)
        pairs_BT = pairs_BT - np.take_along_axis(below_BT, first_BT, 1) - scored_BT
        pairs_BT = np.where(scored_BT, pairs_BT, 0)
        weights_BT = pairs_BT if self.kind == "skip_gram" else np.minimum(pairs_BT, 1)
        # A uniform number falls on a word as often as the noise has it.
        noise_V = _noise_sums(dataset)
        noise_BP = np.searchsorted(noise_V, rng.random((count, self.pool)) * noise_V[-1], "right")
        inputs = {
            "words_BC": words_BT,
            "valid_BC": valid_BT,
            "candidates_BN": np.concatenate([words_BT, int32(noise_BP)], 1),
            "reach_BC": reach_BT,
        }
        return Batch(inputs, reach_BT, weights_BT.astype(np.float32))

    def _one(self, rows: Targets, length_B: np.ndarray, rng: Rng) -> Batch:
        """Returns a batch with one centre word for each example."""
        words_BT, _, scored_BT = rows
        count, longest = words_BT.shape
        middle_B1 = rng.integers(0, np.maximum(length_B, 1))[:, None]
        offset_C = np.concatenate([np.arange(-self.window, 0), np.arange(1, self.window + 1)])
        place_BC = middle_B1 + offset_C
        valid_BC = np.abs(offset_C) <= rng.integers(1, self.window + 1, (count, 1))
        valid_BC = valid_BC & (place_BC >= 0) & (place_BC < length_B[:, None])
        if self.kind == "cbow":
            around_BC = np.take_along_axis(words_BT, place_BC % longest, 1)
            inputs, wanted_B1 = {"words_BC": around_BC, "valid_BC": valid_BC}, middle_B1
        else:
            one_B1 = np.argmax(rng.random(valid_BC.shape) * valid_BC, 1)[:, None]
            wanted_B1 = np.take_along_axis(place_BC, one_B1, 1) % longest
            inputs = {"words_BC": np.take_along_axis(words_BT, middle_B1, 1)}
        labels_B = np.take_along_axis(words_BT, wanted_B1, 1)[:, 0]
        weights_B = np.take_along_axis(scored_BT, wanted_B1, 1)[:, 0] & valid_BC.any(1)
        return Batch(inputs, labels_B, weights_B.astype(np.float32))

    def loss(self, logits: Array, batch: Batch, label_smoothing: Array | None = None) -> Losses:
        if self.negatives is None:
            return cross_entropy(logits, batch, label_smoothing)
        return self._sampled(logits, batch)

    def _sampled(self, logits_BCN: Array, batch: Batch) -> dict[str, Array]:
        """Computes −log σ(true) − Σ log σ(−noise) over all pairs.  Mikolov et al. 2013b, eq. 4.

        The first candidates are the words of the row, the others its noise.
        """
        weights_BC, valid_BC = batch.weights, batch.inputs["valid_BC"]
        length = weights_BC.shape[1]
        true_BCC, noise_BCP = logits_BCN[:, :, :length], logits_BCN[:, :, length:]
        share = (self.negatives or 0) / noise_BCP.shape[2]
        if self.kind == "skip_gram":
            pair_BCC = near(batch.labels, valid_BC) & (weights_BC > 0)[:, :, None]
        else:
            pair_BCC = jnp.eye(length, dtype=bool)[None] & (weights_BC > 0)[:, :, None]
        hard_BCC = softplus(-true_BCC) * pair_BCC
        hard_BCP = softplus(noise_BCP) * (share * weights_BC)[:, :, None]
        # Right: the true word is liked better than every word of the noise.
        most_BC1 = jnp.max(noise_BCP, 2, keepdims=True)
        right_BCC = pair_BCC & (true_BCC > most_BC1)
        return {
            "loss": jnp.sum(hard_BCC, (1, 2)) + jnp.sum(hard_BCP, (1, 2)),
            "correct": jnp.sum(right_BCC, (1, 2)).astype(jnp.float32),
            "count": jnp.sum(weights_BC, 1),
        }


def noise(counts_V: Any, power: float = 0.75) -> Any:
    """Raises the unigram distribution to a power.  Mikolov et al. 2013b, §2.2."""
    weight_V = counts_V.astype(np.float32) ** power
    return weight_V / weight_V.sum()


@functools.lru_cache(maxsize=8)
def unigram_counts(dataset: Dataset) -> np.ndarray:
    """Counts each id in the training data if they know it, or in their first rows."""
    if dataset.counts is not None:
        return np.asarray(dataset.counts())
    rows = np.arange(min(len(dataset), COUNTED_ROWS))
    return np.bincount(dataset.take(rows).tokens.ids, minlength=dataset.vocab)


@functools.lru_cache(maxsize=8)
def _noise_sums(dataset: Dataset) -> np.ndarray:
    return np.cumsum(noise(unigram_counts(dataset)).astype(np.float64))


@functools.lru_cache(maxsize=8)
def kept_share(dataset: Dataset, threshold: float) -> np.ndarray:
    """Computes the probability to keep each word, as in word2vec.c: √(t/f) + t/f."""
    counts_V = unigram_counts(dataset)
    ratio_V = threshold * counts_V.sum() / np.maximum(counts_V, 1)
    return np.minimum(np.sqrt(ratio_V) + ratio_V, 1.0)
