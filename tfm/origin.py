"""What an entry of a user's table is made of: its own source and all that it draws on in its file.

An edited score is another score, while an edit elsewhere in the file changes nothing. Comments,
layout and docstrings do not count.
"""

import ast
import hashlib
import pathlib


def digest(path: pathlib.Path, table: str, name: str) -> str:
    """A hash of `TABLE["name"]` of a Python file, and of what its top level gives to it."""
    tree = ast.parse(path.read_text())
    _strip(tree)
    defined: dict[str, list[ast.stmt]] = {}
    for statement in tree.body:
        for own in _defines(statement):
            defined.setdefault(own, []).append(statement)
    entry = _entry(defined.get(table, []), name)
    if entry is None:  # a table that is computed: all of the file may matter
        return _hash([ast.dump(tree)])
    used, todo = dict[str, list[ast.stmt]](), [*_names(entry)]
    while todo:
        own = todo.pop()
        if own in defined and own not in used:
            used[own] = defined[own]
            todo += [more for statement in defined[own] for more in _names(statement)]
    parts = [f"{own}: {ast.dump(s)}" for own in sorted(used) for s in used[own]]
    return _hash([ast.dump(entry), *parts])


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
    found = [v for k, v in zip(keys, values, strict=True) if getattr(k, "value", None) == name]
    return found[0] if len(found) == 1 else None


def _defines(statement: ast.stmt) -> set[str]:
    """The names that a statement of the top level gives a meaning."""
    match statement:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return {alias.asname or alias.name.partition(".")[0] for alias in names}
    stored = (n for n in ast.walk(statement) if isinstance(n, ast.Name))
    return {n.id for n in stored if isinstance(n.ctx, ast.Store)}


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _strip(tree: ast.Module) -> None:
    """Take docstrings out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and ast.get_docstring(
            node, clean=False
        ):
            node.body = node.body[1:] or [ast.Pass()]
