"""The cache of tokenized data: arrays in files, named by a hash of all that determines them.

An entry is a folder with `meta.json` and one file for each column, a flat array. It is written to a
temporary folder and renamed when it is complete, so a killed process leaves no incomplete entry.
If two processes need the same entry, one builds it and the other waits.

Opening an entry compares the sizes of all files and the checksums of their blocks: all blocks of a
file up to 64 MB, the first and the last of a larger one (`damage(whole=True)` compares all).
Damaged entries are built again.
"""

import contextlib
import fcntl
import hashlib
import json
import mmap
import os
import pathlib
import secrets
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

import numpy as np

from tfm import disk
from tfm.config.names import UserError
from tfm.runtime import cache_folder

VERSION = 1  # of the file format; part of every key
BLOCK = 1 << 24  # bytes per checksum
WHOLE = 1 << 26  # bytes of a file that is checked completely on opening
RESIDENT = 1 << 25  # bytes of a file that may stay in a process's memory


def folder() -> pathlib.Path:
    return cache_folder() / "data"


def key_of(**parts: Any) -> str:
    """Hashes everything that determines the content of an entry."""
    text = json.dumps({"version": VERSION, **parts}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def array_digest(x: np.ndarray) -> str:
    """Hashes an array, for the key of what is computed from it."""
    content = hashlib.sha256(repr((x.shape, x.dtype.str)).encode())
    content.update(np.ascontiguousarray(x).data)
    return content.hexdigest()


class Column:
    """A flat array in a file. Pages of a large one leave the process's memory after each read."""

    def __init__(self, path: pathlib.Path, dtype: str):
        with disk.open_file(path, "rb", path.parent) as file:
            empty = not os.fstat(file.fileno()).st_size
            self.array = np.zeros(0) if empty else np.memmap(file, np.dtype(dtype), "r")
        self._map: mmap.mmap | None = None
        if self.array.nbytes > RESIDENT and hasattr(mmap, "MADV_DONTNEED"):
            self._map = getattr(self.array, "_mmap", None)

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, places: np.ndarray | slice) -> np.ndarray:
        values = np.array(self.array[places])
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)
        return values


class Entry:
    """A complete entry: its facts and its columns."""

    def __init__(self, path: pathlib.Path, meta: Mapping[str, Any]):
        self.facts: dict[str, Any] = meta["facts"]
        self.columns = {
            name: Column(path / name, column["dtype"]) for name, column in meta["columns"].items()
        }

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]


class Writer:
    """Writes the columns of a new entry."""

    def __init__(self, path: pathlib.Path):
        self.path = path
        self._files: dict[str, IO[bytes]] = {}
        self._columns: dict[str, dict[str, Any]] = {}

    def append(self, name: str, array: np.ndarray) -> None:
        if name not in self._files:
            self._files[name] = open(self.path / name, "wb", buffering=1 << 20)  # noqa: SIM115
            self._columns[name] = {"dtype": array.dtype.str, "size": 0, "blocks": []}
        column = self._columns[name]
        assert column["dtype"] == array.dtype.str
        content = np.ascontiguousarray(array).data.cast("B")
        self._files[name].write(content)
        while len(content):
            begin = column["size"] % BLOCK
            part, content = content[: BLOCK - begin], content[BLOCK - begin :]
            if not begin:
                column["blocks"].append(0)
            column["blocks"][-1] = zlib.crc32(part, column["blocks"][-1])
            column["size"] += len(part)

    def close(self, **meta: Any) -> None:
        content = {**meta, "columns": self._columns}
        text = json.dumps({"checksum": _checksum(content), **content}, indent=1)
        self._files["meta.json"] = open(self.path / "meta.json", "wb")  # noqa: SIM115
        self._files["meta.json"].write(text.encode())
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
            file.close()

    def abandon(self) -> None:
        for file in self._files.values():
            with contextlib.suppress(OSError):
                file.close()


