"""The interface of mixers, which move information between tokens: arguments, results, capabilities.

A mixer is a module called as `mixer(x_BTD, context, cache)`. It returns y, the cache extended by
these tokens, and its auxiliary losses and intermediates. `init_cache(batch, length)` returns an
empty cache. The table `MIXERS` of `block.py` lists the built-in ones.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from flax import struct
from jax import Array

from tfm.config.names import UserError
from tfm.layers.dims import Dropouts
from tfm.ops.mask import Mask

Intermediates = dict[str, Array]
Cache = Any  # a pytree that a mixer defines; None outside decoding
_static = functools.partial(struct.field, pytree_node=False)


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
    even: bool = _static(default=False)  # all rows have the same positions
    rolling: bool = _static(default=False)  # the cache holds the last tokens only
    train: bool = _static(default=False)
    capture: tuple[str, ...] = _static(default=())


@dataclasses.dataclass(frozen=True)
class Mixer:
    """A mixer: `make(spec, dims, position, name=…)` returns its module, from the spec of the
    layers.

    With `dims.causal` a token must not see later ones. The capabilities are tested.
    """

    make: Callable[..., Any]
    causal: bool = True  # can hide later tokens
    cacheable: bool = True  # can continue from a cache, token by token
    padding: bool = True  # padding does not change other tokens
    masked: bool = False  # obeys any mask
    needs_attention: bool = False  # is configured by `model.attention`
    uses: tuple[Any, ...] = ()  # entries of other registries: (registry, Named)


def check_size(name: str, value: int | None) -> None:
    """Raises if an option of a mixer is set and below 1."""
    if value is not None and value < 1:
        raise UserError(f"{name}={value} must be at least 1")
