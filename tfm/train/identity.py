"""What decides a result: the settings of a run, the code that runs it, and where it runs."""

import contextlib
import functools
import hashlib
import json
import os
import pathlib
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import jax

import tfm
from tfm import origin
from tfm.checkpoint import Checkpoints
from tfm.config import user_entries
from tfm.folder import Folder
from tfm.run.spec import RunSpec
from tfm.spec import differences

NO_RESULT = ("log_every", "save_every", "keep")  # settings that change no number
DECIDES = (
    *("names.py", "spec.py", "checkpoint.py", "ops", "data", "layers", "models"),
    *("objectives", "optim", "run", "evaluate", "train"),
)
NO_EFFECT_ON_RESULTS = (
    *("evaluate/main.py", "run/load.py"),
    *("train/board.py", "train/identity.py", "train/main.py"),
)
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")


def init_digest(run: RunSpec, workdir: str | None = None) -> str | None:
    """A hash of the weights that a run starts from. A run that has begun in `workdir` keeps its
    own, so that the other run may go on or be deleted."""
    if run.train.init_from is None:
        return None
    known = None if workdir is None else Folder(workdir).read("config.json")
    if known is not None and "init_digest" in known:
        return known["init_digest"]
    return Checkpoints(pathlib.Path(run.train.init_from), read_only=True).digest("best")


def identity(run: RunSpec, fingerprints: Sequence[str], init: str | None = None) -> str:
    """A hash of what decides the result: settings off their defaults, the data, and the source of
    the entries of users' own tables. Not paths, nor how often it is logged.

    The run is one whose sizes are filled in, `fingerprints` are those of its data, and `init` is
    its `init_digest`.
    """
    settings = differences(run)
    for group, ignored in {"data": ("dataset", "tests"), "train": NO_RESULT}.items():
        settings[group] = {k: v for k, v in settings[group].items() if k not in ignored}
    if init is not None:  # the weights count, not where they lie
        settings["train"]["init_from"] = init
    own = {name: entry.digest for name, entry in user_entries(run).items()}
    more = {"family": run.model.family, "fingerprints": list(fingerprints), "entries": own}
    return _digest({**settings, **more})


def _digest(tree: Any) -> str:
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:16]


@functools.cache
def made_by() -> dict[str, str]:
    """The code that makes results: the library's, and the versions of what it imports."""
    root = pathlib.Path(tfm.__file__).parent
    files = {path.relative_to(root).as_posix(): path for path in root.rglob("*.py")}
    code = {
        name: origin.source(path)
        for name, path in sorted(files.items())
        if name.partition("/")[0] in DECIDES and name not in NO_EFFECT_ON_RESULTS
    }
    return {"tfm": _digest(code), **{name: metadata.version(name) for name in PACKAGES}}


def is_stale(profiles: Mapping[str, Any] | None) -> bool:
    """Whether other code took part in a run, given the content of its profile.json."""
    return any(one["made_by"] != made_by() for one in (profiles or {}).get("profiles", ()))


def profile() -> dict[str, Any]:
    """What decides the rounding of a run besides its config. Within one profile, bits are equal."""
    return {
        "made_by": made_by(),
        "platform": jax.default_backend(),
        "devices": [str(device.device_kind) for device in jax.devices()],
        "processor": _processor(),
        "cores": len(cores()),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def cores() -> list[int]:
    """The cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return sorted(affinity(0)) if affinity else list(range(os.cpu_count() or 1))


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
