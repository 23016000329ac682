"""Computes the memory that a model needs, from shapes alone."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from tfm.config.names import UserError
from tfm.describe.flops import init
from tfm.layers.block import BlockSpec
from tfm.models.common import slots
from tfm.models.spec import ModelSpec


def size(tree: Any) -> int:
    """Returns the bytes of all arrays of a tree."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


@dataclasses.dataclass(frozen=True)
class Saved:
    """Bytes that the forward pass saves for the backward pass, besides the weights."""

    activations: int
    weight_copies: int  # arrays that depend on the weights alone, in another type or order


def saved(fn: Callable[[Any, Any], Any], params: Any, inputs: Any) -> Saved:
    """Returns what `jax.vjp` saves of `fn(params, inputs)`, before XLA optimizes it."""
    by_params = _residuals(fn, params, inputs, (0, None))
    by_inputs = _residuals(fn, params, inputs, (None, 0))
    total = sum(bytes_ for bytes_, _ in by_params)
    both = zip(by_params, by_inputs, strict=True)
    copies = sum(bytes_ for (bytes_, weights), (_, data) in both if weights and not data)
    return Saved(total - copies, copies)


def _residuals(fn: Any, params: Any, inputs: Any, axes: tuple[Any, Any]) -> list[tuple[int, bool]]:
    """Returns the bytes of each saved array, and whether it depends on the mapped argument.

    `jax.vmap` carries the mapped axis through loops and calls to the arrays that depend on it.
    """
    sizes: list[int] = []
    depends: list[bool] = []  # stays empty if nothing does

    @jax.custom_batching.custom_vmap
    def observe(arrays):
        return arrays

    @observe.def_vmap
    def _(_, mapped, arrays):
        depends.extend(mapped[0])
        return arrays, mapped[0]

    def backward(params, inputs):
        _, vjp = jax.vjp(lambda params: fn(params, inputs), params)
        weights = {id(leaf) for leaf in jax.tree.leaves(params)}
        arrays = {id(leaf): leaf for leaf in jax.tree.leaves(vjp) if id(leaf) not in weights}
        sizes.extend(map(size, arrays.values()))
        return observe(list(arrays.values()))

    def widen(tree, axis):
        extra = () if axis is None else (2,)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(extra + x.shape, x.dtype), tree)

    jax.eval_shape(jax.vmap(backward, axes), *map(widen, (params, inputs), axes))
    return list(zip(sizes, depends or [False] * len(sizes), strict=True))


@dataclasses.dataclass(frozen=True)
class Cache:
    """Bytes that decoding keeps from one token to the next."""

    per_token: int = 0
    per_source_token: int = 0
    per_sequence: int = 0
    tokens: int | None = None  # tokens that a window keeps; None: all

    def total(self, batch: int, length: int) -> int:
        kept = length if self.tokens is None else min(length, self.tokens)
        sequence = kept * self.per_token + length * self.per_source_token + self.per_sequence
        return batch * sequence


def cache(spec: ModelSpec) -> Cache | None:
    """Returns the size of the model's cache, or None if it cannot decode with one."""
    module, inputs = spec.build(), spec.example(1, 1)
    if not hasattr(module, "init_cache"):
        return None
    variables = init(module, inputs)

    def bytes_of(length: int, source: int) -> int:
        inputs = spec.example(1, source)

        def init_cache(variables, inputs):
            first = inputs.get("source_BS", 1)  # without a source, the batch
            vector = {name: x for name, x in inputs.items() if name == "vector_BD"}
            return module.apply(variables, first, length, **vector, method="init_cache")

        return size(jax.eval_shape(init_cache, variables, inputs))

    try:
        empty, token, source_token = bytes_of(0, 1), bytes_of(1, 1), bytes_of(0, 2)
    except UserError:
        return None
    per_token, per_source_token = token - empty, source_token - empty
    tokens = None
    if isinstance(spec, BlockSpec) and per_token:
        mask = getattr(spec, "decoder_mask", None) or spec.mask
        kept = slots(spec, mask.entry, spec.max_length)
        tokens = None if kept == spec.max_length else kept
    return Cache(per_token, per_source_token, empty - per_source_token, tokens)
