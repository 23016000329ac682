"""The whole matrix at once: for reading, testing, looking at weights, and short sequences."""

from jax import Array, lax
from jax import numpy as jnp

from tfm.ops import dropout as drop
from tfm.ops.normalizers import Normalizer
from tfm.ops.tiles import FLOOR, HIDDEN, Logits, Plane, mix, tile_logits


def reference(
    q_BTHK: Array, k_BSGK: Array, v_BSGE: Array, logits: Logits, plane: Plane, norm: Normalizer
) -> tuple[Array, Array]:
    """Outputs and weights."""
    rows_T = jnp.arange(q_BTHK.shape[1])
    return attend_rows(q_BTHK, k_BSGK, v_BSGE, logits, plane, norm, rows_T)


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
    most = lax.stop_gradient(jnp.max(shown, axis=-1, keepdims=True, initial=FLOOR))
    total = jnp.sum(jnp.exp(shown - most), axis=-1, keepdims=True)
    lse = most + jnp.log(jnp.where(total > 0, total, 1.0))
    return jnp.exp(shown - norm.total(lse))
