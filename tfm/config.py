"""Config files: Python files that are run by path and overridden from the command line.

A config file defines `get_config()`, which returns an `ml_collections.ConfigDict`. It may also
define `SCORES`, `MASKS`, `MIXERS` or any other of `TABLES`: their entries are added to the
library's tables in every process that loads the file, so a new idea needs no edit of `tfm`.
"""

import contextlib
import importlib.util
import inspect
import json
import pathlib
import sys
import traceback
import types
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from tfm import origin
from tfm.data.datasets import DATASETS
from tfm.layers.feedforward import FEEDFORWARDS
from tfm.layers.mixers import MIXERS, Mixer
from tfm.layers.norm import NORMS, Norm
from tfm.names import UserError
from tfm.objectives.table import OBJECTIVES, Objective
from tfm.ops.masks import MASKS, Mask
from tfm.ops.normalizers import NORMALIZERS, Normalizer
from tfm.ops.positions import JOINS, POSITIONS, Position
from tfm.ops.scores import SCORES, Score
from tfm.spec import Spec, Tree, named, parse, replaced

# What a user's file may bring: the library's table, and what its entries are.
TABLES: dict[str, MutableMapping[str, Any]] = {
    "SCORES": SCORES,
    "MASKS": MASKS,
    "NORMALIZERS": NORMALIZERS,
    "POSITIONS": POSITIONS,
    "JOINS": JOINS,
    "NORMS": NORMS,
    "MIXERS": MIXERS,
    "FEEDFORWARDS": FEEDFORWARDS,
    "DATASETS": DATASETS,
    "OBJECTIVES": OBJECTIVES,
}
ENTRIES: dict[str, tuple[type, ...]] = {
    "SCORES": (Score,),
    "MASKS": (Mask, types.FunctionType),
    "NORMALIZERS": (Normalizer, types.FunctionType),
    "POSITIONS": (Position, types.FunctionType),
    "JOINS": (types.FunctionType,),
    "NORMS": (Norm,),
    "MIXERS": (Mixer, types.FunctionType),
    "FEEDFORWARDS": (type,),
    "DATASETS": (types.FunctionType,),
    "OBJECTIVES": (Objective, types.FunctionType, type),
}
_sources: dict[pathlib.Path, str] = {}  # the text of each file, as it was run
_added_by: dict[tuple[str, str], pathlib.Path] = {}  # (table, name) → the file it came from


def load(where: str) -> ConfigDict:
    """The locked config of `path/to/file.py`, `path/to/file.py:argument` or `path/to/file.json`."""
    path, colon, argument = where.partition(":")
    if path.endswith(".json"):
        if colon:
            raise UserError(f"{path} takes no argument, but {where!r} gives one")
        return _json(pathlib.Path(path))
    module = run_file(pathlib.Path(path))
    get_config = getattr(module, "get_config", None)
    if get_config is None:
        raise UserError(f"{path} defines no get_config()")
    takes = inspect.signature(get_config).parameters.values()
    if colon and not takes:
        raise UserError(f"get_config() of {path} takes no argument, but {where!r} gives one")
    if not colon and any(p.default is p.empty for p in takes):
        raise UserError(f"get_config() of {path} needs an argument: write {path}:ARGUMENT")
    with user_code(f"get_config() of {path}"):
        config = get_config(argument) if colon else get_config()
    if not isinstance(config, ConfigDict):
        raise UserError(f"get_config() of {path} returns {type(config).__name__}, not a ConfigDict")
    return config.lock()


def _json(path: pathlib.Path) -> ConfigDict:
    try:
        tree = json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"no file {path}") from None
    except OSError as e:
        raise UserError(f"cannot read {path}: {e.strerror}") from e
    except ValueError as e:
        raise UserError(f"{path} is not JSON: {e}") from e
    if not isinstance(tree, dict):
        raise UserError(f"{path} holds a {type(tree).__name__}, not a config")
    try:
        return ConfigDict(tree).lock()
    except (TypeError, ValueError) as e:
        raise UserError(f"{path} is no config: {e}") from e


