"""How a row of logits becomes a row of weights."""

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
    """It declares one of three kinds, by the function that it gives.

    - `total`: weights = exp(logits − total(lse)), where lse is the row's log-sum-exp.
    - `each`: weights = each(logits), every logit by itself.
    - `row`: weights = row(logits) of whole rows BHTS, along the last axis. A hidden logit is
      hugely negative, and must change nothing.

    The first two are computed tile by tile, the third some whole rows at a time. Whatever the
    function gives, a hidden key weighs 0.
    """

    total: Callable[[Array], Array] | None = None
    each: Callable[[Array], Array] | None = None
    row: Callable[[Array], Array] | None = None

    def __post_init__(self) -> None:
        kinds = {name: fn for name, fn in vars(self).items() if fn is not None}
        if len(kinds) != 1 or not all(map(callable, kinds.values())):
            raise UserError(
                "a Normalizer has one function: total= (of the row's log-sum-exp), each= (of every "
                f"logit by itself) or row= (of whole rows); given: {', '.join(kinds) or 'none'}"
            )


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
    return soft + lax.stop_gradient(hard - soft)


def sparsemax(logits_BHTS: Array) -> Array:
    """max(s − τ, 0), with the τ at which the row sums to 1.  Martins & Astudillo 2016, eq. 2."""
    x = _from_greatest(logits_BHTS)
    sums, count = jnp.cumsum(_sorted(x), -1), _count(x)
    inside = x > _last_inside((sums - 1) / count, _sorted(x))
    size = jnp.sum(inside, -1, keepdims=True)
    threshold = (jnp.sum(jnp.where(inside, x, 0), -1, keepdims=True) - 1) / size
    return jnp.where(inside, x - threshold, 0)


def entmax15(logits_BHTS: Array) -> Array:
    """max(s/2 − τ, 0)², with the τ at which the row sums to 1.  Peters et al. 2019, §3.3: entmax
    with α = 1.5, between the softmax (1) and sparsemax (2)."""
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
    """Less the row's maximum, which changes no weight of an entmax, and no lower than −2. From −1
    down a weight is 0; at −1 itself, rounding would decide what belongs to the support."""
    greatest = lax.stop_gradient(jnp.max(logits_BHTS, -1, keepdims=True))
    return jnp.maximum(logits_BHTS - greatest, -2.0)


def _sorted(x: Array) -> Array:
    return jnp.sort(lax.stop_gradient(x), axis=-1, descending=True)


def _count(x: Array) -> Array:
    """1, 2, 3, … along the last axis."""
    return lax.broadcasted_iota(x.dtype, x.shape, x.ndim - 1) + 1


def _last_inside(thresholds: Array, down: Array) -> Array:
    """The threshold of the largest support: the first n logits, of which all lie above their own
    threshold."""
    last = jnp.sum(thresholds < down, -1, keepdims=True) - 1
    return jnp.take_along_axis(thresholds, last, -1)


def relu_sum(logits_BHTS: Array) -> Array:
    """max(s, 0) / Σ max(s, 0); a row without a positive logit looks at nothing."""
    x = jax.nn.relu(logits_BHTS)
    total = jnp.sum(x, -1, keepdims=True)
    return x / jnp.where(total > 0, total, 1.0)


@functools.cache  # the same options give the same entry: nothing is compiled again
def topk(k: int = 8) -> Normalizer:
    """The softmax of the `k` greatest logits, and of those equal to the least of these.  Gupta et
    al. 2021."""
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
