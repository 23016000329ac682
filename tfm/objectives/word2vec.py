"""What Word2Vec learns from: losses, noise, and which frequent words to skip."""

from collections.abc import Callable, Sequence

import jax
from jax import Array
from jax import numpy as jnp

from tfm.names import pick


def softmax_loss(logits_BV: Array, word_B: Array) -> Array:
    """−log p(word) for each example, over the whole vocabulary.  Mikolov et al. 2013b, eq. 2."""
    own_B1 = jnp.take_along_axis(logits_BV, word_B[:, None], axis=1)
    return jax.nn.logsumexp(logits_BV, axis=1) - own_B1[:, 0]


def negative_sampling_loss(logits_BN: Array) -> Array:
    """−log σ(true) − Σ log σ(−noise) for each example.  Mikolov et al. 2013b, eq. 4.

    The first candidate is the true word, the others were sampled from the noise.
    """
    true_B, noise_BN = logits_BN[:, 0], logits_BN[:, 1:]
    return -jax.nn.log_sigmoid(true_B) - jnp.sum(jax.nn.log_sigmoid(-noise_BN), axis=1)


def noise(counts_V: Array, power: float = 0.75) -> Array:
    """The unigram distribution, raised to a power and normalised.  Mikolov et al. 2013b, §2.2."""
    weight_V = counts_V.astype(jnp.float32) ** power
    return weight_V / jnp.sum(weight_V)


def sample(key: Array, noise_V: Array, shape: Sequence[int]) -> Array:
    """Words drawn from the noise; a true word may be among them, as in the paper's equation."""
    return jax.random.choice(key, noise_V.shape[0], tuple(shape), p=noise_V)


# How often a word of frequency f is kept, of ratio = t / f.
KEEP: dict[str, Callable[[Array], Array]] = {
    "paper": jnp.sqrt,  # dropped with 1 − √(t/f).  Mikolov et al. 2013b, eq. 5
    "code": lambda ratio: jnp.sqrt(ratio) + ratio,  # word2vec.c, which drops fewer
}


def keep_probability(counts_V: Array, threshold: float = 1e-5, form: str = "paper") -> Array:
    """How often each word is kept, at most 1; words rarer than the threshold always are."""
    frequency_V = counts_V / jnp.sum(counts_V)
    return jnp.minimum(pick(KEEP, form, "form")(threshold / frequency_V), 1.0)


def subsample(key: Array, words_T: Array, keep_V: Array) -> Array:
    """Which words of a text to keep, as booleans."""
    return jax.random.uniform(key, words_T.shape) < keep_V[words_T]
