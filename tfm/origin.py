"""Hashes of source code: an entry of a user's table, and all that it uses in its file.

An edited score is another score, while an edit elsewhere in the file changes nothing. Comments,
layout and docstrings do not count. The user's own modules that it imports count as a whole.
"""

import ast
import functools
import hashlib
import importlib.util
import pathlib
import sys
import sysconfig
from collections.abc import Iterator


@functools.lru_cache(maxsize=256)
def digest(text: str, table: str, name: str) -> str:
    """A hash of `TABLE["name"]` of a Python file, and of all that it uses from the top level."""
    tree = ast.parse(text)
    _strip(tree)
    defined: dict[str, list[ast.stmt]] = {}
    for statement in tree.body:
        for symbol in _defines(statement):
            defined.setdefault(symbol, []).append(statement)
    entry = _entry(defined.get(table, []), name)
    if entry is None:  # a table that is computed: all of the file may matter
        return _hash([ast.unparse(tree), _imported(tree)])
    used, todo = dict[str, list[ast.stmt]](), ["*", *_names(entry)]
    while todo:
        symbol = todo.pop()
        if symbol in defined and symbol not in used:
            used[symbol] = defined[symbol]
            todo += [more for statement in defined[symbol] for more in _names(statement)]
    parts = [f"{x}: {ast.unparse(s)} {_imported(s)}" for x in sorted(used) for s in used[x]]
    return _hash([ast.unparse(entry), *parts])


def source(path: pathlib.Path) -> str:
    """A file's code without comments, layout and docstrings."""
    tree = ast.parse(path.read_text())
    _strip(tree)
    return ast.unparse(tree)


def _hash(parts: list[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _entry(tables: list[ast.stmt], name: str) -> ast.expr | None:
    match tables:
        case [ast.Assign(value=ast.Dict(keys=keys, values=values))]:
            pass
        case [ast.AnnAssign(value=ast.Dict(keys=keys, values=values))]:
            pass
        case _:
            return None
    if not all(isinstance(key, ast.Constant) for key in keys):
        return None
    found = [v for k, v in zip(keys, values, strict=True) if getattr(k, "value", None) == name]
    return found[0] if len(found) == 1 else None


def _defines(statement: ast.stmt) -> set[str]:
    """The names that a statement of the top level defines, or may change."""
    match statement:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Import() | ast.ImportFrom():
            return _aliases(statement)
        case ast.Assign(targets=targets) if all(isinstance(t, ast.Name) for t in targets):
            return {target.id for target in targets if isinstance(target, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
    return _mentions(statement)  # a loop, a branch, a call: it may change everything it mentions


def _mentions(statement: ast.stmt) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(statement):
        match node:
            case ast.Name(id=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Import() | ast.ImportFrom():
                found |= _aliases(node)
    return found


def _aliases(node: ast.Import | ast.ImportFrom) -> set[str]:
    return {alias.asname or alias.name.partition(".")[0] for alias in node.names}


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _imported(node: ast.AST) -> str:
    """The code of the user's own modules that are imported in it, directly or indirectly."""
    found: dict[pathlib.Path, str] = {}
    todo = [node]
    while todo:
        for name in _modules(todo.pop()):
            path = _own_file(name)
            if path is not None and path not in found:
                tree = ast.parse(path.read_text())
                _strip(tree)
                found[path] = ast.unparse(tree)
                todo.append(tree)
    return "\n".join(found.values())


def _modules(tree: ast.AST) -> Iterator[str]:
    """The names of imported modules, and of imported names that may be modules."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                yield from (alias.name for alias in aliases)
            case ast.ImportFrom(module=str(module), names=aliases):
                yield module
                yield from (f"{module}.{alias.name}" for alias in aliases)


def _own_file(module: str) -> pathlib.Path | None:
    """The file of a module that is not Python's, not installed and not the library's."""
    if module.partition(".")[0] in (*sys.stdlib_module_names, "tfm"):
        return None
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):  # there is no such module
        return None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    places = (sysconfig.get_path(name) for name in ("purelib", "platlib"))
    path = pathlib.Path(spec.origin)
    return None if any(path.is_relative_to(place) for place in places) else path


def _strip(tree: ast.Module) -> None:
    """Remove docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and ast.get_docstring(
            node, clean=False
        ):
            node.body = node.body[1:] or [ast.Pass()]
