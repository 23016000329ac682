"""A study is a folder with a `study.py`.

Its docstring is the question. `BASE` is a config (`configs/….py:argument`, searched for in the
study's folder and those above it). `sweep()` returns the points; equal runs count once. `VARIANT`
and `TASK` may name the keys that make the rows and the columns of the table. `METRIC` is the number
that is compared: "accuracy", "SPLIT:exact" or "SPLIT:EVALUATOR.bleu", computed by the objective or
by an evaluator that the config names, on 'valid' if SPLIT is left out. `BASELINE` is the row that
all others are compared with, paired by seed. Like a config file, a study may define SCORES, MASKS….
"""

import dataclasses
import difflib
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tfm.config import files as configs
from tfm.config.names import UserError, suggest
from tfm.config.registries import TABLES

TEXTS = {
    "BASE": "the path of a config",
    "METRIC": "the name of a metric, as 'accuracy' or 'test:bleu'",
    "BASELINE": "the name of a row",
}
KNOWN = (*TEXTS, "VARIANT", "TASK", *TABLES)


@dataclasses.dataclass(frozen=True)
class Study:
    path: pathlib.Path  # of study.py
    question: str
    base: str | None
    variant: tuple[str, ...] | None  # keys
    task: tuple[str, ...] | None
    metric: str
    baseline: str | None
    sweep: Callable[[], Iterable[Mapping[str, Any]]]

    @property
    def name(self) -> str:
        return self.path.parent.name if self.path.name == "study.py" else self.path.stem


def load(where: str) -> Study:
    """Loads the study of a folder or a Python file."""
    path = pathlib.Path(where)
    path = path if path.suffix == ".py" else path / "study.py"
    if not path.is_file():
        beside = path.parent.parent
        names = [p.parent.name for p in beside.glob("*/study.py")] if beside.is_dir() else []
        raise UserError(f"no study {path}{suggest(path.parent.name, names) if names else ''}")
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
    fields: dict[str, Any] = {"metric": "loss"}
    for name, kind in TEXTS.items():
        value = fields[name.lower()] = getattr(module, name, fields.get(name.lower()))
        if not isinstance(value, str) and (value is not None or name == "METRIC"):
            raise UserError(f"{path}: {name} must be {kind}, not {value!r}")
    for name in ("VARIANT", "TASK"):
        fields[name.lower()] = _keys(path, name, getattr(module, name, None))
    return Study(path=path.resolve(), question=question, sweep=module.sweep, **fields)


def _keys(path: pathlib.Path, name: str, value: Any) -> tuple[str, ...] | None:
    if value is None or isinstance(value, str):
        return value if value is None else (value,)
    if isinstance(value, Sequence) and all(isinstance(key, str) for key in value):
        return tuple(value)
    raise UserError(f"{path}: {name} must be a key or a tuple of keys, not {value!r}")
