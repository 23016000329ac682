"""A model that sees what it must predict is found before the first step."""

import functools

import jax
import numpy as np
import pytest

from tests.helpers.quick import jit
from tests.helpers.runs import Silent
from tfm.config.names import UserError
from tfm.evaluate.leaks import find_leak
from tfm.objectives.base import Batch, eval_step
from tfm.objectives.batches import eval_batches
from tfm.objectives.next_token import NextToken
from tfm.run.spec import open_data, read
from tfm.train import loop

TRANSFORMER = {
    "width": 8,
    "layers": 1,
    "max_length": 40,
    "attention": {"heads": 2},
    "feedforward": {"width": 8},
}
RECURRENT = {"family": "recurrent", "cell": "gru", "width": 8, "hidden": 8}
DECODER = {"family": "decoder", **TRANSFORMER}
BOTH = {"family": "encoder_decoder", **TRANSFORMER}


def run(model, objective, dataset, **train):
    tree = {
        "objective": objective,
        "model": model,
        "data": {"dataset": dataset, "examples": 20, "valid_examples": 12, "eval_batch": 12},
        "train": {"steps": 1, **train},
    }
    return read(tree)


def leak(model, objective, dataset):
    opened, data = open_data(run(model, objective, dataset))
    entry = opened.objective.entry
    batch = next(eval_batches(entry, data["valid"], 12))
    module = opened.model.build()
    variables = jit(module.init)(jax.random.key(0), **batch.inputs)
    step = jit(functools.partial(eval_step, module, entry))
    return find_leak(step, variables, entry, batch, data["valid"].vocab)


COPY = "copy(length=8, vocab=9)"
HONEST = {
    "causal": (DECODER, "next_token", "dyck(length=16)"),
    "window": ({**DECODER, "mask": "causal & window(left=3)"}, "next_token", "dyck(length=16)"),
    # The prefix is the source, which is read and not predicted: a prefix language model.
    "prefix": ({**DECODER, "mask": "causal | prefix(length=8)"}, "next_token", COPY),
    "no answer is read": ({**DECODER, "mask": "everything"}, "next_token", "induction(length=8)"),
    "encoder–decoder": (BOTH, "seq2seq", COPY),
    "gru": (RECURRENT, "next_token", "dyck(length=16)"),
    "state space": ({**DECODER, "mixer": "state_space"}, "next_token", "dyck(length=16)"),
    "seq2seq": (
        {"family": "seq2seq", "cell": "gru", "width": 8, "hidden": 8, "attention": {"heads": 1}},
        "seq2seq",
        COPY,
    ),
}
LEAKS = {
    "everything": ({**DECODER, "mask": "everything"}, "next_token", "dyck(length=16)"),
    "one ahead": ({**DECODER, "mask": "window(left=63, right=1)"}, "next_token", "dyck(length=16)"),
    "prefix": ({**DECODER, "mask": "causal | prefix(length=4)"}, "next_token", "dyck(length=16)"),
    "decoder_mask": ({**BOTH, "decoder_mask": "everything"}, "seq2seq", COPY),
    "both directions": ({**RECURRENT, "bidirectional": True}, "next_token", "dyck(length=16)"),
}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_model_passes(name):
    assert leak(*HONEST[name]) is None


@pytest.mark.parametrize("name", LEAKS)
def test_a_model_that_sees_the_answer_is_found(name):
    assert "changes when the tokens after it, which are to be predicted" in leak(*LEAKS[name])


@pytest.mark.parametrize("place", [None, 0, 1, 500, 731, 1021, 1022])
@pytest.mark.parametrize("ahead", [1, 5])
def test_every_place_is_tried(place, ahead):
    """Of 1,024 positions one sees one later token, by a little. The step is counted: two calls for
    each batch of places."""
    rows, length, vocab = 16, 1024, 50
    tokens_BT = np.random.default_rng(0).integers(0, vocab, (rows, length))
    weights_BT = np.ones((rows, length), np.float32)
    weights_BT[: rows - 1, 100:] = 0  # few rows reach far
    batch = Batch({"tokens_BT": tokens_BT}, np.roll(tokens_BT, -1, 1), weights_BT)
    calls = []

    def step(variables, batch):
        calls.append(batch)
        loss_BT = 4 + np.sin(np.cumsum(batch.inputs["tokens_BT"], 1))
        if place is not None:
            seen = min(place + ahead, length - 1)
            loss_BT[:, place] += 1e-3 * batch.inputs["tokens_BT"][:, seen]
        return {"loss": np.sum(loss_BT * batch.weights, 1)}

    found = find_leak(step, {"params": {}}, NextToken(), batch, vocab)
    if place is None:
        assert found is None
        assert len(calls) == 2 * length / rows
    else:
        assert f"what is predicted at position {place} changes" in found


def test_it_is_refused_before_the_first_step_and_can_be_allowed(tmp_path):
    spec = run(*LEAKS["one ahead"])
    with pytest.raises(UserError, match="The model sees the answer: choose a causal mask"):
        loop.train(spec, str(tmp_path / "new" / "a"), Silent())
    assert list(tmp_path.iterdir()) == []
    allowed = run(*LEAKS["one ahead"], allow_leak=True)
    watcher = Silent()
    assert loop.train(allowed, str(tmp_path / "b"), watcher)["status"] == "done"
    assert any("the model sees the answer" in text for text in watcher.messages)
