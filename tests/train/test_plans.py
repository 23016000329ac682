"""Runs with buckets, packed rows and batches by tokens: shapes, tokens, and the same bits after a
kill."""

import shutil

import numpy as np
import pytest

from tests.helpers.runs import Silent, assert_same, lines
from tests.helpers.tiers import first_tier
from tfm.config.names import UserError
from tfm.objectives.batches import each_shape, read_of, train_batch
from tfm.run import spec
from tfm.run.spec import plan_of
from tfm.train import loop
from tfm.train import step as steps


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TFM_CACHE", str(tmp_path / "cache"))


def run_of(objective="seq2seq", family="encoder_decoder", seed=0, model=None, **data):
    transformer = {"width": 8, "layers": 1, "max_length": 32, "attention": {"heads": 2},
                   "feedforward": {"width": 8}, "dropout": {"residual": 0.1}}  # fmt: skip
    recurrent = {"width": 4, "hidden": 8, "cell": "gru"}
    return spec.read({
        "seed": seed,
        "objective": objective,
        "model": {"family": family, **(recurrent if family == "recurrent" else transformer),
                  **(model or {})},
        "data": {"dataset": "copy(length=12, min_length=2, vocab=8)", "examples": 200,
                 "valid_examples": 10, "eval_batch": 10, "batch": 8, **data},
        "train": {"steps": 10, "log_every": 4, "save_every": 3, "eval_every": 10, "keep": 9},
    })  # fmt: skip


MIXTURE = (
    "mixture(parts=('copy(length=4, min_length=2, vocab=8)', 'reverse(length=9, vocab=8)'), "
    "weights=(2, 1), tokens=True)"
)
CASES = {
    "buckets": dict(buckets=3, batch_tokens=120, objective="next_token", family="recurrent"),
    "pack": dict(pack=26, batch=4),
    "mixture": dict(buckets=2, dataset=MIXTURE, objective="next_token", family="recurrent"),
}
SHAPES = {"buckets": 3, "pack": 1, "mixture": 2}


@pytest.fixture
def traced(monkeypatch):
    """How often a step was traced: it is compiled as often."""
    real, found = steps.train_step, []

    def train_step(*arguments):
        found.append(1)
        return real(*arguments)

    monkeypatch.setattr(steps, "train_step", train_step)
    steps._run_steps.cache_clear()
    yield found
    steps._run_steps.cache_clear()


@pytest.mark.parametrize("case", first_tier(CASES, ["buckets", "pack"]))
def test_a_resumed_run_gives_the_same_bits(case, tmp_path, traced):
    """It is killed between two lines of the log, whose tokens are counted all the same."""
    run = run_of(**CASES[case])
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    summary = loop.train(run, str(whole), Silent())
    assert len(traced) == summary["shapes"] == SHAPES[case]
    shutil.copytree(whole, resumed)
    for step in (9, 10):
        shutil.rmtree(resumed / f"checkpoints/{step}")
    (resumed / "summary.json").unlink()
    watcher = Silent()
    loop.train(run, str(resumed), watcher)
    assert watcher.messages[-1] == "going on from step 6"
    assert_same(resumed, whole)
    assert len(traced) == SHAPES[case]
    _check_tokens(run, whole)
    if case == "mixture":  # each part is evaluated by itself, and both are what the whole is
        one, other = summary["tests"].values()
        least, _, most = sorted([one["loss"], summary["valid"]["loss"], other["loss"]])
        assert least < summary["valid"]["loss"] < most


def _check_tokens(run, workdir):
    """The log counts tokens and padding: against the lengths of the rows that the plan gives."""
    run, data = spec.open_data(run)
    train, plan = data["train"], plan_of(run, data["train"])
    found = [line for line in lines(workdir) if line["split"] == "train"]
    for line, begin in zip(found, (0, 4, 8), strict=True):
        real = total = 0
        for step in range(begin, min(begin + 4, 10)):
            drawn = plan.draw(step)
            some = train.take(drawn.rows)
            real += int(some.tokens.lengths.sum() + some.target.lengths.sum()) + len(drawn.rows)
            batch = train_batch(run.objective.entry, train, plan, run.seed, step)
            total += sum(x.size for k, x in batch.inputs.items() if "valid" in k)
        assert line["tokens"] == total
        assert line["padding"] == pytest.approx(1 - real / total)


def test_buckets_and_packing_save_padding():
    """Tokens that are read for each real one, over some epochs."""
    paid = {}
    for name, keys in {"rows": {}, "buckets": dict(buckets=4), "pack": dict(pack=52)}.items():
        run, data = spec.open_data(run_of(**keys))
        plan = plan_of(run, data["train"])
        batches = [
            train_batch(run.objective.entry, data["train"], plan, 0, step) for step in range(30)
        ]
        paid[name] = 1 - np.divide(*np.sum([read_of(batch) for batch in batches], 0)[::-1])
    assert paid["rows"] < 0.65  # of 2 to 12 tokens
    assert paid["buckets"] > 0.85
    assert paid["pack"] > 0.9


def test_batches_by_tokens():
    run, data = spec.open_data(run_of(buckets=4, batch_tokens=200))
    kinds = each_shape(run.objective.entry, data["train"], plan_of(run, data["train"]))
    for kind in kinds:
        rows, length = kind.batch.inputs["source_BS"].shape
        each = length + kind.batch.inputs["decoder_input_BT"].shape[1]
        assert rows == 200 // each  # as many as fit
    assert len({kind.batch.labels.shape for kind in kinds}) == 4
    run, data = spec.open_data(run_of(batch_tokens=200))
    (kind,) = each_shape(run.objective.entry, data["train"], plan_of(run, data["train"]))
    assert kind.batch.inputs["source_BS"].shape == (200 // 25, 12)


def test_shapes_are_those_of_every_seed():
    shapes = []
    for seed in (0, 1):
        run = run_of(seed=seed, buckets=3, batch_tokens=120)
        run, data = spec.open_data(run)
        plan = plan_of(run, data["train"])
        batches = (
            train_batch(run.objective.entry, data["train"], plan, seed, s) for s in range(20)
        )
        shapes.append([batch.labels.shape for batch in batches])
    assert shapes[0] == shapes[1]
    assert len(set(shapes[0])) == 3


DYCK = dict(objective="next_token", family="recurrent", dataset="dyck(length=8)")
CONVOLUTION = dict(objective="next_token", family="decoder", model={"mixer": "convolution"})
BAD = {
    "choose one": dict(buckets=2, pack=40),
    "cannot keep packed rows apart": dict(pack=40, objective="next_token", family="recurrent"),
    "data.pack=40: mixer='convolution' cannot keep the segments": dict(pack=40, **CONVOLUTION),
    "the longest row takes 12, 13 positions": dict(pack=(12, 12)),
    "give one number, or 1": dict(pack=(30, 30), objective="next_token", family="decoder"),
    "batch_tokens=20 is too little: a row has 25 tokens": dict(batch_tokens=20),
    "have the same length": dict(buckets=2, **DYCK),
}


@pytest.mark.parametrize("text", BAD)
def test_what_cannot_work_says_so(text):
    def plan():
        run, data = spec.open_data(run_of(**BAD[text]))
        plan_of(run, data["train"])

    with pytest.raises(UserError) as caught:
        plan()
    assert text in str(caught.value)
