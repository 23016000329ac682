"""From a study to its runs: every point checked, named and costed before any is run.

A study is a folder with a `study.py`: its docstring is the question, `BASE` a config
(`configs/….py:argument`, found from the study's folder upwards), and `sweep()` gives the points.
`VARIANT` and `TASK` may name the keys that make the rows and the columns of the table, and `METRIC`
the number that is compared. As a config file does, it may bring SCORES, MASKS, … of its own.
"""

import dataclasses
import difflib
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tfm import config as configs
from tfm.config import paths, to_spec
from tfm.data.pipeline import fingerprint
from tfm.models.spec import FAMILIES
from tfm.names import UserError, pick, suggest
from tfm.sweep.space import Point
from tfm.train import spec as specs
from tfm.train.identity import identity
from tfm.train.loop import structure
from tfm.train.spec import RunSpec

METRICS = {"loss": "low", "perplexity": "low", "bits_per_byte": "low"} | dict.fromkeys(
    ("accuracy", "exact"), "high"
)
KNOWN = ("BASE", "VARIANT", "TASK", "METRIC", *configs.TABLES)


@dataclasses.dataclass(frozen=True)
class Study:
    path: pathlib.Path  # of study.py
    question: str
    base: str | None
    variant: tuple[str, ...] | None  # keys
    task: tuple[str, ...] | None
    metric: str
    sweep: Callable[[], Iterable[Mapping[str, Any]]]

    @property
    def name(self) -> str:
        return self.path.parent.name if self.path.name == "study.py" else self.path.stem


@dataclasses.dataclass(frozen=True)
class Job:
    """One run of a sweep."""

    id: str
    variant: str
    task: str
    base: str  # the config file that it begins from
    point: Point
    run: RunSpec

    @property
    def name(self) -> str:
        return f"{self.variant} · {self.task} · seed {self.run.seed}"

    @property
    def compiles(self) -> Any:
        """Runs for which this is equal share their compilation."""
        data = self.run.data
        return structure(self.run), data.task, data.tests, data.batch, data.eval_batch


def load(where: str) -> Study:
    """The study of a folder, or of a Python file."""
    path = pathlib.Path(where)
    path = path if path.suffix == ".py" else path / "study.py"
    if not path.is_file():
        beside = path.parent.parent
        found = [p.parent.name for p in beside.glob("*/study.py")] if beside.is_dir() else []
        raise UserError(f"no study {path}{suggest(path.parent.name, found) if found else ''}")
    module = configs.run_file(path)
    question = (module.__doc__ or "").strip()
    if not question:
        raise UserError(f"{path} has no docstring: write the question that it asks")
    if not callable(getattr(module, "sweep", None)):
        near = [name for name in vars(module) if callable(getattr(module, name))]
        raise UserError(f"{path} defines no sweep(){suggest('sweep', near) if near else ''}")
    for name in vars(module):
        near = difflib.get_close_matches(name, KNOWN, n=1, cutoff=0.8) if name.isupper() else []
        if near and name not in KNOWN and not hasattr(module, near[0]):
            raise UserError(f"{path}: {name} is not read; did you mean {near[0]!r}?")
    base, metric = getattr(module, "BASE", None), getattr(module, "METRIC", "loss")
    if base is not None and not isinstance(base, str):
        raise UserError(f"{path}: BASE must be the path of a config, not {base!r}")
    try:
        pick(METRICS, metric, "METRIC")
    except UserError as e:
        raise UserError(f"{path}: {e}") from e
    keys = {name: _keys(path, name, getattr(module, name, None)) for name in ("VARIANT", "TASK")}
    return Study(
        path.resolve(), question, base, keys["VARIANT"], keys["TASK"], metric, module.sweep
    )


def _keys(path: pathlib.Path, name: str, value: Any) -> tuple[str, ...] | None:
    if value is None or isinstance(value, str):
        return value if value is None else (value,)
    if isinstance(value, Sequence) and all(isinstance(key, str) for key in value):
        return tuple(value)
    raise UserError(f"{path}: {name} must be a key or a tuple of keys, not {value!r}")


