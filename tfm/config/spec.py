"""Specs: frozen dataclasses that say what is built. A config is a spec written as nested dicts.

A field knows its range, or the table whose entries it names. So every spec is checked when it is
made, wherever it is made, and what a config may say follows from the fields alone.
"""

import ast
import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self, TypeVar

from tfm.config.names import UserError, canonical, names_in, pick, read, suggest

Tree = Mapping[str, Any]
Table = Mapping[str, Any]
S = TypeVar("S", bound="Spec")


class Named(str):
    """A name in a table, as "causal", or a call, as "window(left=63)". `entry` is what it names."""

    entry: Any

    @property
    def names(self) -> tuple[str, ...]:
        """The entries of the table that it mentions; those of a mixture stand in its options."""
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
    """A field of a spec is wrong. `{key}` in the text becomes the field's full dotted key."""

    def __init__(self, key: str, text: str):
        super().__init__(text.replace("{key}", key))
        self.key, self.text = key, text

    def below(self, prefix: str) -> "SpecError":
        return SpecError(prefix + self.key, self.text)


def field(
    default: Any = dataclasses.MISSING,
    *,
    table: Callable[[], Table] | None = None,
    calls: bool = False,
    none: bool = False,
    least: float | None = None,
    above: float | None = None,
    below: float | None = None,
    most: float | None = None,
) -> Any:
    """A field whose value names an entry of a table, or lies in a range. None is always allowed
    where the type allows it. `calls`: an entry is a function, called with the options in
    brackets. `none`: the name "none" stands for nothing at all."""
    rules = {"table": table, "least": least, "above": above, "below": below, "most": most}
    rules |= {"calls": calls or None, "none": none or None}
    metadata = {name: rule for name, rule in rules.items() if rule is not None}
    return dataclasses.field(default=default, metadata=metadata)


def size(default: Any = dataclasses.MISSING) -> Any:
    """A whole number of at least 1."""
    return field(default, least=1)


def rate(default: Any = dataclasses.MISSING) -> Any:
    """A number in [0, 1)."""
    return field(default, least=0, below=1)


def choice(
    table: Callable[[], Table], default: Any = dataclasses.MISSING, none: bool = False
) -> Any:
    """The name of an entry of a table. The table is given as a function, because it may stand
    below the spec in its file."""
    return field(default, table=table, none=none)


def call(table: Callable[[], Table], default: Any = dataclasses.MISSING, none: bool = False) -> Any:
    """The name of a function of a table, with its options: "window(left=63)"."""
    return field(default, table=table, calls=True, none=none)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec:
    """The base of all specs."""

    def __post_init__(self) -> None:
        for own in dataclasses.fields(self):
            value = getattr(self, own.name)
            if "table" in own.metadata:
                object.__setattr__(self, own.name, _resolve(own, value))
            for number in value if isinstance(value, tuple) else (value,):
                if type(number) in (int, float):
                    _check_range(own, number)
        self.check()

    def check(self) -> None:
        """Raise a SpecError where fields do not fit together."""

    @classmethod
    def families(cls) -> Iterable[str]:
        """Returns the values of the field `family`, which `variant` reads."""
        return ()

    @classmethod
    def variant(cls, tree: Tree, prefix: str = "") -> type[Self]:
        """The class that a tree describes, where a field of it decides which of several it is."""
        return cls


def _resolve(own: dataclasses.Field, value: Any) -> Any:
    """The value with the entries that it names."""
    if isinstance(value, tuple):
        return tuple(_resolve(own, one) for one in value)
    if value is None or not isinstance(value, str):
        return value
    if value == "none" and "none" in own.metadata:
        return Named.of(value, None)
    table = own.metadata["table"]()
    try:
        if "calls" in own.metadata:
            return Named.of(value, read(value, table, "{key}"))
        return Named.of(value, pick(table, value, "{key}"))
    except UserError as e:
        text = str(e) if "{key}" in str(e) else f"{{key}}={value!r}: {e}"
        raise SpecError(own.name, text) from e


def _check_range(own: dataclasses.Field, number: float) -> None:
    least, above, below, most = (
        own.metadata.get(rule) for rule in ("least", "above", "below", "most")
    )
    if least is not None and below is not None and not least <= number < below:
        raise SpecError(own.name, f"{{key}}={number} must be in [{least}, {below})")
    if least is not None and not number >= least:
        raise SpecError(own.name, f"{{key}}={number} must be at least {least}")
    if above is not None and not number > above:
        raise SpecError(own.name, f"{{key}}={number} must be above {above}")
    if below is not None and not number < below:
        raise SpecError(own.name, f"{{key}}={number} must be below {below}")
    if most is not None and not number <= most:
        raise SpecError(own.name, f"{{key}}={number} must be at most {most}")
    if not math.isfinite(number):
        raise SpecError(own.name, f"{{key}}={number} must be a finite number")


_hints: Callable[[Any], dict[str, Any]] = functools.cache(typing.get_type_hints)


