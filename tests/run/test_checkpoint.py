"""Which checkpoints are kept, which is the best, and what a damaged one says."""

import numpy as np
import pytest

from tfm.config.names import UserError
from tfm.run.checkpoint import Checkpoints


def items(value):
    return {"variables": {"params": {"w": np.full(3, value, np.float32)}}, "training": {"n": value}}


def save(folder, losses, first=1, keep=1):
    checkpoints = Checkpoints(folder, keep)
    for step, loss in enumerate(losses, first):
        checkpoints.save(step, items(step), loss)
    checkpoints.wait()
    checkpoints.close()


def test_the_best_is_the_lowest_loss_also_after_a_resume(tmp_path):
    save(tmp_path, [0.5, 1.0, 2.0])
    save(tmp_path, [3.0, float("nan"), None], first=4)
    read = Checkpoints(tmp_path, read_only=True)
    assert sorted(read.manager.all_steps()) == [1, 6]
    assert read.best() == 1
    step, variables, messages = read.variables("best")
    assert (step, float(variables["params"]["w"][0]), messages) == (1, 1.0, [])
    assert read.variables("last")[0] == 6
    assert read.digest("best") != read.digest("last")


def test_the_best_is_known_when_orbax_has_lost_its_losses(tmp_path):
    save(tmp_path, [1.0, 0.5, 2.0], keep=3)
    losses = tmp_path / "checkpoints" / "2" / "metrics" / "metrics"
    losses.unlink()
    assert Checkpoints(tmp_path, read_only=True).best() == 2
    losses.write_text("")
    with pytest.raises(UserError, match="delete the checkpoint whose file metrics/metrics is dam"):
        Checkpoints(tmp_path, read_only=True)


def test_a_folder_without_checkpoints_is_named(tmp_path):
    with pytest.raises(UserError, match=f"{tmp_path} has no checkpoint"):
        Checkpoints(tmp_path, read_only=True)


def test_a_damaged_checkpoint_is_passed_over(tmp_path):
    save(tmp_path, [1.0, 0.5], keep=2)
    damaged = max((tmp_path / "checkpoints" / "2" / "variables").rglob("*"), key=_size)
    damaged.write_bytes(b"\0" * damaged.stat().st_size)
    step, _, messages = Checkpoints(tmp_path, read_only=True).variables("last")
    assert step == 1
    assert "checkpoint 2 is damaged" in messages[0]


def _size(path):
    return path.stat().st_size if path.is_file() else -1
