"""A hash of the library's code that a run can reach.

A run reaches what `tfm.train.loop.train` uses, directly or indirectly, and of each table only the
entries that it names. So a new score makes no result stale that does not use it. What is used is
read from the source: names of the top level, imported names, and attributes of imported modules.
"""

import ast
import dataclasses
import functools
import hashlib
import json
import pathlib
import sys
from collections.abc import Collection, Iterator, Mapping

import tfm
from tfm.config.provenance import parsed

ROOT = pathlib.Path(tfm.__file__).parent
START = ("tfm.train.loop", "train")
Symbol = tuple[str, str]  # a module and a name of its top level
NO_EFFECT = (  # on numbers
    *("tfm.train.board", "tfm.run.identity", "tfm.run.library_code"),
    "tfm.config.provenance",
)
Names = Mapping[Symbol, Collection[str]]  # of entries, by the table that they stand in


@dataclasses.dataclass
class _Module:
    symbols: dict[str, list[ast.stmt]]  # what the top level defines
    imports: dict[str, Symbol]  # names that come from other modules; ("tfm.x", "") is a module
    rest: list[ast.stmt]  # other statements, which are run whenever the module is used


@functools.cache
def _paths() -> dict[str, pathlib.Path]:
    """The files of the library by the names of their modules."""
    paths = {path: path.relative_to(ROOT.parent).with_suffix("") for path in ROOT.rglob("*.py")}
    return {".".join(p.parts).removesuffix(".__init__"): path for path, p in paths.items()}


@functools.cache
def _module(name: str) -> _Module:
    return _read(parsed(_paths()[name].read_text()), _paths().keys())


def _read(tree: ast.Module, modules: Collection[str]) -> _Module:
    module = _Module({}, {}, [])
    for statement in ast.walk(tree):  # a function may import too
        if isinstance(statement, ast.Import | ast.ImportFrom):
            module.imports |= dict(_imported(statement, modules))
    for statement in tree.body:
        match statement:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                module.symbols.setdefault(name, []).append(statement)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                names = [n for n in ast.walk(statement) if isinstance(n, ast.Name)]
                for name in {n.id for n in names if isinstance(n.ctx, ast.Store)}:
                    module.symbols.setdefault(name, []).append(statement)
            case ast.Import() | ast.ImportFrom():
                pass
            case _:
                module.rest.append(statement)
    return module


def _imported(
    statement: ast.Import | ast.ImportFrom, modules: Collection[str]
) -> Iterator[tuple[str, Symbol]]:
    for alias in statement.names:
        if isinstance(statement, ast.Import):
            if alias.name in modules:
                yield alias.asname or alias.name, (alias.name, "")
        elif statement.module in modules:
            whole = f"{statement.module}.{alias.name}"
            symbol = (whole, "") if whole in modules else (str(statement.module), alias.name)
            yield alias.asname or alias.name, symbol


def symbol(text: str) -> Symbol:
    module, _, name = text.partition(":")
    return module, name


def symbol_of(table: object) -> Symbol | None:
    """Where a table of the library is defined."""
    for name in _paths().keys() & sys.modules.keys():
        for symbol, value in vars(sys.modules[name]).items():
            if value is table and symbol in _module(name).symbols:
                return name, symbol
    return None


def reached(names: Names, start: Symbol = START) -> dict[str, list[str]]:
    """The statements that a run reaches, by module. `names` are the entries that it names; of a
    table that is no key of `names`, all entries count."""
    names, found = dict(names), dict[Symbol, list[str]]()
    todo = [start]
    while todo:
        symbol = todo.pop()
        module = _module(symbol[0])
        if symbol in found or symbol[0] in NO_EFFECT:
            continue
        if symbol[1] in module.imports:  # a name that a module passes on
            todo.append(module.imports[symbol[1]])
            continue
        statements = module.symbols.get(symbol[1], []) if symbol[1] else []
        nodes = list[ast.AST](module.rest)
        for statement in statements:
            value = getattr(statement, "value", None)
            if symbol in names and isinstance(value, ast.Dict):
                for entry in _entries(value, names[symbol]):
                    nodes.append(entry)
                    if not isinstance(entry, ast.Tuple):  # another table, whose entries it takes
                        names |= dict.fromkeys(_uses(entry, symbol[0], module), names[symbol])
            else:
                nodes.append(statement)
        found[symbol] = [ast.unparse(node) for node in nodes]
        for node in nodes:
            todo += _uses(node, symbol[0], module)
    out: dict[str, list[str]] = {}
    for (name, _), texts in sorted(found.items()):
        out.setdefault(name, []).extend(texts)
    return out


def _entries(table: ast.Dict, names: Collection[str]) -> Iterator[ast.expr]:
    """The entries of a table that are named, each as (key, value), and the tables it unpacks."""
    for key, entry in zip(table.keys, table.values, strict=True):
        if key is None:
            yield entry
        elif not isinstance(key, ast.Constant) or key.value in names:
            yield ast.Tuple([key, entry], ast.Load())


def _uses(node: ast.AST, name: str, module: _Module) -> Iterator[Symbol]:
    """The symbols of the library that a piece of code mentions."""
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute):
            owner = module.imports.get(ast.unparse(part.value))
            if owner is not None and not owner[1] and part.attr in _members(owner[0]):
                yield owner[0], part.attr
        elif isinstance(part, ast.Name):
            if part.id in module.symbols:
                yield name, part.id
            elif part.id in module.imports:
                yield module.imports[part.id]


def _members(module: str) -> Collection[str]:
    found = _module(module)
    return found.symbols.keys() | found.imports.keys()


@functools.lru_cache(maxsize=1024)
def digest(names: tuple[tuple[Symbol, tuple[str, ...]], ...], start: Symbol = START) -> str:
    """A hash of the code that a run reaches, given the entries that it names; or that is reached
    from another start."""
    text = json.dumps(reached(dict(names), start))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
