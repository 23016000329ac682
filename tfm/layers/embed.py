"""What joins the embeddings before the first block."""

import functools

from flax import linen as nn
from flax.linen import initializers
from flax.typing import Initializer
from jax import Array, lax
from jax import numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from tfm.layers import params
from tfm.layers.initial import NORMAL
from tfm.names import UserError, pick
from tfm.ops.positions import JOINS, Position
from tfm.ops.shapes import check, suffix


class PositionTable(nn.Module):
    """Join a position's vector to each token's: x + a·PE, x ⊙ a·PE, or [x, a·PE].

    Schemes without a table (rotary, ALiBi, relative, none) leave x as it is.
    """

    position: Position
    join: str = "add"
    amplitude: float = 1.0  # a
    learn_amplitude: bool = False
    max_length: int | None = None  # for learned tables
    width: int | None = None  # of the table, when concatenated; else that of x

    @nn.compact
    def __call__(self, x_BTD: Array, pos_BT: Array | None = None) -> Array:
        check("x_BTD", x_BTD, {})
        join = pick(JOINS, self.join, "join")
        if (self.width is not None) != (self.join == "concatenate"):
            raise UserError(
                f"width={self.width} with join={self.join!r}: the table's width is given "
                "when it is concatenated, and only then"
            )
        if self.position.table is None:
            return x_BTD
        _, length, width = x_BTD.shape
        learned = any("L" in suffix(name) for name in self.position.params)
        if learned and pos_BT is None and self.max_length is not None and length > self.max_length:
            raise UserError(f"x_BTD is {length} long, but max_length={self.max_length}")
        sizes = {"D": width if self.width is None else self.width}
        if self.max_length is not None:
            sizes["L"] = self.max_length
        created = params.create(self, "table", self.position, sizes)
        table_BTD = self.position.table(params.positions(x_BTD, pos_BT), sizes["D"], **created)
        amplitude: ArrayLike = self.amplitude
        if self.learn_amplitude:
            amplitude = self.param("amplitude", initializers.constant(self.amplitude), ())
        table_BTD = jnp.asarray(amplitude) * table_BTD
        return join(x_BTD, table_BTD.astype(x_BTD.dtype))


class TokenEmbedding(nn.Module):
    """A vector for each token, and one for its type; the same matrix may serve as the head."""

    vocab: int
    width: int
    types: int = 0
    scale: bool = False  # by √width.  Vaswani et al. 2017, §3.4
    initial: Initializer = NORMAL
    dtype: DTypeLike | None = None

    def setup(self):
        self.token = nn.Embed(self.vocab, self.width, self.dtype, embedding_init=self.initial)
        if self.types:
            self.type = nn.Embed(self.types, self.width, self.dtype, embedding_init=self.initial)

    def __call__(self, tokens_BT: Array, types_BT: Array | None = None) -> Array:
        sizes: dict[str, int] = {}
        check("tokens_BT", tokens_BT, sizes)
        if not jnp.issubdtype(tokens_BT.dtype, jnp.integer):
            raise UserError(f"tokens_BT must be whole numbers, not {tokens_BT.dtype}")
        x_BTD = self.token(tokens_BT)
        if self.scale:
            x_BTD = x_BTD * jnp.asarray(self.width**0.5, x_BTD.dtype)
        if not self.types:
            if types_BT is not None:
                raise UserError("types_BT is given, but the model has types=0")
            return x_BTD
        if types_BT is None:
            types_BT = jnp.zeros_like(tokens_BT)
        check("types_BT", types_BT, sizes)
        return x_BTD + self.type(types_BT)

    def logits(self, x_BTD: Array) -> Array:
        table_VD = self.token.embedding.astype(x_BTD.dtype)
        return jnp.einsum("...D,VD->...V", x_BTD, table_VD, preferred_element_type=jnp.float32)


# For the kernel of a head: half-precision factors, a float32 product.
float32_product = functools.partial(lax.dot_general, preferred_element_type=jnp.float32)
