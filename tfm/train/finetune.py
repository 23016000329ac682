"""Start a run from the weights of another: trained here, fine-tuned or imported."""

import pathlib
import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from tfm.checkpoint import Checkpoints, evaluated
from tfm.layers.stack import SCANNED, scanned, unrolled
from tfm.names import UserError

PARAMS = "params/"  # left out of the paths that a pattern is matched with


def initial_variables(
    variables: Mapping[str, Any], folder: str, pattern: str | None
) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """The variables of a model with those of a run folder whose paths match a pattern; and the
    paths of what was taken, of what was left there, and of what is fresh here."""
    _, saved, _ = Checkpoints(pathlib.Path(folder), read_only=True).variables("best")
    ours, theirs = _flat(variables), _flat(_like(evaluated(saved), variables))
    taken = sorted(path for path in theirs if path in ours and re.fullmatch(pattern or ".*", path))
    if not taken:
        raise UserError(
            f"train.init_pattern={pattern!r}: nothing in {folder} that matches is in this model, "
            f"which has {', '.join(sorted(ours)[:3])}, …"
        )
    for path in taken:
        if theirs[path].shape != ours[path].shape:
            raise UserError(
                f"train.init_from={folder!r}: {path} is {theirs[path].shape} there and "
                f"{ours[path].shape} here; train.init_pattern can leave it out"
            )
    new = {path: jax.numpy.asarray(np.asarray(theirs[path]), ours[path].dtype) for path in taken}
    report = {
        "taken": taken,
        "left": sorted(theirs.keys() - set(taken)),
        "fresh": sorted(ours.keys() - set(taken)),
    }
    names = {
        path: path if path in flatten_dict(variables, sep="/") else PARAMS + path for path in ours
    }
    return unflatten_dict({names[k]: x for k, x in {**ours, **new}.items()}, sep="/"), report


def _flat(variables: Mapping[str, Any]) -> dict[str, Any]:
    flat = flatten_dict(dict(variables), sep="/")
    return {path.removeprefix(PARAMS): leaf for path, leaf in flat.items()}


def _like(tree: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tree with its layers scanned or unrolled, as the other's are."""
    paths = [path.split("/") for path in flatten_dict(dict(other), sep="/")]
    return scanned(tree) if any(SCANNED in path for path in paths) else unrolled(tree)
