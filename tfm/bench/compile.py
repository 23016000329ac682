"""Compile time of a training step, layers scanned and unrolled.

  tfm bench compile [--config.KEY=VALUE …] [--json]

A scanned stack is compiled once, whatever its depth. Times are of lowering and compiling, the
median of rounds taken in turns, and given as ratios to the first row.
"""

import dataclasses
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

import jax
from jax import numpy as jnp
from rich.console import Console
from rich.progress import track

from tfm.config import arguments
from tfm.config.files import from_command_line
from tfm.config.help import keys_text
from tfm.config.spec import Named, Spec, SpecError, size, to_spec, to_tree
from tfm.layers.attention import AttentionSpec
from tfm.layers.embed import PositionSpec
from tfm.layers.feedforward import FeedForwardSpec
from tfm.models.spec import DecoderSpec
from tfm.terminal import console, table

MODEL = DecoderSpec(
    vocab=1000,
    width=128,
    layers=2,
    max_length=128,
    attention=AttentionSpec(heads=4),
    feedforward=FeedForwardSpec(width=512),
    position=PositionSpec(scheme=Named("rotary")),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompileBench(Spec):
    """What to compile. Each depth, scanned and unrolled, is one row."""

    layers: tuple[int, ...] = size((2, 24))
    scan: tuple[bool, ...] = (True, False)
    batch: int = size(4)
    length: int = size(128)
    rounds: int = size(3)
    model: DecoderSpec = MODEL

    def check(self) -> None:
        for name in ("layers", "scan"):
            if not getattr(self, name):
                raise SpecError(name, "{key} must not be empty")
            if getattr(self.model, name) != getattr(MODEL, name):
                raise SpecError(f"model.{name}", f"{{key}} follows from {name}; set that")


@dataclasses.dataclass(frozen=True)
class Row:
    layers: int
    scan: bool
    seconds: float
    ratio: float  # to the first row


def main(argv: Sequence[str]) -> None:
    default = to_tree(CompileBench())
    if set(arguments.HELP) & set(argv):
        print(f"{__doc__}{keys_text(CompileBench, default)}", end="")
        return
    given = arguments.split(argv, flags=("json",))
    tree = from_command_line(given.config, CompileBench, default)
    rows = measure(to_spec(CompileBench, tree))
    if "json" in given.flags:
        print(json.dumps([dataclasses.asdict(row) for row in rows], indent=1))
        return
    out = table(">layers", "", ">seconds", ">ratio")
    for row in rows:
        how = "scanned" if row.scan else "unrolled"
        out.add_row(str(row.layers), how, f"{row.seconds:.2f}", f"{row.ratio:.2f} ×")
    console().print(out)


def measure(spec: CompileBench) -> list[Row]:
    spec.model.build()
    cells = [(layers, scan) for scan in spec.scan for layers in spec.layers]
    seconds: dict[tuple[int, bool], list[float]] = {cell: [] for cell in cells}
    turns = [cell for _ in range(spec.rounds) for cell in cells]
    for layers, scan in track(turns, "compiling", console=Console(stderr=True)):
        seconds[layers, scan].append(_compile(spec, layers, scan))
    medians = {cell: statistics.median(times) for cell, times in seconds.items()}
    first = medians[cells[0]]
    return [Row(*cell, median, median / first) for cell, median in medians.items()]


def _compile(spec: CompileBench, layers: int, scan: bool) -> float:
    model = dataclasses.replace(spec.model, layers=layers, scan=scan)
    module = model.build()
    inputs = model.example(spec.batch, spec.length)
    params = jax.eval_shape(lambda **inputs: module.init(jax.random.key(0), **inputs), **inputs)

    def loss(params, inputs):
        logits: Any = module.apply(params, **inputs)[0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1))

    jax.clear_caches()
    start = time.perf_counter()
    jax.jit(jax.value_and_grad(loss)).lower(params, inputs).compile()
    return time.perf_counter() - start
