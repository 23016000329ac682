"""The identity of a run and its profile: settings, code, and where it runs."""

import contextlib
import datetime
import functools
import json
import os
import pathlib
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

import jax

from tfm import runtime
from tfm.config.files import user_entries
from tfm.config.provenance import hash_of
from tfm.config.registries import TABLES
from tfm.config.spec import differences, named
from tfm.models.spec import FAMILIES
from tfm.run.checkpoint import Checkpoints
from tfm.run.folder import Folder
from tfm.run.library_code import SETTINGS, made_by, symbol_of
from tfm.run.spec import RunSpec

NO_RESULT = ("log_every", "save_every", "keep")  # settings that change no number


def init_digest(run: RunSpec, workdir: str | None = None) -> str | None:
    """Hashes the weights that a run starts from, if it starts from another run.

    A run that has begun in `workdir` keeps its hash, so that the other run may continue or be
    deleted.
    """
    if run.train.init_from is None:
        return None
    known = None if workdir is None else Folder(workdir).read("config.json")
    if known is not None and "init_digest" in known:
        return known["init_digest"]
    return Checkpoints(pathlib.Path(run.train.init_from), read_only=True).digest("best")


def identity(
    run: RunSpec, fingerprints: Sequence[str], entries: Mapping[str, str], init: str | None = None
) -> str:
    """Hashes what decides the result of a run whose sizes are known.

    That is its settings off their defaults without paths and log intervals, the `fingerprints` of
    its data, the `digests` of the user's entries and the `init_digest` of its first weights.
    """
    settings = differences(run)
    for group, ignored in {"data": ("dataset", "tests", "tokenizer"), "train": NO_RESULT}.items():
        settings[group] = {k: v for k, v in settings[group].items() if k not in ignored}
    if init is not None:  # the weights count, not where they lie
        settings["train"]["init_from"] = init
    settings |= {"family": run.model.family, "fingerprints": list(fingerprints)}
    return hash_of(json.dumps({**settings, "entries": entries}, sort_keys=True))


def digests(run: RunSpec) -> dict[str, str]:
    """Returns the digests of the user's entries that a run names."""
    return {name: entry.digest for name, entry in user_entries(run).items()}


def entries(run: RunSpec) -> dict[str, list[str]]:
    """Returns the entries of the library's tables that a run names, by module:TABLE."""
    names: dict[Any, set[str]] = {symbol_of(table): set() for table in TABLES.values()}
    for table, text in named(run):
        names.setdefault(symbol_of(table), set()).update(text.names)
    names[symbol_of(FAMILIES)] = {run.model.family}
    return {":".join(symbol): sorted(used) for symbol, used in names.items() if symbol is not None}


def profile(run: RunSpec) -> dict[str, Any]:
    """Returns what decides the numbers besides the config; within one profile, bits are equal."""
    return {
        "entries": entries(run),
        "made_by": {**made_by(entries(run)), SETTINGS: runtime.settings()},
        "platform": jax.default_backend(),
        "devices": [str(device.device_kind) for device in jax.devices()],
        "processor": _processor(),
        "cores": len(runtime.cores()),
    }


def profiles(folder: Folder) -> dict[str, Any]:
    """Returns the profiles of a run and, when it has ended, the checksum of its log."""
    return folder.read("profile.json") or {"profiles": []}


def record_profile(run: RunSpec, folder: Folder, warn: Callable[[str], None]) -> None:
    """Records where and how a run is started; warns if its profile has changed."""
    known, now = profiles(folder), profile(run)
    before, starts = known["profiles"], known.get("starts", [])
    if before and now != before[-1]:
        keys = ", ".join(key for key in now if now[key] != before[-1].get(key))
        warn(f"begun under another profile ({keys}): bits may differ from one run")
    after = before if now in before[-1:] else [*before, now]
    packages = {package.name: package.version for package in metadata.distributions()}
    start: dict[str, Any] = {
        "command": sys.argv,
        "commit": _commit(),
        "host": platform.node(),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    if packages not in [start.get("packages") for start in starts]:
        start["packages"] = packages
    folder.write("profile.json", {**known, "profiles": after, "starts": [*starts, start]})


@functools.cache
def _commit() -> str | None:
    """Returns the commit of the library's own repository, with a "+" if files differ from it.

    Git runs programs that the settings of a repository name. The library's repository is trusted,
    since its code is running; one that the current folder belongs to is not.
    """
    root = pathlib.Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    at = ["git", f"--git-dir={root / '.git'}", f"--work-tree={root}"]
    command = [*at, "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=True, cwd=root, env=env
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
