"""A user's file that was run: what its entries are made of, and its copy in a run's folder.

The copy holds the text that was executed, of the file and of the modules of one's own that it
imports, and the files that they read. So a run can be read after its study was edited or deleted.
"""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import shutil
from collections.abc import Iterable, Mapping
from typing import Any

from tfm.config import origin, record
from tfm.config.names import UserError
from tfm.config.record import Module, Seen

SOURCE = "source"  # the copy's folder in a run's, and in it:
INDEX = "index.json"


@dataclasses.dataclass
class UserFile:
    """A file, and what it draws on: when it is run and, by the name of the function that does so,
    when a model is traced."""

    path: str
    content: bytes
    copy: "Copy | None" = None  # that it belongs to
    modules: dict[str, Module] = dataclasses.field(default_factory=dict)
    files: dict[str, Seen] = dataclasses.field(default_factory=dict)  # that exist, by path
    drawn_on: dict[tuple[str, str, str], str] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def text(self) -> str:
        return Module(self.path, self.content).text

    @property
    def original(self) -> str:
        """Where it was when it was copied."""
        return self.path if self.copy is None else self.copy.originals[self.path]

    def add(self, seen: Seen, function: str = "") -> None:
        """Note what the file draws on, always or when a function of it is called."""
        name, value = seen.name, seen.value
        if seen.kind == "module":
            self.modules[name] = value
            value = origin.hash_of(origin.code(value.text))
        if seen.kind == "file":
            name = self._relative(name)
            if value != record.ABSENT:
                self.files[seen.name] = seen
        if self.drawn_on.get(("", seen.kind, name)) != value:
            self.drawn_on[function, seen.kind, name] = value

    def find_lazy_imports(self) -> None:
        """Add the modules that are imported in functions, which may not have been called."""
        todo = [("", self.text), *((_package(n, m), m.text) for n, m in self.modules.items())]
        while todo:
            package, text = todo.pop()
            for name in origin.imports(text, package):
                parts = name.split(".")
                for dotted in (".".join(parts[: i + 1]) for i in range(len(parts))):
                    if dotted in self.modules or record.is_library(dotted):
                        continue
                    found = self.copy.modules.get(dotted) if self.copy else record.find(dotted)
                    if found is not None:
                        self.add(Seen("module", dotted, found, ()))
                        todo.append((_package(dotted, found), found.text))

    def trace(self, seen: Seen) -> None:
        """Note what was drawn on when a model was traced, if it was this file's code that did."""
        own = [code for code in seen.by if code.co_filename == self.path]
        named = [name for code in own if (name := code.co_qualname.split(".")[0])[0] != "<"]
        paths = {module.path for module in self.modules.values()}
        if own or any(code.co_filename in paths for code in seen.by):
            self.add(seen, named[0] if named else "*")

    def digest(self, table: str, name: str) -> str:
        """A hash of what decides what an entry does. After a `+`, if there is anything, of what
        it draws on when it is called."""
        names = origin.uses(self.text, table, name)
        parts, called = [origin.digest(self.text, table, name)], list[str]()
        for (function, *what), value in sorted(self.drawn_on.items()):
            if not function:
                parts.append(" ".join([*what, value]))
            elif table != "DATASETS" and (names is None or function in ("*", *names)):
                called.append(" ".join([*what, value]))  # data have their own fingerprint
        return origin.hash_of(*parts) + (f"+{origin.hash_of(*called)}" if called else "")

    def _relative(self, path: str) -> str:
        """A name that is the same wherever the file and its copy are."""
        if self.copy is not None and path in self.copy.originals:
            path = self.copy.originals[path]
        elif self.copy is not None and path.startswith(f"{self.copy.folder}{os.sep}"):
            return os.path.relpath(path, os.path.dirname(self.path))
        return os.path.relpath(path, os.path.dirname(self.original))


def _package(name: str, module: Module) -> str:
    return name if module.is_package else name.rpartition(".")[0]


@dataclasses.dataclass(frozen=True)
class Copy:
    """The copies in a run's folder."""

    folder: str
    originals: Mapping[str, str]  # by path here: the path that it was copied from
    modules: Mapping[str, Module]


