"""Attention with the whole weight matrix, and the parts of it that work on any tile.

`reference` is for reading, testing, looking at weights, and short sequences. `tile_logits` and
`mix` serve all implementations.
"""

from typing import NamedTuple

import jax
from jax import Array
from jax import numpy as jnp
from jax.typing import ArrayLike

from tfm.config.names import UserError
from tfm.ops.fast import exp_minus_total
from tfm.ops.mask import At, Mask
from tfm.ops.normalizers import Normalizer
from tfm.ops.scores import dot, scaled_dot
from tfm.ops.shapes import check_number

F32 = jnp.float32
# The logit of a hidden pair. Even below a row maximum of `LOWEST` its exponential is exactly zero,
# and it is finite, so no arithmetic on it gives NaN.
HIDDEN = -1e38


class Logits(NamedTuple):
    """The functions that compute the logits, with their parameters. Gradients flow to it."""

    score: jax.tree_util.Partial
    bias: jax.tree_util.Partial | None
    cap: ArrayLike | None


class Dropout(NamedTuple):
    """A dropout rate and its random key. None in its place drops nothing."""

    rate: ArrayLike
    key: Array


class PairBits(NamedTuple):
    """Random bits for each row and each column; a pair combines those of both."""

    rate: Array
    row_BHT: Array
    col_S: Array


class Plane(NamedTuple):
    """The mask, positions and dropout of all rows and columns. No gradients flow to it."""

    mask: Mask
    q_pos_BT: Array
    k_pos_BS: Array
    dropped: PairBits | None
    offset_B: Array | None = None  # key index of the first query, in cached decoding

    def at(self, rows_T: Array, cols_S: Array) -> At:
        q_pos_BT = jnp.take(self.q_pos_BT, rows_T, axis=1, mode="clip")
        k_pos_BS = jnp.take(self.k_pos_BS, cols_S, axis=1, mode="clip")
        return At(rows_T, cols_S, q_pos_BT, k_pos_BS, self.offset_B)

    def drop(self, weights_BHTS: Array, at: At) -> Array:
        """Drops a share of the weights of a tile, if dropout is on."""
        if self.dropped is None:
            return weights_BHTS
        return weights_BHTS * keep(self.dropped, at.q_index_T, at.k_index_S)


class Inputs(NamedTuple):
    """The arguments that all implementations share, besides the normalizer."""

    q_BTHK: Array
    k_BSGK: Array
    v_BSGE: Array
    logits: Logits
    plane: Plane


def pair_bits(dropout: Dropout, batch: int, heads: int, rows: int, cols: int) -> PairBits:
    if not isinstance(dropout, Dropout):
        raise UserError(f"dropout must be Dropout(rate, key), not {dropout!r}")
    check_number("dropout rate", dropout.rate, lambda rate: 0 <= rate <= 1, "between 0 and 1")
    row_key, col_key = jax.random.split(dropout.key)
    return PairBits(
        jax.lax.stop_gradient(jnp.asarray(dropout.rate, jnp.float32)),
        jax.random.bits(row_key, (batch, heads, rows), jnp.uint32),
        jax.random.bits(col_key, (cols,), jnp.uint32),
    )


def keep(bits: PairBits, rows_T: Array, cols_S: Array) -> Array:
    """Returns 1 / (1 − rate) for pairs that are kept, 0 for those that are dropped.

    The result depends only on the row and column of a pair, so any tiling drops the same pairs.
    Hashing the two (MurmurHash3's finalizer) costs about as much as an exponential; a full random
    generator per pair would cost many times the attention itself.
    """
    x = jnp.take(bits.row_BHT, rows_T, axis=2, mode="clip")[..., None]
    x = x + jnp.take(bits.col_S, cols_S, mode="clip")[None, None, None]
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    uniform = ((x ^ (x >> 16)) >> 8).astype(jnp.float32) * 2.0**-24
    return jnp.where(uniform >= bits.rate, 1 / (1 - bits.rate), 0.0)


