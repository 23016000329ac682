"""Start a run from the parameters of another: trained here, fine-tuned or imported."""

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


def initial_params(params: Any, folder: str, pattern: str) -> tuple[Any, dict[str, list[str]]]:
    """The parameters with those of a run folder whose paths match a pattern, and the paths of what
    was taken, of what was left there, and of what is new here."""
    checkpoints = Checkpoints(pathlib.Path(folder), read_only=True)
    _, variables, _ = checkpoints.variables("best")
    ours = flatten_dict(params, sep="/")
    theirs = flatten_dict(_as(evaluated(variables)["params"], params), sep="/")
    try:
        matching = {path for path in theirs if re.fullmatch(pattern, path)}
    except re.error as e:
        raise UserError(f"train.init_pattern={pattern!r} is no regular expression: {e}") from e
    taken = sorted(matching & ours.keys())
    if not taken:
        raise UserError(
            f"train.init_pattern={pattern!r}: no parameter of {folder} that matches is in this "
            f"model, which has {', '.join(sorted(ours)[:3])}, …"
        )
    for path in taken:
        if theirs[path].shape != ours[path].shape:
            raise UserError(
                f"train.init_from={folder!r}: {path} is {theirs[path].shape} there and "
                f"{ours[path].shape} here; train.init_pattern can leave it out"
            )
    new = {path: _cast(theirs[path], ours[path]) for path in taken}
    report = {
        "taken": taken,
        "left": sorted(theirs.keys() - set(taken)),
        "fresh": sorted(ours.keys() - set(taken)),
    }
    return unflatten_dict({**ours, **new}, sep="/"), report


def _cast(array: Any, like: Any) -> jax.Array:
    return jax.numpy.asarray(np.asarray(array), like.dtype)


def _as(tree: Mapping[str, Any], like: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tree with its layers scanned or unrolled, as the other's are."""
    paths = [path.split("/") for path in flatten_dict(like, sep="/")]
    return scanned(tree) if any(SCANNED in path for path in paths) else unrolled(tree)
