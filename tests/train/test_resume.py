"""Every objective with every family that serves it: trains, stops, resumes, gives the same bits."""

import shutil

import pytest

from tests.helpers.runs import Silent, assert_same
from tests.helpers.tiers import each_part_once
from tfm.objectives.table import OBJECTIVES
from tfm.run import spec
from tfm.train import loop

TRANSFORMER = {
    "width": 8,
    "layers": 1,
    "max_length": 24,
    "attention": {"heads": 2},
    "feedforward": {"width": 8},
    "dropout": {"residual": 0.1},
}
MODELS = {
    "decoder": TRANSFORMER,
    "encoder": TRANSFORMER,
    "encoder_decoder": TRANSFORMER,
    "recurrent": {"width": 4, "hidden": 8, "cell": "gru"},
    "seq2seq": {"width": 4, "hidden": 8, "attention": {"heads": 1}},
    "bag": {"width": 4, "hidden": (8,)},
    "convolution": {"width": 4, "channels": (8,)},
    "word2vec": {"width": 4},
}
DATA = {
    "next_token": "dyck(length=8)",
    "seq2seq": "copy(length=4, min_length=2, vocab=8)",
    "tag": "sort(length=4, min_length=2, vocab=8)",
    "classify": "listops(length=10, min_length=4, depth=2, args=2)",
    "masked_lm": "dyck(length=8)",
    "bert": "stories(pairs=True)",
    "prefix_lm": "dyck(length=8)",
    "span_corruption": "dyck(length=8)",
    "ul2": "dyck(length=8)",
    "vector_to_sequence": "spell(length=2, vocab=6)",
    "word2vec": "dyck(length=8)",
}
SHAPES = {"classify": {"shape": "N:1"}, "vector_to_sequence": {"shape": "1:N", "vector": 6}}
AS_CLASSIFY = ("pair", "regress")  # which draw nothing either
CASES = [
    (name, family)
    for name, entry in OBJECTIVES.items()
    for family in entry.families
    if name not in AS_CLASSIFY
]


@pytest.mark.parametrize(("objective", "family"), each_part_once(CASES))
def test_a_resumed_run_gives_the_same_bits(objective, family, tmp_path):
    shape = SHAPES.get(objective, {}) if family == "recurrent" else {}
    run = spec.read(
        {
            "objective": objective,
            "model": {"family": family, **MODELS[family], **shape},
            "data": {"dataset": DATA[objective], "examples": 100, "valid_examples": 20,
                     "batch": 8, "eval_batch": 8},
            "train": {"steps": 4, "log_every": 1, "eval_every": 2, "keep": 5},
        }
    )  # fmt: skip
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    watcher = Silent()
    summary = loop.train(run, str(whole), watcher)
    assert summary["status"] == "done"
    assert summary["valid"]["loss"] > 0
    shutil.copytree(whole, resumed)
    shutil.rmtree(resumed / "checkpoints/4")
    (resumed / "summary.json").unlink()
    loop.train(run, str(resumed), watcher)
    assert watcher.messages[-1] == "going on from step 2"
    assert_same(resumed, whole)
