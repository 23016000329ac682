"""What a model that writes begins from: prompts as arrays, the cache, and the model itself.

Prompts are padded to one of a few lengths, so that any number of them compiles a few programs. So
are caches: a full one is copied into a larger one. Until then each token costs as much as the one
before.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from flax import struct
from jax import Array, lax
from jax import numpy as jnp

from tfm.config.names import UserError
from tfm.layers.stack import unrolled
from tfm.models.common import TransformerCache, last_of
from tfm.models.spec import FAMILIES, ModelSpec

SHORTEST = 16  # bucket
LEAST_CACHE = 128  # tokens that a cache has room for, if so many are needed


class Prompts(struct.PyTreeNode):
    """Prompts BT, padding last, and what else the model reads. `wanted_B` is False for rows that
    only fill up a batch."""

    prompt_BT: Array
    valid_BT: Array | None
    wanted_B: Array
    inputs: dict[str, Array]  # of `init_cache`: the source, or a vector
    prefix_B: Array | None = None  # so many tokens see one another
    even: bool = struct.field(pytree_node=False, default=False)  # all prompts are as long

    def init_cache(self, module: Any, length: int) -> Any:
        """Returns an empty cache of a bound module for `length` tokens."""
        inputs: dict[str, Any] = dict(self.inputs)
        if "source_BS" not in inputs:
            inputs = {**inputs, "batch": self.prompt_BT.shape[0]}
        if self.prefix_B is not None:
            inputs["rolling"] = False
        return module.init_cache(**inputs, length=length)

    def seen(self, vocab: int) -> Array:
        """Returns which tokens are in the prompts (BV)."""
        rows_B1 = jnp.arange(self.prompt_BT.shape[0])[:, None]
        ids_BT = self.prompt_BT
        if self.valid_BT is not None:
            ids_BT = jnp.where(self.valid_BT, ids_BT, vocab)
        seen_BV = jnp.zeros((self.prompt_BT.shape[0], vocab), bool)
        return seen_BV.at[rows_B1, ids_BT].set(True, mode="drop")


class Written(struct.PyTreeNode):
    """All tokens so far, for a model that reads them anew at each step."""

    tokens_BL: Array
    count_B: Array
    source: dict[str, Array]  # what else the model reads
    prefix_B: Array | None = None


class WithoutCache(nn.Module):
    """Decodes with full forward passes: for models that cannot keep a cache.

    It has the interface of models that can. What comes after a row's tokens is padding.
    """

    model: Any

    def init_cache(
        self, length: int, batch: int | None = None, rolling: bool = True, **inputs: Array
    ) -> Written:
        count = batch or len(inputs["source_BS"])
        zeros_B = jnp.zeros(count, jnp.int32)
        return Written(jnp.zeros((count, length), jnp.int32), zeros_B, inputs)

    def decode(
        self,
        tokens_BT: Array,
        cache: Written,
        *,
        valid_BT: Array | None = None,
        prefix_B: Array | None = None,
        last: bool = False,
    ) -> tuple[Array, Written]:
        """Returns logits of tokens that follow those before, and all tokens."""
        length = cache.tokens_BL.shape[1]
        if valid_BT is None:
            valid_BT = jnp.ones(tokens_BT.shape, bool)
        place_BT = jnp.where(
            valid_BT, cache.count_B[:, None] + jnp.arange(tokens_BT.shape[1])[None], length
        )
        rows_B1 = jnp.arange(len(tokens_BT))[:, None]
        tokens_BL = cache.tokens_BL.at[rows_B1, place_BT].set(tokens_BT, mode="drop")
        count_B = cache.count_B + jnp.sum(valid_BT, 1)
        prefix_B = cache.prefix_B if prefix_B is None else prefix_B
        valid_BL = jnp.arange(length)[None] < count_B[:, None]
        if self.model.spec.has_source:
            inputs = {"decoder_input_BT": tokens_BL, "decoder_valid_BT": valid_BL}
        else:
            inputs = {"tokens_BT": tokens_BL, "valid_BT": valid_BL}
        if prefix_B is not None:
            inputs["prefix_B"] = prefix_B
        logits_BLV = self.model(**inputs, **cache.source)
        if last:
            logits_BTV = last_of(logits_BLV, valid_BL)
        else:
            read_BT = jnp.minimum(place_BT, length - 1)
            logits_BTV = jnp.take_along_axis(logits_BLV, read_BT[..., None], 1)
        return logits_BTV, Written(tokens_BL, count_B, cache.source, prefix_B)


def prefill(module: Any, variables: Any, prompts: Prompts, length: int) -> tuple[Array, Any]:
    """Returns the logits after the prompts (BV), and the cache with the prompts in it."""

    def run(module: Any) -> tuple[Array, Any]:
        cache = prompts.init_cache(module, length)
        if isinstance(cache, TransformerCache):
            cache = cache.replace(even=prompts.even)
        more = {} if prompts.prefix_B is None else {"prefix_B": prompts.prefix_B}
        return module.decode(prompts.prompt_BT, cache, valid_BT=prompts.valid_BT, last=True, **more)

    logits_B1V, cache = nn.apply(run, module)(variables)
    return logits_B1V[:, 0], cache


@functools.partial(jax.jit, static_argnames=("module", "length"))
def enlarged(module: Any, variables: Any, prompts: Prompts, cache: Any, *, length: int) -> Any:
    """Returns the cache with room for `length` tokens, if it is of a kind that needs room. It may
    have more rows than there are prompts."""
    if not isinstance(cache, TransformerCache):
        return cache

    def shapes(length: int) -> Any:
        init = nn.apply(lambda module: prompts.init_cache(module, length), module)
        return jax.eval_shape(init, variables)

    def pad(x: Array, now: Array, then: Array) -> Array:
        return jnp.pad(x, [(0, b - a) for a, b in zip(now.shape, then.shape, strict=True)])

    now, then = shapes(cache.length), shapes(length)
    layers = jax.tree.map(pad, cache.layers, now.layers, then.layers)
    return cache.replace(layers=layers, length=length, rolling=then.rolling)


def advance(
    module: Any,
    variables: Any,
    state: Any,
    end_E: Array,
    numbers: Any,
    *,
    until: Any,
    **options: Any,
) -> Any:
    """Writes until there are `until` tokens, or every row has ended. `state` is a `loop.State` or
    `beam.Beams`; `options` are those of its `wrote`."""

    def step(state: Any) -> Any:
        logits_N1V, cache = module.apply(
            variables, state.last_N[:, None], state.cache, method="decode"
        )
        return state.replace(cache=cache).wrote(logits_N1V[:, 0], end_E, numbers, **options)

    return lax.while_loop(lambda state: (state.step < until) & ~state.stop, step, state)


@functools.cache
def compiled(fn: Callable[..., Any], one_core: bool) -> Any:
    """Compiles `begin` or `advance` for all cores, or for one: a batch of small operations is
    faster on one core; then the others write other rows."""
    return jax.jit(
        fn,
        static_argnames=("module", "length", "new", "beams", "stopping"),
        donate_argnames=("state",),
        compiler_options={"xla_cpu_multi_thread_eigen": False} if one_core else None,
    )


def writing_model(spec: ModelSpec, variables: Any) -> tuple[Any, Any]:
    """Returns the model as it decodes, and its variables. Its layers are unrolled, so that each
    layer's cache is updated in place. A model that cannot keep a cache is wrapped."""
    if not spec.decodes:
        names = [name for name, one in FAMILIES.items() if hasattr(one.module, "decode")]
        raise UserError(
            f"model.family={spec.family!r} writes nothing; those that do: {', '.join(names)}"
        )
    if getattr(spec, "scan", False):
        spec = dataclasses.replace(spec, scan=False, remat="none")  # type: ignore[call-arg]
        variables = unrolled(variables)
    module, variables = spec.build(), jax.tree.map(jnp.asarray, variables)
    if spec.uncacheable is None:
        return module, variables
    if not pads(spec):
        raise UserError(
            f"this model cannot decode: {spec.uncacheable}, and without a cache its tokens are "
            "padded, which its mixer does not allow"
        )
    return WithoutCache(module), {name: {"model": tree} for name, tree in variables.items()}


