"""Time and memory of attention, beside `jax.nn.dot_product_attention`.

  tfm bench attention [--config=FILE.py] [--config.KEY=VALUE …] [--json]

Every number is measured in turns with the baseline, in one run, and given as a ratio to it, so
that both meet the same noise of the machine.
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
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tfm.config import arguments
from tfm.config.files import from_command_line
from tfm.config.help import keys_text
from tfm.config.spec import Named, Spec, SpecError, call, choice, field, size, to_spec, to_tree
from tfm.layers.dims import DTYPES
from tfm.ops.attend import IMPLEMENTATIONS, attend
from tfm.ops.mask import At
from tfm.ops.masks import MASKS
from tfm.ops.normalizers import NORMALIZERS
from tfm.ops.scores import SCORES
from tfm.ops.shapes import shape_of
from tfm.terminal import table


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionBench(Spec):
    """What to measure. Each score × implementation × length is one row of the table."""

    lengths: tuple[int, ...] = size((256, 1024, 2048))
    scores: tuple[Named, ...] = choice(lambda: SCORES, ("scaled_dot", "additive"))
    implementations: tuple[Named, ...] = choice(lambda: IMPLEMENTATIONS, ("reference", "blockwise"))
    mask: Named = call(lambda: MASKS, "causal")
    normalizer: Named = call(lambda: NORMALIZERS, "softmax")
    batch: int = size(1)
    heads: int = size(4)
    kv_heads: int = size(4)
    head_width: int = size(64)
    dtype: Named = choice(lambda: DTYPES, "float32")
    rounds: int = field(5, least=2)  # at most
    seconds: float = field(4.0, above=0)  # the rounds of a row stop when they took this long
    max_gigabytes: float = field(8.0, above=0)  # what needs more temporary memory is not run

    def check(self) -> None:
        for name in ("lengths", "scores", "implementations"):
            if not getattr(self, name):
                raise SpecError(name, "{key} must not be empty")


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
    """The default, for config files to change."""
    return ConfigDict(to_tree(AttentionBench()))


def main(argv: Sequence[str]) -> None:
    if set(arguments.HELP) & set(argv):
        print(f"{__doc__}{keys_text(AttentionBench, {})}", end="")
        return
    given = arguments.split(argv, flags=("json",))
    spec = to_spec(AttentionBench, from_command_line(given.config, AttentionBench, {}))
    _check_shapes(spec)
    cells = len(spec.lengths) * len(spec.scores) * len(spec.implementations)
    rows = list(track(measure(spec), "compiling and timing", cells, console=Console(stderr=True)))
    if "json" in given.flags:
        print(json.dumps([dataclasses.asdict(row) for row in rows], indent=1))
    else:
        Console().print(_table(spec, rows))


def _check_shapes(spec: AttentionBench) -> None:
    """Raise what cannot run, before the first compilation."""
    length = min(spec.lengths)
    for score in spec.scores:
        for implementation in spec.implementations:
            fn = _candidate(spec, score, implementation)
            jax.eval_shape(fn, *_inputs(spec, length), _parameters(spec, score, length))


def measure(spec: AttentionBench) -> Iterator[Row]:
    for length in spec.lengths:
        qkv = _inputs(spec, length)
        baseline = _Compiled(_baseline(spec, length), *qkv, {})
        for score in spec.scores:
            params = _parameters(spec, score, length)
            for implementation in spec.implementations:
                ours = _Compiled(_candidate(spec, score, implementation), *qkv, params)
                yield Row(
                    length,
                    score,
                    implementation,
                    *_in_turns(spec, ours, baseline, lambda c: c.forward),
                    *_in_turns(spec, ours, baseline, lambda c: c.training),
                    ours.memory / 1e6,
                    baseline.memory / max(ours.memory, 1),
                )


def _candidate(spec: AttentionBench, score: Named, implementation: str) -> Callable[..., Array]:
    def candidate(q, k, v, params):
        return attend(
            q,
            k,
            v,
            score=Partial(score.entry.fn, **params),
            mask=spec.mask.entry,
            normalizer=spec.normalizer.entry,
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


def _baseline(spec: AttentionBench, length: int) -> Callable[..., Array]:
    if spec.mask == "causal":
        return lambda q, k, v, _: jax.nn.dot_product_attention(q, k, v, is_causal=True)

    def with_array(q, k, v, _):
        index = jnp.arange(length)
        visible = spec.mask.entry.visible(At(index, index, index[None], index[None]))
        return jax.nn.dot_product_attention(q, k, v, mask=visible)

    return with_array


def _inputs(spec: AttentionBench, length: int) -> list[Array]:
    return [
        jax.random.normal(
            jax.random.key(i), (spec.batch, length, heads, spec.head_width), spec.dtype
        )
        for i, heads in enumerate((spec.heads, spec.kv_heads, spec.kv_heads))
    ]


def _parameters(spec: AttentionBench, score: Named, length: int) -> dict[str, Array]:
    width = spec.head_width
    sizes = {"H": spec.heads, "K": width, "L": length, "M": length}
    entry = score.entry
    return {
        name: init(jax.random.key(0), shape_of(name, sizes | dict(entry.sizes)), spec.dtype)
        for name, init in entry.params.items()
    }


def _table(spec: AttentionBench, rows: Sequence[Row]) -> Table:
    shape = f"batch {spec.batch}, {spec.heads} heads of {spec.head_width}, {spec.dtype}"
    out = table(
        *("length", "score", "by"),
        *(">forward\nms", ">×", ">training\nms", ">×", ">memory\nMB", ">×"),
        title=f"{spec.mask} attention, {shape}, on {jax.devices()[0].device_kind}",
        caption="×: times as fast as jax.nn.dot_product_attention under the same mask, timed in "
        "turns; or its temporary memory over ours. —: not run, it or the baseline needs over "
        f"{spec.max_gigabytes:g} GB.",
    )

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
