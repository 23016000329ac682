"""The parts of an attention, evaluated on any tile of the query × key plane."""

from typing import NamedTuple

import jax
from jax import Array
from jax import numpy as jnp
from jax.typing import ArrayLike

from tfm.config.names import UserError
from tfm.ops import dropout as drop
from tfm.ops.mask import At, Mask
from tfm.ops.scores import dot, scaled_dot

F32 = jnp.float32
# A hidden logit lies so far below the lowest row maximum that its exponential is exactly zero, in a
# row with nothing visible too; and both are finite, so no arithmetic on them makes a NaN.
FLOOR = -1e30
HIDDEN = -1e38


class Logits(NamedTuple):
    """What decides the logits; gradients flow to it. Functions hold their parameters."""

    score: jax.tree_util.Partial
    bias: jax.tree_util.Partial | None
    cap: ArrayLike | None


class Plane(NamedTuple):
    """What is known of rows and columns; no gradients."""

    mask: Mask
    q_pos_BT: Array
    k_pos_BS: Array
    dropped: drop.PairBits | None
    offset_B: Array | None = None  # of the first query, in cached decoding

    def at(self, rows_T: Array, cols_S: Array) -> At:
        q_pos_BT = jnp.take(self.q_pos_BT, rows_T, axis=1, mode="clip")
        k_pos_BS = jnp.take(self.k_pos_BS, cols_S, axis=1, mode="clip")
        return At(rows_T, cols_S, q_pos_BT, k_pos_BS, self.offset_B)


def tile_logits(logits: Logits, q_BTHK: Array, k_BSGK: Array, at: At) -> Array:
    """cap · tanh((score + bias) / cap), in float32."""
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
    """The bias of each head and pair, BHTS."""
    return _to_BHTS("bias", bias(at.q_pos_BT, at.k_pos_BS, shape[1]), shape)


def _grouped(score: jax.tree_util.Partial, q_BTHK: Array, k_BSGK: Array) -> Array:
    """The score of plain products: the heads of a group are rows, and no key is copied for them."""
    batch, rows, heads, width = q_BTHK.shape
    cols, groups = k_BSGK.shape[1:3]
    q_BTGRK = q_BTHK.reshape(batch, rows, groups, -1, width)
    q_BXGK = q_BTGRK.swapaxes(2, 3).reshape(batch, -1, groups, width)
    score_BGTRS = score(q_BXGK, k_BSGK).reshape(batch, groups, rows, -1, cols)
    return score_BGTRS.swapaxes(2, 3).reshape(batch, heads, rows, cols)


def _to_BHTS(kind: str, x: Array, shape: tuple[int, ...]) -> Array:
    if x.ndim != 4 or any(have not in (1, want) for have, want in zip(x.shape, shape, strict=True)):
        raise UserError(
            f"the {kind} returned shape {x.shape}, expected BHTS {shape}, or 1 where it is constant"
        )
    return jnp.broadcast_to(x.astype(F32), shape)


def mix(weights_BHTS: Array, v_BSGE: Array) -> Array:
    """Σ weights · v for each row, in float32; each group of heads shares its values."""
    batch, heads, rows, cols = weights_BHTS.shape
    groups = v_BSGE.shape[2]
    weights = weights_BHTS.astype(v_BSGE.dtype).reshape(batch, groups, -1, rows, cols)
    out = jnp.einsum("BGHTS,BSGE->BGHTE", weights, v_BSGE, preferred_element_type=F32)
    return out.reshape(batch, heads, rows, -1).swapaxes(1, 2)
