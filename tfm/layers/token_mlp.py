"""Learned maps over positions: the transposed linear layer, and the token-mixing MLP."""

from typing import Any

from flax import linen as nn
from jax import Array
from jax import numpy as jnp

from tfm.config.names import UserError
from tfm.layers.context import Auxiliary, Cache, Context, Mixer, check_size
from tfm.layers.convolution import blank
from tfm.layers.dims import Dims
from tfm.ops.fast import gelu


class TokenMLP(nn.Module):
    """y = W x over positions; with `hidden`, y = W₂ gelu(W₁ x).  Tolstikhin et al. 2021.

    The plain map is causal when W is lower triangular. The MLP mixes all positions in its hidden
    layer, so it never is.
    """

    dims: Dims
    hidden: int | None = None

    @nn.compact
    def __call__(
        self, x_BTD: Array, context: Context, cache: Cache = None
    ) -> tuple[Array, Cache, Auxiliary]:
        length, longest = x_BTD.shape[1], self.dims.max_length or 0
        if length > longest:
            raise UserError(f"mixer 'token_mlp': x is {length} long, but max_length={longest}")
        x_BTD = blank(x_BTD, context.valid_BT, 0)

        init, causal = self.dims.residual_init, self.dims.causal
        if self.hidden is None:
            position_map = PositionMap(longest, longest, init, causal, name="map")
            y_BTD = position_map(x_BTD)
            intermediates = {}
            if "details" in context.capture:  # the weights of positions: y of one-hot vectors
                weights_1TS = position_map(jnp.eye(length)[None])[:, :length]
                weights_BHTS = jnp.broadcast_to(weights_1TS, (len(x_BTD), length, length))[:, None]
                intermediates = {"weights_BHTS": weights_BHTS}
            return y_BTD[:, :length], cache, Auxiliary(intermediates=intermediates)
        up = PositionMap(longest, self.hidden, self.dims.kernel_init, name="up")
        down = PositionMap(self.hidden, longest, init, name="down")
        return down(gelu(up(x_BTD)))[:, :length], cache, Auxiliary()


class PositionMap(nn.Module):
    """y_t = Σ_s kernel_st x_s; with `causal`, over s ≤ t."""

    inputs: int
    outputs: int
    init: Any
    causal: bool = False

    @nn.compact
    def __call__(self, x_BSD: Array) -> Array:
        kernel_ST = self.param("kernel", self.init, (self.inputs, self.outputs))
        kernel_ST = jnp.triu(kernel_ST) if self.causal else kernel_ST
        kernel_ST = kernel_ST[: x_BSD.shape[1]].astype(x_BSD.dtype)
        return jnp.einsum("ST,BSD->BTD", kernel_ST, x_BSD)


def token_mlp(hidden: int | None = None) -> Mixer:
    """Maps positions linearly, or with `hidden` by an MLP.  Tolstikhin et al. 2021."""
    check_size("token_mlp: hidden", hidden)
    return Mixer(
        lambda spec, dims, position, **options: TokenMLP(dims, hidden, **options),
        causal=hidden is None,
        cacheable=False,
    )
