"""Config files: Python files that are loaded by path and overridden from the command line.

A config file defines `get_config()`, which returns an `ml_collections.ConfigDict`. It may also
define `SCORES`, `MASKS`, `MIXERS` or any other of `TABLES`: their entries are added to the
library's tables in every process that loads the file, so a new idea needs no edit of `tfm`.
"""

import contextlib
import difflib
import importlib.util
import inspect
import pathlib
import sys
import traceback
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from tfm import disk
from tfm.config import provenance
from tfm.config.names import UserError
from tfm.config.provenance import Copy, UserFile
from tfm.config.registries import ENTRIES, TABLES
from tfm.config.spec import Spec, Tree, named, parse, replaced
from tfm.disk import CHECKSUM, was_edited
from tfm.run.folder import FORMAT, check_format, upgraded

RUN_KEYS = ("format", "id", "entries", "init_digest", CHECKSUM)  # in config.json, not of the config
_added_by: dict[tuple[str, str], UserFile] = {}  # (table, name) → the file it came from


def load(where: str, trust: bool = False) -> ConfigDict:
    """Returns the locked config of `FILE.py`, `FILE.py:ARGUMENT` or `FILE.json`.

    `trust` allows the code in a run folder to be run.
    """
    path, colon, argument = where.partition(":")
    if path.endswith(".json"):
        if colon:
            raise UserError(f"{path} takes no argument, but {where!r} gives one")
        return _json(pathlib.Path(path), trust)
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


def with_model(where: str, model: Mapping[str, Any]) -> ConfigDict:
    """Returns the run of another config with this model, whose vocabulary and classes are open, so
    that the data decide them."""
    config = load(where).unlock()
    config.model = {key: x for key, x in model.items() if key not in ("vocab", "classes")}
    return config


def _json(path: pathlib.Path, trust: bool) -> ConfigDict:
    try:
        tree = disk.read_json(path, *([path.parent] if path.name == "config.json" else []))
    except FileNotFoundError:
        raise UserError(f"no file {path}") from None
    except OSError as e:
        raise UserError(f"cannot read {path}: {e.strerror}") from e
    except ValueError as e:
        raise UserError(f"{path} is not JSON: {e}") from e
    if not isinstance(tree, dict):
        raise UserError(f"{path} holds a {type(tree).__name__}, not a config")
    if was_edited(tree):
        raise UserError(
            f"{path} was edited: its checksum differs. Undo that, or copy it to another folder and "
            f"delete its {CHECKSUM!r} to start a new run"
        )
    check_format(path, tree)
    if tree.get("format", 0) < FORMAT:
        tree = upgraded(tree)
    if tree.get("entries"):
        _run_copies(path, tree["entries"], trust)
    match tree:
        case {"data": {"dataset": "none", "tokenizer": str()} as data}:
            # The tokenizer of an import lies in its own folder, wherever that is now.
            data["tokenizer"] = f"of_run(path={str(path.parent)!r})"
    try:
        return ConfigDict({k: v for k, v in tree.items() if k not in RUN_KEYS}).lock()
    except (TypeError, ValueError) as e:
        raise UserError(f"{path} is no config: {e}") from e


def _run_copies(path: pathlib.Path, entries: Any, trust: bool) -> None:
    """Loads the copies of user files that a run's config.json names, if they are trusted."""
    folder = path.parent
    try:
        named = [
            (name.split(".", 1), provenance.inside(folder, place), str(digest))
            for name, place, digest, *_ in entries
        ]
        if not all(len(name) == 2 and name[0] in TABLES for name, _, _ in named):
            raise ValueError("a name must be TABLE.NAME")
    except (TypeError, ValueError, AttributeError) as e:
        if isinstance(e, UserError):
            raise
        raise UserError(f"{path}: its 'entries' are damaged: {e}") from e
    files = dict.fromkeys(file for _, file, _ in named)
    if not trust:
        code = sorted(str(file) for file in (folder / provenance.SOURCE).rglob("*.py"))
        raise UserError(
            f"{folder} holds a run with its own code, which is run only if you trust it. Look "
            f"at {', '.join(code[:20])}{', …' * (len(code) > 20)}, and add --trust (in Python, "
            "trust=True)"
        )
    copy = provenance.read_copies(folder, files)
    loaded = {file: _run(pathlib.Path(file), copy)[1] for file in files}
    for name, file, digest in named:
        if loaded[file].digest(*name) == digest:
            continue
        for opened, known in copy.opened.items():
            if loaded[file].opened.get(opened, known) != known:
                raise UserError(
                    f"{opened}, which the code of {folder} opens, has changed since the run began. "
                    "Code that finds its files by __file__ opens their copies instead"
                )
        raise UserError(f"{file}: {'.'.join(name)} is not what it was when the run began")


