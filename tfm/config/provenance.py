"""Provenance of user files: hashes of what an entry is made of, and copies for the run folder.

While a user's file is loaded, one audit hook observes which of the user's modules are imported and
which files are opened. Both are hashed into the digest of every entry of that file and copied to
the folder `source` of a run, like the file itself. profile.json names the versions of the rest.

Not covered are environment variables, which count only through the config values they produce, and
whatever a function imports, opens or reads when it is called: do both at the top of the file.
"""

import ast
import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import json
import os
import pathlib
import shutil
import site
import sys
import sysconfig
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from tfm import disk
from tfm.config.names import UserError

SOURCE = "source"  # the folder of copies in a run folder
INDEX = "index.json"  # the file in it that lists them
ABSENT = "absent"  # the digest of a file that does not exist
MODULE = "tfm config "  # begins the name of the module that a user's file becomes
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
PLAIN = (*DEFINITIONS, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.Pass)
# Code that uses these can change names in ways its text does not show.
OPAQUE = {
    *("exec", "eval", "globals", "locals", "vars", "setattr", "delattr", "__setattr__"),
    *("__dict__", "__globals__", "__import__", "modules"),
}
# Modules that open files for their own purposes, even when the user's code calls them.
READERS = {"tfm.runtime", "jax._src.lru_cache", "importlib.metadata", "zipimport", "linecache"}


