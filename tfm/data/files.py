"""Files of data: where they are found, a hash of what they hold, their lines; and bad lines."""

import contextlib
import difflib
import functools
import gzip
import hashlib
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import IO, NamedTuple

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from tfm.config.names import UserError
from tfm.runtime import cache_folder

LARGE = 1 << 26  # bytes of a file whose hash is kept from one process to the next
SLOW = 2.0  # seconds after which the speed is printed
Meter = Callable[[int], None]  # is told how many more bytes were read


class Place(NamedTuple):
    """Where something was read."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


class Bad:
    """What is done with bad data: the first is an error, or all are left out and counted."""

    def __init__(self, how: str = "error"):
        self.skip = how == "skip"
        self.count = 0
        self.first: list[str] = []

    def __call__(self, place: Place, why: str) -> None:
        if not self.skip:
            raise UserError(f"{place}: {why}; data.bad='skip' leaves such lines out")
        self.count += 1
        if len(self.first) < 3:
            self.first.append(f"{place}: {why}")


def find(option: str, name: str, folder: bool = False) -> pathlib.Path:
    """The file of this name, or the folder: as given, or in $TFM_DATA."""
    data = os.environ.get("TFM_DATA")
    places = dict.fromkeys([pathlib.Path(name), pathlib.Path(data or "", name)])
    there = pathlib.Path.is_dir if folder else pathlib.Path.is_file
    found = next((place.resolve() for place in places if there(place)), None)
    if found is not None:
        return found
    beside = [file.name for p in places if p.parent.is_dir() for file in p.parent.iterdir()]
    near = difflib.get_close_matches(pathlib.Path(name).name, beside, n=1)
    kind = "folder" if folder else "file"
    raise UserError(
        f"{option}: no {kind} {' or '.join(str(place.absolute()) for place in places)}"
        + (f"; did you mean {near[0]!r}?" if near else "")
        + (f" (TFM_DATA={data})" if data else "; set TFM_DATA to the folder that holds it")
    )


def digest(path: pathlib.Path) -> str:
    """A hash of what a file holds."""
    info = path.stat()
    return _digest(path, info.st_size, info.st_mtime_ns, info.st_ino)


@functools.lru_cache(maxsize=1024)
def _digest(path: pathlib.Path, size: int, changed: int, inode: int) -> str:
    """That of a large file is kept, unless the file was changed a moment ago: a second change may
    have the same time."""
    known = [str(path), size, changed, inode]
    name = hashlib.sha256(str(path).encode()).hexdigest()
    memory = cache_folder() / "data" / "hashes" / name
    if size >= LARGE:
        try:
            *same, found = json.loads(memory.read_text())
            if same == known:
                return found
        except (OSError, ValueError):
            pass
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if size >= LARGE and time.time_ns() - changed > 10**10:
        try:
            memory.parent.mkdir(parents=True, exist_ok=True)
            new = memory.with_suffix(f".{os.getpid()}")
            new.write_text(json.dumps([*known, found]))
            new.replace(memory)
        except OSError:
            pass  # a full or read-only disk: it is only a cache
    return found


def content_size(path: pathlib.Path) -> int:
    """Bytes of the text that a file holds."""
    if path.suffix != ".gz":
        return path.stat().st_size
    with open_file(path) as file:
        size = 0
        while part := file.read(1 << 20):
            size += len(part)
    return size


def open_file(path: pathlib.Path) -> IO[bytes]:
    return gzip.open(path) if path.suffix == ".gz" else open(path, "rb")  # type: ignore[return-value]


def raw_lines(path: pathlib.Path, meter: Meter | None = None) -> Iterator[bytes]:
    """Lines as they are, with their ends. `meter` is told of the bytes as they are on disk."""
    try:
        with open(path, "rb") as raw:
            file = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
            counted = read = 0
            for line in file:
                yield line
                read += len(line)
                if meter is not None and read > 1 << 18:
                    meter(raw.tell() - counted)
                    counted, read = raw.tell(), 0
            if meter is not None:
                meter(raw.tell() - counted)
    except (OSError, EOFError) as e:
        raise UserError(f"cannot read {path}: {e}") from e


def lines(path: pathlib.Path, bad: Bad, meter: Meter | None = None) -> Iterator[tuple[Place, str]]:
    """Lines of UTF-8 text without their ends, and where each stands. A line that is not UTF-8 is
    bad data, and so is an empty file."""
    number = 0
    for number, line in enumerate(raw_lines(path, meter), 1):
        text = decoded(line, Place(str(path), number), bad)
        if text is not None:
            yield Place(str(path), number), text.removesuffix("\n").removesuffix("\r")
    if not number:
        bad(Place(str(path), 1), "the file is empty")


def decoded(line: bytes, place: Place, bad: Bad) -> str | None:
    try:
        return line.decode()
    except UnicodeDecodeError as e:
        bad(place, f"not UTF-8 text: byte {e.start} of the line is 0x{line[e.start]:02x}")
        return None


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
