"""Recurrent networks: a label for each token, one for all, or a sequence from a vector."""

from typing import TYPE_CHECKING, Any, Unpack

from flax import linen as nn
from jax import Array
from jax import numpy as jnp

from tfm.config.names import UserError
from tfm.layers.context import Intermediates
from tfm.layers.dims import Dropouts, drop
from tfm.layers.embed import TokenEmbedding
from tfm.layers.recurrent import CELLS, Carries, InitialState, RecurrentStack, final, zero_carry
from tfm.models.common import CallOptions, captured, check_valid, known, last_of, outputs
from tfm.ops.shapes import check

if TYPE_CHECKING:
    from tfm.models.spec import RecurrentSpec


class Recurrent(nn.Module):
    """o_t = V s_t + b′: logits for each token (BTV), or for N:1 of the whole (BV).  Elman 1990."""

    spec: "RecurrentSpec"

    def setup(self) -> None:
        spec = self.spec
        dims = spec.dims(spec.hidden)
        self.embed = TokenEmbedding(known(spec.vocab), spec.dims(spec.width))
        self.recurrent = RecurrentStack(spec.cell, dims, spec.layers, spec.bidirectional)
        if spec.vector is not None:
            self.start = InitialState(spec.cell, dims)
        if not spec.tied:
            self.head = dims.dense(spec.classes or known(spec.vocab))

    def __call__(
        self,
        tokens_BT: Array,
        vector_BD: Array | None = None,
        *,
        valid_BT: Array | None = None,
        carry: Carries | None = None,
        head: bool = True,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Returns logits, or with `head=False` the final hidden states. `capture` may name
        "states", "carry" (the final carries, from which a call with `carry` continues) and, for an
        LSTM or a GRU, "gates"."""
        gates = ["gates"] if CELLS[self.spec.cell].gates else []
        capture = captured(options, "states", "carry", *gates)
        start = self._start(vector_BD, tokens_BT.shape[0])
        if start is not None and carry is not None:
            raise UserError("give a vector_BD or a carry, not both: each sets the initial state")
        start = carry if start is None else start
        dropouts = options.get("dropouts")
        x, last, intermediates = self._run(tokens_BT, start, valid_BT, dropouts, capture)
        ends = {"carry": last} if "carry" in capture else {}
        return outputs(self.logits(x) if head else x, capture, {**intermediates, **ends})

    def _start(self, vector_BD: Array | None, batch: int) -> Carries | None:
        spec = self.spec
        if (vector_BD is None) != (spec.vector is None):
            raise UserError("models of shape '1:N' need a vector_BD; other models take none")
        if vector_BD is None:
            return None
        check("vector_BD", vector_BD, {"B": batch, "D": known(spec.vector)})
        return self.start([vector_BD] * spec.layers)

    def _run(
        self,
        tokens_BT: Array,
        start: Carries | None,
        valid_BT: Array | None,
        dropouts: Dropouts | None = None,
        capture: tuple[str, ...] = (),
    ) -> tuple[Array, Carries, Intermediates]:
        x_BTD = drop(self.embed(tokens_BT), dropouts, "embedding")
        check_valid("valid_BT", valid_BT, {"B": x_BTD.shape[0], "T": x_BTD.shape[1]})
        names = tuple(name for name in capture if name not in ("losses", "carry"))
        x, last, intermediates = self.recurrent(
            x_BTD, valid_BT=valid_BT, start=start, dropouts=dropouts, capture=names
        )
        x = drop(final(last[-1]) if self.spec.shape == "N:1" else x, dropouts, "head")
        return x, last, intermediates

    def logits(self, x: Array) -> Array:
        """Projects final hidden states to logits."""
        return (self.embed.logits(x) if self.spec.tied else self.head(x)).astype(jnp.float32)

    def init_cache(
        self, batch: int, length: int | None = None, *, vector_BD: Array | None = None
    ) -> Carries:
        """Returns the states before the first token; their size does not depend on `length`."""
        spec = self.spec
        if spec.bidirectional or spec.shape == "N:1":
            raise UserError("this model reads whole sequences, so it cannot decode with a cache")
        start = self._start(vector_BD, batch)
        if start is not None:
            return start
        zeros = zero_carry(CELLS[spec.cell], spec.hidden, batch, spec.dtype.entry)
        return [[zeros] for _ in range(spec.layers)]

    def decode(
        self, tokens_BT: Array, cache: Carries, *, valid_BT: Array | None = None, last: bool = False
    ) -> tuple[Array, Carries]:
        """Returns logits of the next tokens and the states after them. With `last`, only logits of
        each row's last token (B1V)."""
        x_BTH, states, _ = self._run(tokens_BT, cache, valid_BT)
        return self.logits(last_of(x_BTH, valid_BT) if last else x_BTH), states
