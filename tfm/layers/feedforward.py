"""The feed-forward: what happens within one token."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
from flax import linen as nn
from jax import Array

from tfm.layers.dims import Dims
from tfm.ops.activations import gelu
from tfm.ops.dropout import Dropouts, drop
from tfm.spec import Named, Spec, choice, size

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

    @nn.compact
    def __call__(
        self, x_BTD: Array, dropouts: Dropouts | None = None
    ) -> tuple[Array, dict[str, Array]]:
        dense = functools.partial(self.dims.dense, use_bias=self.spec.bias)
        hidden_BTF = dense(self.spec.width, name="up")(x_BTD)
        if self.spec.kind in GATED:
            gate_BTF = dense(self.spec.width, name="gate")(x_BTD)
            hidden_BTF = self.spec.activation(gate_BTF) * hidden_BTF
        else:
            hidden_BTF = self.spec.activation(hidden_BTF)
        hidden_BTF = drop(hidden_BTF, dropouts, "feedforward")
        down = dense(x_BTD.shape[-1], kernel_init=self.dims.residual_init, name="down")
        return down(hidden_BTF), {}


# A kind of feed-forward is a module with the fields `spec` and `dims`.
FEEDFORWARDS: dict[str, type[Any]] = dict.fromkeys([*ACTIVATIONS, *GATED], FeedForward)
