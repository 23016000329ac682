"""Hashes of source code: an entry of a user's table, and all that it uses in its file.

An edited score is another score, while an edit elsewhere in the file changes nothing. Comments,
layout and docstrings do not count. Where it cannot be told what a file's code changes, all of the
file counts.
"""

import ast
import functools
import hashlib
import importlib.util
import pathlib
from collections.abc import Iterator

# With these, code changes names in ways that are not written in its text.
UNTRACEABLE = {
    *("exec", "eval", "globals", "locals", "vars", "setattr", "delattr", "__setattr__"),
    *("__dict__", "__globals__", "__import__", "modules"),
}
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def digest(text: str, table: str, name: str) -> str:
    """A hash of `TABLE["name"]` of a Python file, and of all that it uses from the top level."""
    return hash_of(*_slice(text, table, name)[0])


def uses(text: str, table: str, name: str) -> frozenset[str] | None:
    """The names of the top level that `TABLE["name"]` uses. None: it may use all of them."""
    return _slice(text, table, name)[1]


def source(path: pathlib.Path) -> str:
    """A file's code without comments, layout and docstrings."""
    return code(path.read_text())


@functools.lru_cache(maxsize=256)
def code(text: str) -> str:
    """Code without comments, layout and docstrings."""
    try:
        return ast.unparse(parsed(text))
    except SyntaxError:
        return text


def hash_of(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def imports(text: str, package: str = "") -> Iterator[str]:
    """The modules that a text imports anywhere, and the imported names that may be modules."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                yield from (alias.name for alias in aliases)
            case ast.ImportFrom(module=module, names=aliases, level=level):
                name = module or ""
                if level:
                    try:
                        name = importlib.util.resolve_name("." * level + name, package)
                    except ImportError:  # beyond the top of its package
                        continue
                yield from (name, *(f"{name}.{alias.name}" for alias in aliases))


@functools.lru_cache(maxsize=256)
def _slice(text: str, table: str, name: str) -> tuple[list[str], frozenset[str] | None]:
    tree = parsed(text)
    data = _data(tree)
    defined: dict[str, list[ast.stmt]] = {}
    for statement in tree.body:
        own_table = isinstance(statement, ast.Assign | ast.AnnAssign) and table in _stored(
            statement
        )
        for symbol in _stored(statement) if own_table else _defines(statement, data):
            defined.setdefault(symbol, []).append(statement)
    entry = _entry(defined.get(table, []), name, data)
    if entry is None or _untraceable(tree, set(defined), data):
        return [ast.unparse(tree)], None
    always = [s for s in tree.body if not _is_plain(s)]  # a loop, a branch, a call
    used, todo = dict[str, list[ast.stmt]](), [*_names(entry)]
    todo += [symbol for statement in always for symbol in _names(statement)]
    while todo:
        symbol = todo.pop()
        if symbol in defined and symbol not in used:
            used[symbol] = defined[symbol]
            todo += [more for statement in defined[symbol] for more in _names(statement)]
    parts = [f"{x}: {ast.unparse(s)}" for x in sorted(used) for s in used[x]]
    return [ast.unparse(entry), *map(ast.unparse, always), *parts], frozenset(used)


def _entry(tables: list[ast.stmt], name: str, data: set[str]) -> ast.expr | None:
    match tables:
        case [ast.Assign(value=ast.Dict(keys=keys, values=values))]:
            pass
        case [ast.AnnAssign(value=ast.Dict(keys=keys, values=values))]:
            pass
        case _:
            return None
    if not all(isinstance(key, ast.Constant) for key in keys):
        return None
    calls = [n for v in values for n in ast.walk(v) if isinstance(n, ast.Call)]
    if any(_root(call.func) in data for call in calls):  # as `rng.normal()`: their order matters
        return None
    found = [v for k, v in zip(keys, values, strict=True) if getattr(k, "value", None) == name]
    return found[0] if len(found) == 1 else None


def _is_plain(statement: ast.stmt) -> bool:
    """Whether a statement only binds the names that it says."""
    match statement:
        case ast.Assign() | ast.AnnAssign():
            return not any(_is_part(node) for node in ast.walk(statement))
        case ast.Pass() | ast.Expr(value=ast.Constant()):
            return True
    return isinstance(statement, (*DEFINITIONS, ast.Import, ast.ImportFrom))


def _data(tree: ast.Module) -> set[str]:
    """The names of the top level whose objects may be changed in place."""
    found = set[str]()
    for statement in tree.body:
        match statement:
            case ast.Assign(value=ast.Constant()) | ast.AnnAssign(value=ast.Constant()):
                continue
            case ast.Assign() | ast.AnnAssign():
                found |= _stored(statement)
    return found


def _defines(statement: ast.stmt, data: set[str]) -> set[str]:
    """The names that a statement of the top level defines, or may change."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Import() | ast.ImportFrom():
            return {alias.asname or alias.name.partition(".")[0] for alias in statement.names}
        case ast.Assign() | ast.AnnAssign() if _is_plain(statement):
            calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
            changed = {name for node in calls for name in _names(node)} & data
            return _stored(statement) | changed
    return {x for node in ast.walk(statement) for x in _mentioned(node)}


def _mentioned(node: ast.AST) -> set[str]:
    match node:
        case ast.Name(id=name):
            return {name}
        case ast.FunctionDef() | ast.ClassDef() | ast.Import() | ast.ImportFrom():
            return _defines(node, set())
    return set()


def _untraceable(tree: ast.Module, defined: set[str], data: set[str]) -> bool:
    """Whether names of the top level may change by other means than statements of the top level."""
    for node in ast.walk(tree):
        match node:
            case ast.NamedExpr() | ast.Global():
                return True
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in UNTRACEABLE:
                return True
            case ast.ImportFrom(names=[ast.alias(name="*")]):
                return True
    for statement in tree.body:
        if not isinstance(statement, DEFINITIONS):
            continue
        for node in ast.walk(statement):  # what a function, when it is called, does to others
            match node:
                case ast.Attribute() | ast.Subscript() if _is_part(node) and _root(node) in defined:
                    return True
                case ast.Expr(value=ast.Call(func=function)) if _root(function) in data:
                    return True
    return False


def _is_part(node: ast.AST) -> bool:
    """Whether a part of an object is set or deleted: `x.y = …`, `x[0] = …`."""
    return isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load)


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _stored(node: ast.AST) -> set[str]:
    return {
        n.id for n in ast.walk(node) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)
    }


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def parsed(text: str) -> ast.Module:
    """The tree of a text, without docstrings unless the text reads them."""
    tree = ast.parse(text)
    for node in () if "__doc__" in text else ast.walk(tree):
        if isinstance(node, (*DEFINITIONS, ast.Module)) and ast.get_docstring(node, clean=False):
            node.body = node.body[1:] or [ast.Pass()]
    return tree
