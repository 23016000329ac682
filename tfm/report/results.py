"""From the folders of a sweep to a table: variants × tasks, means with intervals over seeds."""

import csv
import dataclasses
import functools
import io
import math
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from scipy import stats

from tfm.folder import Damaged, Folder
from tfm.names import UserError
from tfm.train.identity import is_stale

LEVEL = 0.95


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a sweep. What it has not measured yet is None."""

    id: str
    variant: str
    task: str
    seed: int
    point: Mapping[str, Any]
    status: str  # done, diverged, failed, unfinished or damaged
    error: str = ""  # of one that failed or is damaged
    stale: bool = False  # other library code made it
    parameters: int | None = None
    flops: int | None = None
    seconds: float | None = None  # of training, without compilation
    metrics: Mapping[str, float | None] = dataclasses.field(default_factory=dict)  # validation
    tests: Mapping[str, Mapping[str, float | None]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Cell:
    """A variant on a task. If a seed diverged there is no mean: one of the others would mislead."""

    mean: float | None
    half: float | None  # width of the interval; None with fewer than two runs
    runs: int  # in the mean
    diverged: int
    failed: int
    unfinished: int
    damaged: int
    stale: int
    parameters: int | None
    flops: int | None
    seconds: float | None  # the median


@dataclasses.dataclass(frozen=True)
class Results:
    study: str
    question: str
    metric: str
    runs: Sequence[Run]

    @property
    def variants(self) -> list[str]:
        return list(dict.fromkeys(run.variant for run in self.runs))

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(run.task for run in self.runs))

    @functools.cached_property
    def cells(self) -> dict[tuple[str, str], Cell]:
        """By (task, variant), task after task."""
        runs: dict[tuple[str, str], list[Run]] = {}
        for run in self.runs:
            runs.setdefault((run.task, run.variant), []).append(run)
        cells = [(task, variant) for task in self.tasks for variant in self.variants]
        return {cell: _cell(runs[cell], self.metric) for cell in cells if cell in runs}

    def cell(self, variant: str, task: str) -> Cell | None:
        return self.cells.get((task, variant))


def read(workdir: str) -> Results:
    """The results in the folder of a sweep."""
    if not pathlib.Path(workdir).is_dir():
        raise UserError(f"no folder {workdir}")
    sweep = Folder(workdir).read("sweep.json")
    if sweep is None:
        raise UserError(f"{workdir} is not the folder of a sweep: it has no sweep.json")
    runs = [_run(pathlib.Path(workdir) / one["id"], one) for one in sweep["runs"]]
    return Results(sweep["study"], sweep["question"], sweep["metric"], runs)


def _run(path: pathlib.Path, known: Mapping[str, Any]) -> Run:
    if not path.is_dir():
        return Run(**known, status="unfinished")
    folder = Folder(path)
    try:
        summary, failure = folder.summary(known["id"]), folder.read("failure.json")
    except Damaged as e:
        return Run(**known, status="damaged", error=str(e))
    if summary is None and failure is not None:
        return Run(**known, status="failed", error=failure["error"])
    if summary is None:
        return Run(**known, status="unfinished")
    return Run(
        **known,
        status=summary["status"],
        stale=is_stale(folder.read("profile.json")),
        parameters=summary["parameters"],
        flops=summary["flops"],
        seconds=_seconds(folder.read_log(), summary["steps"]),
        metrics={k: v for k, v in (summary["valid"] or {}).items() if k != "step"},
        tests=summary["tests"],
    )


def _seconds(lines: Sequence[Mapping[str, Any]], steps: int) -> float | None:
    """Of all steps, at the median speed between lines of the log. The first line is left out: it
    includes compilation."""
    lines = [line for line in lines if line["split"] == "train"]
    ends = [0, *(line["step"] for line in lines)]
    per_step = [
        line["seconds"] / (end - start)
        for line, start, end in zip(lines, ends[:-1], ends[1:], strict=True)
    ]
    return statistics.median(per_step[1:]) * steps if len(per_step) > 1 else None


def _cell(runs: Sequence[Run], metric: str) -> Cell:
    done = [run for run in runs if run.status == "done"]
    values = [run.metrics.get(metric) for run in done]
    finite = [value for value in values if value is not None]
    diverged = sum(run.status == "diverged" for run in runs) + len(values) - len(finite)
    mean, half = (None, None) if diverged else interval(finite)
    timed = [run.seconds for run in done if run.seconds is not None]
    ended = [run for run in runs if run.parameters is not None]
    return Cell(
        mean,
        half,
        len(finite),
        diverged,
        sum(run.status == "failed" for run in runs),
        sum(run.status == "unfinished" for run in runs),
        sum(run.status == "damaged" for run in runs),
        sum(run.stale for run in runs),
        ended[0].parameters if ended else None,
        ended[0].flops if ended else None,
        statistics.median(timed) if timed else None,
    )


def interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """The mean, and half the width of Student's interval for it.  Student 1908."""
    if not values:
        return None, None
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, None
    error = statistics.stdev(values) / math.sqrt(len(values))
    return mean, float(stats.t.ppf((1 + LEVEL) / 2, len(values) - 1)) * error


