"""Describes a model in numbers: its tree of parameters, its FLOPs and its memory.

Everything follows from shapes, so nothing is allocated and no size is too large.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
from flax import linen as nn

from tfm.config.names import UserError
from tfm.describe.flops import Flops, apply, flops, init
from tfm.describe.memory import Cache, cache, saved, size
from tfm.models.spec import ModelSpec


@dataclasses.dataclass(frozen=True)
class Part:
    """A module: the shapes of its arrays, and its submodules in the order in which they run."""

    name: str
    parameters: int  # including its submodules
    share: float  # of the parameters of the whole model
    arrays: Mapping[str, tuple[int, ...]]
    parts: tuple["Part", ...]


@dataclasses.dataclass(frozen=True)
class Description:
    family: str
    dtype: str
    batch: int
    length: int
    tree: Part
    forward: Flops
    training: Flops  # forward and backward
    memory: Mapping[str, int]  # bytes
    cache: Cache | None


def describe(spec: ModelSpec, batch: int = 1, length: int | None = None) -> Description:
    """Describes a model for inputs of a batch size and a length (the maximum, at most 2048)."""
    if length is None:
        length = min(getattr(spec, "max_length", None) or 128, 2048)
    try:
        return _describe(spec, batch, length)
    except OverflowError as e:
        raise UserError(f"batch={batch}, length={length}: arrays cannot be that large: {e}") from e


def _describe(spec: ModelSpec, batch: int, length: int) -> Description:
    module, inputs = spec.build(), spec.example(batch, length)
    # Skip-gram reads one word, whatever the length.
    length = inputs.get("decoder_input_BT", next(iter(inputs.values()))).shape[1]
    order: dict[tuple[str, ...], int] = {}  # of modules, by their paths

    def record(run, args, kwargs, context):
        order.setdefault(context.module.path, len(order))
        return run(*args, **kwargs)

    try:
        with nn.intercept_methods(record):
            variables = init(module, inputs)
    except UserError as e:
        raise UserError(f"--length={length}: {e}") from e
    params = variables["params"]
    model_state = {name: variables[name] for name in variables if name != "params"}
    args = params, (model_state, inputs)
    forward, training = flops(spec, inputs)
    return Description(
        family=spec.family,
        dtype=getattr(spec, "dtype", "float32"),
        batch=batch,
        length=length,
        tree=_part((), params, order, sum(leaf.size for leaf in jax.tree.leaves(params))),
        forward=forward,
        training=training,
        memory={
            "weights": size(params),
            "gradients": size(params),
            "adam": 2 * size(params),
            "statistics": size(model_state),
            **dataclasses.asdict(saved(apply(module, train=True), *args)),
            "outputs": size(jax.eval_shape(apply(module, train=False), *args)),
        },
        cache=cache(spec),
    )


def _part(
    path: tuple[str, ...], tree: Any, order: Mapping[tuple[str, ...], int], total: int
) -> Part:
    modules = [key for key, value in tree.items() if isinstance(value, Mapping)]
    modules.sort(key=lambda key: order.get((*path, key), len(order)))
    arrays = sorted(tree.keys() - modules, key=lambda key: (key == "bias", key))
    parameters = sum(leaf.size for leaf in jax.tree.leaves(tree))
    return Part(
        name=path[-1] if path else "model",
        parameters=parameters,
        share=parameters / total,
        arrays={key: tree[key].shape for key in arrays},
        parts=tuple(_part((*path, key), tree[key], order, total) for key in modules),
    )
