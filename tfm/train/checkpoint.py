"""Checkpoints: whole or not at all, checked when they are read, the best and the last few kept.

Orbax writes them beside the training, to a temporary name that becomes the real one at the end.
"""

import json
import pathlib
import zlib
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy as keep

from tfm.names import UserError

State = dict[str, Any]


class Checkpoints:
    """The checkpoints of a run folder."""

    def __init__(self, folder: pathlib.Path, last: int, read_only: bool = False):
        self.folder = folder.absolute()
        best = keep.BestN(
            get_metric_fn=lambda m: m["loss"],
            reverse=True,
            n=1,
            keep_checkpoints_without_metrics=False,
        )
        policy = keep.AnyPreservationPolicy([keep.LatestN(last), best])
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policy, cleanup_tmp_directories=not read_only, read_only=read_only
        )
        self.manager = ocp.CheckpointManager(self.folder, options=options)

    def save(self, step: int, state: State, loss: float | None) -> None:
        """Write in the background; without a loss it cannot be the best."""
        held = jax.device_get(state)
        note = ocp.args.JsonSave({"checksum": checksum(held)})
        args = ocp.args.Composite(state=ocp.args.StandardSave(held), note=note)
        self.manager.save(step, args=args, metrics=None if loss is None else {"loss": loss})

    def newest(self, like: State) -> tuple[State | None, dict[int, str]]:
        """The newest state that is whole, and what is wrong with those that are newer."""
        wrong: dict[int, str] = {}
        for step in sorted(self.manager.all_steps(), reverse=True):
            try:
                return self.whole(step, like), wrong
            except UserError as e:
                wrong[step] = str(e)
        if wrong:
            raise UserError(
                f"{self.folder}: no checkpoint can be read: {'; '.join(wrong.values())}"
            )
        return None, wrong

    def delete(self, step: int) -> None:
        self.manager.delete(step)

    def whole(self, step: int, like: State) -> State:
        """The state of a step; an error that names it if it is damaged."""
        try:
            return self._read(step, like)
        except Exception as e:  # whatever a damaged file makes Orbax raise
            first = str(e).partition("\n")[0][:100]
            raise UserError(f"checkpoint {step} is damaged ({first})") from e

    def _read(self, step: int, like: State) -> State:
        shapes = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), like)
        args = ocp.args.Composite(
            state=ocp.args.StandardRestore(shapes), note=ocp.args.JsonRestore()
        )
        found = self.manager.restore(step, args=args)
        if checksum(found.state) != found.note["checksum"]:
            raise UserError("its checksum differs")
        return found.state

    def best(self) -> int | None:
        """The step with the lowest loss, of those that are kept."""
        losses = {step: self.manager.metrics(step) for step in self.manager.all_steps()}
        known = {step: m["loss"] for step, m in losses.items() if m}
        return min(known, key=lambda step: (known[step], step)) if known else None

    def wait(self) -> None:
        self.manager.wait_until_finished()

    def close(self) -> None:
        self.manager.close()


def checksum(state: State) -> int:
    """Of every number in the state, and of where it stands."""
    total = 0
    leaves = {jax.tree_util.keystr(p): x for p, x in jax.tree_util.tree_leaves_with_path(state)}
    for path in sorted(leaves):
        array = np.ascontiguousarray(leaves[path])
        total = zlib.crc32(json.dumps([path, str(array.dtype), array.shape]).encode(), total)
        total = zlib.crc32(array.tobytes(), total)
    return total
