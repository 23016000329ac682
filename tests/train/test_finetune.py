"""Start from another run's weights: what is taken, what is left, and what is refused."""

import json
import pathlib
import shutil

import jax
import numpy as np
import pytest

import tfm
from tests.helpers.runs import Silent
from tfm.config import load
from tfm.names import UserError
from tfm.run.spec import RunSpec, read
from tfm.spec import replaced
from tfm.train import loop

SMALL = str(pathlib.Path(__file__).parent / "small.py")


def train(workdir, **changes):
    tree = load(f"{SMALL}:decoder").to_dict()
    tree = replaced(RunSpec, tree, {"train.steps": 4, "train.eval_every": 2, **changes})
    return loop.train(read(tree), str(workdir), Silent())


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("source")
    train(workdir, **{"model.norm.kind": "batch"})
    return workdir


def start(workdir, source, **changes):
    """A run that changes nothing, so that it ends as it starts."""
    still = {"optimizer.learning_rate": 1e-30, "optimizer.weight_decay": None, "train.ema": None}
    options = {"train.init_from": str(source), "model.norm.kind": "batch", **still, **changes}
    train(workdir, **options)
    return tfm.load(str(workdir), "last"), json.loads((workdir / "init.json").read_text())


def test_weights_and_statistics_are_taken(tmp_path, source):
    run, report = start(tmp_path / "a", source)
    wanted = tfm.load(str(source))
    jax.tree.map(np.testing.assert_array_equal, run.params, wanted.params)
    assert report["left"] == report["fresh"] == []
    assert any("batch_stats" in path for path in report["taken"])


def test_a_pattern_leaves_the_rest_fresh(tmp_path, source):
    run, report = start(tmp_path / "b", source, **{"train.init_pattern": "embed/.*"})
    taken = tfm.load(str(source)).params["embed"]["token"]["embedding"]
    np.testing.assert_array_equal(run.params["embed"]["token"]["embedding"], taken)
    assert report["taken"] == ["embed/token/embedding"]
    assert report["fresh"] == report["left"]


def test_the_other_run_may_be_deleted_when_it_has_begun(tmp_path, source):
    copy = tmp_path / "copy"
    shutil.copytree(source, copy)
    start(tmp_path / "c", copy)
    shutil.rmtree(copy)
    run, _ = start(tmp_path / "c", copy)
    assert run.step == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train.init_from": "/nowhere"}, "/nowhere has no checkpoint"),
        ({"train.init_pattern": "nothing/.*"}, "nothing in .* that matches is in this model"),
        ({"model.feedforward.width": 12}, r"is \(1, 8, 8\) there and \(1, 12, 8\) here"),
        ({"train.init_pattern": "("}, "train.init_pattern='\\(' is no regular expression"),
        ({"train.init_from": None, "train.init_pattern": "x"}, "init_from is missing"),
    ],
)
def test_what_cannot_be_taken_is_named(tmp_path, source, changes, message):
    with pytest.raises(UserError, match=message):
        start(tmp_path / "d", source, **changes)
