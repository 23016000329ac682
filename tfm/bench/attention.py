"""Time and memory of attention, beside `jax.nn.dot_product_attention`.

  tfm bench attention [--config=FILE.py] [--config.KEY=VALUE …] [--json]

Every number is measured in turns with the baseline, in one run, and given as a ratio to it: the
machine's mood then falls on both. Keys, with their defaults:

"""

import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax import Array
from jax import numpy as jnp
from jax.tree_util import Partial
from ml_collections import ConfigDict
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tfm.config import from_command_line, to_spec
from tfm.names import UserError, pick, read
from tfm.ops.attend import IMPLEMENTATIONS, attend
from tfm.ops.masks import MASKS, At, Mask
from tfm.ops.scores import SCORES
from tfm.ops.shapes import shape_of


@dataclasses.dataclass(frozen=True)
class AttentionBench:
    """What to measure. Each score × implementation × length is one row of the table."""

    lengths: tuple[int, ...] = (256, 1024, 2048)
    scores: tuple[str, ...] = ("scaled_dot", "additive")
    implementations: tuple[str, ...] = ("reference", "blockwise")
    mask: str = "causal"
    normalizer: str = "softmax"
    batch: int = 1
    heads: int = 4
    kv_heads: int = 4
    head_width: int = 64
    dtype: str = "float32"
    rounds: int = 5  # at most; at least 2
    seconds: float = 4.0  # a row's rounds stop when they have taken this long
    max_gigabytes: float = 8.0  # what needs more temporary memory is not run


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the result; a ratio above 1 is better than the baseline."""

    length: int
    score: str
    implementation: str
    forward_ms: float | None
    forward_speed: float | None
    training_ms: float | None  # forward and backward
    training_speed: float | None
    memory_mb: float  # temporary, as compiled, forward and backward
    memory_saving: float


def get_config() -> ConfigDict:
    return ConfigDict(dataclasses.asdict(AttentionBench()))


def main(argv: Sequence[str]) -> None:
    if {"-h", "--help"} & set(argv):
        keys = "".join(f"  --config.{key}={value}\n" for key, value in get_config().items())
        print((__doc__ or "") + keys, end="")
        return
    as_json = "--json" in argv
    config = from_command_line([arg for arg in argv if arg != "--json"], get_config())
    spec = to_spec(AttentionBench, config)
    check(spec)
    cells = len(spec.lengths) * len(spec.scores) * len(spec.implementations)
    rows = list(track(measure(spec), "compiling and timing", cells, console=Console(stderr=True)))
    if as_json:
        print(json.dumps([dataclasses.asdict(row) for row in rows], indent=1))
    else:
        Console().print(table(spec, rows))


def check(spec: AttentionBench) -> None:
    """Everything that can be wrong is wrong before the first compilation."""
    if not (spec.lengths and spec.scores and spec.implementations):
        raise UserError("lengths, scores and implementations must not be empty")
    smallest = min([*spec.lengths, spec.batch, spec.heads, spec.kv_heads, spec.head_width])
    if smallest < 1 or spec.rounds < 2:
        raise UserError("lengths, batch, heads and widths must be at least 1, rounds at least 2")
    pick({"float32": 1, "bfloat16": 1, "float16": 1}, spec.dtype, "dtype")
    length = min(spec.lengths)
    for score in spec.scores:
        pick(SCORES, score, "scores entry")
        for implementation in spec.implementations:
            pick(IMPLEMENTATIONS, implementation, "implementations entry")
            fn = _candidate(spec, score, implementation)
            jax.eval_shape(fn, *_inputs(spec, length), _parameters(spec, score, length))


def measure(spec: AttentionBench) -> Iterator[Row]:
    mask = read(spec.mask, MASKS, "mask")
    for length in spec.lengths:
        qkv = _inputs(spec, length)
        baseline = _Compiled(_baseline(spec, mask, length), *qkv, {})
        for score in spec.scores:
            held = _parameters(spec, score, length)
            for implementation in spec.implementations:
                ours = _Compiled(_candidate(spec, score, implementation), *qkv, held)
                yield Row(
                    length,
                    score,
                    implementation,
                    *_in_turns(spec, ours, baseline, lambda c: c.forward),
                    *_in_turns(spec, ours, baseline, lambda c: c.training),
                    ours.memory / 1e6,
                    baseline.memory / max(ours.memory, 1),
                )


def _candidate(spec: AttentionBench, score: str, implementation: str) -> Callable[..., Array]:
    mask = read(spec.mask, MASKS, "mask")

    def candidate(q, k, v, held):
        return attend(
            q,
            k,
            v,
            score=Partial(SCORES[score].fn, **held),
            mask=mask,
            normalizer=spec.normalizer,
            implementation=implementation,
        )

    return candidate


class _Compiled:
    """A function of (q, k, v, parameters), compiled forwards and as a training step needs it."""

    def __init__(self, fn: Callable[..., Array], *args: Any):
        def loss(*args):
            return jnp.sum(jnp.square(fn(*args).astype(jnp.float32)))

        self.args = args
        self.forward = jax.jit(fn).lower(*args).compile()
        self.training = jax.jit(jax.grad(loss, (0, 1, 2, 3))).lower(*args).compile()
        analysis: Any = self.training.memory_analysis()
        self.memory = analysis.temp_size_in_bytes


def _in_turns(
    spec: AttentionBench, ours: _Compiled, baseline: _Compiled, which: Callable[[_Compiled], Any]
) -> tuple[float | None, float | None]:
    """Our median milliseconds and the median, over rounds, of baseline time / our time."""
    if max(ours.memory, baseline.memory) > spec.max_gigabytes * 1e9:
        return None, None

    def seconds(compiled: _Compiled) -> float:
        start = time.perf_counter()
        jax.block_until_ready(which(compiled)(*compiled.args))
        return time.perf_counter() - start

    seconds(ours), seconds(baseline)
    times: list[tuple[float, float]] = []
    start = time.perf_counter()
    while len(times) < 2 or (
        len(times) < spec.rounds and time.perf_counter() - start < spec.seconds
    ):
        times.append((seconds(ours), seconds(baseline)))
    return (
        1e3 * statistics.median(our for our, _ in times),
        statistics.median(base / our for our, base in times),
    )


def _baseline(spec: AttentionBench, mask: Mask, length: int) -> Callable[..., Array]:
    if spec.mask == "causal":
        return lambda q, k, v, _: jax.nn.dot_product_attention(q, k, v, is_causal=True)

    def with_array(q, k, v, _):
        index = jnp.arange(length)
        visible = mask.visible(At(index, index, index[None], index[None]))
        return jax.nn.dot_product_attention(q, k, v, mask=visible)

    return with_array


def _inputs(spec: AttentionBench, length: int) -> list[Array]:
    return [
        jax.random.normal(
            jax.random.key(i), (spec.batch, length, heads, spec.head_width), spec.dtype
        )
        for i, heads in enumerate((spec.heads, spec.kv_heads, spec.kv_heads))
    ]


def _parameters(spec: AttentionBench, score: str, length: int) -> dict[str, Array]:
    width = spec.head_width
    sizes = {"H": spec.heads, "K": width, "J": width, "L": length, "M": length}
    entry = SCORES[score]
    return {
        name: init(jax.random.key(0), shape_of(name, sizes | dict(entry.sizes)), spec.dtype)
        for name, init in entry.params.items()
    }


def table(spec: AttentionBench, rows: Sequence[Row]) -> Table:
    shape = f"batch {spec.batch}, {spec.heads} heads of {spec.head_width}, {spec.dtype}"
    out = Table(
        title=f"{spec.mask} attention, {shape}, on {jax.devices()[0].device_kind}",
        caption="×: times as fast as jax.nn.dot_product_attention under the same mask, timed in "
        "turns; or its temporary memory over ours. —: not run, it or the baseline needs over "
        f"{spec.max_gigabytes:g} GB.",
        box=box.SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        pad_edge=False,
    )
    for column in ("length", "score", "by"):
        out.add_column(column, no_wrap=True)
    for column in ("forward\nms", "×", "training\nms", "×", "memory\nMB", "×"):
        out.add_column(column, justify="right", no_wrap=True)

    def number(value: float | None, form: str) -> str:
        return "—" if value is None else form.format(value)

    for row in rows:
        out.add_row(
            str(row.length),
            row.score,
            row.implementation,
            number(row.forward_ms, "{:.1f}"),
            number(row.forward_speed, "{:.2f}"),
            number(row.training_ms, "{:.1f}"),
            number(row.training_speed, "{:.2f}"),
            number(row.memory_mb, "{:.1f}"),
            number(row.memory_saving, "{:.2g}"),
        )
    return out