def check_length(name: str, ids: Sequence[int], most: int | None) -> None:
    """Raises if there are more ids than a model can read."""
    if most is not None and len(ids) > most:
        raise UserError(
            f"the {name} has {len(ids)} tokens, and the model was made for {most} "
            "(model.max_length); nothing is cut off: shorten it"
        )


def bucket(length: int, most: int | None = None) -> int:
    """Returns the length that a prompt is padded to: 16, 32, 64, …, and at last `most`."""
    size = SHORTEST
    while size < length:
        size *= 2
    return size if most is None else max(min(size, most), length)


def cache_lengths(needed: int, prompt: int, most: int | None) -> list[int]:
    """Returns the lengths that a cache has in turn, from `prompt` tokens to `needed`: 16 more than
    a `bucket`, from `LEAST_CACHE` on, and at last `most`."""

    def size(length: int) -> int:
        longer = SHORTEST + bucket(length - SHORTEST)
        return longer if most is None else min(longer, most)

    needed = max(needed if most is None else min(needed, most), prompt)
    lengths = [size(max(prompt, min(needed, LEAST_CACHE)))]
    while lengths[-1] < needed:
        lengths.append(size(lengths[-1] + 1))
    return lengths


def pads(spec: ModelSpec) -> bool:
    """Returns whether padding is safe: a user's mixer may declare that it is not."""
    mixer = getattr(spec, "used_mixer", None)
    return mixer is None or mixer.padding


def padded(rows: Sequence[Sequence[int]], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids as rows of one length, padding last, and which of them are real."""
    ids_BT, valid_BT = np.zeros((len(rows), length), np.int32), np.zeros((len(rows), length), bool)
    for row, ids in enumerate(rows):
        ids_BT[row, : len(ids)] = ids
        valid_BT[row, : len(ids)] = True
    return ids_BT, valid_BT