def entry(
    key: str, about: Mapping[str, Any], build: Callable[[Writer], Mapping[str, Any]]
) -> Entry:
    """Opens the entry of a key. If there is none, `build` writes its columns and returns its facts.
    `about` describes it to people."""
    path = folder() / key
    if opened := _open(path):
        return opened
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock(path):
            if opened := _open(path):  # another process may have built it meanwhile
                return opened
            for old in path.parent.glob(f".{key}-*"):  # of killed processes
                shutil.rmtree(old, ignore_errors=True)
            _remove(path)
            new = path.parent / f".{key}-{secrets.token_hex(4)}"
            new.mkdir()
            writer = Writer(new)
            try:
                facts = build(writer)
                writer.close(key=key, about=dict(about), facts=dict(facts))
                os.rename(new, path)
            finally:
                writer.abandon()
                shutil.rmtree(new, ignore_errors=True)
    except OSError as e:
        raise UserError(
            f"cannot write to the cache {path.parent}: {e.strerror or e}; TFM_CACHE names another"
        ) from e
    if opened := _open(path):
        return opened
    raise UserError(f"{path} was removed or damaged while it was opened")


@contextlib.contextmanager
def _lock(path: pathlib.Path) -> Iterator[None]:
    """Lets one process build an entry at a time; a process that is killed releases its lock."""
    with disk.open_file(path.parent / f".{path.name}.lock", "ab", path.parent) as file:
        if not _try_lock(file):
            print(f"waiting for another process, which writes {path}", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _try_lock(file: IO[Any]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open(path: pathlib.Path) -> Entry | None:
    """Opens the entry at a path; returns None if there is none or it is damaged."""
    meta = _meta(path)
    if meta is None or damage(path, meta):
        return None
    try:
        return Entry(path, meta)
    except FileNotFoundError:  # it was cleared at this moment
        return None


def _meta(path: pathlib.Path) -> dict[str, Any] | None:
    try:
        meta = disk.read_json(path / "meta.json", path)
        return meta if meta.pop("checksum") == _checksum(meta) and _is_entry(meta) else None
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None


def _is_entry(meta: Mapping[str, Any]) -> bool:
    """Returns whether meta data describe files of an entry that can be opened."""
    for name, column in meta["columns"].items():
        count = -(-column["size"] // BLOCK)
        whole = column["size"] % np.dtype(column["dtype"]).itemsize == 0
        if os.path.basename(name) != name or len(column["blocks"]) != count or not whole:
            return False
    return isinstance(meta["facts"], dict) and isinstance(meta["about"], dict)


def _checksum(meta: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(meta, sort_keys=True).encode())


def damage(path: pathlib.Path, meta: Mapping[str, Any], whole: bool = False) -> str:
    """Describes the damage to an entry's files; "" if there is none. `whole` checks all blocks."""
    for name, column in meta["columns"].items():
        try:
            with disk.open_file(path / name, "rb", path) as file:
                if os.fstat(file.fileno()).st_size != column["size"]:
                    return f"{path / name} has the wrong size"
                blocks = range(len(column["blocks"]))
                if column["size"] > WHOLE and not whole:
                    blocks = range(0, len(blocks), max(len(blocks) - 1, 1))
                for number in blocks:
                    file.seek(number * BLOCK)
                    if zlib.crc32(file.read(BLOCK)) != column["blocks"][number]:
                        return f"{path / name} is damaged in block {number}"
        except OSError as e:
            return f"{path / name} cannot be read: {e.strerror}"
    return ""


def entries() -> Iterator[tuple[pathlib.Path, dict[str, Any] | None]]:
    """Yields all entries with their meta data; None if these are damaged."""
    for path in sorted(folder().glob("*")):
        if path.is_dir() and path.name != "hashes" and path.name[0] != ".":
            yield path, _meta(path)


def clear(prefix: str = "") -> int:
    """Removes the entries whose keys begin with `prefix`, and what killed processes left; returns
    the number of bytes freed. Processes that have an entry open can still read it."""
    freed = 0
    for path in sorted(folder().glob("*")):
        if path.suffix == ".lock" or not path.name.removeprefix(".").startswith(prefix):
            continue
        key = path.name.removeprefix(".").partition("-")[0]
        if path.name.startswith("."):
            with disk.open_file(path.parent / f".{key}.lock", "ab", path.parent) as file:
                if not _try_lock(file):  # it is being built
                    continue
        freed += sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
        _remove(path)
    return freed


def _remove(path: pathlib.Path) -> None:
    """Removes a folder; renames it first, so that no process finds it incomplete."""
    gone = path.parent / f".{path.name.lstrip('.').partition('-')[0]}-{secrets.token_hex(4)}"
    with contextlib.suppress(FileNotFoundError):
        os.rename(path, gone)
    shutil.rmtree(gone, ignore_errors=True)
