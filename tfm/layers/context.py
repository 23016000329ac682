"""What the layers of a stack are given besides x, and what they return besides y."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from flax import struct
from jax import Array

from tfm.ops.dropout import Dropouts
from tfm.ops.mask import Mask

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
    rolling: bool = struct.field(pytree_node=False, default=False)  # the cache has the last tokens
    train: bool = struct.field(pytree_node=False, default=False)
    capture: tuple[str, ...] = struct.field(pytree_node=False, default=())
