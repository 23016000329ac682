"""Prints tables to a terminal."""

import sys
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table


def console(width: int = 100) -> Console:
    """Returns a console on standard output, `width` wide if that is no terminal."""
    wide = None if sys.stdout.isatty() else width
    return Console(width=wide, markup=False, highlight=False, emoji=False)


def plain(text: str) -> str:
    """Escapes control characters."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


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
