"""What a model that writes begins from, whatever its family: prompts, a source, a vector.

Prompts are padded to one of a few lengths, so that any number of them compiles a few programs.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from flax import struct
from jax import Array
from jax import numpy as jnp

from tfm.layers.stack import unrolled
from tfm.models import build
from tfm.models.common import Cache
from tfm.models.spec import ModelSpec
from tfm.names import UserError

SHORTEST = 16  # bucket


class Start(struct.PyTreeNode):
    """Prompts BT, padding last; and what else the family reads. `wanted_B` is False for rows that
    only fill up a batch."""

    prompt_BT: Array
    valid_BT: Array | None
    wanted_B: Array
    inputs: dict[str, Array]  # of `init_cache`: the source, or a vector
    prefix: bool = struct.field(pytree_node=False, default=False)  # the prompt sees itself
    even: bool = struct.field(pytree_node=False, default=False)  # all prompts are as long

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
        inputs: dict[str, Any] = dict(start.inputs)
        if "source_BS" not in inputs:
            inputs = {**inputs, "batch": start.prompt_BT.shape[0]}
        if start.prefix:
            inputs["rolling"] = False
        cache = module.init_cache(**inputs, length=length)
        if isinstance(cache, Cache):
            cache = cache.replace(even=start.even)
        more = {}
        if start.prefix:
            valid_BT = start.valid_BT
            valid_BT = jnp.ones(start.prompt_BT.shape, bool) if valid_BT is None else valid_BT
            more["prefix_B"] = jnp.sum(valid_BT, 1)
        return module.decode(start.prompt_BT, cache, valid_BT=start.valid_BT, last=True, **more)

    logits_B1V, cache = nn.apply(run, module)(variables)
    return logits_B1V[:, 0], cache


def unrolled_model(spec: ModelSpec, variables: Any) -> tuple[Any, Any]:
    """The same model with its layers one by one: then each layer's cache is written in its place,
    and none is copied."""
    if not hasattr(build.MODELS[spec.family], "decode"):
        raise UserError(
            f"model.family={spec.family!r} writes nothing; those that do: "
            + ", ".join(name for name, own in build.MODELS.items() if hasattr(own, "decode"))
        )
    if getattr(spec, "scan", False):
        spec = dataclasses.replace(spec, scan=False, remat="none")  # type: ignore[call-arg]
        variables = unrolled(variables)
    return build.model(spec), jax.tree.map(jnp.asarray, variables)


def longest(spec: ModelSpec) -> int | None:
    """How many tokens a model was made for, on each side; None: any number."""
    return getattr(spec, "max_length", None)


def bucket(length: int, most: int | None = None) -> int:
    """The length that a prompt is padded to: 16, 32, 64, …, and at last `most`."""
    size = SHORTEST
    while size < length:
        size *= 2
    return size if most is None else max(min(size, most), length)


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