def write(results: Results, folder: Folder) -> None:
    folder.write_text("results.md", markdown(results))
    folder.write_text("results.csv", table_csv(results))
    folder.write_text("runs.csv", runs_csv(results))


def markdown(results: Results) -> str:
    """The table of the metric, and below it what each cell cost."""
    tasks = results.tasks
    lines = [
        f"# {results.study}",
        "",
        results.question,
        "",
        f"Mean {results.metric} on validation data ± half of the 95 % interval over seeds.",
        "",
        _row("variant", *tasks),
        _row("---", *("---:" for _ in tasks)),
    ]
    for variant in results.variants:
        cells = (results.cell(variant, task) for task in tasks)
        lines.append(_row(variant, *(text(cell) for cell in cells)))
    head = ("task", "variant", "parameters", "training FLOPs", "seconds", "runs")
    lines += ["", _row(*head), _row("---", "---", *("---:" for _ in head[2:]))]
    lines += [_row(*names, *cost(cell)) for names, cell in results.cells.items()]
    return "\n".join(lines) + "\n"


def text(cell: Cell | None) -> str:
    """A mean with its interval, and what is missing from it."""
    if cell is None:
        return ""
    out = "—" if cell.mean is None else f"{cell.mean:.3f}"
    if cell.half is not None:
        out += f" ± {cell.half:.3f}"
    for status in ("diverged", "failed", "unfinished", "damaged", "stale"):
        if number := getattr(cell, status):
            out += f" ({number} {status})"
    return out


def cost(cell: Cell) -> tuple[str, str, str, str]:
    """Parameters, FLOPs, seconds and runs, as text."""
    return (
        "—" if cell.parameters is None else f"{cell.parameters:,}",
        "—" if cell.flops is None else f"{cell.flops:.3g}",
        "—" if cell.seconds is None else f"{cell.seconds:.1f}",
        str(cell.runs),
    )


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def table_csv(results: Results) -> str:
    """A line for each variant and task."""
    fields = [field.name for field in dataclasses.fields(Cell)]
    rows = [
        {"variant": variant, "task": task, "metric": results.metric, **dataclasses.asdict(cell)}
        for (task, variant), cell in results.cells.items()
    ]
    return _csv(["variant", "task", "metric", *fields], rows)


def runs_csv(results: Results) -> str:
    """A line for each run: its settings, and all that was measured."""
    keys = list(dict.fromkeys(key for run in results.runs for key in run.point))
    own = ["id", "variant", "task", "seed", "status", "error", "stale", "parameters", "flops",
           "seconds"]  # fmt: skip
    rows = []
    for run in results.runs:
        tests = {f"{name} on {task}": x for task, m in run.tests.items() for name, x in m.items()}
        measured = {**run.metrics, **tests}
        rows.append({name: getattr(run, name) for name in own} | {**run.point} | measured)
    names = dict.fromkeys(name for row in rows for name in row)
    return _csv(list(dict.fromkeys([*own, *keys, *names])), rows)


def _csv(fields: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def to_json(results: Results) -> dict[str, Any]:
    """The same as a tree for JSON."""
    return {
        "study": results.study,
        "question": results.question,
        "metric": results.metric,
        "table": [
            {"variant": variant, "task": task, **dataclasses.asdict(cell)}
            for (task, variant), cell in results.cells.items()
        ],
        "runs": [dataclasses.asdict(run) for run in results.runs],
    }