@contextlib.contextmanager
def user_code(what: str) -> Iterator[None]:
    """Within it, an error in the user's own code is reported with its file and line."""
    try:
        yield
    except UserError:
        raise
    except SyntaxError as e:
        raise UserError(f"{e.filename}, line {e.lineno}: {e.msg}") from e
    except Exception as e:
        last = traceback.extract_tb(e.__traceback__)[-1]
        where = f"{last.filename}, line {last.lineno}"
        raise UserError(f"{what} cannot be run: {type(e).__name__}: {e} ({where})") from e


def run_file(path: pathlib.Path) -> types.ModuleType:
    """Run a Python file by its path; the entries of its tables are added to the library's."""
    path = path.resolve()
    spec = importlib.util.spec_from_file_location(f"tfm config {path}", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise UserError(f"no Python file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look their module up there
    with user_code(str(path)):
        _sources[path] = path.read_text()
        spec.loader.exec_module(module)
    for name in TABLES:
        if not isinstance(getattr(module, name, {}), dict):
            raise UserError(
                f"{path}: {name} must be a dict of names, not {getattr(module, name)!r}"
            )
    entries = [(n, key, x) for n in TABLES for key, x in getattr(module, n, {}).items()]
    for name, key, entry in entries:
        if key in TABLES[name] and _added_by.get((name, key)) != path:
            owner = _added_by.get((name, key), "the library")
            raise UserError(f"{path}: {name}[{key!r}] is taken by {owner}; choose another name")
        if not isinstance(key, str) or not key.isidentifier():
            raise UserError(f"{path}: {name}[{key!r}]: its name must be a word, as 'my_idea'")
        if not isinstance(entry, ENTRIES[name]):
            kinds = " or a ".join(kind.__name__ for kind in ENTRIES[name])
            raise UserError(f"{path}: {name}[{key!r}] must be a {kinds}, not {entry!r}")
    for name, key, entry in entries:
        TABLES[name][key] = entry
        _added_by[name, key] = path
    return module


class UserEntry(NamedTuple):
    """An entry of a user's own table: the file that it stands in, and a hash of its source."""

    file: str
    digest: str


def user_entries(spec: Spec) -> dict[str, UserEntry]:
    """The entries of users' own tables that a spec names. The digest changes with the source."""
    names = {id(table): name for name, table in TABLES.items()}
    found: dict[str, UserEntry] = {}
    for table, text in named(spec):
        for entry in text.names:
            path = _added_by.get((names.get(id(table), ""), entry))
            if path is not None:
                name = names[id(table)]
                digest = origin.digest(_sources[path], name, entry)
                found[f"{name}.{entry}"] = UserEntry(str(path), digest)
    return dict(sorted(found.items()))


def from_command_line(
    argv: Sequence[str], cls: type[Spec], default: Tree | None = None
) -> dict[str, Any]:
    """The config that `--config=file.py:argument --config.a.b=3` describe, as nested dicts.

    `cls` is the spec that it is for. Without `--config`, the overrides apply to `default`.
    """
    files = [arg.partition("=")[2] for arg in argv if arg.startswith("--config=")]
    if len(files) > 1:
        raise UserError(f"--config is given {len(files)} times")
    if not files and default is None:
        raise UserError("which config? Write --config=FILE.py or --config=FILE.py:ARGUMENT")
    tree = load(files[0]).to_dict() if files else dict(default or {})
    texts: dict[str, str] = {}
    for arg in argv:
        key, equals, text = arg.removeprefix("--config.").partition("=")
        if arg.startswith("--config="):
            continue
        if not arg.startswith("--config.") or not equals:
            raise UserError(f"cannot read {arg!r}; write --config=FILE or --config.KEY=VALUE")
        texts[key] = text
    return overridden(cls, tree, texts)


def overridden(cls: type[Spec], tree: Tree, texts: Mapping[str, str]) -> dict[str, Any]:
    """The tree with what texts, as `--config.KEY=TEXT` gives them, stand for at dotted keys."""
    try:
        families = {k: text for k, text in texts.items() if k.rpartition(".")[2] == "family"}
        tree = replaced(cls, tree, families)
        changes = {key: parse(cls, tree, key, text) for key, text in texts.items()}
        return replaced(cls, tree, {k: v for k, v in changes.items() if k not in families})
    except UserError as e:
        raise UserError(f"--config: {e}") from e
