"""Expands a study into its runs. Every point is checked and named before any run starts."""

import dataclasses
import functools
import itertools
import pathlib
import typing
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfm.check.entries import check_entries
from tfm.config import files as configs
from tfm.config.names import UserError, suggest
from tfm.config.spec import Spec, Tree, replaced, to_spec
from tfm.evaluate.evaluator import available, resolve
from tfm.evaluate.metric import Metric
from tfm.models.spec import ModelSpec
from tfm.run.identity import digests, identity, init_digest
from tfm.run.spec import RunSpec, open_data
from tfm.sweep.labels import config_names, label, label_keys
from tfm.sweep.space import Point, within
from tfm.sweep.study import Study
from tfm.train.loop import Planned
from tfm.train.step import structure

GROUPS: dict[str, type[Spec]] = {
    name: hint
    for name, hint in typing.get_type_hints(RunSpec).items()
    if isinstance(hint, type) and issubclass(hint, Spec)
}


@dataclasses.dataclass(frozen=True)
class Job:
    """One run of a sweep."""

    planned: Planned
    variant: str
    task: str
    point: Point
    run: RunSpec  # with the sizes that come from the data
    files: tuple[str, ...]  # whose tables it uses
    key: str  # of the study's METRIC in a summary; see `report.results.values`
    metric: Metric

    @property
    def id(self) -> str:
        return self.planned.id

    @property
    def tree(self) -> dict[str, Any]:
        """Returns what a report needs to know about the run besides its folder."""
        names = {"id": self.id, "variant": self.variant, "task": self.task}
        return {**names, "seed": self.run.seed, "point": self.point}

    @property
    def name(self) -> str:
        return f"{self.variant} · {self.task} · seed {self.run.seed}"

    @functools.cached_property
    def compiles(self) -> Any:
        """A key that is equal for runs that share their compilation."""
        data = self.run.data
        shapes = data.batch, data.batch_tokens, data.buckets, data.pack, data.eval_batch
        return structure(self.run), data.dataset, data.tests, data.reading, shapes


def expand(study: Study, overrides: Sequence[str] = ()) -> list[Job]:
    """Returns all runs of a study. `overrides` of the command line change every base config."""
    points = _points(study)
    swept = {key for point in points for key in point}
    for text in overrides:
        key = text.removeprefix("--config.").partition("=")[0]
        for other in swept:
            if within(key, other) or within(other, key):
                raise UserError(f"{text}: {other!r} is swept by {study.path}")
    variant, task = label_keys(study, points)
    bases: dict[str, _Base] = {}
    jobs: list[Job] = []
    for number, point in enumerate(points):
        where = point.get("config", study.base)
        try:
            if not isinstance(where, str):
                raise UserError("no config: define BASE, or give each point the key 'config'")
            if where not in bases:
                bases[where] = _Base(study, where, overrides)
            jobs.append(bases[where].job(point))
        except UserError as e:
            raise UserError(f"{study.path}: point {number}, {_short(point)}: {e}") from e
    names = config_names(bases)
    for i, job in enumerate(jobs):
        point = {"config": study.base, **job.point}
        row = label(point, variant, names) or "base"
        column = label(point, task, names) or job.run.data.dataset.partition("(")[0]
        jobs[i] = dataclasses.replace(job, variant=row, task=column)
    jobs = list({job.id: job for job in reversed(jobs)}.values())[::-1]  # the first of equal runs
    _check_cells(study, jobs)
    keys = " or ".join(dict.fromkeys(job.key for job in jobs))
    if keys != jobs[0].key:
        raise UserError(f"{study.path}: METRIC={study.metric!r} is {keys}; write which")
    rows = dict.fromkeys(job.variant for job in jobs)
    if study.baseline is not None and study.baseline not in rows:
        near = suggest(study.baseline, rows)
        raise UserError(f"{study.path}: BASELINE names no row, {study.baseline!r}{near}")
    return jobs


def _points(study: Study) -> list[Point]:
    with configs.user_code(f"{study.path}: sweep()"):
        try:
            space = study.sweep()
            if space is None:
                raise UserError("sweep() returns nothing: does it end without `return`?")
            points = list(space)
        except UserError as e:
            raise UserError(f"{study.path}: {e}") from e
    if not points:
        raise UserError(f"{study.path}: sweep() yields nothing")
    for point in points:
        if not isinstance(point, Mapping) or not all(isinstance(key, str) for key in point):
            hint = "sweep() must yield dicts of dotted keys and values"
            raise UserError(f"{study.path}: {hint}, not {point!r}")
        for key, other in itertools.pairwise(sorted(point)):
            if within(other, key):
                raise UserError(f"{study.path}: {_short(point)} sets {key!r} and {other!r}")
    plain = lambda value: value.item() if isinstance(value, np.generic) else value  # noqa: E731
    return [{key: plain(value) for key, value in point.items()} for point in points]


