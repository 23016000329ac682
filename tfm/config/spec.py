"""Specs: frozen dataclasses that define models and runs. A config is a spec as nested dicts.

A field declares its range, or the registry whose entries it names. Every spec is checked when it is
created, and the valid keys and values of a config follow from the fields alone.
"""

import dataclasses
import functools
import math
import operator
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self, TypeVar

from tfm.config.names import UserError, bound, canonical, literal, names_in, pick, read, suggest

Tree = Mapping[str, Any]
Table = Mapping[str, Any]
S = TypeVar("S", bound="Spec")


class Named(str):
    """A name like "causal" or a call like "window(left=63)"; `entry` is the named object."""

    entry: Any

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the names of entries in the text, including those inside a mixture."""
        return (*names_in(self), *getattr(self.entry, "mentions", ()))

    @classmethod
    def of(cls, text: str, entry: Any) -> Self:
        self = cls(text)
        self.entry = entry
        return self

    def __deepcopy__(self, memo: Any) -> str:
        return str(self)

    def __reduce__(self) -> Any:
        return str, (str(self),)


class SpecError(UserError):
    """An invalid field of a spec. `{key}` in the text becomes the field's full dotted key."""

    def __init__(self, key: str, text: str):
        super().__init__(text.replace("{key}", key))
        self.key, self.text = key, text

    def below(self, prefix: str) -> "SpecError":
        return SpecError(prefix + self.key, self.text)


class MissingKeysError(UserError):
    """Keys that a config must set. `texts` are their names, perhaps with the valid values."""

    def __init__(self, texts: Iterable[str]):
        self.texts = list(texts)
        plural = "s" * (len(self.texts) > 1)
        super().__init__(f"missing key{plural} {'; '.join(self.texts)}")


def field(
    default: Any = dataclasses.MISSING,
    *,
    table: Callable[[], Table] | None = None,
    calls: bool = False,
    later: bool = False,
    none: bool = False,
    least: float | None = None,
    above: float | None = None,
    below: float | None = None,
    most: float | None = None,
    pattern: bool = False,
) -> Any:
    """Declares a field: it names an entry of a registry, lies in a range, or is a regular
    expression (`pattern`).

    None is valid if the type allows it. With `calls`, the entry is a function that is called with
    the options in brackets; with `later`, it is called when it is used, with one more argument
    before them. With `none`, the name "none" is valid and has the entry None.
    """
    rules = {"table": table, "least": least, "above": above, "below": below, "most": most}
    rules |= {"calls": calls or None, "none": none or None, "pattern": pattern or None}
    rules |= {"later": later or None}
    metadata = {name: rule for name, rule in rules.items() if rule is not None}
    return dataclasses.field(default=default, metadata=metadata)


def size(default: Any = dataclasses.MISSING) -> Any:
    """Declares a whole number of at least 1."""
    return field(default, least=1)


def rate(default: Any = dataclasses.MISSING) -> Any:
    """Declares a number in [0, 1)."""
    return field(default, least=0, below=1)


def choice(
    table: Callable[[], Table], default: Any = dataclasses.MISSING, none: bool = False
) -> Any:
    """Declares the name of an entry of a registry.

    The registry is passed as a function, because it may be defined below the spec in its file.
    """
    return field(default, table=table, none=none)


def call(
    table: Callable[[], Table],
    default: Any = dataclasses.MISSING,
    none: bool = False,
    later: bool = False,
) -> Any:
    """Declares a call of an entry of a registry, like "window(left=63)"."""
    return field(default, table=table, calls=True, none=none, later=later)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec:
    """Base class of all specs."""

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if "table" in f.metadata:
                object.__setattr__(self, f.name, _resolve(f, value))
            for item in value if isinstance(value, tuple) else (value,):
                if type(item) in (int, float):
                    _check_range(f, item)
                elif "pattern" in f.metadata and item is not None:
                    _check_pattern(f, item)
        self.check()

    def check(self) -> None:
        """Raises a `SpecError` if fields do not fit together."""

    @classmethod
    def families(cls) -> Iterable[str]:
        """Returns the values of the field `family`, which `variant` reads."""
        return ()

    @classmethod
    def variant(cls, tree: Tree, prefix: str = "") -> type[Self]:
        """Returns the class that a tree describes, if one of its keys selects a subclass."""
        return cls


def _resolve(f: dataclasses.Field, value: Any) -> Any:
    """Returns the value as `Named`, with the entries that it names."""
    if isinstance(value, tuple):
        return tuple(_resolve(f, item) for item in value)
    if not isinstance(value, str):
        return value
    if value == "none" and "none" in f.metadata:
        return Named.of(value, None)
    table = f.metadata["table"]()
    try:
        later = "later" in f.metadata
        if "calls" in f.metadata and not (later and value in table):
            if later:
                table = {name: bound(entry) for name, entry in table.items()}
            return Named.of(value, read(value, table, "{key}"))
        return Named.of(value, pick(table, value, "{key}"))
    except UserError as e:
        text = str(e) if "{key}" in str(e) else f"{{key}}={value!r}: {e}"
        raise SpecError(f.name, text) from e


