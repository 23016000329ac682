"""Evaluations that a config names: checked early, logged, summarised, and repeated after a kill."""

import json

import numpy as np
import pytest

from tests.helpers.runs import Silent, lines
from tfm.config.names import UserError
from tfm.evaluate.evaluator import available, resolve
from tfm.report.results import values
from tfm.run.spec import open_data, read
from tfm.train import loop

MODEL = {"family": "encoder_decoder", "width": 16, "layers": 1, "max_length": 12,
         "attention": {"heads": 2}, "feedforward": {"width": 16}}  # fmt: skip


def config(**groups):
    tree = {
        "objective": "seq2seq",
        "model": MODEL,
        "data": {"dataset": "english_french", "examples": 40, "valid_examples": 8, "batch": 8},
        "train": {"steps": 4, "eval_every": 2, "log_every": 2},
    }
    return read({**tree, **{name: {**tree.get(name, {}), **x} for name, x in groups.items()}})


EVALUATE = {
    "during": ("internals(rows=4)",),
    "after": (
        "generation(split='test', rows=5, max_new=6)",
        "alignment",
        "loss(split='train', rows=8, draws=20)",
        "leaks",
    ),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("evaluations") / "run"
    return workdir, loop.train(config(evaluate=EVALUATE), str(workdir), Silent())


def test_results_are_in_the_log_and_the_summary(trained):
    workdir, summary = trained
    log = [line for line in lines(workdir) if "evaluator" in line]
    assert {line["step"] for line in log if line["evaluator"] == "internals"} == {2, 4}
    bleu = [x for x in log if x["evaluator"] == "generation" and "slice" not in x]
    assert [(x["step"], x["split"], x["after"]) for x in bleu] == [(4, "test", True)]
    assert any("slice" in line for line in log if line["evaluator"] == "generation")
    by_name = {(x["name"], x["split"]): x for x in summary["evaluations"]}
    assert set(by_name) == {("internals", "valid"), ("generation", "test"), ("alignment", "valid"),
                            ("loss", "train"), ("leaks", "valid")}  # fmt: skip
    assert by_name["generation", "test"]["metrics"]["bleu"] == bleu[0]["bleu"]
    assert by_name["leaks", "valid"]["metrics"] == {"leak": 0.0}
    low, high = by_name["loss", "train"]["details"]["intervals"]["loss"]
    assert low <= by_name["loss", "train"]["metrics"]["loss"] <= high
    assert "layer_0" in str(by_name["internals", "valid"]["slices"])
    declared = {x["name"]: x["better"] for x in summary["metrics"]["generation"]}
    assert declared == {"bleu": "high", "chrf": "high", "exact": "high"}
    assert json.loads((workdir / "summary.json").read_text())["evaluations"]


def test_other_evaluations_change_no_number(trained, tmp_path):
    _, summary = trained
    plain = loop.train(config(), str(tmp_path / "plain"), Silent())
    assert "evaluations" not in plain
    assert plain["id"] != summary["id"]
    for name in ("valid", "best", "parameters", "flops"):
        assert plain[name] == summary[name]


def test_a_kill_during_the_last_evaluation_is_repeated(trained, tmp_path, monkeypatch):
    from tfm.evaluate.alignment import Alignment

    def kill(self, context, dataset):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Alignment, "evaluate", kill)
        with pytest.raises(KeyboardInterrupt):
            loop.train(config(evaluate=EVALUATE), str(tmp_path / "run"), Silent())
    assert any(line.get("after") for line in lines(tmp_path / "run"))  # generation was logged
    watcher = Silent()
    summary = loop.train(config(evaluate=EVALUATE), str(tmp_path / "run"), watcher)
    assert summary == trained[1]
    assert "going on from step 4" in str(watcher.messages)
    same = [[x for x in lines(folder) if x["split"] != "train"]
            for folder in (trained[0], tmp_path / "run")]  # fmt: skip
    assert same[0] == same[1]


@pytest.mark.parametrize(
    ("evaluate", "message"),
    [
        ({"after": ("entities",)}, "evaluate.after: 'entities' needs tags that mark entities"),
        ({"during": ("word_vectors",)}, "evaluate.during: 'word_vectors' measures the vectors of"),
        ({"after": ("generation(split='tset')",)}, "unknown split 'tset'; write 'train'"),
        ({"after": ("generation(split='tests')",)}, "data.tests, which has none"),
        ({"after": ("loss(rows=3)",)}, "have the name of those of the objective"),
        ({"after": ("leaks", "leaks(rows=3)")}, "of leaks; tell them apart with the option name="),
        ({"after": ("generation(beams=0)",)}, "beams=0 must be at least 1"),
        ({"after": ("generation(rows=0)",)}, "rows=0 must be at least 1"),
        ({"after": ("genration",)}, "did you mean 'generation'"),
    ],
)
def test_an_evaluation_that_cannot_apply_is_an_error_before_training(evaluate, message):
    with pytest.raises(UserError, match=message):
        open_data(config(evaluate=evaluate))


def test_the_metric_of_a_study_is_found_on_any_split():
    longer = "reverse(length=9, vocab=8)"
    run, data = open_data(
        config(
            data={"dataset": "reverse(length=4, vocab=8)", "tests": (longer,)},
            evaluate={"after": ("internals(split='tests', rows=2)", "leaks(name='again')")},
        )
    )
    metrics = available(run.model, run.objective.entry, [*run.during, *run.after], data)
    found = {text: resolve(text, metrics) for text in (
        "accuracy", f"{longer}:exact", "tests:exact", "tests:gradient_norm", "again.leak", "leak",
    )}  # fmt: skip
    assert found == {
        "accuracy": "valid:loss.accuracy",
        f"{longer}:exact": f"{longer}:loss.exact",
        "tests:exact": "tests:loss.exact",
        "tests:gradient_norm": "tests:internals.gradient_norm",
        "again.leak": "valid:again.leak",
        "leak": "valid:again.leak",
    }
    for text in ("test:bleu", "bleu", "tests:bleu", "again.accuracy"):
        with pytest.raises(UserError, match=r"not computed.*loss, perplexity.*tests:exact.*leak"):
            resolve(text, metrics)


def test_what_is_resolved_is_what_a_summary_holds(trained):
    run, data = open_data(config(evaluate=EVALUATE))
    metrics = available(run.model, run.objective.entry, [*run.during, *run.after], data)
    assert set(values(trained[1])) == set(metrics)
    assert np.isfinite(values(trained[1])[resolve("test:bleu", metrics)])
