"""Token embeddings, and the position tables that join them."""

import dataclasses
import functools
import inspect
from typing import Any

import jax
from flax import linen as nn
from jax import Array
from jax import numpy as jnp
from jax.nn import initializers
from jax.typing import ArrayLike

from tfm.config.names import UserError
from tfm.config.spec import Named, Spec, SpecError, call, choice, field, size
from tfm.layers.dims import Dense, Dims, create_params, positions
from tfm.ops.fast import flat_product
from tfm.ops.positions import JOINS, POSITIONS, Position
from tfm.ops.shapes import check, suffix


@dataclasses.dataclass(frozen=True, kw_only=True)
class PositionSpec(Spec):
    """A position scheme, and how its table joins the embeddings."""

    scheme: Named = call(lambda: POSITIONS, "none")
    join: Named = choice(lambda: JOINS, "add")  # how a table joins the embeddings
    amplitude: float = field(1.0)
    learn_amplitude: bool = False
    width: int | None = size(None)  # of a concatenated table; part of the model's width
    share: bool = True  # layers share the parameters of a bias or rotation (T5)

    def check(self) -> None:
        if (self.width is not None) != (self.join == "concatenate"):
            raise SpecError(
                "width",
                f"{{key}}={self.width} with join={self.join!r}: set the table's width if and "
                "only if it is concatenated",
            )

    def check_joins(self, scheme: Named, key: str) -> None:
        """Raises if a table is configured, but the scheme has none."""
        for name in ("join", "amplitude", "learn_amplitude", "width"):
            value = getattr(self, name)
            if scheme.entry.table is None and value != getattr(PositionSpec(), name):
                raise SpecError(
                    f"position.{name}", f"{{key}}={value}: {key}={scheme!r} has no table to join"
                )


class PositionTable(nn.Module):
    """Joins a vector for its position to each token: x + a·PE, x ⊙ a·PE, or [x, a·PE].

    Returns x for schemes without a table (rotary, ALiBi, relative, none).
    """

    spec: PositionSpec
    position: Position
    max_length: int | None = None  # for learned tables

    @nn.compact
    def __call__(
        self, x_BTD: Array, pos_BT: Array | None = None, valid_BT: Array | None = None
    ) -> Array:
        check("x_BTD", x_BTD, {})
        table = self.position.table
        if table is None:
            return x_BTD
        _, length, width = x_BTD.shape
        learned = any("L" in suffix(name) for name in self.position.params)
        if learned and pos_BT is None and self.max_length is not None and length > self.max_length:
            raise UserError(
                f"an input is {length} long, but max_length={self.max_length}: make "
                "model.max_length larger, or the examples shorter"
            )
        sizes = {"D": self.spec.width or width}
        if self.max_length is not None:
            sizes["L"] = self.max_length
        options = create_params(self, "table", self.position, sizes)
        if "length_B" in inspect.signature(table).parameters:
            valid_BT = jnp.ones((1, length), bool) if valid_BT is None else valid_BT
            options["length_B"] = jnp.sum(valid_BT, 1)
        table_BTD = table(positions(x_BTD, pos_BT), sizes["D"], **options)
        amplitude: ArrayLike = self.spec.amplitude
        if self.spec.learn_amplitude:
            amplitude = self.param("amplitude", initializers.constant(amplitude), ())
        table_BTD = jnp.asarray(amplitude) * table_BTD
        return self.spec.join.entry(x_BTD, table_BTD.astype(x_BTD.dtype))


class TokenEmbedding(nn.Module):
    """A vector for each token, and one for its type; the token matrix can also be the head.

    With an untrained `dims.coding` the matrix is a constant: it is saved and has no gradient.
    """

    vocab: int
    dims: Dims
    types: int = 0
    scale: bool = False  # by √width.  Vaswani et al. 2017, §3.4

    def setup(self) -> None:
        # Look up in float32, then cast. Otherwise the gradients of a token's vector would be summed
        # in half precision, and many small ones would be lost.
        embed = functools.partial(
            nn.Embed, features=self.dims.width, embedding_init=self.dims.init.embedding.entry
        )
        match self.dims.coding:
            case "learned":
                self.token = embed(self.vocab)
            case "random":
                self.table = self.variable("constants", "token", self._random)
            case "scalar":
                self.line = self.param("line", initializers.normal(1.0), (2, self.dims.width))
            case "one_hot" if self.dims.width < self.vocab:
                raise UserError(
                    f"coding='one_hot': width={self.dims.width} must be at least vocab={self.vocab}"
                )
        if self.types:
            self.type = embed(self.types)

    def __call__(self, tokens_BT: Array, types_BT: Array | None = None) -> Array:
        sizes: dict[str, int] = {}
        check("tokens_BT", tokens_BT, sizes)
        if not jnp.issubdtype(tokens_BT.dtype, jnp.integer):
            raise UserError(f"tokens_BT must be whole numbers, not {tokens_BT.dtype}")
        x_BTD = self._coded(tokens_BT).astype(self.dims.dtype)
        if self.scale:
            x_BTD = x_BTD * jnp.asarray(self.dims.width**0.5, x_BTD.dtype)
        if not self.types:
            if types_BT is not None:
                raise UserError("types_BT needs types in the model, which has types=0")
            return x_BTD
        if types_BT is None:
            types_BT = jnp.zeros_like(tokens_BT)
        check("types_BT", types_BT, sizes)
        return x_BTD + self.type(types_BT).astype(self.dims.dtype)

    def _random(self) -> Array:
        shape = self.vocab, self.dims.width
        return self.dims.init.embedding.entry(self.make_rng("params"), shape, jnp.float32)

    def _coded(self, tokens_BT: Array) -> Array:
        match self.dims.coding:
            case "random":
                return jnp.take(self.table.value, tokens_BT, axis=0)
            case "one_hot":
                return jax.nn.one_hot(tokens_BT, self.dims.width)
            case "scalar":
                share_BT1 = (tokens_BT / self.vocab)[..., None]
                return self.line[0][None, None] * share_BT1 + self.line[1][None, None]
        return self.token(tokens_BT)

    def logits(self, x_BTD: Array) -> Array:
        """Projects states to logits with the token matrix."""
        match self.dims.coding:
            case "scalar":
                raise UserError("coding='scalar' has no table that could be the head: untie it")
            case "one_hot":
                return x_BTD[..., : self.vocab].astype(jnp.float32)
            case "random":
                table_VD = self.table.value.astype(x_BTD.dtype)
            case _:
                table_VD = self.token.embedding.astype(x_BTD.dtype)
        return flat_product(x_BTD, table_VD.T, preferred_element_type=jnp.float32)


def head(vocab: int, dims: Dims, **options: Any) -> Dense:
    """Creates a projection to the vocabulary without bias, whose product is in float32."""
    return dims.dense(vocab, use_bias=False, product_dtype=jnp.float32, **options)
