"""Tables on a terminal."""

import sys
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table


def console(width: int = 100) -> Console:
    """Prints to standard output, as wide as the terminal; `width` where there is none."""
    wide = None if sys.stdout.isatty() else width
    return Console(width=wide, markup=False, highlight=False, emoji=False)


def plain(text: str) -> str:
    """A text without characters that a terminal or a table would obey: they are shown escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class PlainTable(Table):
    """Its cells come from files, and are shown without what a terminal would obey."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        super().add_row(*(plain(c) if isinstance(c, str) else c for c in cells), **options)


def table(*columns: str, **options: Any) -> Table:
    """A table without rows. A column whose name begins with ">" holds numbers."""
    out = PlainTable(
        box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 0, 0, 1), pad_edge=False, **options
    )
    for name in columns:
        number = name.startswith(">")
        lines = map(plain, name.lstrip(">").split("\n"))
        out.add_column("\n".join(lines), justify="right" if number else "left", no_wrap=number)
    return out
