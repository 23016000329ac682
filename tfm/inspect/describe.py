"""A model as a tree: its shapes and parameters, what it computes, and the memory it needs.

  tfm describe --config=FILE.py[:ARGUMENT] [--config.KEY=VALUE …] [--batch=N] [--length=N] [--json]

Everything follows from shapes, so nothing is allocated and no size is too large. The batch is 1
and the length the model's own, at most 2048, unless they are given; an encoder–decoder reads and
writes that length.

FLOPs are counted as XLA counts them (a multiply-add is two, transcendental functions are not in the
total) and with all pairs of tokens, as masks skip none. Training is forward and backward, with what
`remat` computes again and without the optimiser. Activations are what `jax.vjp` keeps for the
backward pass up to the model's outputs, without dropout, under the implementation of attention that
the config asks for and the way its layers are run.
"""

import dataclasses
import inspect
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from flax import linen as nn
from jax import numpy as jnp
from rich import box
from rich.console import Console
from rich.table import Table

from tfm import arguments
from tfm.config import from_command_line
from tfm.inspect.flops import Flops, count
from tfm.inspect.memory import Cache, cache, kept, size
from tfm.layers.stack import SCANNED
from tfm.models import build
from tfm.models.spec import AttentionSpec, ModelSpec
from tfm.names import UserError

MEMORY = {
    "weights": "weights",
    "gradients": "gradients",
    "adam": "Adam's two moments",
    "statistics": "statistics that are not trained",
    "activations": "activations kept for the backward pass",
    "weight_copies": "copies of weights kept for the backward pass",
    "outputs": "outputs",
    "per_token": "cache for decoding, per token",
    "per_source_token": "cache for decoding, per source token",
    "per_sequence": "state for decoding, per sequence",
}
NOTE = """\
FLOPs: a multiply-add is two; all pairs of tokens count, masks skip none.
Kept: by jax.vjp, up to the outputs, without dropout, before XLA saves any of it."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A module: the shapes of its own arrays, and its parts in the order in which they run."""

    name: str
    parameters: int  # with those of its parts
    share: float  # of the whole model's
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
    training: Flops
    memory: Mapping[str, int]  # bytes
    cache: Cache | None


def main(argv: Sequence[str]) -> None:
    if set(arguments.HELP) & set(argv):
        print(__doc__, end="")
        return
    given = arguments.split(argv, options=("batch", "length"), flags=("json",))
    config = from_command_line(given.config, fill=build.fill)
    numbers = {name: arguments.whole(given, name, 1) for name in given.options}
    found = describe(build.spec(config), **numbers)
    if "json" in given.flags:
        print(json.dumps(to_json(found), indent=1))
        return
    console = Console(
        width=None if sys.stdout.isatty() else 100, markup=False, highlight=False, emoji=False
    )
    for table in (tree_table(found), flops_table(found), memory_table(found)):
        console.print(table, "")
    console.print(NOTE)


def describe(what: ModelSpec, batch: int = 1, length: int | None = None) -> Description:
    if length is None:
        length = min(getattr(what, "max_length", None) or 128, 2048)
    module, inputs = build.model(what), build.example(what, batch, length)
    length = inputs.get("target_BT", next(iter(inputs.values()))).shape[1]  # skip-gram's is 1
    ran: dict[tuple[str, ...], int] = {}

    def note(run, args, kwargs, context):
        ran.setdefault(context.module.path, len(ran))
        return run(*args, **kwargs)

    try:
        with nn.intercept_methods(note):
            variables = jax.eval_shape(
                lambda inputs: module.init(jax.random.key(0), **inputs), inputs
            )
    except UserError as e:
        raise UserError(f"--length={length}: {e}") from e
    params = variables["params"]
    statistics = {name: variables[name] for name in variables if name != "params"}
    args = params, (statistics, inputs)
    forward, training = flops(what, inputs)
    return Description(
        family=what.family,
        dtype=getattr(what, "dtype", "float32"),
        batch=batch,
        length=length,
        tree=_part((), params, ran, sum(leaf.size for leaf in jax.tree.leaves(params))),
        forward=forward,
        training=training,
        memory={
            "weights": size(params),
            "gradients": size(params),
            "adam": 2 * size(params),
            "statistics": size(statistics),
            **dataclasses.asdict(kept(_outputs(module, train=True), *args)),
            "outputs": size(jax.eval_shape(_outputs(module, train=False), *args)),
        },
        cache=cache(what),
    )


def flops(what: ModelSpec, inputs: Mapping[str, Any]) -> tuple[Flops, Flops]:
    """Of the forward pass, and of forward and backward, for inputs of these shapes."""
    whole = build.model(_whole_matrix(what))
    variables = dict(jax.eval_shape(lambda **x: whole.init(jax.random.key(0), **x), **inputs))
    args = variables.pop("params"), (variables, inputs)
    return (
        count(_outputs(whole, train=False), *args),
        count(jax.value_and_grad(_summed(_outputs(whole, train=True))), *args),
    )


def _whole_matrix(what: Any) -> Any:
    """The same model with attention that computes all pairs, in no loop."""
    return dataclasses.replace(
        what,
        **{
            field.name: dataclasses.replace(value, implementation="reference")
            for field in dataclasses.fields(what)
            if isinstance(value := getattr(what, field.name), AttentionSpec)
        },
    )


