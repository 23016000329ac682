"""Formats a description as tables or as JSON."""

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table

from tfm.describe.description import Description, Part
from tfm.describe.flops import Flops
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
FLOPs: a multiply-add is two; all pairs of tokens count, also masked ones.
Saved: by jax.vjp, up to the outputs, without dropout, before XLA removes any of it."""


def show(description: Description) -> None:
    """Prints the tables."""
    out = console()
    for make in (tree_table, flops_table, memory_table):
        out.print(make(description), "")
    out.print(NOTE)


def to_json(description: Description) -> dict[str, Any]:
    def tree(flops: Flops) -> dict[str, Any]:
        per_token = flops.total / (description.batch * description.length)
        return {"per_token": per_token, "total": flops.total, **dataclasses.asdict(flops)}

    return {
        **dataclasses.asdict(description),
        "forward": tree(description.forward),
        "training": tree(description.training),
    }


def tree_table(description: Description) -> Table:
    out = table(description.family, "shapes", ">parameters", ">share")
    for name, shapes, parameters in _rows([description.tree]):
        share = f"{100 * parameters / description.tree.parameters:.1f} %"
        out.add_row(name, shapes, f"{parameters:,}", "<0.1 %" if share == "0.0 %" else share)
    return out


def _rows(
    group: Sequence[Part], first: str = "", rest: str = "", stacked: int = 0
) -> Iterator[tuple[str, str, int]]:
    """Yields name, shapes and parameters: one line for a group of equal parts, then their parts.

    Arrays of scanned layers start with a layer axis, which is shown once, with the name; `stacked`
    is the number of such axes.
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


def flops_table(description: Description) -> Table:
    out = table(f"FLOPs, {_at(description)}", ">forward", ">forward + backward")
    tokens = description.batch * description.length
    bound = "" if description.forward.exact and description.training.exact else ", at least"
    for name, number in {
        f"per token{bound}": lambda flops: flops.total / tokens,
        "  matrix products": lambda flops: flops.matmul / tokens,
        "  everything else": lambda flops: flops.other / tokens,
        f"of the batch{bound}": lambda flops: flops.total,
    }.items():
        columns = description.forward, description.training
        out.add_row(name, *(_short(number(flops)) for flops in columns))
    return out


def memory_table(description: Description) -> Table:
    out = table(f"memory, {_at(description)}", ">")
    cache = {} if description.cache is None else dataclasses.asdict(description.cache)
    kept = cache.pop("tokens", None)
    for key, number in {**description.memory, **cache}.items():
        if number:
            out.add_row(MEMORY[key], _short(number, "B"))
    if description.cache is not None:
        total = description.cache.total(description.batch, description.length)
        rolling = f", which keeps {kept:,} tokens" if kept else ""
        out.add_row(f"cache for decoding, of the batch{rolling}", _short(total, "B"))
    return out


def _at(description: Description) -> str:
    return f"batch {description.batch:,} × length {description.length:,}, in {description.dtype}"


def _short(value: float, unit: str = "") -> str:
    for prefix, power in {"P": 15, "T": 12, "G": 9, "M": 6, "k": 3}.items():
        if value >= 10**power:
            return f"{value / 10**power:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"