def write(folder: pathlib.Path, files: Iterable[UserFile]) -> dict[str, str]:
    """Copy files and what they draw on to a run's folder; the copies by the original's path."""
    files = list(files)
    modules = {name: module for file in files for name, module in file.modules.items()}
    contents = {file.path: file.content for file in files}
    contents |= {module.path: module.content for module in modules.values()}
    read = {path: seen for file in files for path, seen in file.files.items()}
    roots = {pathlib.Path(file.path).parent for file in files}
    roots |= {_root(name, module) for name, module in modules.items()}
    outermost = sorted(r for r in roots if not any(other in r.parents for other in roots))
    places: dict[str, str] = {}
    for path in sorted({*contents, *read}):
        for number, root in enumerate(outermost):
            if pathlib.Path(path).is_relative_to(root):
                places[path] = f"{number}/{pathlib.Path(path).relative_to(root).as_posix()}"
    texts = [Module(path, content).text for path, content in contents.items()]
    hashes: dict[str, str] = {}
    new = folder / f".{SOURCE}.{os.getpid()}"
    try:
        for path, place in places.items():
            (new / place).parent.mkdir(parents=True, exist_ok=True)
            if path in contents:
                (new / place).write_bytes(contents[path])
            else:
                shutil.copyfile(path, new / place)
            hashes[place] = record.hash_file(str(new / place))
            if path in read and hashes[place] != read[path].value:
                raise UserError(f"{path} was edited since it was read: start again")
        from_copy = {file.path: file.copy.originals for file in files if file.copy is not None}
        originals = {path: o for known in from_copy.values() for path, o in known.items()}
        index = {
            "files": {p: [originals.get(path, path), hashes[p]] for path, p in places.items()},
            "modules": {name: places[module.path] for name, module in modules.items()},
            "elsewhere": {
                path: seen.value
                for path, seen in read.items()
                if path not in places or not _follows(seen, texts)
            },
            "variables": {
                name: value
                for file in files
                for (_, kind, name), value in file.drawn_on.items()
                if kind == "variable"
            },
        }
        (new / INDEX).write_text(json.dumps(index, indent=1, sort_keys=True) + "\n")
        shutil.rmtree(folder / SOURCE, ignore_errors=True)
        os.rename(new, folder / SOURCE)
    except OSError as e:
        raise UserError(f"cannot copy the source to {folder / SOURCE}: {e}") from e
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(new, ignore_errors=True)
    return {file.path: f"{SOURCE}/{places[file.path]}" for file in files}


def _root(name: str, module: Module) -> pathlib.Path:
    """The folder that a module is imported from."""
    depth = name.count(".") + module.is_package
    return pathlib.Path(module.path).parents[depth]


def _follows(seen: Seen, texts: Iterable[str]) -> bool:
    """Whether code that is moved finds the file beside it, as with `__file__`."""
    return os.path.isabs(seen.spelled) and not any(seen.spelled in text for text in texts)


def read(folder: pathlib.Path, needed: Iterable[str]) -> Copy:
    """The copies in a run's folder, those that are needed among them. What is not as it was when
    the run began is an error."""
    where = folder / SOURCE / INDEX
    try:
        index = json.loads(where.read_text())
        files, modules = dict(index["files"]), dict(index["modules"])
        elsewhere, variables = dict(index["elsewhere"]), dict(index["variables"])
        originals = {}
        for place, (original, digest) in files.items():
            path = inside(folder, f"{SOURCE}/{place}")
            originals[path] = str(original)
            if record.hash_file(path) != digest:
                raise UserError(f"{path} was edited since the run began")
        for path in needed:
            if path not in originals:
                raise UserError(f"{where} does not name {path}")
        own = {}
        for name, place in modules.items():
            path = inside(folder, f"{SOURCE}/{place}")
            own[str(name)] = Module(path, pathlib.Path(path).read_bytes())
    except OSError as e:
        raise UserError(f"{folder}: the copy of its source cannot be read: {e}") from e
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        if isinstance(e, UserError):
            raise
        raise UserError(f"{where} is damaged: {type(e).__name__}: {e}") from e
    for path, digest in elsewhere.items():
        if record.hash_file(path) != digest:
            raise UserError(
                f"{path}, which the code of {folder} reads, is not as it was when the run began. "
                "Code that finds its files by __file__ reads their copies instead"
            )
    for name, digest in variables.items():
        if record.hash_value(os.environ.get(name)) != digest:
            raise UserError(
                f"the environment variable {name}, which the code of {folder} reads, is not as it "
                "was when the run began"
            )
    return Copy(str((folder / SOURCE).resolve()), originals, own)


def inside(folder: pathlib.Path, place: Any) -> str:
    """The path of a file that a run's folder names, which must be in its folder of copies."""
    plain, source = pathlib.PurePosixPath(str(place)), (folder / SOURCE).resolve()
    try:
        path = (folder / str(place)).resolve()
        exists = path.is_file()
    except (OSError, ValueError, RuntimeError) as e:  # no path at all, or a loop of links
        raise UserError(f"{folder}: its code {str(place)!r} cannot be read: {e}") from e
    stays = path.is_relative_to(source) and source.is_relative_to(folder.resolve())
    if plain.is_absolute() or ".." in plain.parts or not stays:
        raise UserError(f"{folder}: its code {str(place)!r} is not in its folder {SOURCE}/")
    if not exists:
        raise UserError(f"{folder}: its code {str(place)!r} is missing")
    return str(path)
