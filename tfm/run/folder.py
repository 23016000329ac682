"""A run is a folder: its config, its log, its summary and its checkpoints.

Every file is written whole or not at all, but for the log, which grows by lines. Every file is
checked when it is read: one that is not as it was written is `Damaged`, and named.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import pathlib
import time
import zlib
from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any

from tfm.config.names import UserError

DISK_ERRORS = [os.strerror(e) for e in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)]
GLOB = "*?[]\\"  # Orbax reads these in a path as a pattern, and then finds no files
LOG = "metrics.jsonl"
NUMBER = (int, float, NoneType)
METRICS = {"loss": NUMBER, str: NUMBER}
SCHEMAS: dict[str, Any] = {  # of each file, what it must hold; see `_wrong`
    "config.json": {"model": dict, "id": str, "objective": str, "data": dict, "train": dict},
    "summary.json": {
        "id": str,
        "status": {"done", "diverged"},
        "steps": int,
        "skipped": int,
        "parameters": int,
        "flops": int,
        "valid": (METRICS, NoneType),
        "best": (METRICS, NoneType),
        "tests": {str: {str: NUMBER}},
    },
    "profile.json": {"profiles": [{"entries": {str: list}, "made_by": {str: (str, dict)}}]},
    "failure.json": {"error": str},
    "data.json": {"fingerprint": str, "vocab": int, "vocabulary": (str, NoneType)},
    "sweep.json": {
        "study": str,
        "question": str,
        "metric": str,
        "runs": [{"id": str, "variant": str, "task": str, "seed": int, "point": dict}],
    },
}
IMPORTED = {"model": dict}  # config.json of an imported model
CHECKSUM = "checksum"  # in each JSON file, of all the rest of it
LINES = {"train": {"step": int, "seconds": NUMBER}, "valid": {"step": int, "loss": NUMBER}}


class Damaged(UserError):  # noqa: N818
    """A file of a folder is not as it was written."""


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


def checksum(tree: Mapping[str, Any]) -> str:
    """Of what a JSON file holds, but for its checksum."""
    rest = {key: value for key, value in tree.items() if key != CHECKSUM}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:16]


def was_edited(tree: Mapping[str, Any]) -> bool:
    """Whether a value of a JSON file is another than was written. A file of an earlier version has
    no checksum."""
    return CHECKSUM in tree and tree[CHECKSUM] != checksum(tree)


def check_path(path: str | pathlib.Path) -> None:
    """Raise where checkpoints could be written and not be read."""
    for sign in GLOB:
        if sign in os.path.abspath(path):
            raise UserError(
                f"{os.path.abspath(path)!r} has a {sign} in it, and checkpoints cannot be read "
                f"from such a path; choose one without any of {' '.join(GLOB)}"
            )


class Folder:
    """The files of a run, or of a sweep."""

    logged = 0  # a checksum of the log as far as it was written or kept here

    def __init__(self, path: str | pathlib.Path):
        self.path = pathlib.Path(path)
        self._lock: Any = None

    def make(self) -> "Folder":
        """The folder, which is made if there is none."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise UserError(f"cannot make the folder {self.path}: {e.strerror}") from e
        return self

    @contextlib.contextmanager
    def lock(self, patience: float = 0.0, mark: str = "config.json") -> Iterator[None]:
        """No other process may write here meanwhile; the lock of a killed process ends with it.

        `patience` is for how many seconds to wait for another process; at least so long that
        `tfm ls`, which looks at the lock for a moment, is never in the way. A folder that others
        have filled, which has no file `mark`, is refused. If what is done within fails before it
        has written anything, a folder that was not there before is not left behind.
        """
        check_path(self.path)
        self._check_own(mark)
        created = [path for path in (self.path, *self.path.parents) if not path.exists()]
        self.make()
        until = time.monotonic() + max(patience, 0.5)
        with self._open("lock", "w") as file:
            self._lock = file
            try:
                while not self._take():
                    if time.monotonic() >= until:
                        raise UserError(f"{self.path} is in use by another process")
                    time.sleep(0.1)
                try:
                    yield
                except Exception:
                    self.check_lock()  # what went wrong may come of a folder that is gone
                    self._remove_empty(created)
                    raise
            finally:
                self._lock = None

    def _remove_empty(self, created: list[pathlib.Path]) -> None:
        """Of the folders that were made for a run, remove those in which nothing was written."""
        if created and os.listdir(self.path) == ["lock"]:
            (self.path / "lock").unlink()
            with contextlib.suppress(OSError):  # others may have written there
                for path in created:
                    path.rmdir()

    def _take(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self.check_lock()
        return True

    def check_lock(self) -> None:
        """Raise if the folder that was locked is no longer at its path."""
        if self._lock is None:
            return
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self._lock.fileno()), os.stat(self.path / "lock")):
                return
        raise UserError(
            f"{self.path} was removed or moved while this process wrote to it; "
            "the process stops, and writes nothing more"
        )

    def _check_own(self, mark: str) -> None:
        """Raise if there are files here, and none says that they are ours."""
        if not self.path.is_dir() or (self.path / mark).exists():
            return
        ours = ("lock", "failure.json")
        try:
            found = sorted(p for p in self.path.iterdir() if p.name not in ours)
        except OSError as e:
            raise UserError(f"cannot read {self.path}: {e.strerror}") from e
        for path in found:  # in the folder of a sweep, other folders are runs
            if path.name[0] != "." and (mark == "config.json" or not path.is_dir()):
                raise UserError(
                    f"{self.path} holds {path.name} but no {mark}, so nothing is written there; "
                    "choose a new or empty folder"
                )

    def write(self, name: str, tree: Mapping[str, Any]) -> None:
        tree = without_nonfinite(tree)
        tree = {**tree, CHECKSUM: checksum(tree)}
        self.write_text(name, json.dumps(tree, indent=1, sort_keys=True) + "\n")

    def write_text(self, name: str, text: str) -> None:
        self.check_lock()
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

    def read(self, name: str) -> dict[str, Any] | None:
        """What a file holds, or None if there is no such file."""
        text = self._text(name)
        if text is None:
            return None
        try:
            tree = json.loads(text, parse_constant=_no_number)
        except (ValueError, RecursionError) as e:
            raise self._damaged(name, f"is not JSON: {e}") from e
        schema = SCHEMAS.get(name, dict)
        if name == "config.json" and isinstance(tree, dict) and set(tree) == set(IMPORTED):
            schema = IMPORTED
        if wrong := _wrong(tree, schema):
            raise self._damaged(name, wrong)
        if was_edited(tree):
            raise self._damaged(name, "was edited: its checksum differs")
        return {key: value for key, value in tree.items() if key != CHECKSUM}

    def summary(self, expected: str | None = None) -> dict[str, Any] | None:
        """The summary of a run, or None if it is not finished. What stands beside it must be whole
        and of the same run: the one with the id `expected`, where that is given."""
        if self.path.exists() and not self.path.is_dir():
            raise Damaged(f"{self.path} is no folder")
        config, summary = self.read("config.json"), self.read("summary.json")
        profile, _ = self.read("profile.json"), self.read("failure.json")
        known = expected or (config or summary or {}).get("id")
        if config is not None and config.get("id") != known:
            raise self._damaged("config.json", f"is of another run ({config.get('id')})")
        if profile is None and (self.path / "checkpoints").exists() and known is not None:
            raise self._damaged("profile.json", "is missing")
        if summary is None:
            return None
        for name, tree in {"config.json": config, "profile.json": profile}.items():
            if tree is None:
                raise self._damaged(name, "is missing")
        if summary["id"] != known:
            raise self._damaged("summary.json", f"is of another run ({summary['id']})")
        if summary["status"] == "done" and summary["valid"] is None:
            raise self._damaged("summary.json", "has no result: 'valid' is null")
        if [line["step"] for line in self.read_log()][-1:] != [summary["steps"]]:
            raise self._damaged(LOG, f"does not end with step {summary['steps']}")
        whole = zlib.crc32((self.path / LOG).read_bytes())
        if (profile or {}).get("log", whole) != whole:
            raise self._damaged(LOG, "is not as it was when the run ended")
        return summary

    def log(self, line: Mapping[str, Any]) -> None:
        self.check_lock()
        text = json.dumps(without_nonfinite(line)) + "\n"
        try:
            with self._open(LOG, "a") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except OSError as e:
            raise UserError(f"cannot write {self.path / LOG}: {e.strerror}") from e
        self.logged = zlib.crc32(text.encode(), self.logged)

    def read_log(self) -> list[dict[str, Any]]:
        """The lines of the log, without one that was being written when its process was killed."""
        lines, wrong = self._log_lines()
        if wrong:
            raise self._damaged(LOG, wrong)
        return [line for line, _ in lines]

    def logged_until(self, step: int) -> int:
        """The checksum of the log up to a step."""
        return zlib.crc32(self._until(step).encode())

    def truncate_log(self, step: int) -> None:
        """Remove from the log what comes after `step`: it will be computed again."""
        text = self._until(step)
        self.write_text(LOG, text)
        self.logged = zlib.crc32(text.encode())

    def _until(self, step: int) -> str:
        return "".join(text + "\n" for line, text in self._log_lines()[0] if line["step"] <= step)

    def _log_lines(self) -> tuple[list[tuple[dict[str, Any], str]], str]:
        """The lines before the first that cannot be read, as they are and as text; and what is
        wrong with that one, unless it is the last, which a kill may have torn."""
        found: list[tuple[dict[str, Any], str]] = []
        texts = (self._text(LOG, errors="surrogateescape") or "").split("\n")
        for number, text in enumerate(texts, 1):
            try:
                text.encode()
                line = json.loads(text, parse_constant=_no_number)
                split = line.get("split") if isinstance(line, dict) else None
                wrong = _wrong(line, LINES.get(str(split), {"split": set(LINES)}))
            except (ValueError, RecursionError) as e:
                wrong = f"is not JSON: {e}"
            if wrong:
                torn = number == len(texts)
                return found, "" if torn else f"is damaged: line {number} {wrong}"
            found.append((line, text))
        return found, ""

    def _text(self, name: str, errors: str = "strict") -> str | None:
        try:
            return (self.path / name).read_text("utf-8", errors)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as e:
            raise self._damaged(name, f"cannot be read: {e.strerror}") from e
        except UnicodeDecodeError as e:
            raise self._damaged(name, f"is not text: {e}") from e

    def _damaged(self, name: str, wrong: str) -> Damaged:
        return Damaged(f"{self.path / name} {wrong}")

    def _open(self, name: str, mode: str) -> Any:
        try:
            return open(self.path / name, mode)
        except OSError as e:
            raise UserError(f"cannot write {self.path / name}: {e.strerror}") from e