def hash_of(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def hash_file(path: str) -> str:
    if not os.path.isfile(path):
        return ABSENT
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def parsed(text: str) -> ast.Module:
    """Parses code and removes docstrings, unless the code reads them."""
    tree = ast.parse(text)
    for node in () if "__doc__" in text else ast.walk(tree):
        if isinstance(node, (*DEFINITIONS, ast.Module)) and ast.get_docstring(node, clean=False):
            node.body = node.body[1:] or [ast.Pass()]
    return tree


@functools.lru_cache(maxsize=256)
def normalized(text: str) -> str:
    """Returns code without comments, layout and docstrings."""
    try:
        return ast.unparse(parsed(text))
    except SyntaxError:
        return text


@functools.lru_cache(maxsize=256)
def entry_digest(text: str, table: str, name: str) -> str:
    """Hashes `TABLE["name"]` of a Python file and every top-level statement that it uses.

    An edit elsewhere in the file does not change the digest. The whole file counts if it has
    top-level statements other than definitions, imports and assignments, or if its code may change
    names in a way that cannot be followed.
    """
    tree = parsed(text)
    defined = definitions(tree.body)
    entry = _entry(defined.get(table, []), name)
    if entry is None or _is_opaque(tree, defined):
        return hash_of(ast.unparse(tree))
    used, todo = set[str](), _names(entry, ast.Load)
    while todo := (todo & defined.keys()) - used:
        used |= todo
        todo = set().union(*(_names(x, ast.Load) for name in todo for x in defined[name]))
    parts = [f"{name}: {ast.unparse(x)}" for name in sorted(used) for x in defined[name]]
    return hash_of(ast.unparse(entry), *parts)


def definitions(statements: Iterable[ast.stmt]) -> dict[str, list[ast.stmt]]:
    """Returns the statements that define each name."""
    defined: dict[str, list[ast.stmt]] = {}
    for statement in statements:
        for name in bound(statement):
            defined.setdefault(name, []).append(statement)
    return defined


def bound(statement: ast.stmt) -> set[str]:
    """Returns the names that a top-level statement binds."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Import() | ast.ImportFrom():
            return {alias.asname or alias.name.partition(".")[0] for alias in statement.names}
    return _names(statement, ast.Store)


def _entry(statements: list[ast.stmt], name: str) -> ast.expr | None:
    """Returns the value of a key if one dict display with constant keys defines the table."""
    table = getattr(statements[0], "value", None) if len(statements) == 1 else None
    if not isinstance(table, ast.Dict) or not all(isinstance(k, ast.Constant) for k in table.keys):
        return None
    keys: list[Any] = [getattr(key, "value", None) for key in table.keys]
    return table.values[keys.index(name)] if keys.count(name) == 1 else None


def _is_opaque(tree: ast.Module, defined: Collection[str]) -> bool:
    """Returns True if top-level names may change other than by the statements that bind them."""
    mutable = set[str]()  # names of objects that can change in place
    for statement in tree.body:
        value = getattr(statement, "value", None)
        if not isinstance(statement, PLAIN) and not isinstance(value, ast.Constant):
            return True
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
            for call in calls:  # of a table, only a call like `rng.normal()` changes something
                is_table = isinstance(value, ast.Dict)
                if mutable & ({_root(call.func)} if is_table else _names(call, ast.Load)):
                    return True
            mutable |= set() if isinstance(value, ast.Constant) else bound(statement)
    for node in ast.walk(tree):
        match node:
            case ast.NamedExpr() | ast.Global() | ast.ImportFrom(names=[ast.alias(name="*")]):
                return True
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in OPAQUE:
                return True
            case ast.Attribute(ctx=ctx) | ast.Subscript(ctx=ctx) if not isinstance(ctx, ast.Load):
                if _root(node) in defined:
                    return True
            case ast.Expr(value=ast.Call(func=function)) if _root(function) in mutable:
                return True
    return False


def _root(node: ast.expr) -> str:
    """Returns `x` for `x.y`, `x[0]` and `x(…)`."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _names(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    names = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
    return {n.id for n in names if isinstance(n.ctx, context)}


@dataclasses.dataclass
class Source:
    """A Python file as it was when it was executed."""

    path: str
    content: bytes

    @functools.cached_property
    def text(self) -> str:
        return importlib.util.decode_source(self.content)


@dataclasses.dataclass(frozen=True)
class Copy:
    """The copies in a run folder."""

    folder: str
    originals: Mapping[str, str]  # path of each copy → path of its original
    roots: Collection[str]  # folders that the copied modules are imported from
    opened: Mapping[str, str]  # digests of the files that were opened when the run began


@dataclasses.dataclass
class UserFile(Source):
    """A user's file with the modules that it imports and the files that it opens while it loads."""

    copy: Copy | None = None  # that the file belongs to
    modules: dict[str, Source] = dataclasses.field(default_factory=dict)
    files: dict[str, str] = dataclasses.field(default_factory=dict)  # path → digest
    code: dict[str, bytes] = dataclasses.field(default_factory=dict)  # the Python files among them

    @property
    def original(self) -> str:
        """The path of the file when it was first loaded."""
        return self.path if self.copy is None else self.copy.originals[self.path]

    @property
    def opened(self) -> dict[str, str]:
        """Digests of the opened files, by names that are the same for the file and its copies."""
        return {self._relative(path): digest for path, digest in self.files.items()}

    def digest(self, table: str, name: str) -> str:
        """Hashes what decides what an entry does."""
        parts = [f"module {k} {hash_of(normalized(x.text))}" for k, x in self.modules.items()]
        parts += [f"file {key} {digest}" for key, digest in self.opened.items()]
        return hash_of(entry_digest(self.text, table, name), *sorted(parts))

    def _relative(self, path: str) -> str:
        copy = self.copy
        if copy is not None and path not in copy.originals and _is_below(path, copy.folder):
            return os.path.relpath(path, os.path.dirname(self.path))
        path = path if copy is None else copy.originals.get(path, path)
        return os.path.relpath(path, os.path.dirname(self.original))


_loading: list[UserFile] = []


@contextlib.contextmanager
def recording(file: UserFile, others: Iterable[UserFile]) -> Iterator[None]:
    """Records what is imported and opened in the body as belonging to `file`.

    The user's modules are imported anew, without bytecode, so that each is observed. Raises if one
    of the `others` uses different code under the same module name: a process has only one.
    """
    _install_hook()
    before, roots = _own_modules(), file.copy.roots if file.copy else ()
    for name in before:
        del sys.modules[name]
    sys.path[:0] = roots
    _loading.append(file)
    try:
        yield
        for name, module in _own_modules().items():
            path = _located(module.__file__ or "")
            if path in file.code:
                file.modules[name] = Source(path, file.code[path])
                file.files.pop(path, None)
        for other in others:
            for name in file.modules.keys() & other.modules.keys():
                ours, theirs = file.modules[name], other.modules[name]
                if normalized(ours.text) != normalized(theirs.text):
                    raise UserError(
                        f"{file.path} imports {name} from {ours.path}, and {other.path} imports "
                        f"different code of that name from {theirs.path}: use them in two processes"
                    )
    except BaseException:
        for name in _own_modules():
            del sys.modules[name]
        raise
    finally:
        _loading.pop()
        for name, module in before.items():
            sys.modules.setdefault(name, module)
        sys.path[:] = [path for path in sys.path if path not in roots]


@functools.cache
def is_own(file: str) -> bool:
    """Returns True for a user's file: not Python's, an installed package's or this library's."""
    path = pathlib.Path(file)
    if file.startswith("<") or {"site-packages", "dist-packages"} & set(path.parts):
        return False
    places = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    places += [site.getusersitepackages(), os.path.dirname(os.path.dirname(__file__))]
    places += ["/proc", "/sys", "/dev"]
    return not any(_is_below(file, p) for place in places for p in (place, os.path.realpath(place)))


def _own_modules() -> dict[str, Any]:
    """Returns the imported modules of the user, without the files that `tfm` itself loaded."""
    modules = {}
    for name, module in sys.modules.items():
        attributes = getattr(module, "__dict__", {})
        file = attributes.get("__file__")
        if file is None and attributes.get("__path__"):  # a package without an __init__.py
            file = f"{next(iter(attributes['__path__']))}/"
        is_main = name in ("__main__", "__mp_main__") or name.startswith(MODULE)
        if not is_main and str(file).endswith((".py", "/")) and is_own(str(file)):
            modules[name] = module
    return modules


@functools.cache
def _install_hook() -> None:
    busy = False

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal busy
        if event == "open" and _loading and not busy and not isinstance(args[0], int):
            busy = True
            try:
                _observe(_located(os.fsdecode(args[0])), args[2])
            finally:
                busy = False

    sys.addaudithook(hook)


def _observe(path: str, flags: int) -> None:
    """Records a file that is about to be opened for reading by the user's code."""
    reads = flags & os.O_ACCMODE != os.O_WRONLY and not flags & os.O_TRUNC
    if not reads or not is_own(path) or os.path.isdir(path):
        return
    if os.path.basename(os.path.dirname(path)) == "__pycache__":
        raise FileNotFoundError(path)  # makes Python read the source
    frame: Any = sys._getframe(2)
    while not is_own(frame.f_code.co_filename):
        name, importing = frame.f_globals.get("__name__"), frame.f_code.co_filename
        importing = importing.startswith("<frozen importlib") and not path.endswith(".py")
        if name in READERS or importing or frame.f_back is None:
            return
        frame = frame.f_back
    is_code = path.endswith(".py") and os.path.isfile(path)
    for file in _loading:
        if is_code and file.copy is not None and not _is_below(path, file.copy.folder):
            raise ModuleNotFoundError(f"{path} is not in the copy of the source")
        if path not in file.files:
            file.files[path] = hash_file(path)
            if is_code:
                file.code[path] = pathlib.Path(path).read_bytes()


def _located(path: str) -> str:
    """Returns an absolute path whose folders are no links."""
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)