SMALLEST = 2.0**-126  # smaller numbers lose digits in float32, or are 0
LIMITS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "least": (operator.ge, "at least"),
    "above": (operator.gt, "above"),
    "below": (operator.lt, "below"),
    "most": (operator.le, "at most"),
}


def _check_range(f: dataclasses.Field, number: float) -> None:
    rules = f.metadata
    for name, (holds, words) in LIMITS.items():
        if name in rules and not holds(number, rules[name]):
            text = f"{words} {rules[name]}"
            if "least" in rules and "below" in rules:
                text = f"in [{rules['least']}, {rules['below']})"
            raise SpecError(f.name, f"{{key}}={number} must be {text}")
    if type(number) is int and not -(2**63) <= number < 2**63:
        raise SpecError(f.name, f"{{key}}={number} is beyond 64 bits")
    if not math.isfinite(number):
        raise SpecError(f.name, f"{{key}}={number} must be a finite number")
    if 0 < abs(number) < SMALLEST:
        raise SpecError(f.name, f"{{key}}={number} is 0 in float32: the least is {SMALLEST:.1e}")


def _check_pattern(f: dataclasses.Field, text: str) -> None:
    try:
        re.compile(text)
    except re.error as e:
        raise SpecError(f.name, f"{{key}}={text!r} is no regular expression: {e}") from e


def _types(cls: Any) -> dict[str, Any]:
    """Returns the types of the fields of a spec."""
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


_hints: Callable[[Any], dict[str, Any]] = functools.cache(_types)


def options(hint: Any) -> tuple[Any, ...]:
    """Returns the types of a union, or the type itself."""
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def group_of(hint: Any) -> type[Spec] | None:
    """Returns the class of the spec that a field holds, if any."""
    classes = [option for option in options(hint) if isinstance(option, type)]
    return next((cls for cls in classes if issubclass(cls, Spec)), None)


def to_spec(cls: type[S], tree: Tree, prefix: str = "") -> S:
    """Returns the spec that nested dicts describe; raises for unknown keys, wrong types and, all
    together, missing keys."""
    cls = cls.variant(tree, prefix)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    hints, values, missing = _hints(cls), dict[str, Any](), list[str]()
    for key in tree:
        if key not in fields:
            raise UserError(f"unknown key {prefix + key!r}{_near(prefix, key, fields)}")
    for key, f in fields.items():
        group = group_of(hints[key])
        try:
            if key in tree:
                values[key] = _value(hints[key], tree[key], prefix + key)
            elif f.default is f.default_factory is dataclasses.MISSING:
                if group is not None:
                    to_spec(group, {}, f"{prefix}{key}.")  # raises for the keys that it needs
                missing.append(repr(prefix + key))
        except MissingKeysError as e:
            missing += e.texts
    if missing:
        raise MissingKeysError(missing)
    try:
        return cls(**values)
    except SpecError as e:
        raise e.below(prefix) from None


def _near(prefix: str, key: str, known: Iterable[str]) -> str:
    return suggest(prefix + key, (prefix + name for name in known))


def _value(hint: Any, value: Any, key: str) -> Any:
    group = group_of(hint)
    if group is not None and isinstance(value, Mapping):
        return to_spec(group, value, f"{key}.")
    for option in options(hint):
        item, *_ = typing.get_args(option) or (None,)
        if item and isinstance(value, tuple | list):
            return tuple(_value(item, v, f"{key}[{i}]") for i, v in enumerate(value))
        if option is float and type(value) is int:
            return float(value)
        if option is type(value) or (option is Named and isinstance(value, str)):
            return value
    raise UserError(f"{key} must be {' or '.join(map(kind_of, options(hint)))}, not {value!r}")


def kind_of(hint: Any) -> str:
    """Returns the name of a type for an error message."""
    if group_of(hint) is not None:
        return f"a group of {', '.join(f.name for f in dataclasses.fields(hint))}"
    words = {types.NoneType: "None", Named: "str"}
    return words.get(hint, getattr(hint, "__name__", str(hint)))


def to_tree(spec: Spec) -> dict[str, Any]:
    """Returns a spec as nested dicts of plain values."""
    return dataclasses.asdict(spec)


def differences(spec: Spec) -> dict[str, Any]:
    """Returns the settings that differ from their defaults, as nested dicts in one spelling."""
    out: dict[str, Any] = {}
    for f in dataclasses.fields(spec):
        value = getattr(spec, f.name)
        if isinstance(value, Spec):
            if type(f.default) is not type(value) or value != f.default:
                out[f.name] = differences(value)
        elif value != f.default:
            out[f.name] = _canonical(f, value)
    return out


