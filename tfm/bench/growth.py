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

from rich.console import Console
from rich.progress import Progress

from tfm.bench import picture, plans
from tfm.bench.cases import Case, Run, our_step, timed
from tfm.bench.series import Found, Row, draw, exponents, rows_of, show
from tfm.config import arguments
from tfm.config.files import from_command_line
from tfm.config.help import keys_text
from tfm.config.spec import Named, Spec, SpecError, choice, field, size, to_spec


@dataclasses.dataclass(frozen=True, kw_only=True)
class GrowthBench(Spec):
    """What to measure: sizes along each axis, and those of the step where they do not grow."""

    axes: tuple[Named, ...] = choice(lambda: AXES, ("length", "depth", "batch", "vocab", "points"))
    lengths: tuple[int, ...] = size((128, 256, 512, 1024, 2048))
    window: int = size(128)  # tokens that are visible, for the series with a window
    depths: tuple[int, ...] = size((2, 4, 8, 16))
    batches: tuple[int, ...] = size((2, 8, 32, 128))
    vocabs: tuple[int, ...] = size((256, 1024, 4096, 16384))
    loss_chunk: int = size(16)
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
) -> list[Found]:
    """Each cell with the seconds of a step, its memory and its compile time."""
    steps = []
    for cell in cells:
        steps.append(Step(cell))
        advance()
    timed = [n for n, one in enumerate(steps) if one.memory_mb < 1e3 * spec.max_gigabytes]
    counts = {}
    for n in timed:
        steps[n].run(1)  # what is done only once
        counts[n] = max(1, round(spec.seconds / steps[n].run(1)))
    seconds: dict[int, list[float]] = {n: [] for n in timed}
    for _ in range(spec.rounds):
        for n in timed:
            seconds[n].append(steps[n].run(counts[n]))
            advance()
    return [
        Found(
            cell.series,
            cell.size,
            statistics.median(seconds[n]) if n in seconds else None,
            one.memory_mb,
            one.compile_s,
        )
        for n, (cell, one) in enumerate(zip(cells, steps, strict=True))
    ]


def measure_points(spec: GrowthBench, advance: Callable[[], None]) -> list[Found]:
    found = []
    for points in spec.points:
        plan = plans.measure(points)
        found.append(Found("plan", points, plan.seconds, plan.memory_mb, None))
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
            rows += rows_of(axis, found)
            bar.update(task, completed=total)
    return rows


def main(argv: Sequence[str]) -> None:
    if set(arguments.HELP) & set(argv):
        print(f"{__doc__}{keys_text(GrowthBench, {})}", end="")
        return
    given = arguments.split(argv, options=("picture",), flags=("json",))
    spec = to_spec(GrowthBench, from_command_line(given.config, GrowthBench, {}))
    path = picture.check(given.options.get("picture"))
    rows = measure(spec)
    if path is not None:
        draw(rows, path)
    if "json" in given.flags:
        both: dict[str, list[Any]] = {"rows": rows, "exponents": exponents(rows)}
        print(
            json.dumps({k: [dataclasses.asdict(x) for x in v] for k, v in both.items()}, indent=1)
        )
    else:
        sizes = "layers/heads/width/length/batch/vocabulary"
        show(f"a step of {spec.case} ({sizes}); by length, of batch 1", rows)
