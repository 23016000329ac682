"""Mixers: they move information between tokens. Attention is one of them.

A mixer is a module called as `mixer(x_BTD, context, cache)`. It returns y, the cache extended by
these tokens, and its auxiliary losses and intermediates. `init_cache(batch, length)` returns an
empty cache. The capabilities of a mixer are declared with it and tested.
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
    """A mixer: `make(spec, dims, position, name=…)` returns its module, from the spec of the
    layers.

    With `dims.causal` a token must not see later ones.
    """

    make: Callable[..., Any]
    causal: bool = True  # can hide later tokens
    cacheable: bool = True  # can continue from a cache, token by token
    padding: bool = True  # padding does not change other tokens
    masked: bool = False  # obeys any mask
    needs_attention: bool = False  # is configured by `model.attention`
    uses: tuple[Any, ...] = ()  # entries of other registries: (registry, Named)


def attention() -> Mixer:
    """Lets every token attend to the tokens that the mask shows.  Vaswani et al. 2017."""

    def make(spec, dims, position, **options):
        share = spec.position.share
        return MultiHeadAttention(spec.attention, dims, position, share, **options)

    return Mixer(make, masked=True, needs_attention=True)


def convolution(window: int = 3, depthwise: bool = False) -> Mixer:
    """Computes y_t = f(x_{t−1}, x_t, x_{t+1}), or from the last `window` tokens if causal."""
    _check_size("convolution: window", window)
    return Mixer(
        lambda spec, dims, position, **options: ConvolutionMixer(dims, window, depthwise, **options)
    )


def token_mlp(hidden: int | None = None) -> Mixer:
    """Maps positions linearly, or with `hidden` by an MLP.  Tolstikhin et al. 2021."""
    if hidden is not None:
        _check_size("token_mlp: hidden", hidden)
    return Mixer(
        lambda spec, dims, position, **options: TokenMLP(dims, hidden, **options),
        causal=hidden is None,
        cacheable=False,
    )


def linear_attention(heads: int | None = None) -> Mixer:
    """Attends through a state of sums over keys.  Katharopoulos et al. 2020.

    `heads` defaults to that of `model.attention`, or to 1.
    """
    if heads is not None:
        _check_size("linear_attention: heads", heads)

    def make(spec, dims, position, **options):
        default = 1 if spec.attention is None else spec.attention.heads
        return LinearAttention(dims, heads or default, **options)

    return Mixer(make)


def state_space(states: int = 64) -> Mixer:
    """Runs a diagonal linear recurrence.  Orvieto et al. 2023."""
    _check_size("state_space: states", states)
    return Mixer(lambda spec, dims, position, **options: StateSpace(dims, states, **options))


def recurrent(cell: str = "gru") -> Mixer:
    """Runs a recurrent network over the tokens, in both directions unless causal.  Elman 1990."""
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
