"""Mixers: what moves information between tokens. Attention is one among others.

A mixer is a module called as `mixer(x_BTD, context, cache)`. It returns y, the cache with these
tokens in it, and its auxiliary losses and intermediates. `init_cache(batch, length)` gives an empty
cache. What a mixer can do is declared beside it and tested.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from tfm.layers.attention import MultiHeadAttention


@dataclasses.dataclass(frozen=True)
class Mixer:
    """`make(spec, dims, position, name=…)` gives the module; `spec` is that of the layers.

    `dims.causal` tells the module whether a token may see those after it.
    """

    make: Callable[..., Any]
    causal: bool = True  # it can hide later tokens
    cacheable: bool = True  # it can go on from a cache, token by token
    padding: bool = True  # padding changes nothing for the other tokens
    masked: bool = False  # it obeys any mask
    needs_attention: bool = False  # it is configured by `model.attention`


def attention() -> Mixer:
    """Every token attends to those that the mask shows.  Vaswani et al. 2017."""

    def make(spec, dims, position, **options):
        share = spec.position.share
        return MultiHeadAttention(spec.attention, dims, position, share, **options)

    return Mixer(make, masked=True, needs_attention=True)


MIXERS: dict[str, Any] = {"attention": attention}
