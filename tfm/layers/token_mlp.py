"""Learned maps over positions: the transposed linear layer, and the token-mixing MLP."""

from flax import linen as nn
from jax import Array
from jax import numpy as jnp
from jax.nn import initializers

from tfm.layers.context import Auxiliary, Cache, Context
from tfm.layers.convolution import blank
from tfm.layers.dims import Dims
from tfm.layers.feedforward import ACTIVATIONS
from tfm.names import UserError


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

        def weight(name: str, rows: int, cols: int) -> Array:
            init = initializers.lecun_normal(in_axis=-1, out_axis=-2)
            return self.param(name, init, (rows, cols)).astype(x_BTD.dtype)

        if self.hidden is None:
            w_LM = weight("w_LM", longest, longest)[:length, :length]
            w_LM = jnp.tril(w_LM) if self.dims.causal else w_LM
            return jnp.einsum("TS,BSD->BTD", w_LM, x_BTD), cache, Auxiliary()
        up_FM = weight("up_FM", self.hidden, longest)[:, :length]
        down_LF = weight("down_LF", longest, self.hidden)[:length]
        hidden_BFD = ACTIVATIONS["gelu"](jnp.einsum("FS,BSD->BFD", up_FM, x_BTD))
        return jnp.einsum("TF,BFD->BTD", down_LF, hidden_BFD), cache, Auxiliary()
