"""From a study to its runs: every point checked and named before any is run."""

import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tfm import config as configs
from tfm.config import paths, to_spec
from tfm.data.pipeline import fingerprint
from tfm.models.spec import FAMILIES
from tfm.names import UserError, suggest
from tfm.sweep.labels import config_names, label, label_keys
from tfm.sweep.space import Point, within
from tfm.sweep.study import Study
from tfm.train import spec as specs
from tfm.train.identity import entries, identity
from tfm.train.loop import structure
from tfm.train.spec import RunSpec


@dataclasses.dataclass(frozen=True)
class Job:
    """One run of a sweep."""

    id: str
    variant: str
    task: str
    point: Point
    run: RunSpec
    files: tuple[str, ...]  # that bring ideas which it uses

    @property
    def name(self) -> str:
        return f"{self.variant} · {self.task} · seed {self.run.seed}"

    @functools.cached_property
    def compiles(self) -> Any:
        """Runs for which this is equal share their compilation."""
        data = self.run.data
        return structure(self.run), data.task, data.tests, data.batch, data.eval_batch


def expand(study: Study, overrides: Sequence[str] = ()) -> list[Job]:
    """All runs of a study; `overrides`, of the command line, change every base config."""
    points = _points(study)
    swept = {key for point in points for key in point}
    for text in overrides:
        key = text.removeprefix("--config.").partition("=")[0]
        meets = [other for other in swept if within(key, other) or within(other, key)]
        if meets:
            raise UserError(f"{text}: {meets[0]!r} is swept by {study.path}")
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
            job = bases[where].job(point)
        except UserError as e:
            raise UserError(f"{study.path}: point {number}, {_short(point)}: {e}") from e
        jobs.append(job)
    names = config_names(bases)
    for i, job in enumerate(jobs):
        point = {"config": study.base, **job.point}
        row = label(point, variant, names) or "base"
        column = label(point, task, names) or job.run.data.task.partition("(")[0]
        jobs[i] = dataclasses.replace(job, variant=row, task=column)
    _check_apart(study, jobs)
    return jobs


def _points(study: Study) -> list[Point]:
    with configs.told(f"{study.path}: sweep()"):
        try:
            made = list(study.sweep())
        except UserError as e:
            raise UserError(f"{study.path}: {e}") from e
    if not made:
        raise UserError(f"{study.path}: sweep() yields nothing")
    for point in made:
        if not isinstance(point, Mapping) or not all(isinstance(key, str) for key in point):
            raise UserError(
                f"{study.path}: sweep() must yield dicts of dotted keys and values, not {point!r}"
            )
        keys = sorted(point)
        for one, next_one in itertools.pairwise(keys):
            if within(next_one, one):
                raise UserError(f"{study.path}: {_short(point)} sets {one!r} and {next_one!r}")
    plain = lambda value: value.item() if isinstance(value, np.generic) else value  # noqa: E731
    return [{key: plain(value) for key, value in point.items()} for point in made]


