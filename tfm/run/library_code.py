"""The library code that a run reaches, read from its source without importing it.

A run reaches what `tfm.train.loop.train` uses, directly or indirectly, and of each table only the
entries that it names. So a new score makes no result stale that does not use it. Code uses the
top-level names, imported names and attributes of imported modules that it mentions.
"""

import ast
import functools
import json
import pathlib
import sys
from collections.abc import Collection, Iterator, Mapping
from importlib import metadata
from typing import Any, NamedTuple

import tfm
from tfm.config.provenance import definitions, hash_of, parsed

ROOT = pathlib.Path(tfm.__file__).parent
START = ("tfm.train.loop", "train")
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")
SETTINGS = "jax_settings"
Symbol = tuple[str, str]  # a module and one of its top-level names; ("tfm.x", "") is the module
NO_EFFECT = "tfm.run.identity", "tfm.run.library_code", "tfm.config.provenance", "tfm.train.board"
SYMBOLS = (ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign, ast.AugAssign)


class _Module(NamedTuple):
    symbols: dict[str, list[ast.stmt]]  # top-level name → the statements that define it
    imports: dict[str, Symbol]  # names that come from other modules of the library
    rest: list[ast.stmt]  # other statements, which run whenever the module is used


@functools.cache
def _paths() -> dict[str, pathlib.Path]:
    """Returns the files of the library by module name."""
    paths = {path: path.relative_to(ROOT.parent).with_suffix("") for path in ROOT.rglob("*.py")}
    return {".".join(p.parts).removesuffix(".__init__"): path for path, p in paths.items()}


@functools.cache
def _module(name: str) -> _Module:
    tree, imports = parsed(_paths()[name].read_text()), dict[str, Symbol]()
    for node in ast.walk(tree):  # a function may import too
        match node:
            case ast.Import(names=aliases):
                imports |= {a.asname or a.name: (a.name, "") for a in aliases if a.name in _paths()}
            case ast.ImportFrom(module=str(origin), names=aliases) if origin in _paths():
                for alias in aliases:
                    whole = f"{origin}.{alias.name}"
                    symbol = (whole, "") if whole in _paths() else (origin, alias.name)
                    imports[alias.asname or alias.name] = symbol
    symbols = definitions(x for x in tree.body if isinstance(x, SYMBOLS))
    other = (*SYMBOLS, ast.Import, ast.ImportFrom)
    return _Module(symbols, imports, [x for x in tree.body if not isinstance(x, other)])


def symbol_of(table: object) -> Symbol | None:
    """Returns the module and the name of a table of the library."""
    for name in _paths().keys() & sys.modules.keys():
        for symbol, value in vars(sys.modules[name]).items():
            if value is table and symbol in _module(name).symbols:
                return name, symbol
    return None


def reached(
    entries: Mapping[Symbol, Collection[str]], start: Symbol = START
) -> dict[str, list[str]]:
    """Returns the statements that a run reaches, by module.

    `entries` has the names of the entries that a run uses of each table. All entries count of a
    table that it does not have.
    """
    names, texts = dict(entries), dict[Symbol, list[str]]()
    todo = [start]
    while todo:
        symbol = todo.pop()
        module = _module(symbol[0])
        if symbol in texts or symbol[0] in NO_EFFECT:
            continue
        if symbol[1] in module.imports:  # a name that a module passes on
            todo.append(module.imports[symbol[1]])
            continue
        nodes = list[ast.AST](module.rest)
        for statement in module.symbols.get(symbol[1], []):
            table = getattr(statement, "value", None)
            if symbol not in names or not isinstance(table, ast.Dict):
                nodes.append(statement)
                continue
            for key, value in zip(table.keys, table.values, strict=True):
                if key is None:  # an unpacked table, of which the same entries count
                    names |= dict.fromkeys(_uses(value, symbol[0]), names[symbol])
                    nodes.append(value)
                elif not isinstance(key, ast.Constant) or key.value in names[symbol]:
                    nodes.append(ast.Tuple([key, value], ast.Load()))
        texts[symbol] = [ast.unparse(node) for node in nodes]
        todo += [used for node in nodes for used in _uses(node, symbol[0])]
    modules: dict[str, list[str]] = {}
    for (name, _), parts in sorted(texts.items()):
        modules.setdefault(name, []).extend(parts)
    return modules


def _uses(node: ast.AST, name: str) -> Iterator[Symbol]:
    """Yields the symbols of the library that code of a module mentions."""
    module = _module(name)
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute):
            owner, inner = module.imports.get(ast.unparse(part.value), ("", ""))
            if owner and not inner and part.attr in _module(owner).symbols | _module(owner).imports:
                yield owner, part.attr
        elif isinstance(part, ast.Name) and part.id in module.symbols:
            yield name, part.id
        elif isinstance(part, ast.Name) and part.id in module.imports:
            yield module.imports[part.id]


@functools.lru_cache(maxsize=1024)
def digest(entries: str, start: Symbol = START) -> str:
    """Hashes the code that is reached with the entries that a JSON text lists by module:TABLE."""
    names = {tuple(place.split(":")): used for place, used in json.loads(entries).items()}
    return hash_of(json.dumps(reached(names, start)))


def made_by(entries: Mapping[str, Collection[str]]) -> dict[str, str]:
    """Returns a hash of the code that a run with these entries reaches, and package versions."""
    versions = {name: metadata.version(name) for name in PACKAGES}
    return {"tfm": digest(json.dumps(entries, sort_keys=True)), **versions}


def is_stale(profile: Mapping[str, Any] | None, settings: Mapping[str, Any] | None = None) -> bool:
    """Returns True if other code took part in a run, given the content of its profile.json.

    A process that is about to run something passes its `runtime.settings()`, which must be those
    of the run as well.
    """
    for part in (profile or {}).get("profiles", ()):
        theirs = dict(part["made_by"])
        other_settings = theirs.pop(SETTINGS, None) != settings and settings is not None
        if other_settings or theirs != made_by(part["entries"]):
            return True
    return False
