"""What a user's code draws on while it runs: modules of one's own, files, environment variables.

A module's text is read once, and what is recorded is what is executed. Python's own files,
installed packages and the library are not recorded.
"""

import contextlib
import functools
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import os
import pathlib
import site
import sys
import sysconfig
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

ABSENT = "absent"
CONTEXTLIB = contextlib.contextmanager.__code__.co_filename
CACHE = "tfm.runtime"  # whose files are compiled programs
# What a package does when it is imported, it does once in a process.
LOADERS = (
    *("importlib._bootstrap", "importlib._bootstrap_external"),
    *("_frozen_importlib", "_frozen_importlib_external"),
)
READERS = (__name__, "importlib.metadata", "zipimport", "linecache")  # for reasons of their own
SYSTEM = ("/proc/", "/sys/", "/dev/")


class Module(NamedTuple):
    """A module of the user's own."""

    path: str
    content: bytes

    @property
    def text(self) -> str:
        try:
            return importlib.util.decode_source(self.content)
        except (SyntaxError, UnicodeDecodeError):  # it cannot be run, but may never be
            return self.content.decode("latin-1")

    @property
    def is_package(self) -> bool:
        return os.path.basename(self.path) == "__init__.py"


class Seen(NamedTuple):
    """Something that was drawn on."""

    kind: str  # module, file or variable
    name: str  # of a file its path
    value: Any  # a Module, or a hash of the content or value
    by: tuple[types.CodeType, ...]  # the user's code that is running, the innermost first
    spelled: str = ""  # of a file its path as the code has it


class _Recorder(NamedTuple):
    note: Callable[[Seen], None]
    base: types.FrameType  # below it nothing is the user's code
    fresh: bool  # modules are read anew
    only: Mapping[str, Module] | None  # the modules that there are


_recorders: list[_Recorder] = []
_known: dict[str, Module] = {}  # whenever one of these is imported, this text is executed


@contextlib.contextmanager
def recording(
    note: Callable[[Seen], None], fresh: bool = False, only: Mapping[str, Module] | None = None
) -> Iterator[None]:
    """Within it, `note` is called with what the user's code draws on.

    Modules that were imported before are executed again, so that they are noted. `fresh`: they
    are also read again, and stay; otherwise those from before come back. `only`: a user's own
    modules are these, and no others.
    """
    _install()
    known = dict(_known)
    hidden = {name: sys.modules.pop(name) for name in known if name in sys.modules}
    before = set(sys.modules)
    keep(only or {})
    base: Any = sys._getframe(2)
    while base.f_code.co_flags & inspect.CO_GENERATOR or base.f_code.co_filename == CONTEXTLIB:
        base = base.f_back  # to the function that has the `with`
    _recorders.append(_Recorder(note, base, fresh, only))
    environ, os.environ.__class__ = os.environ.__class__, _Environ
    try:
        yield
        kept = fresh
    except BaseException:
        kept = False
        raise
    finally:
        os.environ.__class__ = environ
        _recorders.pop()
        if not kept:
            for name in sys.modules.keys() & _known.keys() - before:
                del sys.modules[name]
            sys.modules.update(hidden)


def keep(modules: Mapping[str, Module]) -> None:
    """Whenever one of these modules is imported from now on, this text of it is executed."""
    _known.update(modules)


def drop(names: Iterable[str]) -> None:
    """When one of these modules is imported again, it is read again."""
    for name in names:
        if _known.pop(name, None) is not None:
            sys.modules.pop(name, None)


def find(name: str) -> Module | None:
    """The user's own module of this name, read but not executed."""
    path = None
    for end in [i for i, c in enumerate(name) if c == "."]:
        spec = _spec_elsewhere(name[:end], path)
        if spec is None or not spec.submodule_search_locations:
            return None
        path = list(spec.submodule_search_locations)
    return _own_module(_spec_elsewhere(name, path))


def is_library(name: str) -> bool:
    """Whether a module is Python's or this library's."""
    return name.partition(".")[0] in (*sys.stdlib_module_names, "tfm")


@functools.cache
def is_own(file: str) -> bool:
    """Whether a file is the user's: not Python's, not an installed package's, not the library's."""
    path = pathlib.Path(file)
    if file.startswith("<") or {"site-packages", "dist-packages"} & set(path.parts):
        return False
    places = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    places += [site.getusersitepackages(), os.path.dirname(os.path.dirname(__file__))]
    both = {p for place in places for p in (place, os.path.realpath(place))}
    return not any(path.is_relative_to(place) for place in both)


