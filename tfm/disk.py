"""Opens files in folders that others may have made: runs, caches, imports.

Only regular files are opened: a FIFO or a device could block, or never end. Links are followed as
long as they stay in the folder. Files are never truncated, but replaced as a whole; the size of
those that are read as a whole and the depth of JSON are bounded. A refused file raises OSError,
refused content ValueError.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import pathlib
import stat
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

LIMIT = 1 << 28  # bytes of a file that is read as a whole
DEPTH = 100  # levels of JSON, or of folders
FILES = 100_000  # in a folder that is checked
CHECKSUM = "checksum"  # the key in a JSON file that covers all others

Path = str | pathlib.Path


class OutsideError(OSError):
    """A link leads out of its folder."""


def located(path: Path, *roots: Path) -> str:
    """Returns the real path of a file. Raises if it lies in none of the folders `roots`."""
    real = os.path.realpath(path)
    homes = [os.path.realpath(root) for root in roots]
    if roots and not any(pathlib.PurePath(real).is_relative_to(home) for home in homes):
        reason = f"it is a link to {real}, out of its folder, and is not followed"
        raise OutsideError(errno.EPERM, reason, str(path))
    return real


def open_file(path: Path, mode: str = "rb", *roots: Path) -> IO[bytes]:
    """Opens a regular file in one of the folders `roots`; without any, wherever it is."""
    return open(located(path, *roots), mode, opener=_open_regular)


def _open_regular(path: str, flags: int) -> int:
    safe = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags & ~os.O_TRUNC | safe, 0o666)
    except OSError as e:
        if e.errno in (errno.ELOOP, errno.ENXIO):  # a link to itself; a FIFO, to be written to
            _check_regular(path, 0)
        raise
    try:
        _check_regular(path, os.fstat(descriptor).st_mode)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _check_regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is no file", str(path))


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Locks a folder; raises BlockingIOError if another process has. The lock ends with it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def check_tree(folder: Path, deep: bool = True, large: str | None = None) -> None:
    """Raises unless all below a folder are regular files, folders, or links to such inside it.

    With `large`, only files in folders of that name may have more than `LIMIT` bytes.
    """
    todo, count = [(str(folder), 0)], 0
    while todo:
        parent, depth = todo.pop()
        if depth > DEPTH:
            raise OSError(errno.ELOOP, f"it is nested more than {DEPTH} folders deep", parent)
        with os.scandir(parent) as entries:
            for entry in entries:
                count += 1
                if count > FILES:
                    reason = f"there are more than {FILES:,} files in it"
                    raise OSError(errno.EFBIG, reason, str(folder))
                if entry.is_symlink():
                    located(entry.path, folder)
                if not entry.is_dir():
                    _check_regular(entry.path, entry.stat().st_mode)
                    if large not in (None, os.path.basename(parent)):
                        _check_size(entry.path, entry.stat().st_size, LIMIT)
                elif deep and not entry.is_symlink():
                    todo.append((entry.path, depth + 1))


def read_bytes(path: Path, *roots: Path, limit: int = LIMIT) -> bytes:
    """Returns the content of a regular file of at most `limit` bytes."""
    with open_file(path, "rb", *roots) as file:
        _check_size(path, os.fstat(file.fileno()).st_size, limit)
        content = file.read(limit + 1)
    _check_size(path, len(content), limit)
    return content


def _check_size(path: Path, size: int, limit: int) -> None:
    if size > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes", str(path))


def parse_json(text: str | bytes, constant: Callable[[str], Any] | None = None) -> Any:
    """Parses JSON of a bounded depth. `constant` receives NaN and infinities."""
    try:
        tree = json.loads(text, parse_constant=constant)
    except RecursionError:
        raise ValueError(f"it is nested more than {DEPTH} levels deep") from None
    level = [tree]
    for _ in range(DEPTH + 1):
        nodes = [x for x in level if isinstance(x, dict | list)]
        if not nodes:
            return tree
        level = [x for node in nodes for x in (node.values() if isinstance(node, dict) else node)]
    raise ValueError(f"it is nested more than {DEPTH} levels deep")


def read_json(path: Path, *roots: Path) -> Any:
    """Returns the content of a JSON file."""
    return parse_json(read_bytes(path, *roots))


def checksum(tree: Mapping[str, Any]) -> str:
    """Hashes the content of a JSON file without its checksum."""
    rest = {key: value for key, value in tree.items() if key != CHECKSUM}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:16]


def was_edited(tree: Mapping[str, Any]) -> bool:
    """Returns True if the checksum differs. Files without one, as people write them, pass."""
    return CHECKSUM in tree and tree[CHECKSUM] != checksum(tree)


def write_file(path: Path, content: bytes) -> None:
    """Replaces a file as a whole; if that fails, the one before is left."""
    target = pathlib.Path(path)
    new = target.parent / f".{target.name}.{os.getpid()}"
    new.unlink(missing_ok=True)
    try:
        with open(new, "xb") as file:  # fails if it exists, even as a link
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, target)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise
