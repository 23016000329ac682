"""A description as tables or as JSON."""

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table

from tfm.describe.flops import Flops
from tfm.describe.model import Description, Part
from tfm.layers.stack import SCANNED
from tfm.terminal import console, table

MEMORY = {
    "weights": "weights",
    "gradients": "gradients",
    "adam": "Adam's two moments",
    "statistics": "statistics that are not trained",
    "activations": "activations saved for the backward pass",
    "weight_copies": "copies of weights saved for the backward pass",
    "outputs": "outputs",
    "per_token": "cache for decoding, per token",
    "per_source_token": "cache for decoding, per source token",
    "per_sequence": "state for decoding, per sequence",
}
NOTE = """\
FLOPs: a multiply-add is two; all pairs of tokens count, masks skip none.
Saved: by jax.vjp, up to the outputs, without dropout, before XLA removes any of it."""


def show(found: Description) -> None:
    """Print the tables."""
    out = console()
    for each in (tree_table(found), flops_table(found), memory_table(found)):
        out.print(each, "")
    out.print(NOTE)


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
    out = table(found.family, "shapes", ">parameters", ">share")
    for name, shapes, parameters in _rows([found.tree]):
        share = f"{100 * parameters / found.tree.parameters:.1f} %"
        out.add_row(name, shapes, f"{parameters:,}", "<0.1 %" if share == "0.0 %" else share)
    return out


def _rows(
    group: Sequence[Part], first: str = "", rest: str = "", stacked: int = 0
) -> Iterator[tuple[str, str, int]]:
    """A line for equal parts, and the lines of what is below: name, shapes, parameters.

    Arrays of scanned layers start with an axis for the layer, which is shown once, with the name;
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
    equal = [list(parts) for _, parts in below]
    for i, parts in enumerate(equal):
        branch, trunk = ("├─ ", "│  ") if i < len(equal) - 1 else ("└─ ", "   ")
        for name, shapes, parameters in _rows(parts, rest + branch, rest + trunk, stacked):
            yield name, shapes, len(group) * parameters


def _shapes(part: Part) -> Iterator[tuple[int, ...]]:
    yield from part.arrays.values()
    for below in part.parts:
        yield from _shapes(below)


def flops_table(found: Description) -> Table:
    """Of the forward pass, and of training."""
    out = table(f"FLOPs, {_at(found)}", ">forward", ">forward + backward")
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
    out = table(f"memory, {_at(found)}", ">")
    cache = {} if found.cache is None else dataclasses.asdict(found.cache)
    kept = cache.pop("tokens", None)
    for key, number in {**found.memory, **cache}.items():
        if number:
            out.add_row(MEMORY[key], _short(number, "B"))
    if found.cache is not None:
        total = found.cache.total(found.batch, found.length)
        rolling = f", which keeps {kept:,} tokens" if kept else ""
        out.add_row(f"cache for decoding, of the batch{rolling}", _short(total, "B"))
    return out


def _at(found: Description) -> str:
    return f"batch {found.batch:,} × length {found.length:,}, in {found.dtype}"


def _short(value: float, unit: str = "") -> str:
    for prefix, power in {"P": 15, "T": 12, "G": 9, "M": 6, "k": 3}.items():
        if value >= 10**power:
            return f"{value / 10**power:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"
