"""What was tokenised once: arrays in files, found by a hash of all that decides what they hold.

An entry is a folder with `meta.json` and one file for each column, a flat array. It is written
beside its place and renamed when it is complete: after a kill nothing half-written is ever found.
Of two processes that want the same entry, one builds it and the other waits.

On opening, the sizes of all files are compared, and the checksums of their blocks: of all blocks
of a file up to 64 MB, of the first and last block of a larger one (`verify` compares all). What is
damaged is built again.
"""

import contextlib
import errno
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

from tfm.config.names import UserError
from tfm.runtime import cache_folder

VERSION = 1  # of the files; another one is another entry
BLOCK = 1 << 24  # bytes with a checksum of their own
WHOLE = 1 << 26  # bytes of a file that is checked whole on opening
RESIDENT = 1 << 25  # bytes of a file that may stay in a process's memory


def folder() -> pathlib.Path:
    return cache_folder() / "data"


def key_of(**parts: Any) -> str:
    """A hash of what decides the content of an entry."""
    text = json.dumps({"version": VERSION, **parts}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def array_digest(x: np.ndarray) -> str:
    """Hashes an array, for the key of what is computed from it."""
    content = hashlib.sha256(repr((x.shape, x.dtype.str)).encode())
    content.update(np.ascontiguousarray(x).data)
    return content.hexdigest()


class Column:
    """A flat array in a file. What was read of a large one does not stay in the process's memory,
    only in the system's cache of files."""

    def __init__(self, path: pathlib.Path, dtype: str):
        self.array = np.memmap(path, np.dtype(dtype), "r") if path.stat().st_size else np.zeros(0)
        self._map: mmap.mmap | None = None
        if self.array.nbytes > RESIDENT and hasattr(mmap, "MADV_DONTNEED"):
            self._map = getattr(self.array, "_mmap", None)

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, places: np.ndarray | slice) -> np.ndarray:
        found = np.array(self.array[places])
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)
        return found


class Entry:
    """A complete entry: its facts, and its columns."""

    def __init__(self, path: pathlib.Path, meta: Mapping[str, Any]):
        self.path, self.meta = path, meta
        self.facts: dict[str, Any] = meta["facts"]
        columns = meta["columns"].items()
        self._columns = {name: Column(path / name, own["dtype"]) for name, own in columns}

    def __getitem__(self, name: str) -> Column:
        return self._columns[name]

    def __contains__(self, name: str) -> bool:
        return name in self._columns


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
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
            file.close()
        content = {**meta, "columns": self._columns}
        text = json.dumps({"checksum": _checksum(content), **content}, indent=1)
        with open(self.path / "meta.json", "w") as meta_file:
            meta_file.write(text)
            meta_file.flush()
            os.fsync(meta_file.fileno())

    def abandon(self) -> None:
        for file in self._files.values():
            with contextlib.suppress(OSError):
                file.close()


def entry(
    key: str, about: Mapping[str, Any], build: Callable[[Writer], Mapping[str, Any]]
) -> Entry:
    """The entry of a key. If there is none, `build` writes its columns and returns its facts.
    `about` says to people what it is."""
    path = folder() / key
    found = _open(path)
    if found is not None:
        return found
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock(path):
            found = _open(path)  # another process may have built it meanwhile
            if found is not None:
                return found
            for old in path.parent.glob(f".{key}-*"):  # of processes that were killed
                shutil.rmtree(old, ignore_errors=True)
            _remove(path)
            new = path.parent / f".{key}-{secrets.token_hex(4)}"
            new.mkdir()
            writer = Writer(new)
            try:
                facts = build(writer)
                writer.close(key=key, about=dict(about), facts=dict(facts))
                with contextlib.suppress(FileExistsError):  # another's is as good
                    _rename(new, path)
            finally:
                writer.abandon()
                shutil.rmtree(new, ignore_errors=True)
    except OSError as e:
        raise UserError(
            f"cannot write to the cache {path.parent}: {e.strerror or e}; TFM_CACHE names another"
        ) from e
    found = _open(path)
    if found is None:
        raise UserError(f"{path} was removed or damaged while it was opened")
    return found


def _rename(new: pathlib.Path, path: pathlib.Path) -> None:
    try:
        os.rename(new, path)
    except OSError as e:
        if e.errno in (errno.EEXIST, errno.ENOTEMPTY):
            raise FileExistsError(path) from e
        raise


@contextlib.contextmanager
def _lock(path: pathlib.Path) -> Iterator[None]:
    """One process at a time; the lock of a killed process ends with it."""
    with open(path.parent / f".{path.name}.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another process, which writes {path}", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _open(path: pathlib.Path) -> Entry | None:
    """The entry at a path, or None if there is none or it is damaged."""
    meta = _meta(path)
    if meta is None or wrong(path, meta):
        return None
    try:
        return Entry(path, meta)
    except FileNotFoundError:  # it was cleared at this moment
        return None


def _meta(path: pathlib.Path) -> dict[str, Any] | None:
    try:
        meta = json.loads((path / "meta.json").read_text())
        return meta if meta.pop("checksum") == _checksum(meta) else None
    except (OSError, ValueError, KeyError, AttributeError):
        return None


def _checksum(meta: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(meta, sort_keys=True).encode())


def wrong(path: pathlib.Path, meta: Mapping[str, Any], whole: bool = False) -> str:
    """What is wrong with the files of an entry, if anything is. `whole`: compare all blocks."""
    for name, column in meta["columns"].items():
        try:
            with open(path / name, "rb") as file:
                if os.fstat(file.fileno()).st_size != column["size"]:
                    return f"{path / name} has not the size that was written"
                some = range(len(column["blocks"]))
                if column["size"] > WHOLE and not whole:
                    some = range(0, len(some), max(len(some) - 1, 1))
                for number in some:
                    file.seek(number * BLOCK)
                    if zlib.crc32(file.read(BLOCK)) != column["blocks"][number]:
                        return f"{path / name} is damaged in block {number}"
        except OSError as e:
            return f"{path / name} cannot be read: {e.strerror}"
    return ""


def entries() -> Iterator[tuple[pathlib.Path, dict[str, Any] | None]]:
    """All entries; None where the meta data are damaged."""
    if not folder().is_dir():
        return
    for path in sorted(folder().iterdir()):
        if path.is_dir() and path.name != "hashes" and path.name[0] != ".":
            yield path, _meta(path)


def clear(only: str = "") -> int:
    """Remove the entries whose keys begin with `only`, and what killed processes left; how many
    bytes are free then. An entry that is in use stays readable where it is open."""
    freed = 0
    for path in sorted(folder().iterdir()) if folder().is_dir() else ():
        hidden = path.name.startswith(".")
        if path.suffix == ".lock" or not path.name.removeprefix(".").startswith(only):
            continue
        if hidden and _is_being_built(path):
            continue
        freed += sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
        _remove(path)
    return freed


def _is_being_built(path: pathlib.Path) -> bool:
    key = path.name[1:].partition("-")[0]
    with open(path.parent / f".{key}.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _remove(path: pathlib.Path) -> None:
    """Rename first: what is half removed must not be found."""
    if not path.exists():
        return
    gone = path.parent / f".{path.name.lstrip('.').partition('-')[0]}-{secrets.token_hex(4)}"
    with contextlib.suppress(FileNotFoundError):
        os.rename(path, gone)
    shutil.rmtree(gone, ignore_errors=True)
