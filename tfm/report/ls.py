"""Finds the runs in a folder and reads their status: `tfm ls`."""

import dataclasses
import datetime
import fcntl
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from tfm import disk
from tfm.config.names import UserError
from tfm.run.folder import Damaged, Folder

DEPTH = 20  # folders within folders in which runs are sought
MARKS = ("config.json", "summary.json", "failure.json", "metrics.jsonl", "checkpoints")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Listed:
    """A run folder. Unknown fields are None."""

    name: str
    status: str  # done, diverged, failed, running, unfinished, imported, damaged; "?" is no run
    reason: str = ""  # why it failed, is damaged or is no run
    family: str | None = None
    objective: str | None = None
    dataset: str | None = None
    best: Mapping[str, Any] | None = None  # validation metrics where the loss is lowest
    headlines: tuple[str, ...] = ()  # the metrics among them that the objective puts first
    step: int | None = None
    steps: int | None = None
    when: str | None = None


def runs(folder: str) -> Iterator[Listed]:
    """Yields the runs below a folder, or the folder itself if it is a run, by name."""
    root = pathlib.Path(folder)
    if not os.path.isdir(root):
        raise UserError(f"no folder {folder}")
    paths = [root] if _is_run(root) else _find(root)
    for path in paths:
        name = path.name if path == root else str(path.relative_to(root))
        try:
            yield _read(path, name)
        except Damaged as e:
            yield Listed(name=name, status="damaged", reason=str(e), when=_when(path))
        except Exception as e:  # one bad folder must not hide the others
            reason = str(e) if isinstance(e, OSError) else f"{type(e).__name__}: {e}"
            yield Listed(name=name, status="?", reason=f"cannot be read: {reason}")


def _is_run(path: pathlib.Path) -> bool:
    return any(os.path.exists(path / mark) for mark in MARKS)


def _find(folder: pathlib.Path, depth: int = 0) -> Iterator[pathlib.Path]:
    """Yields runs, and folders without any run in or below them."""
    try:
        with os.scandir(folder) as entries:
            below = sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:  # _read gives the reason
        yield folder
        return
    sweep = os.path.exists(folder / "sweep.json")
    for path in map(pathlib.Path, below):
        if path.name.startswith(".") or (sweep and path.name == "workers"):
            continue
        if _is_run(path) or depth == DEPTH:
            yield path
        else:
            inside = list(_find(path, depth + 1))
            yield from inside if any(map(_is_run, inside)) else [path]


def _read(path: pathlib.Path, name: str) -> Listed:
    os.listdir(path)  # raises if it cannot be read
    folder = Folder(path)
    summary = folder.summary()
    config, failure = folder.read("config.json"), folder.read("failure.json")
    if config is None and failure is None:
        return Listed(name=name, status="?", reason="no run: it has no config.json")
    config = config or {}
    known = {
        "name": name,
        "family": config.get("model", {}).get("family"),
        "objective": config.get("objective"),
        "dataset": config.get("data", {}).get("dataset"),
        "steps": config.get("train", {}).get("steps"),
        "when": _when(path),
    }
    if summary is not None:
        known |= {"best": summary["best"], "step": summary["steps"]}
        declared = summary.get("metrics", {}).get("loss", ())
        headlines = tuple(metric["name"] for metric in declared if metric.get("headline"))
        return Listed(**known, status=summary["status"], headlines=headlines)
    lines = folder.read_log()
    valid = [x for x in folder.read_log("valid") if x.get("loss") is not None]
    best = min(valid, key=lambda line: line["loss"], default=None)
    if best is not None:
        del best["split"]
    far = {**known, "best": best, "step": lines[-1]["step"] if lines else 0}
    if _locked(path):
        return Listed(**far, status="running")
    if failure is not None:
        return Listed(**far, status="failed", reason=failure["error"])
    if known["dataset"] == "none":
        return Listed(**known, status="imported")
    return Listed(**far, status="unfinished")


def _when(path: pathlib.Path) -> str | None:
    """Returns the time of the last change of its files, in local time."""
    files = [path / mark for mark in MARKS if os.path.isfile(path / mark)]
    if not files:
        return None
    last = datetime.datetime.fromtimestamp(max(map(os.path.getmtime, files)))
    return last.isoformat(timespec="seconds")


def _locked(path: pathlib.Path) -> bool:
    """Returns True if a process is writing to the run."""
    try:
        with disk.open_file(path / "lock", "rb", path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as e:  # without BlockingIOError, there is no lock, or it cannot be read
        return isinstance(e, BlockingIOError)
    return False
