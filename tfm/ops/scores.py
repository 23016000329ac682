"""Scores: the similarity of a query and a key.

A score maps a tile of queries and a tile of keys to one number for each head and pair. It may have
parameters, whose names end in their shape, and may request the positions of its rows and columns
(`q_pos_BT`, `k_pos_BS`). The number of a pair must not depend on the other pairs in the tile.
Parameters arrive in float32; a score casts those that it multiplies with half-precision vectors.
A new score is a function here, or in your own config file, and a line in `SCORES`.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping

import jax
from jax import Array
from jax import numpy as jnp
from jax.nn import initializers
from jax.typing import DTypeLike

NAN = math.nan  # the score at a position beyond a parameter's reach


@dataclasses.dataclass(frozen=True, eq=False)
class Score:
    """A score function and the initializers of its parameters."""

    fn: Callable[..., Array]
    params: Mapping[str, initializers.Initializer] = dataclasses.field(default_factory=dict)
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)  # of additional axes
    cacheable: bool = True  # a later query scores an earlier key as it did before


def dot(q_BTHK: Array, k_BSHK: Array, **at) -> Array:
    """Computes q · k.  Luong et al. 2015, §3.1."""
    return jnp.einsum("BTHK,BSHK->BHTS", q_BTHK, k_BSHK, preferred_element_type=wide(q_BTHK))


def scaled_dot(q_BTHK: Array, k_BSHK: Array, **at) -> Array:
    """Computes q · k / √K.  Vaswani et al. 2017, eq. 1."""
    return dot(q_BTHK, k_BSHK) * q_BTHK.shape[-1] ** -0.5


def additive(q_BTHK: Array, k_BSHK: Array, *, w_HK: Array, **at) -> Array:
    """Computes w · tanh(q + k).  Bahdanau et al. 2015, A.1.2."""
    hidden_BTSHK = jnp.tanh(q_BTHK[:, :, None] + k_BSHK[:, None])
    w_HK = w_HK.astype(q_BTHK.dtype)
    return jnp.einsum("BTSHK,HK->BHTS", hidden_BTSHK, w_HK, preferred_element_type=wide(q_BTHK))


def bilinear(q_BTHK: Array, k_BSHJ: Array, *, w_HKJ: Array, **at) -> Array:
    """Computes qᵀ W k.  Luong et al. 2015, §3.1, "general"."""
    return dot(jnp.einsum("BTHK,HKJ->BTHJ", q_BTHK, w_HKJ.astype(q_BTHK.dtype)), k_BSHJ)


def cosine(q_BTHK: Array, k_BSHK: Array, *, log_scale_H: Array, **at) -> Array:
    """Computes exp(log_scale) · cos(q, k), with a scale learned by each head.  Liu et al. 2022."""
    cos_BHTS = dot(_unit(q_BTHK), _unit(k_BSHK))
    return cos_BHTS * jnp.exp(log_scale_H.astype(cos_BHTS.dtype))[None, :, None, None]


def distance(q_BTHK: Array, k_BSHK: Array, **at) -> Array:
    """Computes −‖q − k‖² / √K.  Kim et al. 2021, "L2 attention"."""
    q2_BHT1 = _square(q_BTHK).swapaxes(1, 2)[..., None]
    k2_BH1S = _square(k_BSHK).swapaxes(1, 2)[:, :, None]
    return (2 * dot(q_BTHK, k_BSHK) - q2_BHT1 - k2_BH1S) * q_BTHK.shape[-1] ** -0.5


def linear(q_BTHK: Array, k_BSHK: Array, *, w_HKM: Array, k_pos_BS: Array, **at) -> Array:
    """Computes (q W)_s from the query alone, without keys.  Luong et al. 2015, §3.1, "location"."""
    w_MHK = jnp.moveaxis(w_HKM, -1, 0)
    w_BSHK = jnp.take(w_MHK, k_pos_BS, axis=0, mode="fill", fill_value=NAN).astype(q_BTHK.dtype)
    return dot(q_BTHK, jnp.broadcast_to(w_BSHK, (q_BTHK.shape[0], *w_BSHK.shape[1:])))


def static(
    q_BTHK: Array, k_BSHK: Array, *, w_HLM: Array, q_pos_BT: Array, k_pos_BS: Array, **at
) -> Array:
    """Returns W_ts, which depends on positions alone.  Tay et al. 2021, "random Synthesizer"."""
    pairs = jnp.asarray(w_HLM).at[:, q_pos_BT[:, :, None], k_pos_BS[:, None]]
    return pairs.get(mode="fill", fill_value=NAN).swapaxes(0, 1)


def uniform(q_BTHK: Array, k_BSHK: Array, **at) -> Array:
    """Returns 0 for every pair; under a softmax this averages the visible values."""
    batch, rows, heads, _ = q_BTHK.shape
    return jnp.zeros((batch, heads, rows, k_BSHK.shape[1]), wide(q_BTHK))


def wide(x: Array) -> DTypeLike:
    """Returns the dtype for sums: float32, or that of x if it is wider."""
    return jnp.promote_types(x.dtype, jnp.float32)


def _square(x_BTHK: Array) -> Array:
    return jnp.sum(jnp.square(x_BTHK.astype(wide(x_BTHK))), axis=-1)


def _unit(x_BTHK: Array) -> Array:
    unit = x_BTHK.astype(wide(x_BTHK)) * jax.lax.rsqrt(_square(x_BTHK)[..., None] + 1e-12)
    return unit.astype(x_BTHK.dtype)


_fan_in_last = initializers.lecun_normal(in_axis=-1, out_axis=-2)
_per_head = initializers.lecun_normal(batch_axis=0)

SCORES = {
    "dot": Score(dot),
    "scaled_dot": Score(scaled_dot),
    "additive": Score(additive, params={"w_HK": _fan_in_last}),
    "bilinear": Score(bilinear, params={"w_HKJ": _per_head}),
    "cosine": Score(cosine, params={"log_scale_H": initializers.constant(math.log(10.0))}),
    "distance": Score(distance),
    "linear": Score(linear, params={"w_HKM": _per_head}),
    "uniform": Score(uniform),
    "static": Score(static, params={"w_HLM": initializers.normal(1.0)}),
}
