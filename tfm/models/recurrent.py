"""Recurrent networks: a label for each token, one for all, or a sequence from one vector."""

from typing import Any

from flax import linen as nn
from jax import Array
from jax import numpy as jnp
from jax.typing import DTypeLike

from tfm.layers.embed import TokenEmbedding
from tfm.layers.initial import Initial
from tfm.layers.recurrent import CELLS, RecurrentStack, Start, final
from tfm.models import parts
from tfm.models.checks import check_used, check_valid
from tfm.models.outputs import check_want, outputs
from tfm.models.spec import RecurrentSpec
from tfm.names import UserError, pick
from tfm.ops.dropout import Dropouts, drop
from tfm.ops.shapes import check

SHAPES = {
    "N:N": "classes (or the next token) for each token",
    "N:1": "classes for the whole, from the last state",
    "1:N": "the next token for each, beginning from a vector",
}


class Recurrent(nn.Module):
    """o_t = V s_t + b′: logits BTV, or BV of the whole for N:1.  Elman 1990."""

    shape: str
    cell: str
    vocab: int
    width: int
    hidden: int
    layers: int = 1
    bidirectional: bool = False
    classes: int | None = None
    vector: int | None = None
    tied: bool = False
    initial: Initial = Initial()
    dtype: DTypeLike | None = None

    @nn.compact
    def __call__(
        self,
        tokens_BT: Array,
        vector_BD: Array | None = None,
        *,
        valid_BT: Array | None = None,
        dropouts: Dropouts | None = None,
        want: tuple[str, ...] = (),
    ) -> Any:
        """`want` may name "states" and, of an LSTM (with its cells) or a GRU, "gates"."""
        check_want(want, ("states", "gates") if CELLS[self.cell].gates else ("states",))
        if (vector_BD is None) != (self.vector is None):
            raise UserError("a vector_BD is given to models of shape '1:N', and only to them")
        embed = TokenEmbedding(
            self.vocab, self.width, initial=self.initial.embedding, dtype=self.dtype, name="embed"
        )
        x_BTD = drop(embed(tokens_BT), dropouts, "embedding")
        batch, length, _ = x_BTD.shape
        check_valid("valid_BT", valid_BT, {"B": batch, "T": length})
        start = None
        if vector_BD is not None and self.vector is not None:
            check("vector_BD", vector_BD, {"B": batch, "D": self.vector})
            begin = Start(self.cell, self.hidden, self.initial, self.dtype, name="start")
            start = begin([vector_BD] * self.layers)
        stack = RecurrentStack(
            self.cell,
            self.hidden,
            self.layers,
            self.bidirectional,
            self.initial,
            self.dtype,
            name="recurrent",
        )
        x, last, made = stack(x_BTD, valid_BT=valid_BT, start=start, dropouts=dropouts, want=want)
        x = drop(final(last[-1]) if self.shape == "N:1" else x, dropouts, "head")
        if self.tied:
            return outputs(embed.logits(x), made, want)
        init, classes = self.initial.kernel, self.classes or self.vocab
        head = nn.Dense(classes, kernel_init=init, dtype=self.dtype, name="head")
        return outputs(head(x).astype(jnp.float32), made, want)


def make(what: RecurrentSpec) -> Recurrent:
    pick(SHAPES, what.shape, "model.shape")
    pick(CELLS, what.cell, "model.cell")
    check_used(what, ("embedding", "residual", "head"))
    if (what.shape == "1:N") != (what.vector is not None):
        raise UserError(
            f"model.vector={what.vector} with model.shape={what.shape!r}: the width of the vector "
            "is given for '1:N', and only then"
        )
    if what.shape == "1:N" and what.bidirectional:
        raise UserError("model.bidirectional: '1:N' writes what a second direction would read")
    width = what.hidden * (1 + what.bidirectional)
    if what.tied and (what.classes is not None or what.width != width):
        raise UserError(
            f"model.tied: the embedding is the head when model.classes is None (not {what.classes})"
            f" and model.width={what.width} equals the states' width, {width}"
        )
    return Recurrent(
        shape=what.shape,
        cell=what.cell,
        vocab=what.vocab,
        width=what.width,
        hidden=what.hidden,
        layers=what.layers,
        bidirectional=what.bidirectional,
        classes=what.classes,
        vector=what.vector,
        tied=what.tied,
        initial=parts.initial(what.initial),
        dtype=parts.dtype(what),
    )
