"""Prints tables, and text of files, to a terminal."""

import json
import sys
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table


def console(width: int = 100) -> Console:
    """Returns a console on standard output, `width` wide if that is no terminal."""
    wide = None if sys.stdout.isatty() else width
    return Console(width=wide, markup=False, highlight=False, emoji=False)


def plain(text: str, kept: str = "") -> str:
    """Escapes control characters, except for those in `kept`."""
    return "".join(
        c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text
    )


def show(text: str, end: str = "\n") -> None:
    """Prints text that may come from a file. On a terminal, control characters are escaped: they
    could move the cursor, set its title or type a command. Other programs get it as it is."""
    if sys.stdout.isatty():
        text = plain(text, "\n\t")
    print(text.encode("utf-8", "backslashreplace").decode(), end=end, flush=not end)


def show_json(tree: Any) -> None:
    """Prints JSON in which control characters are escaped."""
    text = json.dumps(tree, indent=1, ensure_ascii=False)
    escaped = (c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)
    print("".join(escaped))


class PlainTable(Table):
    """A table that escapes control characters in its cells, which may come from files."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        super().add_row(*(plain(c) if isinstance(c, str) else c for c in cells), **options)


def table(*columns: str, **options: Any) -> Table:
    """Returns an empty table. A column whose name begins with ">" holds numbers."""
    out = PlainTable(
        box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 0, 0, 1), pad_edge=False, **options
    )
    for name in columns:
        number = name.startswith(">")
        lines = map(plain, name.lstrip(">").split("\n"))
        out.add_column("\n".join(lines), justify="right" if number else "left", no_wrap=number)
    return out
