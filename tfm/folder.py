"""A run is a folder: its config, its log, its summary and its checkpoints.

Every file is written whole or not at all, but for the log, which grows by lines.
"""

import contextlib
import errno
import fcntl
import json
import math
import os
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from tfm.names import UserError

DISK_ERRORS = [os.strerror(e) for e in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)]


@contextlib.contextmanager
def disk_errors(path: str) -> Iterator[None]:
    """Within it, a disk that is full or read-only is a UserError, whatever library meets it."""
    try:
        yield
    except Exception as e:  # Orbax and TensorStore raise what they like
        why = next((text for text in DISK_ERRORS if text in str(e)), None)
        if why is None:
            raise
        raise UserError(f"cannot write to {path}: {why}; what was saved is kept") from e


def without_nonfinite(tree: Any) -> Any:
    """The tree with None for numbers that JSON does not have."""
    if isinstance(tree, Mapping):
        return {key: without_nonfinite(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [without_nonfinite(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


class Folder:
    """The files of a run, or of a sweep."""

    def __init__(self, path: str | pathlib.Path):
        self.path = pathlib.Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise UserError(f"cannot make the folder {self.path}: {e.strerror}") from e

    @contextlib.contextmanager
    def lock(self, patience: float = 0.0) -> Iterator[None]:
        """No other process may write here meanwhile; the lock of a killed process ends with it.

        `patience` is for how many seconds to wait for another process; at least so long that
        `tfm ls`, which looks at the lock for a moment, is never in the way.
        """
        patience = max(patience, 0.5)
        until = time.monotonic() + patience
        with self._open("lock", "w") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= until:
                        raise UserError(f"{self.path} is in use by another process") from None
                    time.sleep(0.1)
            yield

    def write(self, name: str, tree: Mapping[str, Any]) -> None:
        self.write_text(name, json.dumps(without_nonfinite(tree), indent=1, sort_keys=True) + "\n")

    def write_text(self, name: str, text: str) -> None:
        temporary = self.path / f".{name}.{os.getpid()}"
        try:
            with self._open(temporary.name, "w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path / name)
        except OSError as e:
            temporary.unlink(missing_ok=True)
            raise UserError(f"cannot write {self.path / name}: {e.strerror}") from e

    @staticmethod
    def read_in(path: str, name: str) -> dict[str, Any] | None:
        """A file of a folder that may not exist, and is not made."""
        try:
            return json.loads((pathlib.Path(path) / name).read_text())
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read(self, name: str) -> dict[str, Any] | None:
        return self.read_in(str(self.path), name)

    def log(self, line: Mapping[str, Any]) -> None:
        try:
            with self._open("metrics.jsonl", "a") as file:
                file.write(json.dumps(without_nonfinite(line)) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as e:
            raise UserError(f"cannot write {self.path / 'metrics.jsonl'}: {e.strerror}") from e

    def read_log(self) -> list[dict[str, Any]]:
        """The complete lines of the log."""
        found = []
        with contextlib.suppress(FileNotFoundError):
            for text in (self.path / "metrics.jsonl").read_text().splitlines():
                try:
                    found.append(json.loads(text))
                except ValueError:  # the line that was being written when it was killed
                    break
        return found

    def truncate_log(self, step: int) -> None:
        """Remove from the log what comes after `step`: it will be computed again."""
        kept = [json.dumps(line) + "\n" for line in self.read_log() if line["step"] <= step]
        self.write_text("metrics.jsonl", "".join(kept))

    def _open(self, name: str, mode: str) -> Any:
        try:
            return open(self.path / name, mode)
        except OSError as e:
            raise UserError(f"cannot write {self.path / name}: {e.strerror}") from e
