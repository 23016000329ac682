"""The files of a run folder: config, log, summary, profile and checkpoints.

Every file is written whole or not at all, except for the log, which grows by lines. Every file is
checked when it is read, and one that was cut off, edited or replaced raises `Damaged`.
"""

import contextlib
import errno
import fcntl
import json
import math
import os
import pathlib
import shlex
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from tfm import disk
from tfm.config.names import UserError
from tfm.disk import CHECKSUM, checksum, was_edited

FORMAT = 1  # of run folders; config.json has it, except for folders of format 0
DISK_ERRORS = [os.strerror(e) for e in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)]
GLOB = "*?[]\\"  # Orbax reads these in a path as a pattern and then finds no files
LOG = "metrics.jsonl"
NUMBER = float | int | None
CONFIG = ("model", "family", str), ("data", "dataset", str), ("train", "steps", int)  # in tables


class Damaged(UserError):  # noqa: N818
    """A file of a run folder is not what was written."""


def _check(tree: Any, /, **types: Any) -> None:
    """Raises ValueError unless `tree` is a dict with values of these types."""
    if not isinstance(tree, dict):
        raise ValueError(f"holds {repr(tree)[:40]} where a dict belongs")
    for name, kind in types.items():
        if name not in tree:
            raise ValueError(f"has no {name!r}")
        endless = isinstance(tree[name], int) and abs(tree[name]) > sys.float_info.max
        if isinstance(tree[name], bool) or not isinstance(tree[name], kind) or endless:
            text = getattr(kind, "__name__", kind)
            raise ValueError(f"holds {repr(tree[name])[:40]} where a {text} belongs ({name})")


def _check_file(name: str, tree: Any) -> None:
    """Raises ValueError unless a file, or a line of the log, has what its readers use."""
    match name:
        case "config.json":
            if isinstance(tree, dict) and tree.keys() <= {"format", "model"}:
                command = "tfm import HF_FOLDER --workdir=FOLDER"
                raise ValueError(f"has no 'objective': an older version imported it; run {command}")
            _check(tree, model=dict, objective=str, data=dict, train=dict)
            for part, key, kind in CONFIG:
                _check({key: tree[part].get(key)}, **{key: kind | None})
            if tree["data"].get("dataset") != "none":  # which imported models have, and no id
                _check(tree, id=str)
        case "summary.json":
            _check(tree, id=str, status=str, steps=int, skipped=int, parameters=int, flops=int)
            _check(tree, valid=dict | None, best=dict | None, tests=dict)
            _check({"metrics": {}, **tree}, metrics=dict)
            if tree["status"] not in ("diverged", "done"):
                text = "where one of 'diverged', 'done' belongs (status)"
                raise ValueError(f"holds {tree['status']!r} {text}")
            losses = [metrics for metrics in (tree["valid"], tree["best"]) if metrics is not None]
            for metrics in losses:
                _check(metrics, loss=NUMBER)
            for metrics in (*losses, *tree["tests"].values()):
                _check(metrics)
                _check(metrics, **dict.fromkeys(metrics, NUMBER))
            for metric in _list({"loss": [{"name": ""}], **tree.get("metrics", {})}, "loss"):
                _check(metric, name=str)
        case "profile.json":
            for profile in _list(tree, "profiles"):
                _check(profile, entries=dict, made_by=dict)
                _check(profile["entries"], **dict.fromkeys(profile["entries"], list))
        case "sweep.json":
            _check(tree, study=str, question=str, metric=str)
            for run in _list(tree, "runs"):
                _check(run, id=str, variant=str, task=str, seed=int, point=dict)
        case "failure.json":
            _check(tree, error=str)
        case "data.json":
            _check(tree, fingerprint=str, vocab=int, vocabulary=str | None)
        case "metrics.jsonl":
            _check(tree, step=int, split=str)
            needed = {"train": {"seconds": NUMBER}, "valid": {"loss": NUMBER}}
            _check(tree, **needed.get("" if "evaluator" in tree else tree["split"], {}))
        case _:
            _check(tree)


def _list(tree: Any, name: str) -> list[Any]:
    _check(tree, **{name: list})
    if not tree[name]:
        raise ValueError(f"holds an empty list ({name})")
    return tree[name]


@contextlib.contextmanager
def disk_errors(path: str, note: str = "; what was saved is kept") -> Iterator[None]:
    """Raises UserError if the disk is full or read-only, whatever library meets it."""
    try:
        yield
    except Exception as e:  # Orbax and TensorStore raise many types
        reason = next((text for text in DISK_ERRORS if text in str(e)), None)
        if reason is None:
            raise
        raise UserError(f"cannot write to {path}: {reason}{note}") from e


@contextlib.contextmanager
def _os_errors(action: str) -> Iterator[None]:
    """Raises UserError if the operating system refuses an action, such as `write FILE`."""
    try:
        yield
    except OSError as e:
        named = e.filename is None or str(e.filename) in action
        raise UserError(f"cannot {action}: {'' if named else f'{e.filename}: '}{e.strerror}") from e


