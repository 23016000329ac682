"""Describes the keys of a config for --help: their values, and the values that are valid."""

import dataclasses
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from tfm.config.names import UserError
from tfm.config.spec import LIMITS, Spec, Tree, group_of, kind_of, options, to_tree

HEAD = "Keys of the config, with their values; --config.KEY=VALUE sets one:"
MORE = "--config=FILE.py --help lists the keys of its family alone, and its own values."
WIDTH = 110


def keys_text(cls: type[Spec], tree: Tree) -> str:
    """Returns the text that `--help` prints about the keys of a config."""
    rows = list(describe_keys(cls, tree))
    key_width = max(len(key) for key, _, _ in rows)
    value_width = min(24, max(len(value) for _, value, _ in rows))
    lines = ["", HEAD, ""]
    for key, value, valid in rows:
        start = f"  {key:{key_width}}  {value:{value_width}}  "
        indent = " " * (key_width + value_width + 6)
        lines += textwrap.wrap(start + valid, WIDTH, subsequent_indent=indent) or [start]
    open_family = any(row[:2] == ("model.family", "needed") for row in rows)
    return "\n".join([*lines, *(["", MORE] if open_family else []), ""])


def describe_keys(cls: type[Spec], tree: Tree, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yields each key that a config may set, its value in the tree or by default, and the values
    that are valid. Without a family, yields the keys of every family, and whose they are."""
    try:
        cls = cls.variant(tree, prefix)
    except UserError:
        yield from _keys_of_families(cls, tree, prefix)
        return
    hints, comments = typing.get_type_hints(cls), _comments(cls)
    for field in dataclasses.fields(cls):
        key, value = prefix + field.name, tree.get(field.name, field.default)
        group = group_of(hints[field.name])
        if group is not None and value is not None:
            below = to_tree(value) if isinstance(value, Spec) else value
            yield from describe_keys(group, below if isinstance(below, Mapping) else {}, f"{key}.")
            continue
        text = "needed" if value is dataclasses.MISSING else _text(value)
        comment = comments.get(field.name)
        yield key, text, _valid(cls, field, hints[field.name]) + (f". {comment}" if comment else "")


def _keys_of_families(cls: type[Spec], tree: Tree, prefix: str) -> Iterator[tuple[str, str, str]]:
    families = list(cls.families())
    yield f"{prefix}family", "needed", f"one of {', '.join(families)}"
    rows: dict[str, tuple[str, str]] = {}
    owners: dict[str, list[str]] = {}
    for family in families:
        for key, *row in describe_keys(cls, {**tree, "family": family}, prefix):
            rows.setdefault(key, (row[0], row[1]))
            owners.setdefault(key, []).append(family)
    for key, (value, valid) in rows.items():
        others = [family for family in families if family not in owners[key]]
        few = len(others) < len(owners[key])
        only = f" ({'not ' * few}{', '.join(others if few else owners[key])})" if others else ""
        if key != f"{prefix}family":
            yield key, value, valid + only


def _comments(cls: type) -> dict[str, str]:
    """Returns the comments beside the fields of a class and its bases."""
    comments: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        name = ""
        for line in inspect.getsource(base).splitlines():
            if field := re.match(r"    (\w+): .*?(?:  # (.*))?$", line):
                name = field[1]
                if field[2]:
                    comments[name] = field[2]
            elif (continued := re.match(r"    # (.*)$", line)) and name in comments:
                comments[name] += f" {continued[1]}"
            else:
                name = ""
    return {name: text[:1].upper() + text[1:] for name, text in comments.items()}


def _text(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_text, value))}{',' * (len(value) == 1)})"
    return str(value)


def _valid(cls: type[Spec], field: dataclasses.Field, hint: Any) -> str:
    """Describes the valid values of a field."""
    rules = field.metadata
    if field.name == "family":
        return f"one of {', '.join(cls.families())}"
    if "table" in rules:
        names = [*rules["table"](), *(["none"] if "none" in rules else [])]
        kinds = ["name(option=value)" if "calls" in rules else "name"]
    else:
        names, kinds = [], [_kind(kind) for kind in options(hint) if kind is not types.NoneType]
    several = typing.get_origin(options(hint)[0]) is tuple
    words = ["several: "] * (several and "table" in rules) + [" or ".join(kinds)]
    words += [f", {text} {rules[rule]}" for rule, (_, text) in LIMITS.items() if rule in rules]
    if types.NoneType in options(hint):
        words.append(", or None")
    return "".join(words) + (f": {', '.join(names)}" if names else "")


def _kind(hint: Any) -> str:
    several = typing.get_origin(hint) is tuple
    return f"several: {typing.get_args(hint)[0].__name__}" if several else kind_of(hint)
