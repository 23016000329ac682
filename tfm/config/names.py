"""Looks names up in registries, and reads `name(option=value)`."""

import ast
import difflib
import functools
import inspect
import operator
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
DEEPEST = 50  # operators within operators of an expression


class UserError(ValueError):
    """A mistake in a config, a file or a command.

    The message says what is wrong, where, and what would be right.
    """


def suggest(name: object, known: Iterable[object], prefix: str = "") -> str:
    """Returns `; did you mean 'causal'?` if a known name is near, or else lists the known names.

    `prefix` is written before each name.
    """
    names = sorted(str(k) for k in known)
    group, _, last = str(name).rpartition(".")
    siblings = [n for n in names if n.rpartition(".")[0] == group]
    tried = [siblings, names] if siblings else [names]
    for candidates in tried:  # by their last parts, or in full if the group is unknown
        tails = {(n.rpartition(".")[2] if siblings else n).casefold(): n for n in candidates}
        near = difflib.get_close_matches(
            (last if siblings else str(name)).casefold(), tails, n=1, cutoff=0.5
        )
        if near:
            return f"; did you mean {prefix + tails[near[0]]!r}?"
    return f"; known: {', '.join(prefix + n for n in siblings or names) or 'none'}"


def pick(table: Mapping[str, T], name: str, kind: str) -> T:
    """Returns `table[name]`; an unknown name raises an error with the nearest valid one."""
    if name in table:
        return table[name]
    raise UserError(f"unknown {kind} {name!r}{suggest(name, table)}")


def expression(text: str) -> ast.expr:
    """Parses an expression in Python's grammar; raises SyntaxError, whatever the text is."""
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (ValueError, MemoryError, RecursionError):  # the parser's words for these differ
        raise SyntaxError("it is nested too deeply") from None


def literal(text: str) -> Any:
    """Returns the number, string, bool, None, tuple, list or dict that a text is in Python's
    grammar; a text that is none of them is returned as it is."""
    try:
        return ast.literal_eval(expression(text))
    except (ValueError, TypeError, SyntaxError, RecursionError):
        return text


def read(text: str, table: Mapping[str, Any], kind: str) -> Any:
    """Evaluates `text`, an expression in Python's grammar whose names are entries of `table`.

    Examples: `"causal"`, `"window(left=255)"`, `"causal & (window(left=64) | ~strided(stride=2))"`.
    Entries that are functions are called with their options.
    """
    try:
        tree = expression(text)
    except SyntaxError as e:
        raise UserError(f"{kind} {text!r} is not a name or name(option=value): {e.msg}") from None
    return _build(tree, table, kind, text)


@functools.cache
def names_in(text: str) -> tuple[str, ...]:
    """Returns the names of entries in a text."""
    try:
        tree = expression(text)
    except SyntaxError:  # a plain name like "N:1"
        return (text,)
    return tuple(dict.fromkeys(n.id for n in ast.walk(tree) if isinstance(n, ast.Name)))


def canonical(text: str, table: Mapping[str, Any]) -> str:
    """Returns the text without options that have their default values."""

    class DropDefaults(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.expr:
            parameters = inspect.signature(table[ast.unparse(node.func)]).parameters
            default = {name: parameter.default for name, parameter in parameters.items()}
            changed = [k for k in node.keywords if ast.literal_eval(k.value) != default[str(k.arg)]]
            node.keywords = sorted(changed, key=lambda k: str(k.arg))
            return node if changed else node.func

    return ast.unparse(DropDefaults().visit(expression(text)))


def bound(entry: Callable[..., T]) -> Callable[..., Callable[..., T]]:
    """Returns a function of the options of `entry` that returns `entry` with these options set.
    Its first parameter stays open."""

    def make(**options: Any) -> Callable[..., T]:
        return functools.partial(entry, **options)

    signature = inspect.signature(entry)
    options = list(signature.parameters.values())[1:]
    make.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
    return make


def _build(node: ast.expr, table: Mapping[str, Any], kind: str, text: str, depth: int = 0) -> Any:
    if depth > DEEPEST:
        raise UserError(f"{kind} {text!r} has more than {DEEPEST} operators within each other")
    match node:
        case ast.Name(id=name):
            return _make(pick(table, name, kind), name, {}, kind)
        case ast.Call(func=ast.Name(id=name), args=[], keywords=keywords):
            if any(k.arg is None for k in keywords):
                raise UserError(f"{kind} {text!r}: write {name}(option=value)")
            options = {str(k.arg): _literal(k.value, kind, text) for k in keywords}
            return _make(pick(table, name, kind), name, options, kind)
        case ast.Call(func=ast.Name(id=name), args=[value, *_]):
            entry = pick(table, name, kind)
            parameters = [*inspect.signature(entry).parameters] if callable(entry) else []
            write = f"{parameters[0]}={ast.unparse(value)}" if parameters else ""
            raise UserError(f"{kind} {text!r}: name its options: {name}({write})")
        case ast.BinOp(left=a, op=ast.BitAnd() | ast.BitOr() as op, right=b):
            join = operator.and_ if isinstance(op, ast.BitAnd) else operator.or_
            parts = [_build(x, table, kind, text, depth + 1) for x in (a, b)]
            return _join(join, kind, text, *parts)
        case ast.UnaryOp(op=ast.Invert(), operand=a):
            return _join(operator.invert, kind, text, _build(a, table, kind, text, depth + 1))
    raise UserError(
        f"cannot read {ast.unparse(node)!r} in {kind} {text!r}; "
        "write a name, name(option=value), or these joined with &, | and ~"
    )


def _join(join: Callable[..., Any], kind: str, text: str, *parts: Any) -> Any:
    try:
        return join(*parts)
    except TypeError:
        raise UserError(f"{kind} {text!r}: only masks join with &, | and ~") from None


def _make(entry: Any, name: str, options: dict[str, Any], kind: str) -> Any:
    if not callable(entry) and not options:
        return entry
    parameters = inspect.signature(entry).parameters if callable(entry) else {}
    for option, value in options.items():
        if option not in parameters:
            hint = suggest(option, parameters) if parameters else "; it takes none"
            raise UserError(f"{kind} {name!r} has no option {option!r}{hint}")
        kinds = _kinds(parameters[option].annotation)
        if kinds and type(value) not in kinds and not (float in kinds and type(value) is int):
            names = " or ".join("None" if k is types.NoneType else k.__name__ for k in kinds)
            raise UserError(f"{kind} {name!r}: {option}={value!r} must be {names}")
    for option, parameter in parameters.items():
        if parameter.default is parameter.empty and option not in options:
            if option.rpartition("_")[2].isupper():
                raise UserError(f"{kind} {name!r} needs {option}, an array: the batch brings it")
            raise UserError(f"{kind} {name!r} needs {option}: write {name}({option}=…)")
    return entry(**options)


def _kinds(annotation: Any) -> tuple[type, ...]:
    """Returns the types that the value of an option may have; none if it may have any."""
    if annotation is inspect.Parameter.empty:
        return ()
    union = isinstance(annotation, types.UnionType)
    kinds = typing.get_args(annotation) if union else (annotation,)
    if not all(kind in (int, float, str, bool, tuple, dict, types.NoneType) for kind in kinds):
        return int, float  # an array, for which a config can give one number
    return kinds


def _literal(node: ast.expr, kind: str, text: str) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError):
        raise UserError(
            f"{ast.unparse(node)!r} in {kind} {text!r} is not a number, string, bool or None"
        ) from None
