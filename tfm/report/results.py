"""From the folders of a sweep to a table: variants × tasks, means with intervals over seeds."""

import collections
import csv
import dataclasses
import functools
import hashlib
import io
import json
import pathlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfm.config.names import UserError
from tfm.report.statistics import METRICS, Comparison, Interval, compare, interval
from tfm.run.folder import Damaged, Folder
from tfm.run.library_code import is_stale
from tfm.terminal import plain

SOLVED = 0.01  # how near to the best accuracy a run has solved its task


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
    stale: bool = False  # other library code or settings of JAX made it
    profiles: Sequence[str] = ()  # a hash of each profile that it ran under
    parameters: int | None = None
    flops: int | None = None
    seconds: float | None = None  # of training, without compilation
    metrics: Mapping[str, float | None] = dataclasses.field(default_factory=dict)  # validation
    tests: Mapping[str, Mapping[str, float | None]] = dataclasses.field(default_factory=dict)
    best: float | None = None  # the highest accuracy that is possible, where it is known
    floors: Mapping[str, float] = dataclasses.field(default_factory=dict)  # of accuracy

    def value(self, metric: str) -> float | None:
        """Of a run that is done."""
        return self.metrics.get(metric) if self.status == "done" else None

    @property
    def solved(self) -> bool | None:
        """Whether it is within SOLVED of the best accuracy that is possible."""
        accuracy = self.value("accuracy")
        if self.best is None or accuracy is None:
            return None
        return accuracy >= self.best - SOLVED


@dataclasses.dataclass(frozen=True)
class Cell:
    """A variant on a task. If a seed diverged there is no mean: one of the others would mislead."""

    mean: float | None
    low: float | None  # of the interval; None with fewer than two runs
    high: float | None
    runs: int  # in the mean
    solved: int | None  # of these runs; None where the best accuracy is not known
    diverged: int
    failed: int
    unfinished: int
    damaged: int
    stale: int
    profiles: int  # under which its runs were made: between two, bits may differ
    parameters: int | None
    flops: int | None
    seconds: float | None  # the median


@dataclasses.dataclass(frozen=True)
class Results:
    study: str
    question: str
    metric: str
    runs: Sequence[Run]
    baseline: str | None = None  # a variant

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

    @functools.cached_property
    def comparisons(self) -> dict[tuple[str, str], Comparison]:
        """Each variant with the baseline, by (task, variant)."""
        pairs = {
            (task, variant): self._pairs(task, variant)
            for task, variant in self.cells
            if self.baseline is not None and variant != self.baseline
        }
        return compare(pairs, METRICS[self.metric])

    def _pairs(self, task: str, variant: str) -> tuple[list[float], str]:
        """Differences to the baseline by seed, and why they allow no verdict, if that is so."""
        runs = {(run.variant, run.seed): run for run in self.runs if run.task == task}
        names = variant, self.baseline or ""
        both = [seed for name, seed in runs if name == variant and (names[1], seed) in runs]
        values = [[runs[name, seed].value(self.metric) for name in names] for seed in both]
        found = [a - b for a, b in values if a is not None and b is not None]
        missing = len(both) - len(found)
        return found, f"{missing} of {len(both)} seeds have no number" if missing else ""

    @property
    def floors(self) -> dict[str, dict[str, float]]:
        """What can be reached without solving a task, by (name, task), as accuracy."""
        found: dict[str, dict[str, float]] = {}
        if self.metric == "accuracy":
            for run in self.runs:
                for name, value in run.floors.items():
                    found.setdefault(name, {})[run.task] = value
        return found


def read(workdir: str, settings: Mapping[str, Any] | None = None) -> Results:
    """Reads the folder of a sweep. `settings` are those of JAX that its runs must have had."""
    if not pathlib.Path(workdir).is_dir():
        raise UserError(f"no folder {workdir}")
    sweep = Folder(workdir).read("sweep.json")
    if sweep is None:
        raise UserError(f"{workdir} is not the folder of a sweep: it has no sweep.json")
    runs = [_run(pathlib.Path(workdir) / run["id"], run, settings) for run in sweep["runs"]]
    return Results(sweep["study"], sweep["question"], sweep["metric"], runs, sweep.get("baseline"))


def _run(path: pathlib.Path, known: Mapping[str, Any], settings: Mapping[str, Any] | None) -> Run:
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
    profiles, limits = folder.read("profile.json"), summary.get("limits", {})
    return Run(
        **known,
        status=summary["status"],
        stale=is_stale(profiles, settings),
        profiles=[_digest(one) for one in (profiles or {}).get("profiles", ())],
        parameters=summary["parameters"],
        flops=summary["flops"],
        seconds=_seconds(folder.read_log(), summary["steps"]),
        metrics={k: v for k, v in (summary["valid"] or {}).items() if k != "step"},
        tests=summary["tests"],
        best=limits.get("best"),
        floors=limits.get("floors", {}),
    )


def _digest(profile: Mapping[str, Any]) -> str:
    """Of where a run ran, and with which versions and settings; not of which code it reaches."""
    made_by = {name: x for name, x in profile["made_by"].items() if name != "tfm"}
    rest = {name: x for name, x in profile.items() if name not in ("entries", "made_by")}
    return hashlib.sha256(json.dumps([made_by, rest], sort_keys=True).encode()).hexdigest()[:8]


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


