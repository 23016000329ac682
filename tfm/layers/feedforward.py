"""The feed-forward: what happens within one token."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
from flax import linen as nn
from jax import Array

from tfm.config.spec import Named, Spec, choice, size
from tfm.layers.dims import Dims
from tfm.ops.dropout import Dropouts, drop
from tfm.ops.fast import gelu

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "gelu": gelu,
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "silu": jax.nn.silu,
    "tanh": jax.numpy.tanh,
}
GATED = {"reglu": "relu", "geglu": "gelu", "geglu_tanh": "gelu_tanh", "swiglu": "silu"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeedForwardSpec(Spec):
    width: int = size()
    kind: Named = choice(lambda: FEEDFORWARDS, "gelu", none=True)
    bias: bool = True

    @property
    def activation(self) -> Callable[[Array], Array]:
        """The activation of our own kinds."""
        return ACTIVATIONS[GATED.get(self.kind, self.kind)]


class FeedForward(nn.Module):
    """W₂ f(W₁ x), or W₂ (f(W_g x) ⊙ W₁ x) when it is gated.  Vaswani et al. 2017, §3.3; Shazeer
    2020.

    A feed-forward is called with x and the dropouts. It returns y and its auxiliary losses.
    """

    spec: FeedForwardSpec
    dims: Dims

    def setup(self) -> None:
        spec, dims = self.spec, self.dims
        dense = functools.partial(dims.dense, use_bias=spec.bias)
        self.up = dense(spec.width)
        if spec.kind in GATED:
            self.gate = dense(spec.width)
        self.down = dense(dims.width, kernel_init=dims.residual_init)

    def __call__(
        self, x_BTD: Array, dropouts: Dropouts | None = None
    ) -> tuple[Array, dict[str, Array]]:
        return self.down(drop(self.hidden(x_BTD), dropouts, "feedforward")), {}

    def hidden(self, x_BTD: Array) -> Array:
        """The hidden layer, BTF."""
        hidden_BTF = self.up(x_BTD)
        if self.spec.kind in GATED:
            return self.spec.activation(self.gate(x_BTD)) * hidden_BTF
        return self.spec.activation(hidden_BTF)


# A kind of feed-forward is a module with the fields `spec` and `dims`.
FEEDFORWARDS: dict[str, type[Any]] = dict.fromkeys([*ACTIVATIONS, *GATED], FeedForward)
