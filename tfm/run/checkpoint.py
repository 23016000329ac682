"""Checkpoints: written whole or not at all, and checked when they are read.

A checkpoint holds `variables`, with which a model is evaluated, and `training`, what else a run
needs to go on; an imported model has only the first. Orbax writes in the background, to a temporary
name that becomes the real one at the end.
"""

import json
import logging
import math
import pathlib
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy

from tfm.config.names import UserError, pick

Items = Mapping[str, Any]
WHICH = {"last": "the newest", "best": "the one with the lowest validation loss"}


class Checkpoints:
    """The checkpoints of a run folder: the last few, and the best."""

    def __init__(self, folder: pathlib.Path, keep: int = 1, read_only: bool = False):
        for name in ("absl", "asyncio"):  # Orbax raises what it logs as an error
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self.folder = (folder / "checkpoints").absolute()
        best = preservation_policy.BestN(
            get_metric_fn=_loss, reverse=True, n=1, keep_checkpoints_without_metrics=False
        )
        policy = [preservation_policy.LatestN(keep), best]
        options = ocp.CheckpointManagerOptions(
            preservation_policy=preservation_policy.AnyPreservationPolicy(policy),
            best_fn=_loss,  # without it Orbax does not write the losses
            best_mode="min",
            cleanup_tmp_directories=not read_only,
            read_only=read_only,
        )
        if read_only and not self.folder.is_dir():
            raise UserError(f"{folder} has no checkpoint")
        try:
            self.manager = ocp.CheckpointManager(self.folder, options=options)
        except ValueError as e:  # not JSON
            raise UserError(
                f"the losses in {self.folder} cannot be read ({e}); delete the checkpoint whose "
                "file metrics/metrics is damaged, and the run goes on from the one before"
            ) from e
        self.tested = read_only

    def save(self, step: int, items: Items, loss: float | None = None, log: int = 0) -> None:
        """Write in the background; without a finite loss it cannot be the best. `log` is a checksum
        of the log so far. The first one is read back at once, while little is lost."""
        known = loss is not None and math.isfinite(loss)
        trees = jax.device_get(dict(items))
        note = {"log": log, "loss": loss if known else None}
        note |= {name: checksum(tree) for name, tree in trees.items()}
        args = {name: ocp.args.StandardSave(tree) for name, tree in trees.items()}
        composite = ocp.args.Composite(**args, note=ocp.args.JsonSave(note))
        self.manager.save(step, args=composite, metrics={"loss": loss} if known else None)
        if not self.tested:
            self.wait()
            try:
                self.read(step, dict.fromkeys(trees))
            except UserError as e:
                raise UserError(f"{self.folder}: what was saved cannot be read back: {e}") from e
            self.tested = True

    def newest(
        self, like: Items, log: Callable[[int], int] | None = None
    ) -> tuple[dict[str, Any] | None, dict[int, str]]:
        """The newest checkpoint that is whole, and what is wrong with those that are newer. Where
        `log` is given, the checksum of the log up to a step, it must be as when it was saved."""
        damaged: dict[int, str] = {}
        for step in sorted(self.manager.all_steps(), reverse=True):
            try:
                return self.read(step, like, log), damaged
            except UserError as e:
                damaged[step] = str(e)
        if damaged:
            reasons = "; ".join(damaged.values())
            raise UserError(
                f"{self.folder}: no checkpoint can be read: {reasons}; delete the folder "
                f"{self.folder.parent} to run it again"
            )
        return None, damaged

    def read(
        self, step: int, like: Items, log: Callable[[int], int] | None = None
    ) -> dict[str, Any]:
        """The items that `like` names, in its shapes, or as they were saved where it has None."""
        args = {}
        for name, tree in like.items():
            shapes = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), tree)
            args[name] = ocp.args.StandardRestore(shapes)
        composite = ocp.args.Composite(**args, note=ocp.args.JsonRestore())
        try:
            found = self.manager.restore(step, args=composite)
            for name in like:
                if checksum(found[name]) != found["note"][name]:
                    raise UserError("its checksum differs")
        except Exception as e:  # whatever a damaged file makes Orbax raise
            raise _damaged(step, e) from e
        if log is not None and found["note"].get("log") not in (None, log(step)):
            raise UserError(f"checkpoint {step}: metrics.jsonl is not as it was when it was saved")
        return {name: found[name] for name in like}

    def variables(self, which: str) -> tuple[int, dict[str, Any], list[str]]:
        """The step and the variables of the checkpoint `last` or `best`, as they were saved; and
        messages about damaged ones."""
        pick(WHICH, which, "checkpoint")
        like = {"variables": None}
        step = self.best() if which == "best" else None
        if step is not None:
            return step, self.read(step, like)["variables"], []
        found, damaged = self.newest(like)
        if found is None:
            raise UserError(f"{self.folder.parent} has no checkpoint")
        step = max(set(self.manager.all_steps()) - set(damaged))
        messages = [f"{text}; reading the one before" for text in damaged.values()]
        return step, found["variables"], messages

    def digest(self, which: str) -> str:
        """A hash that changes with the variables of a checkpoint."""
        step = (self.best() if which == "best" else None) or self.manager.latest_step()
        if step is None:
            raise UserError(f"{self.folder.parent} has no checkpoint")
        return f"{step}:{self._note(step)['variables']}"

    def best(self) -> int | None:
        """The step with the lowest loss, of those that are kept."""
        losses = {step: self._note(step)["loss"] for step in self.manager.all_steps()}
        known = {step: loss for step, loss in losses.items() if loss is not None}
        return min(known, key=lambda step: (known[step], step)) if known else None

    def _note(self, step: int) -> dict[str, Any]:
        """What was noted of a checkpoint: its loss, and checksums."""
        try:
            args = ocp.args.Composite(note=ocp.args.JsonRestore())
            return {"loss": None, **self.manager.restore(step, args=args)["note"]}
        except Exception as e:
            raise _damaged(step, e) from e

    def delete(self, step: int) -> None:
        self.manager.delete(step)

    def wait(self) -> None:
        self.manager.wait_until_finished()

    def close(self) -> None:
        self.manager.close()


def _damaged(step: int, error: Exception) -> UserError:
    first = str(error).partition("\n")[0][:100]
    return UserError(f"checkpoint {step} is damaged ({first})")


def _loss(metrics: Mapping[str, float]) -> float:
    return metrics["loss"]


def evaluated(variables: Mapping[str, Any]) -> dict[str, Any]:
    """What a model is called with: the running mean of the parameters, where there is one."""
    params = variables.get("ema", variables["params"])
    return {"params": params, **variables.get("model_state", {})}


def checksum(tree: Any) -> int:
    """Of every number in a tree, and of its path, whatever kinds of node lead there."""
    total = 0
    leaves = {
        jax.tree_util.keystr(path, simple=True, separator="/"): x
        for path, x in jax.tree_util.tree_leaves_with_path(tree)
    }
    for path in sorted(leaves):
        array = np.ascontiguousarray(leaves[path])
        total = zlib.crc32(json.dumps([path, str(array.dtype), array.shape]).encode(), total)
        total = zlib.crc32(array.tobytes(), total)
    return total