def _wrong(value: Any, schema: Any) -> str:
    """What is wrong with a value, if anything is. A schema is a type; a set of the values that are
    allowed; a tuple of schemas, one of which fits; a list of the schema that all elements have; or
    a dict of the keys that there must be, and of `str`, which is any other."""
    if isinstance(schema, tuple):
        wrongs = [_wrong(value, one) for one in schema]
        return "" if "" in wrongs else wrongs[0]
    if isinstance(schema, set):
        known = ", ".join(sorted(map(repr, schema)))
        fits = isinstance(value, str) and value in schema
        return "" if fits else f"holds {_short(value)} where one of {known} belongs"
    kind = schema if isinstance(schema, type) else type(schema)
    if schema is not object and type(value) is not kind:
        return f"holds {_short(value)} where a {kind.__name__} belongs"
    if isinstance(schema, list):
        return (
            "holds an empty list"
            if not value
            else next(filter(None, (_wrong(one, schema[0]) for one in value)), "")
        )
    if isinstance(schema, dict):
        for key in schema:
            if key is not str and key not in value:
                return f"has no {key!r}"
        for key, one in value.items():
            if wrong := _wrong(one, schema.get(key, schema.get(str, object))):
                return f"{wrong} ({key})"
    return ""


def _short(value: Any) -> str:
    return repr(value)[:40]


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number")
