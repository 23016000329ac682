"""What decides a result: the settings of a run, the code that runs it, and where it runs."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

import jax

import tfm
from tfm import origin
from tfm.config import Entry, brought
from tfm.train.spec import RunSpec

NO_RESULT = ("log_every", "save_every", "keep")  # settings that change no number
DECIDES = ("names.py", "ops", "data", "layers", "models", "objectives", "evaluate", "train")
ONLY_TELLS = ("train/board.py", "train/folder.py", "train/identity.py", "train/main.py")
READ_BY = {  # the fields that name entries of a table
    "score": "SCORES",
    "mask": "MASKS",
    "decoder_mask": "MASKS",
    "normalizer": "NORMALIZERS",
    "scheme": "POSITIONS",
    "decoder_scheme": "POSITIONS",
    "join": "JOINS",
    "task": "TASKS",
    "tests": "TASKS",
}
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")


def identity(run: RunSpec, fingerprints: Sequence[str]) -> str:
    """A hash of what decides the result: settings off their defaults, the data, and the source of
    what the user's own files bring. Not paths, nor how often it is logged."""
    settings = {
        "seed": run.seed,
        "objective": run.objective,
        "family": run.model.family,
        "model": different(run.model),
        "data": {k: v for k, v in different(run.data).items() if k not in ("task", "tests")},
        "sources": list(fingerprints),
        "optimizer": different(run.optimizer),
        "train": {k: v for k, v in different(run.train).items() if k not in NO_RESULT},
    }
    own = {name: entry.digest for name, entry in entries(run).items()}
    return _digest(settings | ({"entries": own} if own else {}))


def entries(run: RunSpec) -> dict[str, Entry]:
    """What the run uses of users' own tables."""
    named: dict[str, list[str]] = {table: [] for table in READ_BY.values()}
    for field, text in _texts(dataclasses.asdict(run)):
        if field in READ_BY:
            named[READ_BY[field]].append(text)
    return brought(named)


def _texts(tree: Any, field: str = "") -> Iterator[tuple[str, str]]:
    """Every text of a run, with the name of its field."""
    if isinstance(tree, str):
        yield field, tree
    elif isinstance(tree, Mapping):
        for name, value in tree.items():
            yield from _texts(value, name)
    elif isinstance(tree, tuple | list):
        for value in tree:
            yield from _texts(value, field)


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


def _digest(tree: Any) -> str:
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:16]


@functools.cache
def made_by() -> dict[str, str]:
    """The code that makes results: what of the library decides them, and what that stands on."""
    root = pathlib.Path(tfm.__file__).parent
    files = {path.relative_to(root).as_posix(): path for path in root.rglob("*.py")}
    code = {
        name: origin.source(path)
        for name, path in sorted(files.items())
        if name.partition("/")[0] in DECIDES and name not in ONLY_TELLS
    }
    return {"tfm": _digest(code), **{name: metadata.version(name) for name in PACKAGES}}


def is_stale(profiles: Mapping[str, Any] | None) -> bool:
    """Whether other code had a part in a run, of whose profile.json this is the content."""
    return any(one["made_by"] != made_by() for one in (profiles or {}).get("profiles", ()))


def profile() -> dict[str, Any]:
    """What decides the rounding of a run besides its config: within one profile, bits are kept."""
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
