"""Compile time of a training step, layers scanned and unrolled.

  tfm bench compile [--config.KEY=VALUE …] [--json]

A scanned stack is compiled once, whatever its depth. Times are of lowering and compiling, the
median of rounds taken in turns, and given as ratios to the first row. Keys, with their defaults:

"""

import dataclasses
import functools
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

import jax
from jax import numpy as jnp
from ml_collections import ConfigDict
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tfm.config import from_command_line, from_spec, paths, to_spec
from tfm.models import build
from tfm.models.spec import AttentionSpec, DecoderSpec, FeedForwardSpec, PositionSpec
from tfm.names import UserError


@dataclasses.dataclass(frozen=True)
class CompileBench:
    """What to compile. Each depth, scanned and unrolled, is one row."""

    layers: tuple[int, ...] = (2, 24)
    scan: tuple[bool, ...] = (True, False)
    batch: int = 4
    length: int = 128
    rounds: int = 3
    model: DecoderSpec = DecoderSpec(  # noqa: RUF009
        vocab=1000,
        width=128,
        layers=2,
        max_length=128,
        attention=AttentionSpec(heads=4),
        feedforward=FeedForwardSpec(width=512),
        position=PositionSpec(scheme="rotary"),
    )


@dataclasses.dataclass(frozen=True)
class Row:
    layers: int
    scan: bool
    seconds: float
    ratio: float  # to the first row


def get_config() -> ConfigDict:
    return from_spec(CompileBench())


def main(argv: Sequence[str]) -> None:
    if {"-h", "--help"} & set(argv):
        config = get_config()
        keys = [key for key in paths(config) if not isinstance(_at(config, key), ConfigDict)]
        lines = (f"  --config.{key}={_at(config, key)}\n" for key in keys)
        print((__doc__ or "") + "".join(lines), end="")
        return
    as_json = "--json" in argv
    config = from_command_line([arg for arg in argv if arg != "--json"], get_config())
    rows = measure(to_spec(CompileBench, config))
    if as_json:
        print(json.dumps([dataclasses.asdict(row) for row in rows], indent=1))
        return
    table = Table("layers", "", "seconds", "ratio", box=box.SIMPLE_HEAD)
    for row in rows:
        how = "scanned" if row.scan else "unrolled"
        table.add_row(str(row.layers), how, f"{row.seconds:.2f}", f"{row.ratio:.2f} ×")
    Console().print(table)


def _at(config: ConfigDict, key: str) -> Any:
    return functools.reduce(lambda group, name: group[name], key.split("."), config)


def measure(spec: CompileBench) -> list[Row]:
    if not spec.layers or not spec.scan:
        raise UserError("layers and scan must not be empty")
    if min(*spec.layers, spec.rounds, spec.batch, spec.length) < 1:
        raise UserError("layers, rounds, batch and length must be at least 1")
    default = CompileBench().model
    if (spec.model.layers, spec.model.scan) != (default.layers, default.scan):
        raise UserError("model.layers and model.scan follow from layers and scan; set those")
    build.model(spec.model)
    cells = [(layers, scan) for scan in spec.scan for layers in spec.layers]
    seconds: dict[tuple[int, bool], list[float]] = {cell: [] for cell in cells}
    turns = [cell for _ in range(spec.rounds) for cell in cells]
    for layers, scan in track(turns, "compiling", console=Console(stderr=True)):
        seconds[layers, scan].append(_compile(spec, layers, scan))
    medians = {cell: statistics.median(times) for cell, times in seconds.items()}
    first = medians[cells[0]]
    return [Row(*cell, median, median / first) for cell, median in medians.items()]


def _compile(spec: CompileBench, layers: int, scan: bool) -> float:
    what = dataclasses.replace(spec.model, layers=layers, scan=scan)
    module = build.model(what)
    inputs = build.example(what, spec.batch, spec.length)
    params = jax.eval_shape(lambda **inputs: module.init(jax.random.key(0), **inputs), **inputs)

    def loss(params, inputs):
        logits: Any = module.apply(params, **inputs)
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1))

    jax.clear_caches()
    start = time.perf_counter()
    jax.jit(jax.value_and_grad(loss)).lower(params, inputs).compile()
    return time.perf_counter() - start
