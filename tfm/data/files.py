"""Data files: finding, hashing and reading them; bad lines; progress while they are read."""

import contextlib
import difflib
import functools
import gzip
import hashlib
import io
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple

from rich.console import Console
from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

from tfm import disk
from tfm.config.names import UserError
from tfm.runtime import cache_folder

LARGE = 1 << 26  # bytes of a file whose hash is kept between processes
RATIO, UNZIPPED = 100, 1 << 30  # of a file when it is decompressed: times its size, or bytes
LINE = 1 << 28  # bytes of a line at most
SLOW = 2.0  # seconds after which the speed is printed
ON_BAD = {"error": "a bad line is an error", "skip": "bad lines are left out, and counted"}


class Place(NamedTuple):
    """A line of a file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


class ReadLog:
    """Reports the bytes read, and handles bad lines: raises at the first, or counts them all."""

    def __init__(self, on_bad: str = "error", advance: Callable[[int], None] = lambda size: None):
        self.skip, self.advance = on_bad == "skip", advance
        self.count = 0
        self.first: list[str] = []
        self.notes: list[str] = []  # about a file that can be read, but may be wrong

    def bad(self, place: Place, reason: str) -> None:
        if not self.skip:
            raise UserError(f"{place}: {reason}; data.bad='skip' leaves such lines out")
        self.count += 1
        if len(self.first) < 3:
            self.first.append(f"{place}: {reason}")


@contextlib.contextmanager
def progress(title: str, size: int, on_bad: str) -> Iterator[ReadLog]:
    """Shows a bar of the `size` bytes to read on a terminal; elsewhere, one line if it is slow."""
    console = Console(file=sys.stderr)
    columns = *Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn()
    begin = time.monotonic()
    quiet = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=quiet) as bar:
        task = bar.add_task(title, total=max(size, 1))
        yield ReadLog(on_bad, lambda size: bar.advance(task, size))
    took, read = time.monotonic() - begin, bar.tasks[0].completed
    if took > SLOW:
        speed = f"{read / 1e6:,.1f} MB in {took:,.1f} s, {read / 1e6 / took:,.1f} MB/s"
        print(f"{title}: {speed}", file=sys.stderr)


def find(option: str, name: str, folder: bool = False, or_gz: bool = False) -> pathlib.Path:
    """Finds a file or folder, relative to the working directory or to $TFM_DATA; with `or_gz`,
    also a file with .gz after its name."""
    data = os.environ.get("TFM_DATA")
    places = dict.fromkeys([pathlib.Path(name), pathlib.Path(data or "", name)])
    exists = pathlib.Path.is_dir if folder else pathlib.Path.is_file
    for suffix in ("", ".gz") if or_gz else ("",):
        for place in places:
            if exists(path := pathlib.Path(f"{place}{suffix}")):
                return path.resolve()
    for place in places:
        if place.exists():
            there, wanted = ("a file", "a folder") if folder else ("a folder", "a file in it")
            raise UserError(f"{option}: {place.absolute()} is {there}: name {wanted}")
    siblings = [file.name for p in places if p.parent.is_dir() for file in p.parent.iterdir()]
    near = difflib.get_close_matches(pathlib.Path(name).name, siblings, n=1)
    kind = "folder" if folder else "file"
    raise UserError(
        f"{option}: no {kind} {' or '.join(str(place.absolute()) for place in places)}"
        + (f"; did you mean {near[0]!r}?" if near else "")
        + (f" (TFM_DATA={data})" if data else "; set TFM_DATA to the folder that holds it")
    )


def digest(path: pathlib.Path) -> str:
    """Hashes the content of a file."""
    info = path.stat()
    return _digest(path, info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)


@functools.lru_cache(maxsize=1024)
def _digest(path: pathlib.Path, size: int, modified: int, changed: int, inode: int) -> str:
    """Hashes a file, and stores the hash of a large one, unless the file changed a moment ago: a
    second change could have the same time. Programs can set the time of modification back, but not
    that of the change."""
    version = [str(path), size, modified, changed, inode]
    name = hashlib.sha256(str(path).encode()).hexdigest()
    stored = cache_folder() / "data" / "hashes" / name
    if size >= LARGE:
        try:
            *stored_version, content = disk.read_json(stored, stored.parent)
            if stored_version == version:
                return content
        except (OSError, ValueError, TypeError):
            pass
    with open(path, "rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    if size >= LARGE and time.time_ns() - changed > 10**10:
        with contextlib.suppress(OSError):  # a full or read-only disk: it is only a cache
            stored.parent.mkdir(parents=True, exist_ok=True)
            disk.write_file(stored, json.dumps([*version, content]).encode())
    return content


def open_file(path: pathlib.Path) -> IO[bytes]:
    return unzipped(path, open(path, "rb"))


def unzipped(path: pathlib.Path, raw: IO[bytes]) -> IO[bytes]:
    """Returns the content of a file that may be compressed."""
    if path.suffix != ".gz":
        return raw
    return io.BufferedReader(_Unzipped(path, raw))


class _Unzipped(io.RawIOBase):
    """Decompresses a file up to a limit: a few bytes can stand for any number of them."""

    def __init__(self, path: pathlib.Path, raw: IO[bytes]):
        self.path, self.raw, self.file = path, raw, gzip.GzipFile(fileobj=raw)
        self.most = max(UNZIPPED, RATIO * os.fstat(raw.fileno()).st_size)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self.file.readinto(buffer)
        self._check_size()
        return count

    def seek(self, place: int, whence: int = os.SEEK_SET) -> int:
        place = self.file.seek(place, whence)
        self._check_size()
        return place

    def _check_size(self) -> None:
        if self.file.tell() > self.most:
            raise UserError(
                f"{self.path} is more than {self.most / 1e9:,.1f} GB when it is decompressed, over "
                f"{RATIO} times its size; if that is right, decompress it with gunzip"
            )

    def close(self) -> None:
        self.raw.close()
        super().close()


def raw_lines(
    path: pathlib.Path, log: ReadLog, begin: int = 0, end: int = sys.maxsize, longest: int = -1
) -> Iterator[bytes]:
    """Yields the lines between two places of a file with their ends; a line of more than `longest`
    bytes in several parts. Progress counts compressed bytes."""
    try:
        with open(path, "rb") as raw:
            file = unzipped(path, raw)
            file.seek(begin)
            reported, unreported, left = raw.tell(), 0, end - begin
            whole = longest < 0
            while line := file.readline(min(LINE if whole else longest, left)):
                if whole and len(line) == LINE:
                    raise UserError(f"{path} has a line of more than {LINE / 1e6:,.0f} MB")
                yield line
                left -= len(line)
                unreported += len(line)
                if unreported > 1 << 18:
                    log.advance(raw.tell() - reported)
                    reported, unreported = raw.tell(), 0
            log.advance(raw.tell() - reported)
    except (OSError, EOFError) as e:
        raise UserError(f"cannot read {path}: {e}") from e


def lines(path: pathlib.Path, log: ReadLog) -> Iterator[tuple[Place, str]]:
    """Yields the lines of a UTF-8 file without their ends, with their places. Lines that are not
    UTF-8 are bad, and so is an empty file."""
    number = 0
    for number, line in enumerate(raw_lines(path, log), 1):
        text = decoded(line, Place(str(path), number), log)
        if text is not None:
            yield Place(str(path), number), text.removesuffix("\n").removesuffix("\r")
    if not number:
        log.bad(Place(str(path), 1), "the file is empty")


def decoded(line: bytes, place: Place, log: ReadLog) -> str | None:
    """Decodes UTF-8; returns None for a bad line."""
    try:
        return line.decode()
    except UnicodeDecodeError as e:
        log.bad(place, f"not UTF-8 text: byte {e.start} of the line is 0x{line[e.start]:02x}")
        return None
