"""The whole matrix at once: for reading, testing, looking at weights, and short sequences."""

import functools
from collections.abc import Callable

import jax
from jax import Array
from jax import numpy as jnp

from tfm.ops import dropout as drop
from tfm.ops.normalizers import Normalizer
from tfm.ops.products import sum_last
from tfm.ops.tiles import FLOOR, HIDDEN, Logits, Plane, mix, tile_bias, tile_logits


def reference(
    q_BTHK: Array, k_BSGK: Array, v_BSGE: Array, logits: Logits, plane: Plane, norm: Normalizer
) -> tuple[Array, Array]:
    """Outputs and weights."""
    rows_T = jnp.arange(q_BTHK.shape[1])
    return attend_rows(q_BTHK, k_BSGK, v_BSGE, logits, plane, norm, rows_T)


def stages(
    q_BTHK: Array, k_BSGK: Array, v_BSGE: Array, logits: Logits, plane: Plane, norm: Normalizer
) -> tuple[Array, dict[str, Array]]:
    """Outputs, and each step from the score to the weights by its name."""
    out_BTHE, weights_BHTS = reference(q_BTHK, k_BSGK, v_BSGE, logits, plane, norm)
    at = plane.at(jnp.arange(q_BTHK.shape[1]), jnp.arange(k_BSGK.shape[1]))
    found = {
        "score_BHTS": tile_logits(Logits(logits.score, None, None), q_BTHK, k_BSGK, at),
        "logits_BHTS": tile_logits(logits, q_BTHK, k_BSGK, at),
        "visible_BHTS": jnp.broadcast_to(plane.mask.visible(at), weights_BHTS.shape),
        "weights_BHTS": weights_BHTS,
    }
    if logits.bias is not None:
        found["bias_BHTS"] = tile_bias(logits.bias, at, weights_BHTS.shape)
    return out_BTHE, found


def attend_rows(
    q_BTHK: Array,
    k_BSGK: Array,
    v_BSGE: Array,
    logits: Logits,
    plane: Plane,
    norm: Normalizer,
    rows_T: Array,
) -> tuple[Array, Array]:
    """Outputs and weights of the queries that stand at `rows_T`, over all keys."""
    cols_S = jnp.arange(k_BSGK.shape[1])
    at = plane.at(rows_T, cols_S)
    weights = normalize(norm, tile_logits(logits, q_BTHK, k_BSGK, at), plane.mask.visible(at))
    if plane.dropped is not None:
        weights = weights * drop.keep(plane.dropped, rows_T, cols_S)
    return mix(weights, v_BSGE).astype(v_BSGE.dtype), weights


def normalize(norm: Normalizer, logits_BHTS: Array, visible_BHTS: Array) -> Array:
    """Weights of whole rows. A hidden pair weighs nothing, in a row with nothing visible too."""
    if norm.each is not None:
        return jnp.where(visible_BHTS, norm.each(logits_BHTS), 0.0)
    shown = jnp.where(visible_BHTS, logits_BHTS, HIDDEN)
    if norm.row is not None:
        # A row with nothing visible is given as zeros, so that no gradient of it is NaN.
        some = jnp.any(visible_BHTS, axis=-1, keepdims=True)
        return jnp.where(visible_BHTS, norm.row(jnp.where(some, shown, 0.0)), 0.0)
    assert norm.total is not None
    return _by_total(norm.total, shown)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _by_total(total: Callable[[Array], Array], logits_BHTS: Array) -> Array:
    """exp(logits − total(lse)), with one exponential for each pair."""
    return _by_total_forward(total, logits_BHTS)[0]


def _by_total_forward(
    total: Callable[[Array], Array], logits_BHTS: Array
) -> tuple[Array, tuple[Array, Array]]:
    most = jnp.max(logits_BHTS, axis=-1, keepdims=True, initial=FLOOR)
    exp_BHTS = jnp.exp(logits_BHTS - most)
    sum_BHT1 = sum_last(exp_BHTS)
    lse_BHT1 = most + jnp.log(jnp.where(sum_BHT1 > 0, sum_BHT1, 1.0))
    weights_BHTS = exp_BHTS * jnp.exp(most - total(lse_BHT1))
    return weights_BHTS, (weights_BHTS, lse_BHT1)


def _by_total_backward(
    total: Callable[[Array], Array], saved: tuple[Array, Array], d_weights_BHTS: Array
) -> tuple[Array]:
    """With w = exp(s − f(lse)): ds = w (dw − softmax/w · f′(lse) · Σ w dw)."""
    weights_BHTS, lse_BHT1 = saved
    f_BHT1, slope = jax.vjp(total, lse_BHT1)
    inner_BHT1 = sum_last(weights_BHTS * d_weights_BHTS)
    share_BHT1 = jnp.exp(jnp.where(lse_BHT1 > FLOOR, f_BHT1 - lse_BHT1, 0.0))
    (moved_BHT1,) = slope(inner_BHT1)
    return (weights_BHTS * (d_weights_BHTS - share_BHT1 * moved_BHT1),)


_by_total.defvjp(_by_total_forward, _by_total_backward)
