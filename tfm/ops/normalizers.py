"""Normalizers: from a row of logits to a row of weights."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
from jax import Array, lax
from jax import numpy as jnp

from tfm.config.names import UserError


@dataclasses.dataclass(frozen=True, eq=False)
class Normalizer:
    """A normalizer of one of three kinds, depending on which function it defines.

    - `total`: weights = exp(logits − total(lse)), where lse is the row's log-sum-exp.
    - `each`: weights = each(logits), independently for every logit.
    - `row`: weights = row(logits) of whole rows (BHTS), along the last axis. Hidden logits are
      hugely negative and must have no influence.

    The first two run tile by tile, the third on a few whole rows at a time. A hidden key always
    weighs 0.
    """

    total: Callable[[Array], Array] | None = None
    each: Callable[[Array], Array] | None = None
    row: Callable[[Array], Array] | None = None

    def __post_init__(self) -> None:
        kinds = {name: fn for name, fn in vars(self).items() if fn is not None}
        if len(kinds) != 1 or not all(map(callable, kinds.values())):
            raise UserError(
                "a Normalizer has one function: total= (of the row's log-sum-exp), each= (of every "
                f"logit by itself) or row= (of whole rows), not {', '.join(kinds) or 'none'}"
            )


def same(lse_BHT: Array) -> Array:
    """Computes the softmax, exp(s) / Σ exp(s)."""
    return lse_BHT


def with_zero(lse_BHT: Array) -> Array:
    """Computes exp(s) / (1 + Σ exp(s)); a row may attend to nothing.  Miller 2023, off by one."""
    return jnp.logaddexp(lse_BHT, 0.0)


def identity(logits: Array) -> Array:
    """Returns the logits; with the score `static`, this is a linear layer over positions."""
    return logits


def hardest(logits_BHTS: Array) -> Array:
    """Returns 1 for the greatest logit of a row, 0 for the others, with the softmax's gradient.

    Hard attention, Xu et al. 2015; straight-through, Bengio et al. 2013.
    """
    soft = jax.nn.softmax(logits_BHTS)
    hard = jax.nn.one_hot(jnp.argmax(logits_BHTS, -1), logits_BHTS.shape[-1], dtype=soft.dtype)
    return soft + lax.stop_gradient(hard - soft)


def sparsemax(logits_BHTS: Array) -> Array:
    """Computes max(s − τ, 0), where τ makes the row sum to 1.  Martins & Astudillo 2016, eq. 2."""
    x = _from_greatest(logits_BHTS)
    sums, count = jnp.cumsum(_sorted(x), -1), _count(x)
    inside = x > _last_inside((sums - 1) / count, _sorted(x))
    size = jnp.sum(inside, -1, keepdims=True)
    threshold = (jnp.sum(jnp.where(inside, x, 0), -1, keepdims=True) - 1) / size
    return jnp.where(inside, x - threshold, 0)


def entmax15(logits_BHTS: Array) -> Array:
    """Computes max(s/2 − τ, 0)², where τ makes the row sum to 1.  Peters et al. 2019, §3.3.

    This is entmax with α = 1.5, between the softmax (1) and sparsemax (2).
    """
    x = _from_greatest(logits_BHTS / 2)
    down, count = _sorted(x), _count(x)
    mean = jnp.cumsum(down, -1) / count
    spread = jnp.maximum(jnp.cumsum(down**2, -1) - count * mean**2, 0)
    inside = x > _last_inside(mean - jnp.sqrt(jnp.maximum(1 - spread, 0) / count), down)
    size = jnp.sum(inside, -1, keepdims=True)
    mean = jnp.sum(jnp.where(inside, x, 0), -1, keepdims=True) / size
    spread = jnp.sum(jnp.where(inside, x - mean, 0) ** 2, -1, keepdims=True)
    threshold = mean - jnp.sqrt(jnp.maximum(1 - spread, 1e-12) / size)
    return jnp.where(inside, x - threshold, 0) ** 2


def _from_greatest(logits_BHTS: Array) -> Array:
    """Subtracts the row's maximum, which changes no weight, and clips at −2. Below −1 a weight is
    0; clipping at −1 itself would let rounding decide the support."""
    greatest = lax.stop_gradient(jnp.max(logits_BHTS, -1, keepdims=True))
    return jnp.maximum(logits_BHTS - greatest, -2.0)


def _sorted(x: Array) -> Array:
    return jnp.sort(lax.stop_gradient(x), axis=-1, descending=True)


def _count(x: Array) -> Array:
    """Returns 1, 2, 3, … along the last axis."""
    return lax.broadcasted_iota(x.dtype, x.shape, x.ndim - 1) + 1


def _last_inside(thresholds: Array, down: Array) -> Array:
    """Returns the threshold of the largest support: the first n sorted logits, all of which lie
    above their threshold."""
    last = jnp.sum(thresholds < down, -1, keepdims=True) - 1
    return jnp.take_along_axis(thresholds, last, -1)


def relu_sum(logits_BHTS: Array) -> Array:
    """Computes max(s, 0) / Σ max(s, 0); a row without a positive logit attends to nothing."""
    x = jax.nn.relu(logits_BHTS)
    total = jnp.sum(x, -1, keepdims=True)
    return x / jnp.where(total > 0, total, 1.0)


@functools.cache  # equal options give the same object, so nothing is compiled again
def topk(k: int = 8) -> Normalizer:
    """Computes the softmax of the `k` greatest logits, ties included.  Gupta et al. 2021."""
    if k < 1:
        raise UserError(f"topk: k={k} must be at least 1")

    def row(logits_BHTS: Array) -> Array:
        fixed = lax.stop_gradient(logits_BHTS)
        least = lax.top_k(fixed, min(k, fixed.shape[-1]))[0][..., -1:]
        return jax.nn.softmax(jnp.where(fixed >= least, logits_BHTS, -jnp.inf))

    return Normalizer(row=row)


NORMALIZERS: dict[str, Any] = {
    "softmax": Normalizer(total=same),
    "softmax_zero": Normalizer(total=with_zero),
    "sigmoid": Normalizer(each=jax.nn.sigmoid),  # Ramapuram et al. 2025, without its bias of −log S
    "relu": Normalizer(each=jax.nn.relu),  # Shen et al. 2023, without its division by the length
    "none": Normalizer(each=identity),
    "hard": Normalizer(row=hardest),
    "sparsemax": Normalizer(row=sparsemax),
    "entmax15": Normalizer(row=entmax15),
    "relu_sum": Normalizer(row=relu_sum),
    "topk": topk,
}
