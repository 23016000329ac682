"""The arguments of layers besides x, and their results besides y."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from flax import struct
from jax import Array

from tfm.ops.dropout import Dropouts
from tfm.ops.mask import Mask

Intermediates = dict[str, Array]
Cache = Any  # a pytree that a mixer defines; None outside decoding


class Auxiliary(NamedTuple):
    """Losses to add to that of the objective, and requested intermediates, by name."""

    losses: Mapping[str, Array] = {}
    intermediates: Mapping[str, Array] = {}


class Context(struct.PyTreeNode):
    """Arguments that all layers of a stack share.

    With a cache, `pos_BT` are the positions of the tokens in it, and `offset_B` is that of the
    first token of each example. `valid_BT` is False for padding, which comes last.
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
    even: bool = struct.field(pytree_node=False, default=False)  # all rows have the same positions
    rolling: bool = struct.field(
        pytree_node=False, default=False
    )  # the cache holds the last tokens only
    train: bool = struct.field(pytree_node=False, default=False)
    capture: tuple[str, ...] = struct.field(pytree_node=False, default=())
