"""What each token goes through on its own."""

import functools
from collections.abc import Callable

from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike

from tfm.layers.initial import Initial
from tfm.names import pick
from tfm.ops.dropout import Dropouts, drop

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": nn.relu,
    "gelu": functools.partial(nn.gelu, approximate=False),
    "gelu_tanh": functools.partial(nn.gelu, approximate=True),
    "silu": nn.silu,
    "tanh": nn.tanh,
}
GATED = {  # Shazeer 2020
    "reglu": "relu",
    "geglu": "gelu",
    "geglu_tanh": "gelu_tanh",
    "swiglu": "silu",
}
KINDS = {**{name: name for name in ACTIVATIONS}, **GATED}  # kind → its activation


class FeedForward(nn.Module):
    """W₂ f(W₁ x), or W₂ (f(W_g x) ⊙ W₁ x) when it is gated.  Vaswani et al. 2017, §3.3."""

    kind: str
    width: int
    bias: bool = True
    initial: Initial = Initial()
    dtype: DTypeLike | None = None  # of the computation; parameters are float32

    @nn.compact
    def __call__(self, x_BTD: Array, dropouts: Dropouts | None = None) -> Array:
        activation = ACTIVATIONS[pick(KINDS, self.kind, "feedforward.kind")]
        dense = functools.partial(nn.Dense, use_bias=self.bias, dtype=self.dtype)
        hidden_BTF = dense(self.width, kernel_init=self.initial.kernel, name="up")(x_BTD)
        if self.kind in GATED:
            gate = dense(self.width, kernel_init=self.initial.kernel, name="gate")
            hidden_BTF = activation(gate(x_BTD)) * hidden_BTF
        else:
            hidden_BTF = activation(hidden_BTF)
        hidden_BTF = drop(hidden_BTF, dropouts, "feedforward")
        down = dense(x_BTD.shape[-1], kernel_init=self.initial.residual, name="down")
        return down(hidden_BTF)
