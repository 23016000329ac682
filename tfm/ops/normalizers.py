"""How a row of logits becomes a row of weights."""

import dataclasses
from collections.abc import Callable

import jax
from jax import Array
from jax import numpy as jnp


def same(lse_BHT: Array) -> Array:
    """exp(s) / Σ exp(s): the softmax."""
    return lse_BHT


def with_zero(lse_BHT: Array) -> Array:
    """exp(s) / (1 + Σ exp(s)): a row may look at nothing.  Miller 2023, "off by one"."""
    return jnp.logaddexp(lse_BHT, 0.0)


def identity(logits: Array) -> Array:
    """The logits themselves: with the score `static`, a linear layer over positions."""
    return logits


def hardest(logits_BHTS: Array) -> Array:
    """1 for the greatest logit of a row, 0 for the others; the gradient is the softmax's.

    Hard attention, Xu et al. 2015; straight-through, Bengio et al. 2013.
    """
    soft = jax.nn.softmax(logits_BHTS)
    hard = jax.nn.one_hot(jnp.argmax(logits_BHTS, -1), logits_BHTS.shape[-1], dtype=soft.dtype)
    return soft + jax.lax.stop_gradient(hard - soft)


@dataclasses.dataclass(frozen=True, eq=False)
class Normalizer:
    """One of three kinds.

    weights = exp(logits − total(lse)), where lse is the row's log-sum-exp; or, where `each` is
    given, weights = each(logits), one by one; or, where `row` is given, weights = row(logits) of
    whole rows, in which hidden logits are hugely negative. The first two kinds are computed tile
    by tile, the third needs the implementation `reference`.
    """

    total: Callable[[Array], Array] = same
    each: Callable[[Array], Array] | None = None
    row: Callable[[Array], Array] | None = None


NORMALIZERS = {
    "softmax": Normalizer(),
    "softmax_zero": Normalizer(total=with_zero),
    "sigmoid": Normalizer(each=jax.nn.sigmoid),  # Ramapuram et al. 2025, without its bias of −log S
    "relu": Normalizer(each=jax.nn.relu),  # Shen et al. 2023, without its division by the length
    "none": Normalizer(each=identity),
    "hard": Normalizer(row=hardest),
}