def without_nonfinite(tree: Any) -> Any:
    """Replaces numbers that JSON does not have by None."""
    if isinstance(tree, Mapping):
        return {key: without_nonfinite(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [without_nonfinite(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


def check_format(path: str | pathlib.Path, config: Mapping[str, Any]) -> None:
    """Raises if a config.json has a format that this version does not know."""
    number = config.get("format", 0)
    if type(number) is not int or not 0 <= number <= FORMAT:
        raise Damaged(
            f"{path} has the format {number!r}, and this version of tfm reads formats up to "
            f"{FORMAT}: install the version that wrote it (pip install -U tfm)"
        )


def upgraded(config: Mapping[str, Any]) -> dict[str, Any]:
    """Renames settings of an older format."""
    new = json.loads(json.dumps(config))
    match new:
        case {"model": {"dropout": {"teacher": _} as dropout}}:
            dropout["scheduled_sampling"] = dropout.pop("teacher")
    return new


def check_path(path: str | pathlib.Path) -> None:
    """Raises for a path from which checkpoints could not be read back."""
    for sign in GLOB:
        if sign in os.path.abspath(path):
            raise UserError(
                f"{os.path.abspath(path)!r} has a {sign} in it, and checkpoints cannot be read "
                f"from such a path; choose one without any of {' '.join(GLOB)}"
            )


class Folder:
    """The files of a run or of a sweep."""

    logged = 0  # checksum of the log as far as this process has written or kept it
    _log_size = 0  # and its bytes

    def __init__(self, path: str | pathlib.Path):
        self.path = pathlib.Path(path)
        self._lock: Any = None

    def make(self) -> "Folder":
        """Creates the folder unless it exists."""
        with _os_errors(f"make the folder {self.path}"):
            self.path.mkdir(parents=True, exist_ok=True)
        return self

    @contextlib.contextmanager
    def lock(self, patience: float = 0.0, mark: str = "config.json") -> Iterator[None]:
        """Keeps other processes from writing here; the lock of a killed process ends with it.

        Waits up to `patience` seconds for another process, and at least as long as `tfm ls` looks
        at the lock. Refuses a folder with files of others: one without the file `mark`. If the body
        fails before it writes anything, a folder that was created for it is removed.
        """
        check_path(self.path)
        self._check_own(mark)
        created = [path for path in (self.path, *self.path.parents) if not path.exists()]
        self.make()
        until = time.monotonic() + max(patience, 0.5)
        with _os_errors(f"write {self.path / 'lock'}"):
            file = disk.open_file(self.path / "lock", "ab", self.path)
        with file:
            self._lock = file
            try:
                while True:
                    with contextlib.suppress(BlockingIOError):
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    if time.monotonic() >= until:
                        raise UserError(f"{self.path} is in use by another process")
                    time.sleep(0.1)
                self.check_lock()
                with _os_errors(f"use {self.path}"):
                    disk.check_tree(self.path, deep=mark == "config.json")
                try:
                    yield
                except Exception:
                    self.check_lock()  # the cause may be that the folder is gone
                    if created and os.listdir(self.path) == ["lock"]:
                        (self.path / "lock").unlink()
                        with contextlib.suppress(OSError):  # others may have written there
                            for path in created:
                                path.rmdir()
                    raise
            finally:
                self._lock = None

    def check_lock(self) -> None:
        """Raises if the folder that was locked is no longer at its path."""
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
        """Raises if the folder has files but not the one that marks it as ours."""
        if not os.path.isdir(self.path) or os.path.lexists(self.path / mark):
            return
        with _os_errors(f"read {self.path}"):
            paths = sorted(self.path.iterdir())
        for path in paths:
            ours = path.name in ("lock", "failure.json") or path.name.startswith(".")
            is_run = mark != "config.json" and path.is_dir()  # the folder of a sweep has runs
            if not ours and not is_run:
                raise UserError(
                    f"{self.path} holds {path.name} but no {mark}, so nothing is written there; "
                    "choose a new or empty folder"
                )

    def write(self, name: str, tree: Mapping[str, Any]) -> None:
        """Writes a JSON file with a checksum; config.json gets the format as well."""
        tree = without_nonfinite({**tree, "format": FORMAT} if name == "config.json" else tree)
        tree = {**tree, CHECKSUM: checksum(tree)}
        self.write_text(name, json.dumps(tree, indent=1, sort_keys=True) + "\n")

    def write_text(self, name: str, text: str) -> None:
        self.check_lock()
        with _os_errors(f"write {self.path / name}"):
            disk.write_file(self.path / name, text.encode())

    def read(self, name: str) -> dict[str, Any] | None:
        """Returns the content of a JSON file, or None if there is none."""
        text = self._text(name)
        if text is None:
            return None
        try:
            tree = disk.parse_json(text, _no_number)
        except ValueError as e:
            raise self._damaged(name, f"is not JSON: {e}") from e
        try:
            _check_file(name, tree)
        except ValueError as e:
            raise self._damaged(name, str(e)) from e
        if was_edited(tree):
            raise self._damaged(name, "was edited: its checksum differs")
        if name == "config.json":
            check_format(self.path / name, tree)
        return {key: value for key, value in tree.items() if key != CHECKSUM}

    def rerun(self) -> str:
        """Returns the command that started the run, or a description of it."""
        with contextlib.suppress(Damaged):
            for start in (self.read("profile.json") or {}).get("starts", ()):
                return shlex.join(["tfm", *start["command"][1:]])
        return "tfm train --config=FILE.py --workdir=FOLDER"

    def summary(self, expected: str | None = None) -> dict[str, Any] | None:
        """Returns the summary of a run, or None if the run is not finished.

        Raises if a file beside it is damaged, missing or from a run with an id other than
        `expected`.
        """
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
        if config is None or profile is None:
            raise self._damaged("config.json" if config is None else "profile.json", "is missing")
        if summary["id"] != known:
            raise self._damaged("summary.json", f"is of another run ({summary['id']})")
        if summary["status"] == "done" and summary["valid"] is None:
            raise self._damaged("summary.json", "has no result: 'valid' is null")
        if [line["step"] for line in self.read_log()][-1:] != [summary["steps"]]:
            raise self._damaged(LOG, f"does not end with step {summary['steps']}")
        whole = zlib.crc32(self._bytes(LOG) or b"")
        if profile.get("log", whole) != whole:
            raise self._damaged(LOG, "is not as it was when the run ended")
        return summary

    def log(self, line: Mapping[str, Any]) -> None:
        """Appends a line to the log, which `truncate_log` has made."""
        content = (json.dumps(without_nonfinite(line)) + "\n").encode()
        self.check_lock()
        path = self.path / LOG
        with _os_errors(f"write {path}"), disk.open_file(path, "r+b", self.path) as file:
            if file.seek(0, os.SEEK_END) != self._log_size:
                raise OSError(errno.ESTALE, "another process has changed it")
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self._log_size += len(content)
        self.logged = zlib.crc32(content, self.logged)

    def check_log(self) -> None:
        """Raises if the log is not as this process has written it."""
        if zlib.crc32(self._bytes(LOG) or b"") != self.logged:
            raise UserError(f"{self.path / LOG} was changed by another process: start again")

    def read_log(self, split: str | None = None) -> list[dict[str, Any]]:
        """Returns the lines of the log, without a last one that a kill has cut off.

        With `split`, only the lines of training ("train"), or of the objective's metrics ("valid").
        """
        lines, error = self._log_lines()
        if error:
            raise self._damaged(LOG, error)
        if split is None:
            return [line for line, _ in lines]
        return [line for line, _ in lines if line["split"] == split and "evaluator" not in line]

    def logged_until(self, step: int) -> int:
        """Returns the checksum of the log up to a step."""
        return zlib.crc32(self._until(step).encode())

    def truncate_log(self, step: int) -> None:
        """Removes the lines after `step`, which will be computed again."""
        text = self._until(step)
        self.write_text(LOG, text)
        self.logged, self._log_size = zlib.crc32(text.encode()), len(text.encode())

    def _until(self, step: int) -> str:
        """Returns the log up to a step. Evaluations after training come after its checkpoint."""
        lines = [(line, text) for line, text in self._log_lines()[0] if "after" not in line]
        return "".join(text + "\n" for line, text in lines if line["step"] <= step)

    def _log_lines(self) -> tuple[list[tuple[dict[str, Any], str]], str]:
        """Returns the readable lines, parsed and as text, up to the first that is damaged.

        Also returns what is wrong with that one, unless it is the last, which a kill may cut off.
        """
        lines: list[tuple[dict[str, Any], str]] = []
        texts = (self._text(LOG, errors="surrogateescape") or "").split("\n")
        for number, text in enumerate(texts, 1):
            try:
                text.encode()
                line = disk.parse_json(text, _no_number)
                _check_file(LOG, line)
            except ValueError as e:
                return lines, f"is damaged: line {number} {e}" if number < len(texts) else ""
            lines.append((line, text))
        return lines, ""

    def _text(self, name: str, errors: str = "strict") -> str | None:
        content = self._bytes(name)
        try:
            return None if content is None else content.decode("utf-8", errors)
        except UnicodeDecodeError as e:
            raise self._damaged(name, f"is not text: {e}") from e

    def _bytes(self, name: str) -> bytes | None:
        try:
            return disk.read_bytes(self.path / name, self.path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as e:
            raise self._damaged(name, f"cannot be read: {e.strerror}") from e

    def _damaged(self, name: str, reason: str) -> Damaged:
        return Damaged(f"{self.path / name} {reason}")


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number")