class _Opened(NamedTuple):
    """What the data of a run determine."""

    model: ModelSpec  # with its sizes
    fingerprints: tuple[str, ...]
    files: tuple[str, ...]
    key: str  # of the metric
    metric: Metric


class _Base:
    """A base config, from which points make runs."""

    def __init__(self, study: Study, where: str, overrides: Sequence[str]):
        self.study, file = study, _find(study.path, where)
        self.tree = configs.from_command_line([f"--config={file}", *overrides], RunSpec)
        self.sources = {str(study.path), str(pathlib.Path(file.partition(":")[0]).resolve())}
        self.checked: set[str] = set()
        self.groups: dict[tuple[str, str], Spec] = {}
        self.opened: dict[Any, _Opened] = {}

    def job(self, point: Point) -> Job:
        changes = {key: value for key, value in point.items() if key != "config"}
        run = self._run(replaced(RunSpec, self.tree, changes))
        data = run.data
        key: Any = run.model, run.objective, run.evaluate, data.dataset, data.tests, data.reading
        key = *key, data.examples, data.valid_examples
        if key not in self.opened:
            self.opened[key] = self._open(run)
        model, fingerprints, files, metric_key, metric = self.opened[key]
        run = dataclasses.replace(run, model=model)
        parts = fingerprints, digests(run), init_digest(run)
        planned = Planned(identity(run, *parts), *parts)
        return Job(planned, "", "", point, run, files, metric_key, metric)

    def _run(self, tree: Tree) -> RunSpec:
        """Returns the same as `to_spec`, but makes each group only once.

        Points share most of their groups, and there may be ten thousand points.
        """
        groups = {n for n in GROUPS if isinstance(tree.get(n), Mapping)}
        values = {name: value for name, value in tree.items() if name not in groups}
        if (rest := repr((sorted(groups), values))) not in self.checked:
            run = to_spec(RunSpec, tree)
            self.checked.add(rest)
            return run
        for name in groups:
            key = name, repr(tree[name])
            if key not in self.groups:
                self.groups[key] = to_spec(GROUPS[name], tree[name], f"{name}.")
            values[name] = self.groups[key]
        return RunSpec(**values)

    def _open(self, run: RunSpec) -> _Opened:
        """Opens the data; raises if an entry comes from neither the study nor its config."""
        run, data = open_data(run)
        metrics = available(run.model, run.objective.entry, [*run.during, *run.after], data)
        key = resolve(self.study.metric, metrics)
        entries = configs.user_entries(run)
        for name, entry in entries.items():
            if entry.file not in self.sources:
                raise UserError(f"{name} comes from {entry.file}, not from this point's config")
        if entries:
            check_entries(run)
        files = tuple(sorted({entry.file for entry in entries.values()}))
        fingerprints = tuple(dataset.fingerprint for dataset in data.values())
        return _Opened(run.model, fingerprints, files, key, metrics[key])


def _find(study: pathlib.Path, where: str) -> str:
    """Returns the path of a config in the study's folder or one above it."""
    name, colon, argument = where.partition(":")
    for folder in (*study.parents, pathlib.Path.cwd()):
        if (folder / name).is_file():
            return f"{folder / name}{colon}{argument}"
    raise UserError(f"no config {name} in {study.parent} or above it")


def _check_cells(study: Study, jobs: Sequence[Job]) -> None:
    """Raises if one cell of the table would mix different settings."""
    cells: dict[tuple[str, str], Job] = {}
    for job in jobs:
        first = cells.setdefault((job.variant, job.task), job).point
        keys = [k for k in {**first, **job.point} if first.get(k, ...) != job.point.get(k, ...)]
        if set(keys) - {"seed"}:
            raise UserError(
                f"{study.path}: two points are both {job.variant!r} on {job.task!r}, but differ in "
                f"{', '.join(keys)}: add it to VARIANT or TASK"
            )


def _short(point: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{key}={value!r}" for key, value in point.items()) + "}"
