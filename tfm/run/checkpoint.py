"""Checkpoints: written whole or not at all, and checked when they are read.

A checkpoint holds `variables`, with which a model is evaluated, and `training`, the rest of the
state that a run resumes from; an imported model has only the first. Orbax writes in the background
to a temporary name, which it renames at the end.
"""

import contextlib
import errno
import json
import logging
import math
import os
import pathlib
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy

from tfm import disk
from tfm.config.names import UserError, pick

Items = Mapping[str, Any]
WHICH = {"last": "the newest", "best": "the one with the lowest validation loss"}


class Checkpoints:
    """The checkpoints of a run folder: the last few, and the best."""

    def __init__(self, folder: pathlib.Path, keep: int = 1, read_only: bool = False):
        for name in ("absl", "asyncio"):  # Orbax also raises the errors that it logs
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
        self._opened: int | None = None
        try:
            disk.located(self.folder, folder)
            if not read_only:
                self.folder.mkdir(parents=True, exist_ok=True)
            disk.check_tree(self.folder, large="d")  # which has the arrays
            for path in self.folder.iterdir():
                if path.name.isdecimal() and not path.is_dir():
                    raise OSError(errno.ENOTDIR, "it is no folder", str(path))
        except FileNotFoundError:
            raise UserError(f"{folder} has no checkpoint") from None
        except OSError as e:
            raise UserError(f"cannot use {e.filename or self.folder}: {e.strerror}") from e
        try:
            path = self.folder if read_only else self._open()
            self.manager = ocp.CheckpointManager(path, options=options)
        except Exception as e:  # whatever a damaged file makes Orbax raise
            raise UserError(
                f"the losses in {self.folder} cannot be read ({_first_line(e)}); delete the "
                "checkpoint whose file metrics/metrics is damaged, and the run goes on from the "
                "one before"
            ) from e
        self.tested = read_only

    def _open(self) -> pathlib.Path:
        """Opens the folder; returns a path that stays with it when it is moved. Orbax would write
        in the background to whatever is at the old path by then."""
        self._opened = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        path = pathlib.Path(f"/proc/self/fd/{self._opened}")
        return path if path.is_dir() else self.folder

    @contextlib.contextmanager
    def _in_place(self) -> Iterator[None]:
        """Raises if the folder is not at its path, before it is written to or after that failed."""
        try:
            self._check_place()
            yield
        except Exception:
            self._check_place()
            raise

    def _check_place(self) -> None:
        if self._opened is not None:
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(self._opened), os.stat(self.folder)):
                    return
            raise UserError(
                f"{self.folder} was removed or moved while this process wrote to it; the process "
                "stops, and writes nothing more"
            )

    def save(self, step: int, items: Items, loss: float | None = None, log: int = 0) -> None:
        """Writes a checkpoint in the background; without a finite loss it cannot be the best.

        `log` is a checksum of the log so far. The first checkpoint is read back at once, while
        little is lost if that fails.
        """
        known = loss is not None and math.isfinite(loss)
        trees = jax.device_get(dict(items))
        note = {"log": log, "loss": loss if known else None}
        note |= {name: checksum(tree) for name, tree in trees.items()}
        args = {name: ocp.args.StandardSave(tree) for name, tree in trees.items()}
        composite = ocp.args.Composite(**args, note=ocp.args.JsonSave(note))
        with self._in_place():
            self.manager.save(step, args=composite, metrics={"loss": loss} if known else None)
        if not self.tested:
            self.wait()
            try:
                Checkpoints(self.folder.parent, read_only=True).read(step, dict.fromkeys(trees))
            except UserError as e:
                raise UserError(f"{self.folder}: what was saved cannot be read back: {e}") from e
            self.tested = True

    def newest(
        self, like: Items, log: Callable[[int], int] | None = None
    ) -> tuple[dict[str, Any] | None, dict[int, str]]:
        """Returns the newest undamaged checkpoint, and errors of newer ones by step.

        With `log`, which returns the checksum of the log up to a step, that must be the one that
        was saved.
        """
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
        """Returns the items that `like` names, in its shapes, or as saved where it has None."""
        args = {}
        for name, tree in like.items():
            shapes = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), tree)
            args[name] = ocp.args.StandardRestore(shapes)
        composite = ocp.args.Composite(**args, note=ocp.args.JsonRestore())
        try:
            items = self.manager.restore(step, args=composite)
            saved_log = items["note"].get("log")
            for name in like:
                if checksum(items[name]) != items["note"][name]:
                    raise UserError("its checksum differs")
        except Exception as e:  # whatever a damaged file makes Orbax raise
            raise _damaged(step, e) from e
        if log is not None and saved_log not in (None, log(step)):
            raise UserError(f"checkpoint {step}: metrics.jsonl is not as it was when it was saved")
        return {name: items[name] for name in like}

    def variables(self, which: str) -> tuple[int, dict[str, Any], list[str]]:
        """Returns step and variables of the `last` or `best` checkpoint, and warnings."""
        pick(WHICH, which, "checkpoint")
        like = {"variables": None}
        step = self.best() if which == "best" else None
        if step is not None:
            return step, self.read(step, like)["variables"], []
        items, damaged = self.newest(like)
        if items is None:
            raise UserError(f"{self.folder.parent} has no checkpoint")
        step = max(set(self.manager.all_steps()) - set(damaged))
        messages = [f"{text}; reading the one before" for text in damaged.values()]
        return step, items["variables"], messages

    def digest(self, which: str) -> str:
        """Hashes the variables of a checkpoint."""
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
        """Returns the loss and the checksums of a checkpoint."""
        try:
            args = ocp.args.Composite(note=ocp.args.JsonRestore())
            note = {"loss": None, **self.manager.restore(step, args=args)["note"]}
            if not isinstance(note["loss"], float | int | None) or "variables" not in note:
                raise UserError(f"its note holds {str(note)[:60]}")
            return note
        except Exception as e:
            raise _damaged(step, e) from e

    def delete(self, step: int) -> None:
        with self._in_place():
            self.manager.delete(step)

    def wait(self) -> None:
        with self._in_place():
            self.manager.wait_until_finished()

    def close(self) -> None:
        with self._in_place():
            self.manager.close()
        if self._opened is not None:  # not after an error: a thread may still write there
            os.close(self._opened)
            self._opened = None


def _damaged(step: int, error: Exception) -> UserError:
    return UserError(f"checkpoint {step} is damaged ({_first_line(error)})")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:100] or type(error).__name__


def _loss(metrics: Mapping[str, float]) -> float:
    return metrics["loss"]


def evaluated(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the variables to evaluate a model with: averaged parameters if there are any."""
    params = variables.get("ema", variables["params"])
    return {"params": params, **variables.get("model_state", {})}


def checksum(tree: Any) -> int:
    """Hashes every array in a tree with its path, whatever the types of the nodes."""
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