def _canonical(f: dataclasses.Field, value: Any) -> Any:
    """Returns a value with calls in their canonical spelling."""
    if isinstance(value, tuple):
        return tuple(_canonical(f, item) for item in value)
    if "calls" in f.metadata and isinstance(value, Named) and value.entry is not None:
        return canonical(value, f.metadata["table"]())
    return value


def flat(tree: Tree, prefix: str = "") -> dict[str, Any]:
    """Returns the values of a tree by dotted key."""
    out: dict[str, Any] = {}
    for key, value in tree.items():
        below = isinstance(value, Mapping) and value
        out |= flat(value, f"{prefix}{key}.") if below else {prefix + key: value}
    return out


def named(spec: Spec) -> Iterator[tuple[Table, Named]]:
    """Yields every name in a spec, with the registry that it is looked up in."""
    yield from getattr(spec, "uses", ())
    for f in dataclasses.fields(spec):
        value = getattr(spec, f.name)
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, Spec):
                yield from named(item)
            elif isinstance(item, Named):
                yield f.metadata["table"](), item
                yield from getattr(item.entry, "uses", ())


def keys(cls: type[Spec], tree: Tree, prefix: str = "") -> Iterator[str]:
    """Yields the dotted keys that a config of this class may set."""
    cls = cls.variant(tree, prefix)
    for key, hint in _hints(cls).items():
        yield prefix + key
        group, below = group_of(hint), tree.get(key)
        if group is not None:
            yield from keys(group, below if isinstance(below, Mapping) else {}, f"{prefix}{key}.")


def replaced(cls: type[Spec], tree: Tree, changes: Tree) -> dict[str, Any]:
    """Returns the tree with new values at dotted keys.

    A key that selects a variant, as `model.family` does, is replaced first; keys that the new
    variant does not have are dropped.
    """
    for key in sorted(changes, key=lambda key: key.rpartition(".")[2] != "family"):
        levels, new = _levels(cls, tree, key), changes[key]
        group = group_of(_hints(levels[-1][0])[levels[-1][2]])
        if group is not None and new is not None:
            inside = ", ".join(f"{key}.{name}" for name in _hints(group))
            raise UserError(f"{key!r} is a group; set one of: {inside}")
        for level_cls, level_tree, name in reversed(levels):
            new = {**level_tree, name: new}
            variant = level_cls.variant(new, key.removesuffix(name))
            if variant is not level_cls:
                new = {key: value for key, value in new.items() if key in _hints(variant)}
        tree = new
    return dict(tree)


def parse(cls: type[Spec], tree: Tree, key: str, text: str) -> Any:
    """Returns the value of a text at a dotted key, by the type of the field."""
    level_cls, _, name = _levels(cls, tree, key)[-1]
    return _literal(_hints(level_cls)[name], text)


def _levels(cls: type[Spec], tree: Tree, key: str) -> list[tuple[type[Spec], Tree, str]]:
    """Returns, for each name of a dotted key, its spec, that spec's tree, and the name."""
    levels: list[tuple[type[Spec], Tree, str]] = []
    level: type[Spec] | None = cls
    path = key.split(".")
    for name in path:
        if level is None:
            at = ".".join(path[: len(levels)])
            raise UserError(f"unknown key {key!r}: {at!r} is a value, not a group")
        prefix = "".join(f"{part}." for part in path[: len(levels)])
        level = level.variant(tree, prefix)
        if name not in _hints(level):
            if len(levels) + 1 < len(path):  # an unknown group: suggest its siblings
                near = _near(prefix, name, _hints(level))
            else:
                near = suggest(key, keys(level, tree, prefix))
            raise UserError(f"unknown key {key!r}{near}")
        levels.append((level, tree, name))
        level, below = group_of(_hints(level)[name]), tree.get(name)
        tree = below if isinstance(below, Mapping) else {}
    return levels


def _literal(hint: Any, text: str) -> Any:
    kinds = options(hint)
    if text == "None" and types.NoneType in kinds:
        return None
    if any(option in (str, Named) for option in kinds):
        return text
    value = literal({"true": "True", "false": "False"}.get(text, text))
    if any(typing.get_origin(option) is tuple for option in kinds) and type(value) not in kinds:
        if isinstance(value, str):
            return tuple(_parts(text))
        return tuple(value) if isinstance(value, tuple | list) else (value,)
    return value


def _parts(text: str) -> list[str]:
    """Splits at commas outside of brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for sign in text:
        if sign == "," and not depth and not quote:
            parts.append("")
            continue
        parts[-1] += sign
        if quote or sign in "'\"":
            quote = "" if sign == quote else quote or sign
        else:
            depth += (sign in "([{") - (sign in ")]}")
    return [part.strip() for part in parts if part.strip()]