def _cell(runs: Sequence[Run], name: str) -> Cell:
    done, metric = [run for run in runs if run.status == "done"], METRICS[name]
    finite = [value for run in done if (value := run.value(name)) is not None]
    status = collections.Counter(run.status for run in runs)
    diverged = status["diverged"] + len(done) - len(finite)
    found = Interval() if diverged else interval(finite, metric.least, metric.most)
    timed = [run.seconds for run in done if run.seconds is not None]
    ended = [run for run in runs if run.parameters is not None]
    solved = [run.solved for run in done if run.solved is not None]
    return Cell(
        mean=found.mean,
        low=found.low,
        high=found.high,
        runs=len(finite),
        solved=sum(solved) if solved else None,
        diverged=diverged,
        failed=status["failed"],
        unfinished=status["unfinished"],
        damaged=status["damaged"],
        stale=sum(run.stale for run in runs),
        profiles=len({one for run in runs for one in run.profiles}),
        parameters=ended[0].parameters if ended else None,
        flops=ended[0].flops if ended else None,
        seconds=statistics.median(timed) if timed else None,
    )


def write(results: Results, folder: Folder) -> None:
    folder.write_text("results.md", markdown(results))
    folder.write_text("results.csv", table_csv(results))
    folder.write_text("runs.csv", runs_csv(results))


def markdown(results: Results) -> str:
    """The table of the metric, the differences to the baseline, and what each cell cost."""
    lines = [f"# {plain(results.study)}", "", results.question, ""]
    for title, columns, rows in tables(results):
        head = [column.lstrip(">") for column in columns]
        marks = ["---:" if column.startswith(">") else "---" for column in columns]
        lines += [title, "", _row(head), _row(marks), *map(_row, rows), ""]
    return "\n".join([*lines, NOTE]) + "\n"


Table = tuple[str, list[str], list[list[str]]]  # a title, the columns (">" before numbers), rows


def tables(results: Results) -> Iterator[Table]:
    """What is printed, and written as Markdown."""
    tasks = results.tasks
    title = f"Mean {results.metric} on validation data, with 95 % intervals over seeds."
    rows = [
        [variant, *(text(results.cell(variant, task)) for task in tasks)]
        for variant in results.variants
    ]
    for name, values in results.floors.items():
        rows.append([f"floor: {name}", *(f"{values[t]:.3f}" if t in values else "" for t in tasks)])
    yield title, ["variant", *(f">{task}" for task in tasks)], rows
    if results.comparisons:
        head = ["variant", "task", ">difference", ">pairs", ">p", ">p (Holm)", "verdict"]
        yield (
            f"Difference in {results.metric} to {results.baseline}, paired by seed: Student's 95 % "
            "interval, and p corrected by Holm for all comparisons of the study.",
            head,
            [_comparison(*names, found) for names, found in results.comparisons.items()],
        )
    head = ["task", "variant", ">parameters", ">training FLOPs", ">seconds", ">runs", ">solved"]
    yield "Cost.", head, [[*names, *cost(cell)] for names, cell in results.cells.items()]


NOTE = (
    "A floor is what can be reached without solving the task. A run has solved it if its accuracy "
    f"is within {SOLVED} of the best that is possible. Seconds depend on the load of the machine: "
    "compare FLOPs, or measure with `tfm bench`."
)


def _comparison(task: str, variant: str, found: Comparison) -> list[str]:
    spread = ""
    if found.low is not None and found.high is not None:
        spread = f" ± {(found.high - found.low) / 2:.4f}"
    return [
        variant,
        task,
        "—" if found.difference is None else f"{found.difference:+.4f}{spread}",
        str(found.pairs),
        *("—" if p is None else f"{p:.2g}" for p in (found.p, found.p_holm)),
        found.verdict,
    ]


def text(cell: Cell | None) -> str:
    """A mean with its interval, and what is missing from it."""
    if cell is None:
        return ""
    out = str(Interval(cell.mean, cell.low, cell.high))
    for status in ("diverged", "failed", "unfinished", "damaged", "stale"):
        if number := getattr(cell, status):
            out += f" ({number} {status})"
    return out + (f" ({cell.profiles} profiles)" if cell.profiles > 1 else "")


def cost(cell: Cell) -> tuple[str, str, str, str, str]:
    """Parameters, FLOPs, seconds, runs and how many of them solved the task, as text."""
    return (
        "—" if cell.parameters is None else f"{cell.parameters:,}",
        "—" if cell.flops is None else f"{cell.flops:.3g}",
        "—" if cell.seconds is None else f"{cell.seconds:.1f}",
        str(cell.runs),
        "—" if cell.solved is None else f"{cell.solved} of {cell.runs}",
    )


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(plain(cell).replace("|", "\\|") for cell in cells) + " |"


def table_csv(results: Results) -> str:
    """A line for each variant and task."""
    rows = [{"metric": results.metric, **row} for row in _rows(results)]
    return _csv(list(dict.fromkeys(name for row in rows for name in row)), rows)


def _rows(results: Results) -> list[dict[str, Any]]:
    """The cells, each with its comparison."""
    rows = []
    for (task, variant), cell in results.cells.items():
        found = results.comparisons.get((task, variant))
        versus = {} if found is None else dataclasses.asdict(found)
        own = {f"{name} to {results.baseline}": x for name, x in versus.items()}
        rows.append({"variant": variant, "task": task, **dataclasses.asdict(cell), **own})
    return rows


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
        "baseline": results.baseline,
        "table": [
            {
                "variant": variant,
                "task": task,
                **dataclasses.asdict(cell),
                "comparison": dataclasses.asdict(results.comparisons[task, variant])
                if (task, variant) in results.comparisons
                else None,
            }
            for (task, variant), cell in results.cells.items()
        ],
        "floors": results.floors,
        "runs": [dataclasses.asdict(run) for run in results.runs],
    }
