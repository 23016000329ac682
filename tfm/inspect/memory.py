"""Memory that a model needs, from shapes alone."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jax import numpy as jnp

from tfm.layers.recurrent import CELLS
from tfm.models import parts
from tfm.models.spec import (
    AttentionSpec,
    DecoderSpec,
    EncoderDecoderSpec,
    ModelSpec,
    RecurrentSpec,
    SeqToSeqSpec,
    TransformerSpec,
)


def size(tree: Any) -> int:
    """Bytes of all arrays."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


@dataclasses.dataclass(frozen=True)
class Kept:
    """Bytes that the forward pass leaves for the backward pass, besides the weights themselves."""

    activations: int
    weight_copies: int  # in another type or order: what follows from the weights alone


def kept(fn: Callable[[Any, Any], Any], params: Any, inputs: Any) -> Kept:
    """What `jax.vjp` keeps of `fn(params, inputs)`, before XLA fuses or shares any of it."""
    by_params = _residuals(fn, params, inputs, (0, None))
    by_inputs = _residuals(fn, params, inputs, (None, 0))
    total = sum(held for held, _ in by_params)
    both = zip(by_params, by_inputs, strict=True)
    copies = sum(held for (held, weights), (_, data) in both if weights and not data)
    return Kept(total - copies, copies)


def _residuals(fn: Any, params: Any, inputs: Any, axes: tuple[Any, Any]) -> list[tuple[int, bool]]:
    """Bytes of each array that is kept, and whether it follows from what has an axis to map.

    `jax.vmap` carries the axis through loops and calls, to what it reaches and nowhere else.
    """
    sizes: list[int] = []
    follows: list[bool] = []  # stays empty where nothing does

    @jax.custom_batching.custom_vmap
    def look(arrays):
        return arrays

    @look.def_vmap
    def _(_, mapped, arrays):
        follows.extend(mapped[0])
        return arrays, mapped[0]

    def backward(params, inputs):
        _, vjp = jax.vjp(lambda params: fn(params, inputs), params)
        weights = {id(leaf) for leaf in jax.tree.leaves(params)}
        arrays = {id(leaf): leaf for leaf in jax.tree.leaves(vjp) if id(leaf) not in weights}
        sizes.extend(map(size, arrays.values()))
        return look(list(arrays.values()))

    def widen(tree, axis):
        extra = () if axis is None else (2,)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(extra + x.shape, x.dtype), tree)

    jax.eval_shape(jax.vmap(backward, axes), *map(widen, (params, inputs), axes))
    return list(zip(sizes, follows or [False] * len(sizes), strict=True))


@dataclasses.dataclass(frozen=True)
class Cache:
    """Bytes that decoding keeps from one token to the next."""

    per_token: int = 0
    per_source_token: int = 0
    per_sequence: int = 0

    def total(self, batch: int, length: int) -> int:
        return batch * (length * (self.per_token + self.per_source_token) + self.per_sequence)


def cache(what: ModelSpec) -> Cache | None:
    """None: the model writes no sequence."""
    match what:
        case DecoderSpec():
            return Cache(per_token=what.layers * _keys_and_values(what.attention, what))
        case EncoderDecoderSpec():
            layers = what.decoder_layers or what.layers
            return Cache(
                layers * _keys_and_values(what.attention, what),
                layers * _keys_and_values(what.cross or what.attention, what),
            )
        case RecurrentSpec(bidirectional=False, shape="N:N" | "1:N"):
            return Cache(per_sequence=_state(what))
        case SeqToSeqSpec(attention=AttentionSpec() as own) if own.score != "none":
            width = own.head_width or what.hidden // own.heads
            return Cache(0, 2 * (own.kv_heads or own.heads) * width * _bytes(what), _state(what))
        case SeqToSeqSpec():
            context = (1 + what.bidirectional) * what.hidden * _bytes(what)
            return Cache(per_sequence=_state(what) + context)
    return None


def _keys_and_values(own: AttentionSpec, what: TransformerSpec) -> int:
    """Bytes in one layer of one token."""
    if own.score == "none":
        return 0
    width = parts.head_width(own, what.width, "model.attention")
    return 2 * (own.kv_heads or own.heads) * width * _bytes(what)


def _state(what: RecurrentSpec | SeqToSeqSpec) -> int:
    return what.layers * len(CELLS[what.cell].carry) * what.hidden * _bytes(what)


def _bytes(what: Any) -> int:
    return jnp.dtype(parts.dtype(what)).itemsize