def own_error(error: BaseException) -> str | None:
    """Describes an error in a user's file with its line; None if it happened elsewhere."""
    frames = _own_frames(error)
    if not frames:
        return None
    last, text = frames[-1], str(error).partition("\n")[0]
    return f"{last.filename}, line {last.lineno}: {type(error).__name__}: {text}"


def _own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if provenance.is_own(frame.filename)]


@contextlib.contextmanager
def user_code(name: str) -> Iterator[None]:
    """Reports an error in the user's code as a UserError with file and line."""
    try:
        yield
    except UserError as e:
        last = next(reversed(_own_frames(e)), None)
        if last is None or last.filename in str(e):
            raise
        raise UserError(f"{last.filename}, line {last.lineno}: {e}") from e
    except SyntaxError as e:
        at = f", line {e.lineno}" if e.lineno else ""
        raise UserError(f"{e.filename or name}{at}: {e.msg}") from e
    except Exception as e:
        last = (_own_frames(e) or traceback.extract_tb(e.__traceback__))[-1]
        text, where = str(e).partition("\n")[0], f"{last.filename}, line {last.lineno}"
        raise UserError(f"{name} cannot be run: {type(e).__name__}: {text} ({where})") from e


def run_file(path: pathlib.Path) -> types.ModuleType:
    """Runs a Python file by its path and adds its entries to the library's registries."""
    return _run(path.resolve())[0]