def _is_below(path: str, folder: str) -> bool:
    return pathlib.PurePath(path).is_relative_to(folder)


def write_copies(folder: pathlib.Path, files: Collection[UserFile]) -> dict[str, str]:
    """Copies files, their modules and the files they opened; returns each file's place."""
    modules = {name: module for file in files for name, module in file.modules.items()}
    contents = {source.path: source.content for source in (*files, *modules.values())}
    opened = {path: digest for file in files for path, digest in file.files.items()}
    read = {path: digest for path, digest in opened.items() if digest != ABSENT}
    originals = {p: o for file in files if file.copy for p, o in file.copy.originals.items()}
    roots = {pathlib.Path(path).parent for path in (*(file.path for file in files), *read)}
    roots |= {_root_of(name, module.path) for name, module in modules.items()}
    outermost = sorted(root for root in roots if not roots & set(root.parents))
    places, listed = dict[str, str](), dict[str, list[str]]()
    new = folder / f".{SOURCE}.{os.getpid()}"
    try:
        for path in sorted({*contents, *read}):
            number = next(n for n, root in enumerate(outermost) if _is_below(path, str(root)))
            place = f"{number}/{pathlib.Path(path).relative_to(outermost[number]).as_posix()}"
            (new / place).parent.mkdir(parents=True, exist_ok=True)
            if path in contents:
                (new / place).write_bytes(contents[path])
            else:
                shutil.copyfile(path, new / place)
            digest = hash_file(str(new / place))
            if read.get(path, digest) != digest:
                raise UserError(f"{path} was edited since it was read: start again")
            places[path], listed[place] = place, [originals.get(path, path), digest]
        index = {
            "files": listed,
            "modules": {name: places[module.path] for name, module in modules.items()},
            "opened": {path: digest for file in files for path, digest in file.opened.items()},
        }
        (new / INDEX).write_text(json.dumps(index, indent=1, sort_keys=True) + "\n")
        shutil.rmtree(folder / SOURCE, ignore_errors=True)
        os.rename(new, folder / SOURCE)
    except OSError as e:
        raise UserError(f"cannot copy the source to {folder / SOURCE}: {e}") from e
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return {file.path: f"{SOURCE}/{places[file.path]}" for file in files}


