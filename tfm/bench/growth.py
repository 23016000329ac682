"""How the time and memory of a training step grow: with length, depth, batch and vocabulary; and
how a sweep's plan grows with its points.

  tfm bench growth [--config.KEY=VALUE …] [--json] [--picture=FILE.svg]

One step of a small decoder, as `tfm train` takes it. All steps of an axis are timed in turns, in
one process, so that every ratio is of times that met the same noise. `growth` is relative to the
first row of a series, `rival` to the first series of the same row. A series that grows as
size^exponent is given its exponent: the slope in logarithms over all its rows, and between its last
two, where what is constant matters least. Memory is temporary, as compiled; of a plan, what its
process grew by. `--picture` draws it all (PNG, SVG or PDF; needs the extra `bench`).
"""

import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from tfm import arguments
from tfm.bench import picture, plans
from tfm.bench.cases import Case, Run, our_step, timed
from tfm.config import from_command_line
from tfm.help import keys_text
from tfm.spec import Named, Spec, SpecError, choice, field, size, to_spec
from tfm.tables import console, table

MEASURES = {  # of a row, with the title of its column and of its picture
    "ms": "milliseconds",
    "memory_mb": "MB of memory",
    "compile_s": "seconds to compile",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class GrowthBench(Spec):
    """What to measure: sizes along each axis, and those of the step where they do not grow."""

    axes: tuple[Named, ...] = choice(lambda: AXES, ("length", "depth", "batch", "vocab", "points"))
    lengths: tuple[int, ...] = size((128, 256, 512, 1024, 2048))
    window: int = size(128)  # tokens that are visible, for the series with a window
    depths: tuple[int, ...] = size((2, 4, 8, 16))
    batches: tuple[int, ...] = size((2, 8, 32, 128))
    vocabs: tuple[int, ...] = size((256, 1024, 4096, 16384))
    loss_chunk: int = size(64)
    points: tuple[int, ...] = size((10, 100, 1000, 10000))
    layers: int = size(2)
    heads: int = size(4)
    width: int = size(64)
    length: int = size(64)
    batch: int = size(8)
    vocab: int = size(256)
    rounds: int = size(5)
    seconds: float = field(0.3, above=0)  # of each turn
    max_gigabytes: float = field(6.0, above=0)  # what needs more memory is not timed

    def check(self) -> None:
        for name in ("axes", "lengths", "depths", "batches", "vocabs", "points"):
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
    ms: float | None  # the median over rounds; None: needs too much memory
    growth: float | None  # its time over that of the first row of the series
    rival: float | None  # its time over that of the first series in the same row
    memory_mb: float
    memory_rival: float | None
    compile_s: float | None


@dataclasses.dataclass(frozen=True)
class Exponent:
    """The slope of a series in logarithms: over all its rows, and between the last two."""

    axis: str
    series: str
    measure: str
    whole: float
    last: float


@dataclasses.dataclass(frozen=True)
class Cell:
    """A step that is to be timed."""

    series: str
    size: int
    case: Case
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    loss_chunk: int | None = None


def by_length(spec: GrowthBench) -> Iterator[Cell]:
    window = {"model.mask": f"window(left={spec.window - 1})"}
    for length in spec.lengths:
        case = dataclasses.replace(spec.case, length=length, batch=1)
        for name, implementation, more in (
            ("reference", "reference", {}),
            ("blockwise", "blockwise", {}),
            (f"blockwise, window of {spec.window}", "blockwise", window),
        ):
            yield Cell(
                name, length, case, {"model.attention.implementation": implementation, **more}
            )


def by_depth(spec: GrowthBench) -> Iterator[Cell]:
    for layers in spec.depths:
        case = dataclasses.replace(spec.case, layers=layers)
        for name, scan in {"scanned": True, "unrolled": False}.items():
            yield Cell(name, layers, case, {"model.scan": scan})


def by_batch(spec: GrowthBench) -> Iterator[Cell]:
    for batch in spec.batches:
        yield Cell("step", batch, dataclasses.replace(spec.case, batch=batch))


def by_vocab(spec: GrowthBench) -> Iterator[Cell]:
    for vocab in spec.vocabs:
        case = dataclasses.replace(spec.case, vocab=vocab)
        yield Cell("all logits", vocab, case)
        yield Cell(f"loss_chunk={spec.loss_chunk}", vocab, case, loss_chunk=spec.loss_chunk)


class Step:
    """A cell, compiled."""

    def __init__(self, cell: Cell):
        train_step, state, batch, numbers = our_step(cell.case, cell.changes, cell.loss_chunk)
        start = time.perf_counter()
        compiled = train_step.lower(state, batch, numbers).compile()
        self.compile_s = time.perf_counter() - start
        self.memory_mb: float = compiled.memory_analysis().temp_size_in_bytes / 1e6

        def step() -> Any:
            nonlocal state
            state = compiled(state, batch, numbers)
            return state.step

        self.run: Run = timed(step)


def measure_steps(
    cells: Sequence[Cell], spec: GrowthBench, advance: Callable[[], None]
) -> list[tuple[Cell, float | None, float, float]]:
    """Each cell with the seconds of a step, its memory and its compile time."""
    made = []
    for cell in cells:
        made.append(Step(cell))
        advance()
    timed = [n for n, one in enumerate(made) if one.memory_mb < 1e3 * spec.max_gigabytes]
    counts = {}
    for n in timed:
        made[n].run(1)  # what is done only once
        counts[n] = max(1, round(spec.seconds / made[n].run(1)))
    seconds: dict[int, list[float]] = {n: [] for n in timed}
    for _ in range(spec.rounds):
        for n in timed:
            seconds[n].append(made[n].run(counts[n]))
            advance()
    return [
        (
            cell,
            statistics.median(seconds[n]) if n in seconds else None,
            one.memory_mb,
            one.compile_s,
        )
        for n, (cell, one) in enumerate(zip(cells, made, strict=True))
    ]


def measure_points(
    spec: GrowthBench, advance: Callable[[], None]
) -> list[tuple[Cell, float | None, float, None]]:
    found = []
    for points in spec.points:
        plan = plans.measure(points)
        found.append((Cell("plan", points, spec.case), plan.seconds, plan.memory_mb, None))
        advance()
    return found


AXES: dict[str, Callable[[GrowthBench], Iterator[Cell]] | None] = {
    "length": by_length,
    "depth": by_depth,
    "batch": by_batch,
    "vocab": by_vocab,
    "points": None,  # no step, but the plan of a sweep
}


def measure(spec: GrowthBench) -> list[Row]:
    rows: list[Row] = []
    with Progress(console=Console(stderr=True)) as bar:
        for axis in spec.axes:
            cells = list(axis.entry(spec)) if axis.entry else []
            total = len(cells) * (1 + spec.rounds) or len(spec.points)
            task = bar.add_task(axis, total=total)

            def advance(task: Any = task) -> None:
                bar.advance(task)

            found = measure_steps(cells, spec, advance) if cells else measure_points(spec, advance)
            rows += _rows(axis, found)
            bar.update(task, completed=total)
    return rows


def _rows(axis: str, found: Sequence[tuple[Cell, float | None, float, float | None]]) -> list[Row]:
    first_of_series, first_of_row = {}, {}
    rows = []
    for cell, seconds, memory, compile_s in found:
        begin = first_of_series.setdefault(cell.series, seconds)
        rival, rival_memory = first_of_row.setdefault(cell.size, (seconds, memory))
        rows.append(
            Row(
                axis,
                cell.series,
                cell.size,
                None if seconds is None else 1e3 * seconds,
                _ratio(seconds, begin),
                _ratio(seconds, rival),
                memory,
                _ratio(memory, rival_memory),
                compile_s,
            )
        )
    return rows


def _ratio(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other


def exponents(rows: Sequence[Row]) -> list[Exponent]:
    found = []
    for axis, series in dict.fromkeys((row.axis, row.series) for row in rows):
        own = [row for row in rows if (row.axis, row.series) == (axis, series)]
        for measure in MEASURES:
            points = points_of(own, measure)
            if len(points) > 1:
                found.append(Exponent(axis, series, measure, slope(points), slope(points[-2:])))
    return found


def points_of(rows: Sequence[Row], measure: str) -> list[tuple[float, float]]:
    """Size and measure of each row that has it; what is zero has no logarithm."""
    pairs = [(float(row.size), getattr(row, measure)) for row in rows]
    return [(x, y) for x, y in pairs if y]


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The exponent a of y = c·x^a, by least squares in logarithms."""
    x, y = np.log(np.array(points)).T
    return float(np.polyfit(x, y, 1)[0])


def draw(rows: Sequence[Row], path: str) -> None:
    """Panels for each axis: time above, memory below, and by depth the compile time."""
    lines = []
    for measure, label in MEASURES.items():
        panels = []
        for axis in dict.fromkeys(row.axis for row in rows):
            own = [row for row in rows if row.axis == axis]
            series = dict.fromkeys(row.series for row in own)
            curves = {s: points_of([r for r in own if r.series == s], measure) for s in series}
            if any(curves.values()) and (measure != "compile_s" or axis == "depth"):
                panels.append(
                    picture.Panel(f"by {axis}", axis, label, {s: c for s, c in curves.items() if c})
                )
        lines += [panels] if panels else []
    picture.draw(lines, path)


def main(argv: Sequence[str]) -> None:
    if set(arguments.HELP) & set(argv):
        print(f"{__doc__}{keys_text(argv, GrowthBench)}", end="")
        return
    given = arguments.split(argv, options=("picture",), flags=("json",))
    spec = to_spec(GrowthBench, from_command_line(given.config, GrowthBench, {}))
    path = picture.check(given.options.get("picture"))
    rows = measure(spec)
    if path is not None:
        draw(rows, path)
    if "json" in given.flags:
        both = {"rows": rows, "exponents": exponents(rows)}
        print(
            json.dumps({k: [dataclasses.asdict(x) for x in v] for k, v in both.items()}, indent=1)
        )
    else:
        _print(spec, rows)


def _print(spec: GrowthBench, rows: Sequence[Row]) -> None:
    case = spec.case
    out = table(
        *("axis", "series", ">size", ">ms", ">growth\n×", ">rival\n×", ">memory\nMB", ">rival\n×"),
        ">compile\ns",
        title=f"a step of {case} (layers/heads/width/length/batch/vocabulary); by length, batch 1",
    )
    for row in rows:
        numbers = {
            "{:.1f}": (row.ms,),
            "{:.2f}": (row.growth, row.rival),
            "{:.2g}": (row.memory_mb, row.memory_rival, row.compile_s),
        }
        texts = [
            "—" if value is None else form.format(value)
            for form, values in numbers.items()
            for value in values
        ]
        out.add_row(row.axis, row.series, str(row.size), *texts)
    console().print(out, "")
    slopes = table("axis", "series", "of", ">exponent", ">of the last two rows")
    for one in exponents(rows):
        slopes.add_row(
            one.axis, one.series, MEASURES[one.measure], f"{one.whole:.2f}", f"{one.last:.2f}"
        )
    console().print(slopes)
