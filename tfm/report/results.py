"""Tables of a sweep: variants × tasks, means with intervals over seeds, read from its folders."""

import collections
import csv
import dataclasses
import functools
import hashlib
import io
import itertools
import json
import pathlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfm.config.names import UserError
from tfm.evaluate.metric import Metric
from tfm.report.statistics import Comparison, Interval, compare, interval
from tfm.run.folder import Damaged, Folder, without_nonfinite
from tfm.run.library_code import is_stale
from tfm.terminal import plain

SOLVED = 0.01  # a run solves its task if its accuracy is this close to the best


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a sweep. Fields that are not measured yet are None."""

    id: str
    variant: str
    task: str
    seed: int
    point: Mapping[str, Any]
    status: str  # done, diverged, failed, unfinished or damaged
    error: str = ""  # if it failed or is damaged
    stale: bool = False  # made by other library code or settings of JAX
    leaks: bool = False  # it was allowed to see the answer (train.allow_leak)
    profiles: Sequence[str] = ()  # a hash of each profile that it ran under
    parameters: int | None = None
    flops: int | None = None
    seconds: float | None = None  # of training, without compilation
    metrics: Mapping[str, float | None] = dataclasses.field(default_factory=dict)  # see `values`
    best: float | None = None  # the highest possible accuracy, if it is known
    floors: Mapping[str, float] = dataclasses.field(default_factory=dict)  # accuracies

    def value(self, key: str) -> float | None:
        """Returns a metric of a run that is done; `key` is one of `values`."""
        return self.metrics.get(key) if self.status == "done" else None

    @property
    def solved(self) -> bool | None:
        """True if the accuracy is within SOLVED of the best that is possible."""
        accuracy = self.value("valid:loss.accuracy")
        if self.best is None or accuracy is None:
            return None
        return accuracy >= self.best - SOLVED


@dataclasses.dataclass(frozen=True)
class Cell:
    """A variant on a task. Without a mean if a seed diverged: that of the others would mislead."""

    mean: float | None
    low: float | None  # of the interval; None with fewer than two runs
    high: float | None
    runs: int  # in the mean
    solved: int | None  # of these runs; None if the best accuracy is unknown
    diverged: int
    failed: int
    unfinished: int
    damaged: int
    stale: int
    leaks: int  # runs that were allowed to see the answer
    profiles: int  # of its runs: bits may differ between two of them
    parameters: int | None
    flops: int | None
    seconds: float | None  # the median


@dataclasses.dataclass(frozen=True)
class Results:
    study: str
    question: str
    metric: Metric
    label: str  # the metric as the study spells it
    key: str  # the metric in `Run.metrics`
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
        """Cells by (task, variant), task after task."""
        runs: dict[tuple[str, str], list[Run]] = {}
        for run in self.runs:
            runs.setdefault((run.task, run.variant), []).append(run)
        cells = itertools.product(self.tasks, self.variants)
        return {cell: _cell(runs[cell], self.key, self.metric) for cell in cells if cell in runs}

    def cell(self, variant: str, task: str) -> Cell | None:
        return self.cells.get((task, variant))

    @functools.cached_property
    def comparisons(self) -> dict[tuple[str, str], Comparison]:
        """Comparisons of each variant with the baseline, by (task, variant)."""
        pairs = {
            (task, variant): self._pairs(task, variant)
            for task, variant in self.cells
            if self.baseline is not None and variant != self.baseline
        }
        return compare(pairs, self.metric)

    def _pairs(self, task: str, variant: str) -> tuple[list[float], str]:
        """Returns differences from the baseline by seed, and a reason for no verdict, or ""."""
        runs = {(run.variant, run.seed): run for run in self.runs if run.task == task}
        names = variant, self.baseline or ""
        both = [seed for name, seed in runs if name == variant and (names[1], seed) in runs]
        values = [[runs[name, seed].value(self.key) for name in names] for seed in both]
        differences = [a - b for a, b in values if a is not None and b is not None]
        missing = len(both) - len(differences)
        return differences, f"{missing} of {len(both)} seeds have no number" if missing else ""

    @property
    def floors(self) -> dict[str, dict[str, float]]:
        """Accuracies that need no solution of a task, by name and task."""
        floors: dict[str, dict[str, float]] = {}
        for run in self.runs if self.key == "valid:loss.accuracy" else ():
            for name, value in run.floors.items():
                floors.setdefault(name, {})[run.task] = value
        return floors


def read(workdir: str, settings: Mapping[str, Any] | None = None) -> Results:
    """Reads the folder of a sweep. `settings` are those of JAX that its runs must have had."""
    if not pathlib.Path(workdir).is_dir():
        raise UserError(f"no folder {workdir}")
    sweep = Folder(workdir).read("sweep.json")
    if sweep is None:
        raise UserError(f"{workdir} is not the folder of a sweep: it has no sweep.json")
    if "declaration" not in sweep:
        raise UserError(
            f"{workdir}/sweep.json was written by an earlier version. `tfm sweep STUDY "
            f"--workdir={workdir}` writes it again; finished runs are kept"
        )
    runs = [_run(pathlib.Path(workdir) / run["id"], run, settings) for run in sweep["runs"]]
    metric, names = Metric.from_tree(sweep["declaration"]), ("study", "question", "metric", "key")
    study, question, label, key = (sweep[name] for name in names)
    return Results(study, question, metric, label, key, runs, sweep.get("baseline"))


def values(summary: Mapping[str, Any]) -> dict[str, float | None]:
    """Returns all metrics of a summary by "split:evaluator.metric"; one of `data.tests` alone has
    the split "tests" too."""
    out = {f"valid:loss.{name}": x for name, x in (summary["valid"] or {}).items()}
    out.pop("valid:loss.step", None)
    alone = [split for split in summary["tests"] if not split.startswith("valid, ")]
    parts = [(split, "loss", metrics) for split, metrics in summary["tests"].items()]
    parts += [(x["split"], x["name"], x["metrics"]) for x in summary.get("evaluations", ())]
    for split, evaluator, metrics in parts:
        for name, value in metrics.items():
            out[f"{split}:{evaluator}.{name}"] = value
            if [split] == alone:
                out[f"tests:{evaluator}.{name}"] = value
    return out


def _run(path: pathlib.Path, known: Mapping[str, Any], settings: Mapping[str, Any] | None) -> Run:
    if not path.is_dir():
        return Run(**known, status="unfinished")
    folder = Folder(path)
    try:
        summary, failure = folder.summary(known["id"]), folder.read("failure.json")
    except Damaged as e:
        return Run(**known, status="damaged", error=str(e))
    if summary is None:
        failed = {"status": "failed", "error": failure["error"]} if failure is not None else {}
        return Run(**known, **({"status": "unfinished"} | failed))
    profiles, limits = folder.read("profile.json"), summary.get("limits", {})
    config = folder.read("config.json") or {"train": {}}
    return Run(
        **known,
        status=summary["status"],
        stale=is_stale(profiles, settings),
        leaks=bool(config["train"].get("allow_leak")),
        profiles=[_digest(profile) for profile in (profiles or {}).get("profiles", ())],
        parameters=summary["parameters"],
        flops=summary["flops"],
        seconds=_seconds(folder.read_log("train"), summary["steps"]),
        metrics=values(summary),
        best=limits.get("best"),
        floors=limits.get("floors", {}),
    )


def _digest(profile: Mapping[str, Any]) -> str:
    """Hashes where a run ran, with which versions and settings, but not the code that it used."""
    made_by = {name: x for name, x in profile["made_by"].items() if name != "tfm"}
    rest = {name: x for name, x in profile.items() if name not in ("entries", "made_by")}
    return hashlib.sha256(json.dumps([made_by, rest], sort_keys=True).encode()).hexdigest()[:8]


def _seconds(lines: Sequence[Mapping[str, Any]], steps: int) -> float | None:
    """Returns the time of all steps, at the median speed between lines of the log.

    The first line is left out: it includes compilation.
    """
    pairs = itertools.pairwise(lines)
    per_step = [line["seconds"] / (line["step"] - before["step"]) for before, line in pairs]
    return statistics.median(per_step) * steps if per_step else None


def _cell(runs: Sequence[Run], key: str, metric: Metric) -> Cell:
    done = [run for run in runs if run.status == "done"]
    finite = [value for run in done if (value := run.value(key)) is not None]
    status = collections.Counter(run.status for run in runs)
    diverged = status["diverged"] + len(done) - len(finite)
    mean = Interval() if diverged else interval(finite, metric.least, metric.most)
    timed = [run.seconds for run in done if run.seconds is not None]
    ended = [run for run in runs if run.parameters is not None]
    solved = [run.solved for run in done if run.solved is not None]
    return Cell(
        **dataclasses.asdict(mean),
        runs=len(finite),
        solved=sum(solved) if solved else None,
        diverged=diverged,
        **{name: status[name] for name in ("failed", "unfinished", "damaged")},
        stale=sum(run.stale for run in runs),
        leaks=sum(run.leaks for run in runs),
        profiles=len({profile for run in runs for profile in run.profiles}),
        parameters=ended[0].parameters if ended else None,
        flops=ended[0].flops if ended else None,
        seconds=statistics.median(timed) if timed else None,
    )


def write(results: Results, folder: Folder) -> None:
    folder.write_text("results.md", markdown(results))
    folder.write_text("results.csv", table_csv(results))
    folder.write_text("runs.csv", runs_csv(results))


def markdown(results: Results) -> str:
    """Formats the metric, the differences from the baseline, and the cost of each cell."""
    lines = [f"# {plain(results.study)}", "", results.question, ""]
    for title, columns, rows in tables(results):
        head = [column.lstrip(">") for column in columns]
        marks = ["---:" if column.startswith(">") else "---" for column in columns]
        lines += [title, "", _row(head), _row(marks), *map(_row, rows), ""]
    return "\n".join([*lines, NOTE]) + "\n"


Table = tuple[str, list[str], list[list[str]]]  # a title, the columns (">" before numbers), rows


def tables(results: Results) -> Iterator[Table]:
    """Yields the tables that are printed and written as Markdown."""
    tasks = results.tasks
    split, _, name = results.key.rpartition(":")
    name, split = name.removeprefix("loss."), {"valid": "validation data"}.get(split, split)
    unit = f" ({results.metric.unit})" if results.metric.unit else ""
    title = f"Mean {name}{unit} on {split}, with 95 % intervals over seeds."
    rows = [[x, *(text(results.cell(x, task)) for task in tasks)] for x in results.variants]
    for name, values in results.floors.items():
        rows.append([f"floor: {name}", *(f"{values[t]:.3f}" if t in values else "" for t in tasks)])
    yield title, ["variant", *(f">{task}" for task in tasks)], rows
    if results.comparisons:
        head = ["variant", "task", ">difference", ">pairs", ">p", ">p (Holm)", "verdict"]
        title = (
            f"Difference in {results.label} to {results.baseline}, paired by seed: Student's 95 % "
            "interval, and p corrected by Holm for all comparisons of the study."
        )
        yield title, head, [_comparison(*names, x) for names, x in results.comparisons.items()]
    head = ["task", "variant", ">parameters", ">training FLOPs", ">seconds", ">runs", ">solved"]
    yield "Cost.", head, [[*names, *cost(cell)] for names, cell in results.cells.items()]


NOTE = (
    "A floor is an accuracy that needs no solution of the task. A run has solved the task if its "
    f"accuracy is within {SOLVED} of the best that is possible. A run that may see the answer was "
    "trained with `train.allow_leak`. Seconds depend on the load of the machine: compare FLOPs, or "
    "measure with `tfm bench`."
)


def _comparison(task: str, variant: str, comparison: Comparison) -> list[str]:
    difference = _number(comparison.difference, "+.4f")
    if comparison.low is not None and comparison.high is not None:
        difference += f" ± {(comparison.high - comparison.low) / 2:.4f}"
    p, p_holm = (_number(x, ".2g") for x in (comparison.p, comparison.p_holm))
    return [variant, task, difference, str(comparison.pairs), p, p_holm, comparison.verdict]


def _number(value: float | None, form: str) -> str:
    return "—" if value is None else format(value, form)


def text(cell: Cell | None) -> str:
    """Formats a mean with its interval, and notes what is missing from it."""
    if cell is None:
        return ""
    out = str(Interval(cell.mean, cell.low, cell.high))
    for status in ("diverged", "failed", "unfinished", "damaged", "stale"):
        if number := getattr(cell, status):
            out += f" ({number} {status})"
    out += " (may see the answer)" if cell.leaks else ""
    return out + (f" ({cell.profiles} profiles)" if cell.profiles > 1 else "")


def cost(cell: Cell) -> list[str]:
    """Formats parameters, FLOPs, seconds, the number of runs, and how many solved the task."""
    solved = "—" if cell.solved is None else f"{cell.solved} of {cell.runs}"
    numbers = (cell.parameters, ","), (cell.flops, ".3g"), (cell.seconds, ".1f")
    return [*(_number(*number) for number in numbers), str(cell.runs), solved]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(plain(cell).replace("|", "\\|") for cell in cells) + " |"


def table_csv(results: Results) -> str:
    """Formats a line for each variant and task, with its comparison."""
    rows = []
    for (task, variant), cell in results.cells.items():
        comparison = results.comparisons.get((task, variant))
        fields = {} if comparison is None else dataclasses.asdict(comparison)
        versus = {f"{name} to {results.baseline}": x for name, x in fields.items()}
        names = {"metric": results.label, "variant": variant, "task": task}
        rows.append({**names, **dataclasses.asdict(cell), **versus})
    return _csv(rows)


def runs_csv(results: Results) -> str:
    """Formats a line for each run: its settings, and all its metrics."""
    keys = list(dict.fromkeys(key for run in results.runs for key in run.point))
    fields = ["id", "variant", "task", "seed", "status", "error", "stale", "leaks", "parameters",
              "flops", "seconds"]  # fmt: skip
    rows = []
    for run in results.runs:
        metrics = {_column(key): x for key, x in run.metrics.items() if key[:6] != "tests:"}
        rows.append({name: getattr(run, name) for name in fields} | {**run.point} | metrics)
    return _csv(rows, [*fields, *keys])


def _column(key: str) -> str:
    """Returns the heading of a metric: "accuracy", "exact on copy(length=9)", "bleu on test"."""
    split, _, name = key.rpartition(":")
    name = name.removeprefix("loss.")
    return name if split == "valid" else f"{name} on {split}"


def _csv(rows: Sequence[Mapping[str, Any]], first: Sequence[str] = ()) -> str:
    """Formats rows; columns come in the order in which they appear, after the `first`."""
    out, names = io.StringIO(), itertools.chain(first, *rows)
    writer = csv.DictWriter(out, list(dict.fromkeys(names)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def to_json(results: Results) -> dict[str, Any]:
    """Returns the results as a tree for JSON."""
    versus = {at: dataclasses.asdict(comparison) for at, comparison in results.comparisons.items()}
    return {
        "study": results.study,
        "question": results.question,
        "metric": results.label,
        "declaration": without_nonfinite(dataclasses.asdict(results.metric)),
        "baseline": results.baseline,
        "table": [
            {
                "variant": variant,
                "task": task,
                **dataclasses.asdict(cell),
                "comparison": versus.get((task, variant)),
            }
            for (task, variant), cell in results.cells.items()
        ],
        "floors": results.floors,
        "runs": [dataclasses.asdict(run) for run in results.runs],
    }
