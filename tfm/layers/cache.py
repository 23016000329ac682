"""The cache of an attention: keys and values of all tokens, or of the last ones (rolling).

In a rolling cache of S slots, the token at position p takes slot p mod S and replaces one that no
later token sees.  Jiang et al. 2023 (Mistral), §2. Positions are the last axis, so that decoding on
a CPU reads the cache without moving it.
"""

from typing import NamedTuple

from jax import Array, lax
from jax import numpy as jnp

from tfm.layers.context import Cache, Context
from tfm.ops.mask import Mask
from tfm.ops.masks import Rolling

BY_POSITION = {"k_BGKS", "v_BGES"}  # entries whose last axis is positions or slots


class Seen(NamedTuple):
    """The keys and values that new tokens attend to, and the mask over them."""

    k_BSGK: Array
    v_BSGE: Array
    k_pos_BS: Array | None
    mask: Mask
    offset_B: Array | None  # None: the mask counts steps by positions


def empty(batch: int, length: int, groups: int, k_width: int, v_width: int, dtype: str) -> Cache:
    """Returns an empty cache for the keys and values of `length` tokens."""
    return {
        "k_BGKS": jnp.zeros((batch, groups, k_width, length), dtype),
        "v_BGES": jnp.zeros((batch, groups, v_width, length), dtype),
    }


def extended(cache: Cache, k_BTGK: Array, v_BTGE: Array, context: Context) -> tuple[Cache, Seen]:
    """Returns the cache with new keys and values, and what their tokens attend to."""
    assert context.pos_BT is not None
    assert context.offset_B is not None
    slots, length = cache["k_BGKS"].shape[-1], k_BTGK.shape[1]
    new = {
        "k_BGKS": _written(cache["k_BGKS"], k_BTGK, context),
        "v_BGES": _written(cache["v_BGES"], v_BTGE, context),
    }
    if not context.rolling:
        pos_BS = jnp.arange(slots)[None]
        return new, Seen(*_in_order(new), pos_BS, context.mask, context.offset_B)
    mask = Rolling(context.mask, slots)
    if length == 1:
        return new, Seen(*_in_order(new), _positions(context.pos_BT[:, 0], slots), mask, None)
    # The last new tokens replace keys that the first ones see, so these read the old cache.
    k_BSGK, v_BSGE = _in_order(cache)
    return new, Seen(
        jnp.concatenate([k_BSGK, k_BTGK.astype(k_BSGK.dtype)], 1),
        jnp.concatenate([v_BSGE, v_BTGE.astype(v_BSGE.dtype)], 1),
        jnp.concatenate([_positions(context.offset_B - 1, slots), context.pos_BT], 1),
        mask,
        None,
    )


def _in_order(cache: Cache) -> tuple[Array, Array]:
    return jnp.moveaxis(cache["k_BGKS"], -1, 1), jnp.moveaxis(cache["v_BGES"], -1, 1)


def _positions(last_B: Array, slots: int) -> Array:
    """Returns the position of the token in each slot (BS) after that at `last_B` is written."""
    back_BS = (last_B[:, None] - jnp.arange(slots)[None]) % slots
    return last_B[:, None] - back_BS


def _written(cache_BGKS: Array, new_BTGK: Array, context: Context) -> Array:
    """Returns the cache with new entries at their positions; padding is not written."""
    slots, length = cache_BGKS.shape[-1], new_BTGK.shape[1]
    new_BTGK = new_BTGK.astype(cache_BGKS.dtype)
    pos_BT, valid_BT = context.pos_BT, context.valid_BT
    assert pos_BT is not None
    slot_BT = pos_BT % slots if context.rolling else pos_BT
    if context.even and length == 1 and valid_BT is None:
        # In place. Scattering writes row by row, which is slow on a CPU.
        new_BGKT = jnp.moveaxis(new_BTGK, 1, -1)
        return lax.dynamic_update_slice_in_dim(cache_BGKS, new_BGKT, slot_BT[0, 0], -1)
    kept_BT = jnp.ones(pos_BT.shape, bool) if valid_BT is None else valid_BT
    if context.rolling:  # of the new tokens, too, only the last ones are kept
        last_B = jnp.max(jnp.where(kept_BT, pos_BT, -1), 1)
        kept_BT &= pos_BT > last_B[:, None] - slots
    slot_BT = jnp.where(kept_BT, slot_BT, slots)
    rows_B1 = jnp.arange(new_BTGK.shape[0])[:, None]
    return cache_BGKS.at[rows_B1, :, :, slot_BT].set(new_BTGK, mode="drop")
