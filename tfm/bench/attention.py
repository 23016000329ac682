"""Measures time and memory of attention, beside `jax.nn.dot_product_attention`.

Every number is measured in turns with the baseline, in one run, and given as a ratio to it, so that
both meet the same noise of the machine.
"""

import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax import Array
from jax import numpy as jnp
from jax.tree_util import Partial
from rich.table import Table

from tfm.config.spec import Named, Spec, SpecError, call, choice, field, size
from tfm.layers.dims import DTYPES
from tfm.ops.attend import IMPLEMENTATIONS, attend
from tfm.ops.mask import At
from tfm.ops.masks import MASKS
from tfm.ops.normalizers import NORMALIZERS
from tfm.ops.scores import SCORES
from tfm.ops.shapes import shape_of
from tfm.terminal import table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bench(Spec):
    """Each score × implementation × length is one row of the table."""

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
    seconds: float = field(4.0, above=0)  # the rounds of a row stop after this time
    max_gigabytes: float = field(8.0, above=0)  # rows that need more temporary memory are not run

    def check(self) -> None:
        for name in ("lengths", "scores", "implementations"):
            if not getattr(self, name):
                raise SpecError(name, "{key} must not be empty")


@dataclasses.dataclass(frozen=True)
class Row:
    """A speed or saving above 1 is better than the baseline."""

    length: int
    score: str
    implementation: str
    forward_ms: float | None
    forward_speed: float | None
    training_ms: float | None  # forward and backward
    training_speed: float | None
    memory_mb: float  # temporary, as compiled, forward and backward
    memory_saving: float


def measure(spec: Bench) -> Iterator[Row]:
    candidates = list(itertools.product(spec.scores, spec.implementations))
    length = min(spec.lengths)
    for score, implementation in candidates:  # raises before the first compilation
        args = *_inputs(spec, length), _parameters(spec, score, length)
        jax.eval_shape(_candidate(spec, score, implementation), *args)
    for length in spec.lengths:
        qkv = _inputs(spec, length)
        baseline = _Compiled(_baseline(spec, length), *qkv, {})
        for score, implementation in candidates:
            params = _parameters(spec, score, length)
            ours = _Compiled(_candidate(spec, score, implementation), *qkv, params)
            forward = _in_turns(spec, ours, baseline, lambda c: c.forward)
            training = _in_turns(spec, ours, baseline, lambda c: c.training)
            memory = ours.memory / 1e6, baseline.memory / max(ours.memory, 1)
            yield Row(length, score, implementation, *forward, *training, *memory)


def _candidate(spec: Bench, score: Named, implementation: str) -> Callable[..., Array]:
    options: dict[str, Any] = {"mask": spec.mask.entry, "normalizer": spec.normalizer.entry}

    def candidate(q, k, v, params):
        fn = Partial(score.entry.fn, **params)
        return attend(q, k, v, score=fn, implementation=implementation, **options)

    return candidate


class _Compiled:
    """A function of (q, k, v, parameters), compiled forward and as part of a training step."""

    def __init__(self, fn: Callable[..., Array], *args: Any):
        def loss(*args):
            return jnp.sum(jnp.square(fn(*args).astype(jnp.float32)))

        self.args = args
        self.forward = jax.jit(fn).lower(*args).compile()
        self.training = jax.jit(jax.grad(loss, (0, 1, 2, 3))).lower(*args).compile()
        analysis: Any = self.training.memory_analysis()
        self.memory = analysis.temp_size_in_bytes


def _in_turns(
    spec: Bench, ours: _Compiled, baseline: _Compiled, which: Callable[[_Compiled], Any]
) -> tuple[float | None, float | None]:
    """Returns our median milliseconds, and the median over rounds of baseline time / our time."""
    if max(ours.memory, baseline.memory) > spec.max_gigabytes * 1e9:
        return None, None

    def seconds(compiled: _Compiled) -> float:
        start = time.perf_counter()
        jax.block_until_ready(which(compiled)(*compiled.args))
        return time.perf_counter() - start

    seconds(ours), seconds(baseline)
    times: list[tuple[float, float]] = []
    end = time.perf_counter() + spec.seconds
    while len(times) < 2 or (len(times) < spec.rounds and time.perf_counter() < end):
        times.append((seconds(ours), seconds(baseline)))
    return (
        1e3 * statistics.median(our for our, _ in times),
        statistics.median(base / our for our, base in times),
    )


def _baseline(spec: Bench, length: int) -> Callable[..., Array]:
    if spec.mask == "causal":
        return lambda q, k, v, _: jax.nn.dot_product_attention(q, k, v, is_causal=True)

    def with_array(q, k, v, _):
        index = jnp.arange(length)
        visible = spec.mask.entry.visible(At(index, index, index[None], index[None]))
        return jax.nn.dot_product_attention(q, k, v, mask=visible)

    return with_array


def _inputs(spec: Bench, length: int) -> list[Array]:
    heads = enumerate((spec.heads, spec.kv_heads, spec.kv_heads))
    shapes = {seed: (spec.batch, length, count, spec.head_width) for seed, count in heads}
    return [jax.random.normal(jax.random.key(i), x, spec.dtype) for i, x in shapes.items()]


def _parameters(spec: Bench, score: Named, length: int) -> dict[str, Array]:
    sizes = {"H": spec.heads, "K": spec.head_width, "L": length, "M": length}
    sizes |= dict(score.entry.sizes)
    return {
        name: init(jax.random.key(0), shape_of(name, sizes), spec.dtype)
        for name, init in score.entry.params.items()
    }


def report(spec: Bench, rows: Sequence[Row]) -> Table:
    shape = f"batch {spec.batch}, {spec.heads} heads of {spec.head_width}, {spec.dtype}"
    out = table(
        *("length", "score", "by"),
        *(">forward\nms", ">×", ">training\nms", ">×", ">memory\nMB", ">×"),
        title=f"{spec.mask} attention, {shape}, on {jax.devices()[0].device_kind}",
        caption="×: times as fast as jax.nn.dot_product_attention under the same mask, timed in "
        "turns; or its temporary memory over ours. —: not run, it or the baseline needs over "
        f"{spec.max_gigabytes:g} GB.",
    )
    forms = "{:.1f}", "{:.2f}", "{:.1f}", "{:.2f}", "{:.1f}", "{:.2g}"
    for row in rows:
        numbers = zip(forms, dataclasses.astuple(row)[3:], strict=True)
        cells = ["—" if value is None else form.format(value) for form, value in numbers]
        out.add_row(str(row.length), row.score, row.implementation, *cells)
    return out