def _outputs(module: nn.Module, train: bool) -> Callable[[Any, Any], Any]:
    takes = inspect.signature(type(module).__call__).parameters
    options: dict[str, Any] = {"train": train} if "train" in takes else {}

    def outputs(params, data):
        statistics, inputs = data
        variables = {**statistics, "params": params}
        out, _ = module.apply(variables, **inputs, **options, mutable=list(statistics))
        return out

    return outputs


def _summed(fn: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def summed(*args):
        return sum(jnp.sum(out.astype(jnp.float32)) for out in jax.tree.leaves(fn(*args)))

    return summed


def _part(path: tuple[str, ...], tree: Any, ran: Mapping[tuple[str, ...], int], all_: int) -> Part:
    below = [key for key, value in tree.items() if isinstance(value, Mapping)]
    below.sort(key=lambda key: ran.get((*path, key), len(ran)))
    own = sorted(tree.keys() - below, key=lambda key: (key == "bias", key))
    parameters = sum(leaf.size for leaf in jax.tree.leaves(tree))
    return Part(
        name=path[-1] if path else "model",
        parameters=parameters,
        share=parameters / all_,
        arrays={key: tree[key].shape for key in own},
        parts=tuple(_part((*path, key), tree[key], ran, all_) for key in below),
    )


def to_json(found: Description) -> dict[str, Any]:
    def tree(counted: Flops) -> dict[str, Any]:
        each = counted.total / (found.batch * found.length)
        return {"per_token": each, "total": counted.total, **dataclasses.asdict(counted)}

    return {
        **dataclasses.asdict(found),
        "forward": tree(found.forward),
        "training": tree(found.training),
    }


def tree_table(found: Description) -> Table:
    out = _table(found.family, "shapes", ">parameters", ">share")
    for name, shapes, parameters in _rows([found.tree]):
        share = f"{100 * parameters / found.tree.parameters:.1f} %"
        out.add_row(name, shapes, f"{parameters:,}", "<0.1 %" if share == "0.0 %" else share)
    return out


def _rows(
    group: Sequence[Part], first: str = "", rest: str = "", stacked: int = 0
) -> Iterator[tuple[str, str, int]]:
    """A line for parts that are alike, and the lines of what is below: name, shapes, parameters.

    Arrays of scanned layers lead with an axis for the layer, which is said once, with the name;
    `stacked` is the number of such axes.
    """
    part, times = group[0], len(group)
    while times == 1 and not part.arrays and len(part.parts) == 1:
        part = dataclasses.replace(part.parts[0], name=f"{part.name}.{part.parts[0].name}")
    name = part.name if times == 1 else f"{part.name}…{re.sub('.*_', '', group[-1].name)}"
    if part.name.split(".")[-1] == SCANNED:
        stacked, times = stacked + 1, next(_shapes(part))[stacked]
    sizes = {key: " × ".join(map(str, shape[stacked:])) for key, shape in part.arrays.items()}
    yield (
        first + name + f" ×{times}" * (times > 1),
        ", ".join(f"{key} {size or 1}" for key, size in sizes.items()),
        len(group) * part.parameters,
    )
    below = itertools.groupby(
        part.parts, lambda part: dataclasses.replace(part, name=re.sub(r"\d+$", "", part.name))
    )
    alike = [list(parts) for _, parts in below]
    for i, parts in enumerate(alike):
        branch, trunk = ("├─ ", "│  ") if i < len(alike) - 1 else ("└─ ", "   ")
        for name, shapes, parameters in _rows(parts, rest + branch, rest + trunk, stacked):
            yield name, shapes, len(group) * parameters


def _shapes(part: Part) -> Iterator[tuple[int, ...]]:
    yield from part.arrays.values()
    for below in part.parts:
        yield from _shapes(below)


def flops_table(found: Description) -> Table:
    """Of the forward pass, and of training."""
    out = _table(f"FLOPs, {_at(found)}", ">forward", ">forward + backward")
    tokens = found.batch * found.length
    least = "" if found.forward.exact and found.training.exact else ", at least"
    for name, number in {
        f"per token{least}": lambda flops: flops.total / tokens,
        "  matrix products": lambda flops: flops.matmul / tokens,
        "  everything else": lambda flops: flops.other / tokens,
        f"of the batch{least}": lambda flops: flops.total,
    }.items():
        out.add_row(name, *(_short(number(flops)) for flops in (found.forward, found.training)))
    return out


def memory_table(found: Description) -> Table:
    out = _table(f"memory, {_at(found)}", ">")
    cache = {} if found.cache is None else dataclasses.asdict(found.cache)
    for key, number in {**found.memory, **cache}.items():
        if number:
            out.add_row(MEMORY[key], _short(number, "B"))
    if found.cache is not None:
        total = found.cache.total(found.batch, found.length)
        out.add_row("all that decoding keeps of the batch", _short(total, "B"))
    return out


def _table(*columns: str) -> Table:
    """A column whose name begins with > holds numbers."""
    out = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 0, 0, 1), pad_edge=False)
    for name in columns:
        number = name.startswith(">")
        out.add_column(name.lstrip(">"), justify="right" if number else "left", no_wrap=number)
    return out


def _at(found: Description) -> str:
    return f"batch {found.batch:,} × length {found.length:,}, in {found.dtype}"


def _short(value: float, unit: str = "") -> str:
    for prefix, power in {"P": 15, "T": 12, "G": 9, "M": 6, "k": 3}.items():
        if value >= 10**power:
            return f"{value / 10**power:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"