def _root_of(name: str, path: str) -> pathlib.Path:
    """Returns the folder that a module is imported from."""
    depth = name.count(".") + (os.path.basename(path) == "__init__.py")
    return pathlib.Path(path).parents[depth]


def read_copies(folder: pathlib.Path, needed: Iterable[str]) -> Copy:
    """Reads the list of copies in a run folder; raises if one was edited or is not listed."""
    where, originals, roots = folder / SOURCE / INDEX, dict[str, str](), dict[str, None]()
    try:
        index = disk.read_json(where, folder)
        for place, (original, digest) in dict(index["files"]).items():
            path = inside(folder, f"{SOURCE}/{place}")
            originals[path] = str(original)
            if hash_file(path) != digest:
                raise UserError(f"{path} was edited since the run began")
        for path in needed:
            if path not in originals:
                raise UserError(f"{where} does not name {path}")
        for name, place in dict(index["modules"]).items():
            root = _root_of(name, inside(folder, f"{SOURCE}/{place}"))
            if not root.is_relative_to((folder / SOURCE).resolve()):
                raise ValueError(f"{name} cannot be imported from {place}")
            roots[str(root)] = None
        return Copy(str((folder / SOURCE).resolve()), originals, [*roots], dict(index["opened"]))
    except OSError as e:
        raise UserError(f"{folder}: the copy of its source cannot be read: {e}") from e
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as e:
        if isinstance(e, UserError):
            raise
        raise UserError(f"{where} is damaged: {type(e).__name__}: {e}") from e


def inside(folder: pathlib.Path, place: Any) -> str:
    """Returns the path of a copy that a run folder names; raises if it is not among its copies."""
    plain, source = pathlib.PurePosixPath(str(place)), (folder / SOURCE).resolve()
    try:
        path = (folder / str(place)).resolve()
        exists = path.is_file()
    except (OSError, ValueError, RuntimeError) as e:  # not a path, or a loop of links
        raise UserError(f"{folder}: its code {str(place)!r} cannot be read: {e}") from e
    stays = path.is_relative_to(source) and source.is_relative_to(folder.resolve())
    if plain.is_absolute() or ".." in plain.parts or not stays:
        raise UserError(f"{folder}: its code {str(place)!r} is not in its folder {SOURCE}/")
    if not exists:
        raise UserError(f"{folder}: its code {str(place)!r} is missing")
    return str(path)