def tile_logits(logits: Logits, q_BTHK: Array, k_BSGK: Array, at: At) -> Array:
    """Computes cap · tanh((score + bias) / cap), in float32."""
    batch, rows, heads, _ = q_BTHK.shape
    cols, groups = k_BSGK.shape[1:3]
    shape = batch, heads, rows, cols
    if groups < heads and logits.score.func in (dot, scaled_dot):
        score_BHTS = _grouped(logits.score, q_BTHK, k_BSGK)
    else:
        k_BSHK = k_BSGK if groups == heads else jnp.repeat(k_BSGK, heads // groups, axis=2)
        score_BHTS = logits.score(q_BTHK, k_BSHK, q_pos_BT=at.q_pos_BT, k_pos_BS=at.k_pos_BS)
    out = _to_BHTS("score", score_BHTS, shape)
    if logits.bias is not None:
        out = out + tile_bias(logits.bias, at, shape)
    if logits.cap is not None:
        cap = jnp.asarray(logits.cap, F32)
        out = cap * jnp.tanh(out / cap)  # Gemma Team 2024 (Gemma 2)
    return out


def tile_bias(bias: jax.tree_util.Partial, at: At, shape: tuple[int, ...]) -> Array:
    """Computes the bias of each head and pair (BHTS)."""
    return _to_BHTS("bias", bias(at.q_pos_BT, at.k_pos_BS, shape[1]), shape)


def _grouped(score: jax.tree_util.Partial, q_BTHK: Array, k_BSGK: Array) -> Array:
    """Computes a dot-product score with the heads of a group as rows, so that no key is copied."""
    batch, rows, heads, width = q_BTHK.shape
    cols, groups = k_BSGK.shape[1:3]
    q_BTGRK = q_BTHK.reshape(batch, rows, groups, -1, width)
    q_BXGK = q_BTGRK.swapaxes(2, 3).reshape(batch, -1, groups, width)
    score_BGTRS = score(q_BXGK, k_BSGK).reshape(batch, groups, rows, -1, cols)
    return score_BGTRS.swapaxes(2, 3).reshape(batch, heads, rows, cols)


def _to_BHTS(kind: str, x: Array, shape: tuple[int, ...]) -> Array:
    if x.ndim != 4 or any(size not in (1, full) for size, full in zip(x.shape, shape, strict=True)):
        raise UserError(
            f"the {kind} returned shape {x.shape}, expected BHTS {shape}, or 1 where it is constant"
        )
    return jnp.broadcast_to(x.astype(F32), shape)


def mix(weights_BHTS: Array, v_BSGE: Array) -> Array:
    """Computes Σ weights · v for each row, in float32. Heads of a group share their values."""
    batch, heads, rows, cols = weights_BHTS.shape
    groups = v_BSGE.shape[2]
    weights = weights_BHTS.astype(v_BSGE.dtype).reshape(batch, groups, -1, rows, cols)
    out = jnp.einsum("BGHTS,BSGE->BGHTE", weights, v_BSGE, preferred_element_type=F32)
    return out.reshape(batch, heads, rows, -1).swapaxes(1, 2)


def reference(inputs: Inputs, norm: Normalizer) -> tuple[Array, Array]:
    """Returns outputs (BTHE) and weights (BHTS)."""
    return attend_rows(inputs, norm, jnp.arange(inputs.q_BTHK.shape[1]))


def stages(inputs: Inputs, norm: Normalizer) -> tuple[Array, dict[str, Array]]:
    """Returns the outputs and each stage from the score to the weights, by name."""
    q_BTHK, k_BSGK, _, logits, plane = inputs
    out_BTHE, weights_BHTS = reference(inputs, norm)
    at = plane.at(jnp.arange(q_BTHK.shape[1]), jnp.arange(k_BSGK.shape[1]))
    by_name = {
        "score_BHTS": tile_logits(Logits(logits.score, None, None), q_BTHK, k_BSGK, at),
        "logits_BHTS": tile_logits(logits, q_BTHK, k_BSGK, at),
        "visible_BHTS": jnp.broadcast_to(plane.mask.visible(at), weights_BHTS.shape),
        "weights_BHTS": weights_BHTS,
    }
    if logits.bias is not None:
        by_name["bias_BHTS"] = tile_bias(logits.bias, at, weights_BHTS.shape)
    return out_BTHE, by_name


def attend_rows(inputs: Inputs, norm: Normalizer, rows_T: Array) -> tuple[Array, Array]:
    """Returns outputs and weights over all keys, of queries that have the indices `rows_T`."""
    q_BTHK, k_BSGK, v_BSGE, logits, plane = inputs
    at = plane.at(rows_T, jnp.arange(k_BSGK.shape[1]))
    weights = normalize(norm, tile_logits(logits, q_BTHK, k_BSGK, at), plane.mask.visible(at))
    weights = plane.drop(weights, at)
    return mix(weights, v_BSGE).astype(v_BSGE.dtype), weights


def normalize(norm: Normalizer, logits_BHTS: Array, visible_BHTS: Array) -> Array:
    """Returns the weights of whole rows. A hidden pair weighs 0, even if nothing is visible."""
    if norm.each is not None:
        return jnp.where(visible_BHTS, norm.each(logits_BHTS), 0.0)
    shown = jnp.where(visible_BHTS, logits_BHTS, HIDDEN)
    if norm.row is not None:
        # A row with nothing visible is passed as zeros, so that its gradient is not NaN.
        some = jnp.any(visible_BHTS, axis=-1, keepdims=True)
        return jnp.where(visible_BHTS, norm.row(jnp.where(some, shown, 0.0)), 0.0)
    assert norm.total is not None
    return exp_minus_total(norm.total, shown)