class _Base:
    """A base config, and the runs that points make of it."""

    def __init__(self, study: Study, where: str, overrides: Sequence[str]):
        self.study, file = study, _find(study.path, where)
        config = configs.from_command_line([f"--config={file}", *overrides], fill=specs.fill)
        self.own = {str(study.path), str(pathlib.Path(file.partition(":")[0]).resolve())}
        self.keys = set(paths(config))
        self.tree = dataclasses.asdict(specs.read(config))
        self.parts: dict[tuple[str, str], Any] = {}
        self.fingerprints: dict[str, str] = {}
        self.checked: set[Any] = set()

    def job(self, point: Point) -> Job:
        groups: dict[str, Point] = {}
        for key, value in point.items():
            if key != "config":
                first, _, rest = key.partition(".")
                groups.setdefault(first, {})[rest] = value
        parts = {name: self._part(name, groups.pop(name, {})) for name in self.tree}
        if groups:
            key = next(key for key in point if key.partition(".")[0] in groups)
            raise UserError(f"unknown key {key!r}{suggest(key, self.keys)}")
        run = RunSpec(**parts)
        specs.check(run)
        fits = run.model, run.objective, dataclasses.replace(run.data, seed=0, batch=1)
        if fits not in self.checked:
            self._check(run)
            self.checked.add(fits)
        prints = [self._fingerprint(task) for task in (run.data.task,) * 2 + run.data.tests]
        files = tuple(sorted({entry.file for entry in entries(run).values()}))
        return Job(identity(run, prints), "", "", point, run, files)

    def _check(self, run: RunSpec) -> None:
        """Raise what needs a look at the data, or at what other files have brought."""
        source = specs.sources(run, peek=True)["valid"]
        if self.study.metric == "bits_per_byte" and source.bytes_per_token is None:
            raise UserError("METRIC='bits_per_byte' is for text, which this task is not")
        for name, entry in entries(run).items():
            if entry.file not in self.own:
                raise UserError(f"{name} is brought by {entry.file}, not by this point's config")

    def _part(self, name: str, changes: Point) -> Any:
        """A part of the run with what a point changes in it; each is made once."""
        key = name, repr(sorted(changes.items()))
        if key not in self.parts:
            self.parts[key] = self._make(name, changes)
        return self.parts[key]

    def _make(self, name: str, changes: Point) -> Any:
        tree = self.tree[name]
        if not isinstance(tree, dict):  # seed, objective
            for rest in changes:
                if rest:
                    raise UserError(f"unknown key '{name}.{rest}'; {name!r} is a value")
            value = changes.get("", tree)
            if type(value) is not type(tree):
                raise UserError(f"{name}={value!r} must be {type(tree).__name__}")
            return value
        for rest, value in changes.items():
            if not rest:
                raise UserError(f"{name!r} is a group; set one of: {', '.join(tree)}")
            tree = _changed(tree, rest.split("."), value, f"{name}.{rest}", self.keys)
        if name == "model" and tree["family"] != self.tree["model"]["family"]:
            raise UserError("model.family cannot be swept: give the point another 'config'")
        cls = FAMILIES[tree["family"]] if name == "model" else specs.PARTS[name]
        return to_spec(cls, tree, f"{name}.")

    def _fingerprint(self, task: str) -> str:
        if task not in self.fingerprints:
            self.fingerprints[task] = fingerprint(task)
        return self.fingerprints[task]


def _changed(tree: dict, path: list[str], value: Any, key: str, known: Iterable[str]) -> dict:
    """The tree with another value at a path, copied along it."""
    first, *rest = path
    if first not in tree:
        raise UserError(f"unknown key {key!r}{suggest(key, known)}")
    if not rest:
        if isinstance(tree[first], dict) and value is not None:
            raise UserError(f"{key!r} is a group; set one of: {', '.join(tree[first])}")
        return {**tree, first: value}
    below = tree[first]
    if below is None:  # a group that was left out begins here
        below = {rest[0]: None}
    if not isinstance(below, dict):
        raise UserError(f"unknown key {key!r}: {'.'.join(key.split('.')[: -len(rest)])} is a value")
    return {**tree, first: _changed(below, rest, value, key, known)}


def _find(study: pathlib.Path, where: str) -> str:
    """The config file, looked for in the study's folder and in those above it."""
    name, colon, argument = where.partition(":")
    for folder in (*study.parents, pathlib.Path.cwd()):
        if (folder / name).is_file():
            return f"{folder / name}{colon}{argument}"
    raise UserError(f"no config {name} in {study.parent} or above it")


def _check_apart(study: Study, jobs: Sequence[Job]) -> None:
    """Raise if two points are one run, or if one place of the table would hold different things."""
    ids: dict[str, Job] = {}
    places: dict[tuple[str, str], Job] = {}
    for job in jobs:
        if job.id in ids:
            one, other = _short(ids[job.id].point), _short(job.point)
            raise UserError(f"{study.path}: two points are the same run: {one} and {other}")
        ids[job.id] = job
        before = places.setdefault((job.variant, job.task), job).point
        keys = [k for k in {**before, **job.point} if before.get(k, ...) != job.point.get(k, ...)]
        if set(keys) - {"seed"}:
            raise UserError(
                f"{study.path}: two points are both {job.variant!r} on {job.task!r}, but differ in "
                f"{', '.join(keys)}: add it to VARIANT or TASK"
            )


def _short(point: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{key}={value!r}" for key, value in point.items()) + "}"