def expand(study: Study, overrides: Sequence[str] = ()) -> list[Job]:
    """All runs of a study; `overrides`, of the command line, change every base config."""
    points = _points(study)
    swept = {key for point in points for key in point}
    for text in overrides:
        key = text.removeprefix("--config.").partition("=")[0]
        if key in swept:
            raise UserError(f"{text}: {key!r} is swept by {study.path}")
    variant, task = _labels(study, points)
    bases: dict[str, _Base] = {}
    jobs: list[Job] = []
    for number, point in enumerate(points):
        where = point.get("config", study.base)
        try:
            if not isinstance(where, str):
                raise UserError("no config: define BASE, or give each point the key 'config'")
            if where not in bases:
                bases[where] = _Base(study.path, where, overrides)
            job = bases[where].job(point)
            job = dataclasses.replace(
                job,
                variant=_label(job, variant, study) or "base",
                task=_label(job, task, study) or job.run.data.task.partition("(")[0],
            )
        except UserError as e:
            raise UserError(f"{study.path}: point {number}, {_short(point)}: {e}") from e
        jobs.append(job)
    _check_distinct(study, jobs)
    return jobs


def _points(study: Study) -> list[Point]:
    with configs.told(f"{study.path}: sweep()"):
        try:
            made = list(study.sweep())
        except UserError as e:
            raise UserError(f"{study.path}: {e}") from e
    for point in made:
        if not isinstance(point, Mapping) or not all(isinstance(key, str) for key in point):
            raise UserError(
                f"{study.path}: sweep() must yield dicts of dotted keys and values, not {point!r}"
            )
    points = [dict(point) for point in made]
    if not points:
        raise UserError(f"{study.path}: sweep() yields nothing")
    return points


class _Base:
    """A base config, and the runs that points make of it."""

    def __init__(self, study: pathlib.Path, where: str, overrides: Sequence[str]):
        file = _find(study, where)
        config = configs.from_command_line([f"--config={file}", *overrides], fill=specs.fill)
        self.file = file
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
        if type(run.seed) is not int or not 0 <= run.seed < 2**32:
            raise UserError(f"seed={run.seed!r} must be a whole number from 0 to 2³² − 1")
        specs.check(run)
        fits = run.model, run.data, run.objective
        if fits not in self.checked:
            specs.sources(run, peek=True)
            self.checked.add(fits)
        prints = [self._fingerprint(task) for task in (run.data.task,) * 2 + run.data.tests]
        return Job(identity(run, prints), "", "", self.file, point, run)

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
        cls = FAMILIES[tree["family"]] if name == "model" else specs.PARTS[name]
        if name == "model" and tree["family"] != self.tree["model"]["family"]:
            raise UserError("model.family cannot be swept: give the point another 'config'")
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


def _labels(study: Study, points: Sequence[Point]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The keys that name a variant, and those that name a task."""
    keys = list(dict.fromkeys(key for point in points for key in point))
    for name, chosen in {"VARIANT": study.variant, "TASK": study.task}.items():
        for key in chosen or ():
            if key not in keys:
                raise UserError(f"{study.path}: {name} names {key!r}{suggest(key, keys)}")
    vary = [key for key in keys if len({repr(point.get(key)) for point in points}) > 1]
    task = study.task
    if task is None:
        task = tuple(key for key in ("config", "data.task") if key in vary)
        task = tuple(key for key in task if key not in (study.variant or ()))
    variant = study.variant
    if variant is None:
        variant = tuple(key for key in vary if key != "seed" and key not in task)
    return variant, task


def _label(job: Job, keys: Sequence[str], study: Study) -> str:
    words = []
    for key in keys:
        value = job.point.get(key, study.base if key == "config" else None)
        if key == "config" and isinstance(value, str):
            file, _, argument = value.partition(":")
            value = argument or pathlib.Path(file).stem
        if value is not None:
            plain = key == "config" or len(keys) == 1
            words.append(str(value) if plain else f"{key.rpartition('.')[2]}={value}")
    return ", ".join(words)


def _check_distinct(study: Study, jobs: Sequence[Job]) -> None:
    """Raise if two points are one run, or would fall into one place of the table."""
    ids: dict[str, Job] = {}
    places: dict[tuple[str, str, int], Job] = {}
    for job in jobs:
        place = job.variant, job.task, job.run.seed
        if job.id in ids:
            one, other = _short(ids[job.id].point), _short(job.point)
            raise UserError(f"{study.path}: two points are the same run: {one} and {other}")
        if place in places:
            before = places[place].point
            keys = [k for k in {**before, **job.point} if before.get(k) != job.point.get(k)]
            raise UserError(
                f"{study.path}: two points are both {job.name!r}; they differ in "
                f"{', '.join(keys)}: add it to VARIANT or TASK"
            )
        ids[job.id], places[place] = job, job


def _short(point: Point) -> str:
    return "{" + ", ".join(f"{key}={value!r}" for key, value in point.items()) + "}"
