"""What a model is in numbers: its tree of parameters, its FLOPs and the memory it needs.

Everything follows from shapes, so nothing is allocated and no size is too large.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
from flax import linen as nn
from jax import numpy as jnp

from tfm.config.names import UserError
from tfm.describe.flops import Flops, count
from tfm.describe.memory import Cache, cache, saved, size
from tfm.layers.attention import AttentionSpec
from tfm.models.spec import ModelSpec


@dataclasses.dataclass(frozen=True)
class Part:
    """A module: the shapes of its own arrays, and its parts in the order in which they run."""

    name: str
    parameters: int  # with those of its parts
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
    if length is None:
        length = min(getattr(spec, "max_length", None) or 128, 2048)
    module, inputs = spec.build(), spec.example(batch, length)
    # Skip-gram reads one word, whatever length is asked for.
    length = inputs.get("decoder_input_BT", next(iter(inputs.values()))).shape[1]
    order: dict[tuple[str, ...], int] = {}  # of modules, by their paths

    def record(run, args, kwargs, context):
        order.setdefault(context.module.path, len(order))
        return run(*args, **kwargs)

    try:
        with nn.intercept_methods(record):
            variables = _init(module, inputs)
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
            **dataclasses.asdict(saved(_outputs(module, train=True), *args)),
            "outputs": size(jax.eval_shape(_outputs(module, train=False), *args)),
        },
        cache=cache(spec),
    )


def flops(spec: ModelSpec, inputs: Mapping[str, Any]) -> tuple[Flops, Flops]:
    """Of the forward pass, and of forward and backward, for inputs of these shapes."""
    module = _all_pairs(spec).build()
    variables = dict(_init(module, inputs))
    args = variables.pop("params"), (variables, inputs)
    return (
        count(_outputs(module, train=False), *args),
        count(jax.value_and_grad(_summed(_outputs(module, train=True))), *args),
    )


def _init(module: nn.Module, inputs: Mapping[str, Any]) -> Any:
    """The shapes of all variables."""
    return jax.eval_shape(lambda inputs: module.init(jax.random.key(0), **inputs), inputs)


def _all_pairs(spec: Any) -> Any:
    """The same model with attention that computes all pairs at once, in no loop."""
    reference: dict[str, Any] = {"implementation": "reference"}
    return dataclasses.replace(
        spec,
        **{
            field.name: dataclasses.replace(value, **reference)
            for field in dataclasses.fields(spec)
            if isinstance(value := getattr(spec, field.name), AttentionSpec)
        },
    )


def _outputs(module: nn.Module, train: bool) -> Callable[[Any, Any], Any]:
    def outputs(params, data):
        model_state, inputs = data
        variables = {**model_state, "params": params}
        out, _ = module.apply(variables, **inputs, train=train, mutable=list(model_state))
        return out

    return outputs


def _summed(fn: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def summed(*args):
        return sum(jnp.sum(out.astype(jnp.float32)) for out in jax.tree.leaves(fn(*args)))

    return summed


def _part(
    path: tuple[str, ...], tree: Any, order: Mapping[tuple[str, ...], int], total: int
) -> Part:
    below = [key for key, value in tree.items() if isinstance(value, Mapping)]
    below.sort(key=lambda key: order.get((*path, key), len(order)))
    own = sorted(tree.keys() - below, key=lambda key: (key == "bias", key))
    parameters = sum(leaf.size for leaf in jax.tree.leaves(tree))
    return Part(
        name=path[-1] if path else "model",
        parameters=parameters,
        share=parameters / total,
        arrays={key: tree[key].shape for key in own},
        parts=tuple(_part((*path, key), tree[key], order, total) for key in below),
    )
