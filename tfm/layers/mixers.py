"""Mixers: what moves information between tokens. Attention is one among others.

A mixer is a module called as `mixer(x_BTD, context, cache)`. It returns y, the cache with these
tokens in it, and its auxiliary losses and intermediates. `init_cache(batch, length)` gives an empty
cache. What a mixer can do is declared beside it and tested.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from tfm.config.names import UserError, pick
from tfm.config.spec import Named
from tfm.layers.attention import MultiHeadAttention
from tfm.layers.convolution import ConvolutionMixer
from tfm.layers.linear_attention import LinearAttention
from tfm.layers.recurrent import CELLS, RecurrentMixer
from tfm.layers.state_space import StateSpace
from tfm.layers.token_mlp import TokenMLP


@dataclasses.dataclass(frozen=True)
class Mixer:
    """`make(spec, dims, position, name=…)` gives the module; `spec` is that of the layers.

    `dims.causal` tells the module whether a token must not see those after it.
    """

    make: Callable[..., Any]
    causal: bool = True  # it can hide later tokens
    cacheable: bool = True  # it can go on from a cache, token by token
    padding: bool = True  # padding changes nothing for the other tokens
    masked: bool = False  # it obeys any mask
    needs_attention: bool = False  # it is configured by `model.attention`
    uses: tuple[Any, ...] = ()  # entries of other registries that it names: (registry, Named)


def attention() -> Mixer:
    """Every token attends to those that the mask shows.  Vaswani et al. 2017."""

    def make(spec, dims, position, **options):
        share = spec.position.share
        return MultiHeadAttention(spec.attention, dims, position, share, **options)

    return Mixer(make, masked=True, needs_attention=True)


def convolution(window: int = 3, depthwise: bool = False) -> Mixer:
    """y_t = f(x_{t−1}, x_t, x_{t+1}); of the last `window` tokens where later ones are hidden."""
    _check_size("convolution: window", window)
    return Mixer(
        lambda spec, dims, position, **options: ConvolutionMixer(dims, window, depthwise, **options)
    )


def token_mlp(hidden: int | None = None) -> Mixer:
    """A learned linear map over positions, or with `hidden` the MLP of Tolstikhin et al. 2021."""
    if hidden is not None:
        _check_size("token_mlp: hidden", hidden)
    return Mixer(
        lambda spec, dims, position, **options: TokenMLP(dims, hidden, **options),
        causal=hidden is None,
        cacheable=False,
    )


def linear_attention(heads: int | None = None) -> Mixer:
    """Attention whose sums over keys are a state.  Katharopoulos et al. 2020.

    Without `heads`, as many as `model.attention` has, or one.
    """
    if heads is not None:
        _check_size("linear_attention: heads", heads)

    def make(spec, dims, position, **options):
        default = 1 if spec.attention is None else spec.attention.heads
        return LinearAttention(dims, heads or default, **options)

    return Mixer(make)


def state_space(states: int = 64) -> Mixer:
    """A diagonal linear recurrence.  Orvieto et al. 2023."""
    _check_size("state_space: states", states)
    return Mixer(lambda spec, dims, position, **options: StateSpace(dims, states, **options))


def recurrent(cell: str = "gru") -> Mixer:
    """A recurrent network over the tokens.  Elman 1990; both ways where both sides may be seen."""
    pick(CELLS, cell, "recurrent: cell")
    return Mixer(
        lambda spec, dims, position, **options: RecurrentMixer(dims, cell, **options),
        uses=((CELLS, Named.of(cell, CELLS[cell])),),
    )


def _check_size(name: str, value: int) -> None:
    if value < 1:
        raise UserError(f"{name}={value} must be at least 1")


MIXERS: dict[str, Any] = {
    "attention": attention,
    "convolution": convolution,
    "token_mlp": token_mlp,
    "linear_attention": linear_attention,
    "state_space": state_space,
    "recurrent": recurrent,
}
