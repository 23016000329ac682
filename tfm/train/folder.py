"""A run is a folder: its config, its log, its summary and its checkpoints.

Every file is written whole or not at all, but for the log, which grows by lines.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
import platform
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any

from tfm.names import UserError


class Folder:
    """The files of one run."""

    def __init__(self, path: str | pathlib.Path):
        self.path = pathlib.Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise UserError(f"cannot make the folder {self.path}: {e.strerror}") from e

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else may write here meanwhile; a killed process lets go by dying."""
        with self._open("lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"{self.path} is in use by another process") from None
            yield

    def write(self, name: str, tree: Mapping[str, Any]) -> None:
        temporary = self.path / f".{name}.{os.getpid()}"
        with self._open(temporary.name, "w") as file:
            file.write(json.dumps(tree, indent=1, sort_keys=True) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path / name)

    def read(self, name: str) -> dict[str, Any] | None:
        try:
            return json.loads((self.path / name).read_text())
        except FileNotFoundError:
            return None

    def log(self, line: Mapping[str, Any]) -> None:
        with self._open("metrics.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def logged(self) -> list[dict[str, Any]]:
        """The lines of the log that are whole."""
        found = []
        with contextlib.suppress(FileNotFoundError):
            for text in (self.path / "metrics.jsonl").read_text().splitlines():
                try:
                    found.append(json.loads(text))
                except ValueError:  # the line that was being written when it was killed
                    break
        return found

    def forget_after(self, step: int) -> None:
        """Take out of the log what comes after `step`: it will be computed again."""
        kept = [line for line in self.logged() if line["step"] <= step]
        temporary = self.path / f".metrics.jsonl.{os.getpid()}"
        with self._open(temporary.name, "w") as file:
            file.writelines(json.dumps(line) + "\n" for line in kept)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path / "metrics.jsonl")

    def _open(self, name: str, mode: str) -> Any:
        try:
            return open(self.path / name, mode)
        except OSError as e:
            raise UserError(f"cannot write {self.path / name}: {e.strerror}") from e


def different(spec: Any) -> dict[str, Any]:
    """The settings of a spec that differ from their defaults."""
    out: dict[str, Any] = {}
    for field in dataclasses.fields(spec):
        value = getattr(spec, field.name)
        default: Any
        if field.default is not dataclasses.MISSING:
            default = field.default
        elif field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        else:
            default = dataclasses.MISSING
        if dataclasses.is_dataclass(value):
            same_kind = dataclasses.is_dataclass(default) and type(default) is type(value)
            if not same_kind or value != default:
                out[field.name] = different(value)
        elif value != default:
            out[field.name] = value
    return out


def digest(tree: Any) -> str:
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:16]


def profile() -> dict[str, Any]:
    """What decides the rounding of a run besides its config."""
    import jax

    return {
        "tfm": metadata.version("tfm"),
        "jax": jax.__version__,
        "platform": jax.default_backend(),
        "devices": [str(device.device_kind) for device in jax.devices()],
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
