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


@dataclasses.dataclass(frozen=True, eq=False)
class Normalizer:
    """Either of two kinds, both of which can be computed tile by tile.

    weights = exp(logits − total(lse)), where lse is the row's log-sum-exp; or, where `each` is
    given, weights = each(logits), one by one, whatever the rest of the row holds.
    """

    total: Callable[[Array], Array] = same
    each: Callable[[Array], Array] | None = None


NORMALIZERS = {
    "softmax": Normalizer(),
    "softmax_zero": Normalizer(total=with_zero),
    "sigmoid": Normalizer(each=jax.nn.sigmoid),  # Ramapuram et al. 2025, without its bias of −log S
}
