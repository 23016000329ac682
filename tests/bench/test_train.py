"""The models that are timed side by side are the same model."""

import dataclasses
import json
import sys

import jax
import pytest

from tfm.bench import plain_flax, train
from tfm.bench.cases import CASES, ours
from tfm.bench.turns import in_turns, ratios, whole_process
from tfm.cli import main as cli
from tfm.config.names import UserError
from tfm.models.spec import model_spec

SMALL = {
    name: dataclasses.replace(case, layers=1, width=8, heads=min(case.heads, 2), length=6, batch=2)
    for name, case in CASES.items()
    if name in ("tiny", "bert", "translation", "lstm", "lstm_attention")
}


def count(variables):
    return sum(x.size for x in jax.tree.leaves(variables))


@pytest.mark.parametrize("name", CASES)
def test_all_have_the_same_parameters(name):
    case = CASES[name]
    inputs = case.data.inputs
    modules = model_spec({"model": case.model}).build(), plain_flax.model(case)
    ours, flax = (
        count(jax.eval_shape(lambda m=m: m.init(jax.random.key(0), **inputs))) for m in modules
    )
    assert ours == flax
    torch = pytest.importorskip("torch")
    from tfm.bench.plain_torch import MODELS

    with torch.device("meta"):
        theirs = sum(p.numel() for p in MODELS[case.kind](case).parameters())
    gates = 4 * case.width  # PyTorch's LSTM has two biases, and adds them
    more = {"lstm": gates, "lstm_attention": 3 * gates}.get(case.kind, 0)
    assert theirs == ours + more


@pytest.mark.ci
@pytest.mark.parametrize("name", SMALL)
def test_every_implementation_takes_a_step(name):
    assert ours(SMALL[name])(1) > 0
    assert plain_flax.make(SMALL[name])(1) > 0
    pytest.importorskip("torch")
    from tfm.bench import plain_torch

    assert plain_torch.eager(SMALL[name])(1) > 0


def test_implementations_take_turns():
    makes = {name: ("tests.bench.contenders:make", pace) for name, pace in {"a": 1, "b": 3}.items()}
    rounds = list(in_turns(makes, 1, 2, 0.01))
    assert len(rounds) == 2
    assert ratios(rounds, "a") == {"b": (3, 3, 3)}


def test_an_implementation_that_fails_is_named(capfd):
    with pytest.raises(UserError, match="b could not be timed"):
        list(in_turns({"b": ("tests.bench.contenders:fail", None)}, None, 1, 0.01))
    assert "broken on purpose" in capfd.readouterr().err


def test_one_round_is_its_own_median():
    assert ratios([{"a": 2.0, "b": 3.0}], "a") == {"b": (1.5, 1.5, 1.5)}


def test_a_process_that_fails_is_named():
    with pytest.raises(UserError, match=r"a thing could not be timed: .*on purpose"):
        whole_process("a thing", [sys.executable, "-c", "raise ValueError('on purpose')"])


@pytest.mark.ci
def test_a_case_is_measured(monkeypatch, capsys):
    monkeypatch.setattr(train, "MAKERS", {"tfm": "tests.bench.contenders:make_case",
                                          "flax": "tests.bench.contenders:make_case"})  # fmt: skip
    options = ["--config.cases=('tiny',)", "--config.rivals=('flax',)", "--config.rounds=2"]
    assert cli.main(["bench", "train", *options, "--config.seconds=0.01", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["cores"] for row in rows] == ["all", "one"]
    assert rows[0]["ratio"] == {"flax": [1, 1, 1]}
    assert rows[0]["gflop"] == pytest.approx(1.4, rel=0.1)


def test_the_table_names_the_rivals(monkeypatch, capsys):
    monkeypatch.setattr(train, "measure", lambda spec: [
        train.Row("tiny", "2/2", "one", 1.0, {"tfm": 2.0}, {"flax": (1.5, 1.4, 1.6)})])  # fmt: skip
    cli.main(["bench", "train", "--config.cases=('tiny',)", "--config.rivals=('flax',)"])
    out = capsys.readouterr().out
    assert "1.50 (1.40–1.60)" in out
    assert "\\n" not in out