def _run(path: pathlib.Path, copy: Copy | None = None) -> tuple[types.ModuleType, UserFile]:
    spec = importlib.util.spec_from_file_location(f"{provenance.MODULE}{path}", path)
    if not path.is_file() or spec is None:
        raise UserError(f"no Python file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look their module up there
    others = {other.path: other for other in _added_by.values() if other.path != str(path)}
    with user_code(str(path)):
        file = UserFile(str(path), path.read_bytes(), copy)
        code = compile(file.content, path, "exec", dont_inherit=True)
        with provenance.recording(file, others.values()):
            exec(code, module.__dict__)
    _add_entries(file, module)
    return module, file


def _add_entries(file: UserFile, module: types.ModuleType) -> None:
    """Adds the entries of a file's tables to the library's registries."""
    path = file.path
    for name in TABLES:
        table = getattr(module, name, {})
        if not isinstance(table, dict):
            raise UserError(f"{path}: {name} must be a dict of names, not {table!r}")
    others = [n for n, x in vars(module).items() if n.isupper() and x and isinstance(x, dict)]
    for name in set(others) - set(TABLES):
        for near in difflib.get_close_matches(name, TABLES, n=1, cutoff=0.85):
            if all(isinstance(entry, ENTRIES[near]) for entry in vars(module)[name].values()):
                raise UserError(f"{path}: {name} is no table of tfm; did you mean {near}?")
    tables = {n: vars(module)[n] for n in TABLES if n in vars(module)}
    entries = {
        (name, key): entry
        for name, table in tables.items()
        if table is not TABLES[name]  # an import of the library's own
        for key, entry in table.items()
    }
    for (name, key), entry in entries.items():
        owner = _added_by.get((name, key))
        if key in TABLES[name] and (owner is None or owner.path != path):
            if owner is None or owner.copy is file.copy is None:
                by = owner.path if owner else "the library"
                raise UserError(f"{path}: {name}[{key!r}] is taken by {by}; choose another name")
            if owner.digest(name, key) != file.digest(name, key):
                raise UserError(
                    f"{path}: {name}[{key!r}] differs from that of {owner.path}: use them in "
                    "two processes"
                )
        if not isinstance(key, str) or not key.isidentifier():
            raise UserError(f"{path}: {name}[{key!r}]: its name must be a word, as 'my_idea'")
        if not isinstance(entry, ENTRIES[name]):
            kinds = " or a ".join(kind.__name__ for kind in ENTRIES[name])
            raise UserError(f"{path}: {name}[{key!r}] must be a {kinds}, not {entry!r}")
    for name, key in [at for at, owner in _added_by.items() if owner.path == path]:
        if (name, key) not in entries:  # it was in the file when that was run before
            del TABLES[name][key], _added_by[name, key]
    for (name, key), entry in entries.items():
        TABLES[name][key] = entry
        _added_by[name, key] = file


class UserEntry(NamedTuple):
    """The file of a user's entry, and a hash of its source."""

    file: str
    digest: str


def user_entries(spec: Spec) -> dict[str, UserEntry]:
    """Returns the entries from user files that a spec names."""
    entries = {
        f"{name}.{key}": UserEntry(file.path, file.digest(name, key))
        for name, key, file in _owners(spec)
    }
    return dict(sorted(entries.items()))


def _owners(spec: Spec) -> Iterator[tuple[str, str, UserFile]]:
    """Yields table, name and file of the entries from user files that a spec names."""
    names = {id(table): name for name, table in TABLES.items()}
    for table, text in named(spec):
        for key in text.names:
            owner = _added_by.get((names.get(id(table), ""), key))
            if owner is not None:
                yield names[id(table)], key, owner


def copy_source(spec: Spec, folder: pathlib.Path) -> list[list[str]]:
    """Copies the user files that a spec uses to a run folder.

    Returns the name of each entry, the place of the copy, its digest and the original file.
    """
    files = {file.path: file for _, _, file in _owners(spec)}
    places = provenance.write_copies(folder, files.values()) if files else {}
    return [
        [name, places[entry.file], entry.digest, files[entry.file].original]
        for name, entry in user_entries(spec).items()
    ]


def from_command_line(
    argv: Sequence[str], cls: type[Spec], default: Tree | None = None, trust: bool = False
) -> dict[str, Any]:
    """Returns the config of `--config=FILE.py:ARGUMENT --config.a.b=3` as nested dicts.

    `cls` is the spec it is for. Without `--config`, the overrides apply to `default`. `trust`
    allows the code in a run folder to be run.
    """
    files = [arg.partition("=")[2] for arg in argv if arg.startswith("--config=")]
    if len(files) > 1:
        raise UserError(f"--config is given {len(files)} times")
    if not files and default is None:
        raise UserError("which config? Write --config=FILE.py or --config=FILE.py:ARGUMENT")
    tree = load(files[0], trust).to_dict() if files else dict(default or {})
    texts: dict[str, str] = {}
    for arg in argv:
        key, equals, text = arg.partition("=")
        if key.startswith("--config.") and equals:
            texts[key.removeprefix("--config.")] = text
        elif not arg.startswith("--config="):
            raise UserError(f"cannot read {arg!r}; write --config=FILE or --config.KEY=VALUE")
    return overridden(cls, tree, texts)


def overridden(cls: type[Spec], tree: Tree, texts: Mapping[str, str]) -> dict[str, Any]:
    """Sets dotted keys of a tree to the values of texts, as in `--config.KEY=TEXT`."""
    try:
        families = {k: text for k, text in texts.items() if k.rpartition(".")[2] == "family"}
        tree = replaced(cls, tree, families)
        changes = {key: parse(cls, tree, key, text) for key, text in texts.items()}
        return replaced(cls, tree, {k: v for k, v in changes.items() if k not in families})
    except UserError as e:
        raise UserError(f"--config: {e}") from e
