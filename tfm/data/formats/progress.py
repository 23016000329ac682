"""A bar for work that reads files, on a terminal; elsewhere one line, if it took long."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

SLOW = 2.0  # seconds after which it is said how it went


@contextlib.contextmanager
def progress(title: str, size: int) -> Iterator[Callable[[int], None]]:
    """Within it, the function that is given is told how many more of `size` bytes were read."""
    console = Console(file=sys.stderr)
    columns = BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    begin, read = time.monotonic(), 0
    with Progress(
        TextColumn("{task.description}"),
        *columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task(title, total=max(size, 1))

        def meter(more: int) -> None:
            nonlocal read
            read += more
            bar.advance(task, more)

        yield meter
    took = time.monotonic() - begin
    if took > SLOW:
        speed = f"{read / 1e6:,.1f} MB in {took:,.1f} s, {read / 1e6 / took:,.1f} MB/s"
        print(f"{title}: {speed}", file=sys.stderr)
