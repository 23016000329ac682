"""The keys of a config, for --help: their values, and what they may be."""

import dataclasses
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from tfm.config.names import UserError
from tfm.config.spec import Spec, Tree, options, to_tree

HEAD = "Keys of the config, with their values; --config.KEY=VALUE sets one:"
MORE = "--config=FILE.py --help lists the keys of its model, and its own values."


def keys_text(cls: type[Spec], tree: Tree) -> str:
    """Returns the text that `--help` prints about the keys of a config."""
    rows = list(describe_keys(cls, tree))
    first, second = (max(len(row[i]) for row in rows) for i in (0, 1))
    lines = ["", HEAD, ""]
    for key, value, allowed in rows:
        start = f"  {key:{first}}  {value:{min(second, 24)}}  "
        after = " " * (first + min(second, 24) + 6)
        lines += textwrap.wrap(start + allowed, 110, subsequent_indent=after) or [start]
    open_family = any(row[:2] == ("model.family", "needed") for row in rows)
    return "\n".join([*lines, *(["", MORE] if open_family else []), ""])


def describe_keys(cls: type[Spec], tree: Tree, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """For each key that a config of this class may set: the key, the value it has in the tree or
    by default, and what it may be. Without a family, only the keys that all families share."""
    try:
        cls = cls.variant(tree, prefix)
    except UserError:
        tree = {**tree, "family": dataclasses.MISSING}
    hints = typing.get_type_hints(cls)
    for own in dataclasses.fields(cls):
        key, value = prefix + own.name, tree.get(own.name, own.default)
        group = next((one for one in options(hints[own.name]) if _is_spec(one)), None)
        if group is not None and value is not None:
            below = to_tree(value) if isinstance(value, Spec) else value
            yield from describe_keys(group, below if isinstance(below, Mapping) else {}, f"{key}.")
            continue
        text = "needed" if value is dataclasses.MISSING else _text(value)
        about = _comments(cls).get(own.name)
        yield key, text, _allowed(cls, own, hints[own.name]) + (f". {about}" if about else "")


def _comments(cls: type) -> dict[str, str]:
    """What the comments beside the fields of a class say, those of its bases included."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        name = ""
        for line in inspect.getsource(base).splitlines():
            field = re.match(r"    (\w+): .*?(?:  # (.*))?$", line)
            more = re.match(r"    # (.*)$", line)
            if field:
                name = field[1]
                if field[2]:
                    found[name] = field[2]
            elif more and name in found:  # the comment goes on below
                found[name] += f" {more[1]}"
            else:
                name = ""
    return {name: text[:1].upper() + text[1:] for name, text in found.items()}


def _text(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_text, value))}{',' * (len(value) == 1)})"
    return str(value)


def _allowed(cls: type[Spec], own: dataclasses.Field, hint: Any) -> str:
    """What a field may hold, in words."""
    rules = own.metadata
    if own.name == "family":
        return f"one of {', '.join(cls.families())}"
    if "table" in rules:
        names = [*rules["table"](), *(["none"] if "none" in rules else [])]
        kinds = ["name(option=value)" if "calls" in rules else "name"]
    else:
        names, kinds = [], [_kind(one) for one in options(hint) if one is not types.NoneType]
    several = typing.get_origin(options(hint)[0]) is tuple
    words = ["several: "] * (several and "table" in rules) + [" or ".join(kinds)]
    limits = {"least": "at least", "above": "above", "below": "below", "most": "at most"}
    words += [f", {word} {rules[rule]}" for rule, word in limits.items() if rule in rules]
    if types.NoneType in options(hint):
        words.append(", or None")
    return "".join(words) + (f": {', '.join(names)}" if names else "")


def _kind(hint: Any) -> str:
    if _is_spec(hint):
        return f"a group of {', '.join(own.name for own in dataclasses.fields(hint))}"
    if typing.get_origin(hint) is tuple:
        return f"several: {typing.get_args(hint)[0].__name__}"
    return hint.__name__


def _is_spec(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Spec)