def options(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type that it is."""
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def _group(hint: Any) -> type[Spec] | None:
    """The spec that a field holds, if it holds one."""
    found = [option for option in options(hint) if isinstance(option, type)]
    return next((option for option in found if issubclass(option, Spec)), None)


def to_spec(cls: type[S], tree: Tree, prefix: str = "") -> S:
    """The spec that nested dicts describe: every key known, every value of its field's type."""
    cls = cls.variant(tree, prefix)
    fields = {own.name: own for own in dataclasses.fields(cls)}
    hints, values = _hints(cls), {}
    for key, value in tree.items():
        if key not in fields:
            raise UserError(f"unknown key {prefix + key!r}{suggest(key, fields)}")
        values[key] = _value(hints[key], value, prefix + key)
    for key, own in fields.items():
        if key not in values and own.default is own.default_factory is dataclasses.MISSING:
            raise UserError(f"missing key {prefix + key!r}")
    try:
        return cls(**values)
    except SpecError as e:
        raise e.below(prefix) from None


def _value(hint: Any, value: Any, key: str) -> Any:
    group = _group(hint)
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
    raise UserError(f"{key} must be {' or '.join(map(_kind, options(hint)))}, not {value!r}")


def _kind(hint: Any) -> str:
    """A type, in words."""
    if dataclasses.is_dataclass(hint):
        return f"a group of {', '.join(own.name for own in dataclasses.fields(hint))}"
    words = {types.NoneType: "None", Named: "str"}
    return words.get(hint, getattr(hint, "__name__", str(hint)))


def to_tree(spec: Spec) -> dict[str, Any]:
    """A spec as nested dicts of plain values."""
    return dataclasses.asdict(spec)


def differences(spec: Spec) -> dict[str, Any]:
    """The settings of a spec that differ from their defaults, as nested dicts, in one spelling."""
    out: dict[str, Any] = {}
    for own in dataclasses.fields(spec):
        value = getattr(spec, own.name)
        if isinstance(value, Spec):
            if type(own.default) is not type(value) or value != own.default:
                out[own.name] = differences(value)
        elif value != own.default:
            out[own.name] = _plain(own, value)
    return out


def _plain(own: dataclasses.Field, value: Any) -> Any:
    """A value without what does not matter: the spelling of a call."""
    if isinstance(value, tuple):
        return tuple(_plain(own, one) for one in value)
    if "calls" in own.metadata and isinstance(value, Named) and value.entry is not None:
        return canonical(value, own.metadata["table"]())
    return value


def flat(tree: Tree, prefix: str = "") -> dict[str, Any]:
    """A tree by its dotted keys."""
    out: dict[str, Any] = {}
    for key, value in tree.items():
        below = isinstance(value, Mapping) and value
        out |= flat(value, f"{prefix}{key}.") if below else {prefix + key: value}
    return out


def named(spec: Spec) -> Iterator[tuple[Table, Named]]:
    """Every name in a spec, with the table that it is looked up in."""
    for own in dataclasses.fields(spec):
        value = getattr(spec, own.name)
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, Spec):
                yield from named(one)
            elif isinstance(one, Named):
                yield own.metadata["table"](), one
                yield from getattr(one.entry, "uses", ())


def keys(cls: type[Spec], tree: Tree, prefix: str = "") -> Iterator[str]:
    """The dotted keys of all fields that a config of this class may set."""
    cls = cls.variant(tree, prefix)
    for key, hint in _hints(cls).items():
        yield prefix + key
        group, below = _group(hint), tree.get(key)
        if group is not None:
            yield from keys(group, below if isinstance(below, Mapping) else {}, f"{prefix}{key}.")


def replaced(cls: type[Spec], tree: Tree, changes: Tree) -> dict[str, Any]:
    """The tree with other values at dotted keys. Where a key decides which keys there are, as
    `model.family` does, it is replaced first, and what it leaves no use for is dropped."""
    for key in sorted(changes, key=lambda key: key.rpartition(".")[2] != "family"):
        levels, new = _levels(cls, tree, key), changes[key]
        group = _group(_hints(levels[-1][0])[levels[-1][2]])
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
    """The value that a text stands for at a dotted key, by the type of its field."""
    level_cls, _, name = _levels(cls, tree, key)[-1]
    return _literal(_hints(level_cls)[name], text)


def _levels(cls: type[Spec], tree: Tree, key: str) -> list[tuple[type[Spec], Tree, str]]:
    """For each name of a dotted key: the spec it is a field of, that spec's tree, the name."""
    found: list[tuple[type[Spec], Tree, str]] = []
    level: type[Spec] | None = cls
    path = key.split(".")
    for name in path:
        if level is None:
            at = ".".join(path[: len(found)])
            raise UserError(f"unknown key {key!r}: {at!r} is a value, not a group")
        prefix = "".join(f"{part}." for part in path[: len(found)])
        level = level.variant(tree, prefix)
        if name not in _hints(level):
            if len(found) + 1 < len(path):  # a group is unknown: its siblings are near
                near = suggest(prefix + name, (prefix + known for known in _hints(level)))
            else:
                near = suggest(key, keys(level, tree, prefix))
            raise UserError(f"unknown key {key!r}{near}")
        found.append((level, tree, name))
        level, below = _group(_hints(level)[name]), tree.get(name)
        tree = below if isinstance(below, Mapping) else {}
    return found


def _literal(hint: Any, text: str) -> Any:
    kinds = options(hint)
    if text == "None" and types.NoneType in kinds:
        return None
    if any(option in (str, Named) for option in kinds):
        return text
    try:
        value = ast.literal_eval({"true": "True", "false": "False"}.get(text, text))
    except (ValueError, SyntaxError):
        value = text
    if any(typing.get_origin(option) is tuple for option in kinds):
        if isinstance(value, str):
            return tuple(_parts(text))
        return tuple(value) if isinstance(value, tuple | list) else (value,)
    return value


def _parts(text: str) -> list[str]:
    """What stands between commas, but for those within brackets or quotes."""
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
