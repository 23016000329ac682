"""Measures how a training step grows with length, depth, batch and vocabulary.

Times one step of a small decoder, as `tfm train` takes it. All steps of an axis are timed in turns
in one process, so that a ratio compares times with the same noise. × is relative to the first size
of a series; a series that grows as size^a has the exponent a, measured over its last two sizes,
where constant costs matter least. Memory is temporary, as compiled.
"""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tfm.bench.cases import Case, our_step, timed
from tfm.bench.turns import Run
from tfm.config.spec import Named, Spec, SpecError, choice, field, size
from tfm.terminal import table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bench(Spec):
    """The sizes along each axis, and the sizes of the step where they do not grow."""

    axes: tuple[Named, ...] = choice(lambda: AXES, ("length", "depth", "batch", "vocab"))
    lengths: tuple[int, ...] = size((128, 256, 512, 1024, 2048))
    window: int = size(128)  # visible tokens, for the series with a window
    depths: tuple[int, ...] = size((2, 4, 8, 16))
    batches: tuple[int, ...] = size((2, 8, 32, 128))
    vocabs: tuple[int, ...] = size((256, 1024, 4096, 16384))
    loss_chunk: int = size(16)
    layers: int = size(2)
    heads: int = size(4)
    width: int = size(64)
    length: int = size(64)
    batch: int = size(8)
    vocab: int = size(256)
    rounds: int = size(5)
    seconds: float = field(0.3, above=0)  # of each turn
    max_gigabytes: float = field(6.0, above=0)  # steps that need more memory are not timed

    def check(self) -> None:
        for name in ("axes", "lengths", "depths", "batches", "vocabs"):
            values = getattr(self, name)
            if not values:
                raise SpecError(name, "{key} must not be empty")
            if list(values) != sorted(set(values)) and name != "axes":
                raise SpecError(name, f"{{key}}={values} must grow")
        if self.width % self.heads:
            raise SpecError("heads", f"{{key}}={self.heads} must divide width={self.width}")

    @property
    def case(self) -> Case:
        sizes = self.layers, self.heads, self.width, self.length, self.batch, self.vocab
        return Case("decoder", *sizes)


@dataclasses.dataclass(frozen=True)
class Row:
    axis: str
    series: str
    size: int
    ms: float | None  # the median over rounds; None: it needs too much memory
    memory_mb: float
    compile_s: float
    growth: float | None = None  # its time over that of the first size of the series
    exponent: float | None = None  # of the time, between this size and the previous one


class Setting(NamedTuple):
    """A step to time: one size of a series."""

    series: str
    size: int
    case: Case
    changes: Mapping[str, Any] = {}
    loss_chunk: int | None = None


def by_length(spec: Bench) -> Iterator[Setting]:
    window = {"model.mask": f"window(left={spec.window - 1})"}
    for length in spec.lengths:
        case = dataclasses.replace(spec.case, length=length, batch=1)
        for series in ("reference", "blockwise", f"blockwise, window of {spec.window}"):
            changes = {"model.attention.implementation": series.partition(",")[0]}
            yield Setting(series, length, case, changes | (window if "window" in series else {}))


def by_depth(spec: Bench) -> Iterator[Setting]:
    for layers in spec.depths:
        case = dataclasses.replace(spec.case, layers=layers)
        yield Setting("scanned", layers, case, {"model.scan": True})
        yield Setting("unrolled", layers, case, {"model.scan": False})


def by_batch(spec: Bench) -> Iterator[Setting]:
    for batch in spec.batches:
        yield Setting("step", batch, dataclasses.replace(spec.case, batch=batch))


def by_vocab(spec: Bench) -> Iterator[Setting]:
    for vocab in spec.vocabs:
        case = dataclasses.replace(spec.case, vocab=vocab)
        yield Setting("all logits", vocab, case)
        yield Setting(f"loss_chunk={spec.loss_chunk}", vocab, case, loss_chunk=spec.loss_chunk)


AXES: dict[str, Callable[[Bench], Iterator[Setting]]] = {
    "length": by_length,
    "depth": by_depth,
    "batch": by_batch,
    "vocab": by_vocab,
}


def measure(spec: Bench) -> Iterator[Row]:
    for axis in spec.axes:
        settings = list(axis.entry(spec))
        steps = [compile_step(setting) for setting in settings]
        runs = {n: run for n, (run, mb, _) in enumerate(steps) if mb < 1e3 * spec.max_gigabytes}
        counts = {n: max(1, round(spec.seconds / run(2))) for n, run in runs.items()}
        rounds = [{n: run(counts[n]) for n, run in runs.items()} for _ in range(spec.rounds)]
        rows = []
        for n, (setting, (_, memory_mb, compile_s)) in enumerate(zip(settings, steps, strict=True)):
            ms = 1e3 * statistics.median(times[n] for times in rounds) if n in runs else None
            rows.append(Row(axis, setting.series, setting.size, ms, memory_mb, compile_s))
        yield from with_growth(rows)


def compile_step(setting: Setting) -> tuple[Run, float, float]:
    """Returns the step, its temporary memory in MB, and the seconds to lower and compile it."""
    step, state, batch, numbers = our_step(setting.case, setting.changes, setting.loss_chunk)
    start = time.perf_counter()
    compiled = step.lower(state, batch, numbers).compile()
    seconds = time.perf_counter() - start

    def take() -> Any:
        nonlocal state
        state = compiled(state, batch, numbers)
        return state.step

    return timed(take), compiled.memory_analysis().temp_size_in_bytes / 1e6, seconds


def with_growth(rows: Sequence[Row]) -> Iterator[Row]:
    """Adds the growth and the exponent of each row, within its series."""
    for row in rows:
        before = [r for r in rows if r.series == row.series and r.size < row.size and r.ms]
        if row.ms is None:
            yield row
        elif not before:
            yield dataclasses.replace(row, growth=1.0)
        else:
            times = [other.ms for other in before if other.ms is not None]
            exponent = math.log(row.ms / times[-1]) / math.log(row.size / before[-1].size)
            yield dataclasses.replace(row, growth=row.ms / times[0], exponent=exponent)


def report(spec: Bench, rows: Sequence[Row]) -> Any:
    sizes = "layers/heads/width/length/batch/vocabulary"
    out = table(
        *("axis", "series", ">size", ">ms", ">×", ">exponent", ">memory\nMB", ">compile\ns"),
        title=f"a step of {spec.case} ({sizes}); by length, of batch 1",
    )
    for row in rows:
        times = (row.ms, "{:.1f}"), (row.growth, "{:.2f}"), (row.exponent, "{:.2f}")
        texts = ["—" if value is None else form.format(value) for value, form in times]
        memory = f"{row.memory_mb:.2g}", f"{row.compile_s:.2g}"
        out.add_row(row.axis, row.series, str(row.size), *texts, *memory)
    return out
