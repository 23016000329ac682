"""Configs: Python files that are run by path, overridden from the command line, and made specs.

A config file defines `get_config()`, which returns an `ml_collections.ConfigDict`. It may also
define `SCORES`, `MASKS`, `NORMALIZERS`, `POSITIONS`, `JOINS` or `TASKS`: what is in them is added
to the library's tables in every process that loads the file, so that a new idea needs no edit of
`tfm`.
"""

import ast
import contextlib
import copy
import dataclasses
import functools
import importlib.util
import inspect
import json
import pathlib
import re
import sys
import traceback
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple, TypeVar

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from tfm import origin
from tfm.data.batch import Task
from tfm.data.tasks import TASKS
from tfm.names import UserError, suggest
from tfm.ops.masks import MASKS, Mask
from tfm.ops.normalizers import NORMALIZERS, Normalizer
from tfm.ops.positions import JOINS, POSITIONS, Position
from tfm.ops.scores import SCORES, Score

Spec = TypeVar("Spec")

TABLES: dict[str, MutableMapping[str, Any]] = {
    "SCORES": SCORES,
    "MASKS": MASKS,
    "NORMALIZERS": NORMALIZERS,
    "POSITIONS": POSITIONS,
    "JOINS": JOINS,
    "TASKS": TASKS,
}
_MADE_OF: dict[str, tuple[type, ...]] = {
    "SCORES": (Score,),
    "MASKS": (Mask, types.FunctionType),
    "NORMALIZERS": (Normalizer,),
    "POSITIONS": (Position, types.FunctionType),
    "JOINS": (types.FunctionType,),
    "TASKS": (Task, types.FunctionType),
}
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
    with told(f"get_config() of {path}"):
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
def told(what: str) -> Iterator[None]:
    """Within it, whatever goes wrong in a person's own code is told with its line."""
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
    """The module that a Python file makes, run by its path; its tables join the library's."""
    path = path.resolve()
    spec = importlib.util.spec_from_file_location(f"tfm config {path}", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise UserError(f"no Python file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look their module up there
    with told(str(path)):
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
        if not isinstance(entry, _MADE_OF[name]):
            kinds = " or a ".join(kind.__name__ for kind in _MADE_OF[name])
            raise UserError(f"{path}: {name}[{key!r}] must be a {kinds}, not {entry!r}")
    for name, key, entry in entries:
        TABLES[name][key] = entry
        _added_by[name, key] = path
    return module


class Entry(NamedTuple):
    """An entry of a user's own table: where it stands, and a hash of its source."""

    file: str
    digest: str


def brought(named: Mapping[str, Iterable[str]]) -> dict[str, Entry]:
    """The entries of users' own tables that are named: `named` holds, for each table, texts.

    The digest tells an edited score from the one before.
    """
    found: dict[str, Entry] = {}
    for (table, name), path in sorted(_added_by.items()):
        words = {word for text in named.get(table, ()) for word in re.findall(r"\w+", text)}
        if name in words:
            found[f"{table}.{name}"] = Entry(str(path), origin.digest(path, table, name))
    return found


def from_command_line(
    argv: Sequence[str],
    default: ConfigDict | None = None,
    fill: Callable[[ConfigDict], ConfigDict] = lambda config: config,
) -> ConfigDict:
    """The config that `--config=file.py:argument --config.a.b=3` describe.

    Without `--config`, the overrides apply to `default`. `fill` adds the keys that a file leaves
    to their defaults, so that they can be overridden too.
    """
    files = [arg.partition("=")[2] for arg in argv if arg.startswith("--config=")]
    overrides = [arg for arg in argv if not arg.startswith("--config=")]
    if len(files) > 1:
        raise UserError(f"--config is given {len(files)} times")
    if not files and default is None:
        raise UserError("which config? Write --config=FILE.py or --config=FILE.py:ARGUMENT")
    where = files[0] if files else "the default config"
    config = copy.deepcopy(default).lock() if default and not files else load(where)
    try:
        config = fill(config)
    except UserError as e:
        raise UserError(f"{where}: {e}") from e
    for arg in overrides:
        name, equals, text = arg.partition("=")
        key = name.removeprefix("--config.")
        if not arg.startswith("--config.") or not equals:
            raise UserError(f"cannot read {arg!r}; write --config=FILE or --config.KEY=VALUE")
        config = _override(config, key, text, where)
    try:
        return fill(config) if overrides else config
    except UserError as e:
        raise UserError(f"{where}: {e}") from e


def _override(config: ConfigDict, key: str, text: str, where: str) -> ConfigDict:
    """The config with what `text` spells under the dotted `key`."""
    *groups, last = key.split(".")
    config = ConfigDict(config)
    group = config
    for name in groups:
        if name in group and group[name] is None:  # a group that was left out begins here
            with group.ignore_type():
                group[name] = ConfigDict()
            group[name][last] = None
        group = group.get(name) if isinstance(group, ConfigDict) else None
    if not isinstance(group, ConfigDict) or last not in group:
        raise UserError(f"--config.{key}: {where} has no key {key!r}{suggest(key, paths(config))}")
    before = group[last]
    if isinstance(before, ConfigDict):
        keys = ", ".join(f"--config.{key}.{name}" for name in before)
        raise UserError(f"--config.{key} is a group; set one of: {keys}")
    value = _spelled(text, before)
    number = type(before) is float and type(value) is int
    if None not in (before, value) and type(value) is not type(before) and not number:
        raise UserError(
            f"--config.{key}={text}: it must be {_kind(type(before))}, as {before!r} is ({where})"
        )
    with group.ignore_type():
        group[last] = value
    return config.lock()


def _spelled(text: str, before: Any) -> Any:
    """The value that `text` spells, where `before` stood."""
    if text == "None":
        return None
    if isinstance(before, str):
        return text
    try:
        value = ast.literal_eval({"true": "True", "false": "False"}.get(text, text))
    except (ValueError, SyntaxError):
        value = tuple(text.split(",")) if isinstance(before, tuple | list) else text
    if isinstance(before, tuple | list):
        return type(before)(value if isinstance(value, tuple | list) else (value,))
    return value


def paths(config: ConfigDict, prefix: str = "") -> Iterator[str]:
    """The dotted names of all values."""
    for key in config:
        yield prefix + key
        if isinstance(config[key], ConfigDict):
            yield from paths(config[key], f"{prefix}{key}.")


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def to_spec(cls: type[Spec], config: ConfigDict | dict[str, Any], prefix: str = "") -> Spec:
    """A frozen dataclass from a config: every key known, every value of its field's type."""
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = _hints(typing.cast(Any, cls))
    values = {}
    for key, value in config.items():
        if key not in fields:
            raise UserError(f"unknown key {prefix + key!r}{suggest(key, fields)}")
        values[key] = _value(hints[key], value, prefix + key)
    for name, field in fields.items():
        if name not in values and field.default is field.default_factory is dataclasses.MISSING:
            raise UserError(f"missing key {prefix + name!r}")
    return cls(**values)


def from_spec(spec: Any) -> ConfigDict:
    """The config of a spec, with a key for every field; what is None may be set to its type."""
    hints = _hints(typing.cast(Any, type(spec)))
    values: dict[str, Any] = {}
    for field in dataclasses.fields(spec):
        value = getattr(spec, field.name)
        if dataclasses.is_dataclass(value):
            value = from_spec(value)
        elif value is None:
            kind, *_ = typing.get_args(hints[field.name])
            value = None if dataclasses.is_dataclass(kind) else placeholder(kind)
        values[field.name] = value
    return ConfigDict(values)


def _value(hint: Any, value: Any, key: str) -> Any:
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        if dataclasses.is_dataclass(option) and isinstance(value, ConfigDict | dict):
            return to_spec(typing.cast(type, option), value, f"{key}.")
        item, *_ = typing.get_args(option) or (None,)
        if item and isinstance(value, tuple | list):
            return tuple(_value(item, v, f"{key}[{i}]") for i, v in enumerate(value))
        if option is float and type(value) is int:
            return float(value)
        if option is type(value):
            return value
    raise UserError(f"{key} must be {' or '.join(map(_kind, options))}, not {value!r}")


def _kind(hint: Any) -> str:
    """A type, in words."""
    if dataclasses.is_dataclass(hint):
        return f"a group of {', '.join(field.name for field in dataclasses.fields(hint))}"
    return "None" if hint is types.NoneType else getattr(hint, "__name__", str(hint))
