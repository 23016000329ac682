"""What the layers of a stack are given besides x, and what they return besides y."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from flax import struct
from jax import Array, lax
from jax import numpy as jnp

from tfm.ops.dropout import Dropouts
from tfm.ops.masks import Mask

Intermediates = dict[str, Array]
Cache = Any  # a pytree; None where nothing is decoded


class Auxiliary(NamedTuple):
    """Losses to be added to the objective's, and intermediates that were asked for, by name."""

    losses: Mapping[str, Array] = {}
    intermediates: Mapping[str, Array] = {}


class Context(struct.PyTreeNode):
    """What every layer of a stack is given.

    With a cache, `pos_BT` is where the tokens stand in it, and the first of each example stands at
    `offset_B`. `valid_BT` tells padding, which comes last.
    """

    mask: Mask
    valid_BT: Array | None = None
    pos_BT: Array | None = None
    offset_B: Array | None = None
    position_params: Mapping[str, Array] | None = None
    source_BSD: Array | None = None
    source_mask: Mask | None = None
    source_pos_BS: Array | None = None
    dropouts: Dropouts | None = None
    even: bool = struct.field(pytree_node=False, default=False)  # all rows stand at one position
    train: bool = struct.field(pytree_node=False, default=False)
    capture: tuple[str, ...] = struct.field(pytree_node=False, default=())

    def written(self, cache_BGKS: Array, new_BTGK: Array) -> Array:
        """The cache with new entries at their positions; padding is not written.

        Positions come last: so a CPU reads the cache of one token after another without moving it.
        """
        assert self.pos_BT is not None
        new_BTGK = new_BTGK.astype(cache_BGKS.dtype)
        if self.even and new_BTGK.shape[1] == 1 and self.valid_BT is None:
            # In its place; rows of their own would be written one by one, which is slow on a CPU.
            new_BGKT = jnp.moveaxis(new_BTGK, 1, -1)
            return lax.dynamic_update_slice_in_dim(cache_BGKS, new_BGKT, self.pos_BT[0, 0], -1)
        slot_BT = self.pos_BT
        if self.valid_BT is not None:
            slot_BT = jnp.where(self.valid_BT, slot_BT, cache_BGKS.shape[-1])
        rows_B1 = jnp.arange(new_BTGK.shape[0])[:, None]
        return cache_BGKS.at[rows_B1, :, :, slot_BT].set(new_BTGK, mode="drop")