def hash_file(path: str) -> str:
    """A hash of a file's content."""
    if not os.path.isfile(path):
        return ABSENT
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def hash_value(value: str | None) -> str:
    """A hash of the value of an environment variable."""
    return ABSENT if value is None else hashlib.sha256(value.encode()).hexdigest()[:16]


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if is_library(name) or target is not None:  # a reload, which is to read the file again
            return None
        recorder = _recorders[-1] if _recorders else None
        known = (recorder.only or {}) if recorder is not None and recorder.fresh else _known
        module, spec = known.get(name), None
        if module is None and recorder is not None:
            spec = _spec_elsewhere(name, path)
            module = _own_module(spec)
            if module is not None and recorder.only is not None:
                raise ModuleNotFoundError(f"{name} is not in the copy of the source", name=name)
        if module is None:
            if spec is None and any(other.startswith(f"{name}.") for other in known):
                return importlib.machinery.ModuleSpec(name, None, is_package=True)
            return spec
        _note("module", name, module, sys._getframe(), lambda _: True)
        _known[name] = module
        where = [os.path.dirname(module.path)] if module.is_package else None
        return importlib.util.spec_from_file_location(
            name, module.path, loader=_Loader(name, module), submodule_search_locations=where
        )


class _Loader(importlib.machinery.SourceFileLoader):
    """Executes a text that was read before; never a .pyc."""

    def __init__(self, name: str, module: Module):
        super().__init__(name, module.path)
        self.module = module

    def get_source(self, fullname: str) -> str:
        return self.module.text

    def get_code(self, fullname: str) -> Any:
        return compile(self.module.content, self.path, "exec", dont_inherit=True)


def _spec_elsewhere(name: str, path: Any) -> Any:
    for finder in sys.meta_path:
        if not isinstance(finder, _Finder) and hasattr(finder, "find_spec"):
            spec = finder.find_spec(name, path)
            if spec is not None:
                return spec
    return None


def _own_module(spec: Any) -> Module | None:
    if spec is None or not str(spec.origin).endswith(".py") or not is_own(spec.origin):
        return None
    path = os.path.abspath(spec.origin)
    return Module(path, pathlib.Path(path).read_bytes())


class _Environ(type(os.environ)):  # type: ignore[misc]
    """The environment, which notes what the user's code looks up itself."""

    def __getitem__(self, key: str) -> str:
        value = None
        try:
            value = super().__getitem__(key)
            return value
        finally:
            _looked_up(key, value)

    def setdefault(self, key: str, value: str) -> str:
        if self.encodekey(key) not in self._data:  # a lookup would note that it was absent
            self[key] = value
        return self[key]


def _looked_up(key: str, value: str | None) -> None:
    frame: Any = sys._getframe(2)
    while frame.f_globals.get("__name__") in ("os", "collections.abc", __name__):
        frame = frame.f_back
    _note("variable", key, hash_value(value), frame, lambda _: False)


def _opened(path: Any, flags: int) -> None:
    reads = flags & os.O_ACCMODE != os.O_WRONLY and not flags & os.O_TRUNC
    if not reads or isinstance(path, int):
        return
    file = pathlib.Path(os.fsdecode(path)).absolute()
    name = str(file.parent.resolve() / file.name)
    if any(f.f_globals.get("__name__") == CACHE for f, _ in traceback.walk_stack(None)):
        return  # a compilation that was kept is no source
    if name.endswith(".pyc") and os.path.basename(os.path.dirname(name)) == "__pycache__":
        name = importlib.util.source_from_cache(name)
    if name.startswith(SYSTEM) or not is_own(name):
        return
    if os.path.isfile(name) or not os.path.exists(name):
        others = READERS if name.endswith(".py") else (*READERS, *LOADERS)
        through = lambda module: module not in others  # noqa: E731
        _note("file", name, hash_file(name), sys._getframe(2), through, os.fsdecode(path))


def _note(
    kind: str, name: str, value: Any, frame: Any, through: Callable[[str], bool], spelled: str = ""
) -> None:
    """Tell the recorders, if the user's code did it: itself, or through modules of other names."""
    recorder, code = _recorders[-1] if _recorders else None, list[types.CodeType]()
    while recorder is not None and frame is not None and frame is not recorder.base:
        file = frame.f_code.co_filename
        if is_own(file):
            code.append(frame.f_code)
        elif not (code or file.startswith("<string") or through(frame.f_globals["__name__"])):
            return
        frame = frame.f_back
    for recorder in _recorders if code else ():
        recorder.note(Seen(kind, name, value, tuple(code), spelled))


@functools.cache
def _install() -> None:
    busy = False

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal busy
        if event == "open" and _recorders and not busy:
            busy = True
            try:
                _opened(args[0], args[2])
            finally:
                busy = False

    sys.addaudithook(hook)
    sys.meta_path.insert(0, _Finder())
