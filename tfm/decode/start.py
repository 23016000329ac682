"""What a model that writes begins from, whatever its family: prompts, a source, a vector.

Prompts are padded to one of a few lengths, so that any number of them compiles a few programs. So
are caches: one that is full is copied into a larger one. Until then each token costs as much as the
one before.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import linen as nn
from flax import struct
from jax import Array
from jax import numpy as jnp

from tfm.config.names import UserError
from tfm.layers.stack import unrolled
from tfm.models.common import TransformerCache
from tfm.models.spec import FAMILIES, ModelSpec

SHORTEST = 16  # bucket
LEAST_CACHE = 128  # tokens that a cache has room for, if so many are needed


class Start(struct.PyTreeNode):
    """Prompts BT, padding last; and what else the family reads. `wanted_B` is False for rows that
    only fill up a batch."""

    prompt_BT: Array
    valid_BT: Array | None
    wanted_B: Array
    inputs: dict[str, Array]  # of `init_cache`: the source, or a vector
    prefix: bool = struct.field(pytree_node=False, default=False)  # the prompt sees itself
    even: bool = struct.field(pytree_node=False, default=False)  # all prompts are as long

    def init_cache(self, module: Any, length: int) -> Any:
        """An empty cache of a bound module for `length` tokens."""
        inputs: dict[str, Any] = dict(self.inputs)
        if "source_BS" not in inputs:
            inputs = {**inputs, "batch": self.prompt_BT.shape[0]}
        if self.prefix:
            inputs["rolling"] = False
        return module.init_cache(**inputs, length=length)

    def seen(self, vocab: int) -> Array:
        """BV: which tokens are in the prompts."""
        rows_B1 = jnp.arange(self.prompt_BT.shape[0])[:, None]
        ids_BT = self.prompt_BT
        if self.valid_BT is not None:
            ids_BT = jnp.where(self.valid_BT, ids_BT, vocab)
        seen_BV = jnp.zeros((self.prompt_BT.shape[0], vocab), bool)
        return seen_BV.at[rows_B1, ids_BT].set(True, mode="drop")


def prefill(module: Any, variables: Any, start: Start, length: int) -> tuple[Array, Any]:
    """The logits BV after the prompts, and the cache with them in it."""

    def run(module: Any) -> tuple[Array, Any]:
        cache = start.init_cache(module, length)
        if isinstance(cache, TransformerCache):
            cache = cache.replace(even=start.even)
        more = {}
        if start.prefix:
            valid_BT = start.valid_BT
            valid_BT = jnp.ones(start.prompt_BT.shape, bool) if valid_BT is None else valid_BT
            more["prefix_B"] = jnp.sum(valid_BT, 1)
        return module.decode(start.prompt_BT, cache, valid_BT=start.valid_BT, last=True, **more)

    logits_B1V, cache = nn.apply(run, module)(variables)
    return logits_B1V[:, 0], cache


@functools.partial(jax.jit, static_argnames=("module", "length"))
def enlarged(module: Any, variables: Any, start: Start, cache: Any, *, length: int) -> Any:
    """The same cache with room for `length` tokens, if it is of a kind that needs room. It may have
    more rows than there are prompts."""
    if not isinstance(cache, TransformerCache):
        return cache

    def shapes(length: int) -> Any:
        init = nn.apply(lambda module: start.init_cache(module, length), module)
        return jax.eval_shape(init, variables)

    def pad(x: Array, now: Array, then: Array) -> Array:
        return jnp.pad(x, [(0, b - a) for a, b in zip(now.shape, then.shape, strict=True)])

    now, then = shapes(cache.length), shapes(length)
    layers = jax.tree.map(pad, cache.layers, now.layers, then.layers)
    return cache.replace(layers=layers, length=length, rolling=then.rolling)


class Programs(NamedTuple):
    """A function, compiled for all cores of a CPU and for one of them. A loop over small operations
    is faster on one; then the others write other rows."""

    all_cores: Any
    one_core: Any


def programs(fn: Callable[..., Any], **options: Any) -> Programs:
    one_core = {"xla_cpu_multi_thread_eigen": False}
    return Programs(jax.jit(fn, **options), jax.jit(fn, compiler_options=one_core, **options))


def unrolled_model(spec: ModelSpec, variables: Any) -> tuple[Any, Any]:
    """The same model with its layers one by one: then each layer's cache is written in its place,
    and none is copied."""
    if not hasattr(FAMILIES[spec.family].module, "decode"):
        raise UserError(
            f"model.family={spec.family!r} writes nothing; those that do: "
            + ", ".join(name for name, own in FAMILIES.items() if hasattr(own.module, "decode"))
        )
    if getattr(spec, "scan", False):
        spec = dataclasses.replace(spec, scan=False, remat="none")  # type: ignore[call-arg]
        variables = unrolled(variables)
    return spec.build(), jax.tree.map(jnp.asarray, variables)


def longest(spec: ModelSpec) -> int | None:
    """How many tokens a model was made for, on each side; None: any number."""
    return spec.max_length


def bucket(length: int, most: int | None = None) -> int:
    """The length that a prompt is padded to: 16, 32, 64, …, and at last `most`."""
    size = SHORTEST
    while size < length:
        size *= 2
    return size if most is None else max(min(size, most), length)


def cache_lengths(needed: int, prompt: int, most: int | None) -> list[int]:
    """The lengths of a cache, one after the other, if there are `needed` tokens at last, `prompt`
    of them at first: each is half of the next, and none below `LEAST_CACHE`."""

    def rounded(length: int) -> int:
        return -(-length // SHORTEST) * SHORTEST

    lengths = [rounded(needed) if most is None else max(min(rounded(needed), most), prompt)]
    while (half := rounded(-(-lengths[0] // 2))) >= max(LEAST_CACHE, prompt + 1):
        lengths.insert(0, half)
    return lengths


def pads(spec: ModelSpec) -> bool:
    """Whether padding is safe: it is not for some mixers of a user's own."""
    mixer = getattr(spec, "used_mixer", None)
    return mixer is None or mixer.padding


def padded(rows: Sequence[Sequence[int]], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids and which of them are real, padding last."""
    ids_BT, valid_BT = np.zeros((len(rows), length), np.int32), np.zeros((len(rows), length), bool)
    for row, ids in enumerate(rows):
        ids_BT[row, : len(ids)] = ids
        valid_BT[row, : len(ids)] = True
    return ids_BT, valid_BT
