"""Floors, beside what follows from how the examples are made."""

import collections
from types import SimpleNamespace

import numpy as np
import pytest

from tfm.config.names import read
from tfm.data.dataset import FIRST, Reading
from tfm.data.datasets import open_dataset
from tfm.evaluate.baselines import baselines
from tfm.evaluate.loss import floors
from tfm.evaluate.table import EVALUATORS
from tfm.objectives.table import OBJECTIVES


def found(task, objective, count=500):
    train, valid = (open_dataset(task, split, count) for split in ("train", "valid"))
    context = SimpleNamespace(
        objective=read(objective, OBJECTIVES, "objective"), data=lambda split: train
    )
    slices = EVALUATORS["floors"]().evaluate(context, valid).slices
    return {name: metrics["accuracy"] for name, metrics in slices.items()}


def test_the_most_frequent_answer():
    """Reverse: the end is always right, the rest as often as one of 5 symbols is."""
    guess = found("reverse(length=9, vocab=8)", "seq2seq")["most frequent answer"]
    assert guess == pytest.approx((1 + 9 / 5) / 10, abs=0.02)
    assert found("parity", "classify")["most frequent answer"] == pytest.approx(0.5, abs=0.07)


def test_the_most_frequent_answer_of_a_file_that_is_sorted_by_class(tmp_path, monkeypatch):
    monkeypatch.setenv("TFM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("tfm.evaluate.loss.TOKENS", 700)  # fewer than there are rows
    lines = [f"word\t{label}" for label, count in (("a", 600), ("b", 900)) for _ in range(count)]
    (tmp_path / "t.tsv").write_text("\n".join(["text\tlabel", *lines]))
    path = repr(str(tmp_path / "t.tsv"))
    task = f"table(train={path}, valid={path}, text='text', label='label')"
    reading = Reading(tokenizer="words")
    train, valid = (open_dataset(task, x, None, reading=reading) for x in ("train", "valid"))
    objective = OBJECTIVES["classify"]()
    assert floors(objective, train, valid)["most frequent answer"] == pytest.approx(0.6, abs=2e-3)
    monkeypatch.setattr("tfm.evaluate.baselines.TOKENS", 500)
    scores = baselines(objective, train, valid)["majority class"]
    assert scores["accuracy"] == pytest.approx(0.6, abs=2e-3)


@pytest.mark.parametrize(("length", "depth"), [(64, 8), (32, 4)])
def test_no_rule_of_four_tokens_is_better_than_the_floor(length, depth):
    """Neither is a table, learned from training data, of what closes after any four tokens."""
    kinds = 4
    task = f"dyck(length={length}, kinds={kinds}, depth={depth})"
    stated = found(task, "next_token")["last four tokens"]
    answers = {}
    for split, count in (("train", 10_000), ("valid", 500)):
        rows = open_dataset(task, split, count).take(np.arange(count)).tokens.ids
        rows_NT = np.pad(rows.reshape(-1, length), ((0, 0), (4, 0)))
        row, t = np.nonzero(rows_NT >= FIRST + kinds)
        before = [tuple(x) for x in np.stack([rows_NT[row, t - n] for n in (4, 3, 2, 1)], 1)]
        answers[split] = list(zip(before, rows_NT[row, t].tolist(), strict=True))
    counts = collections.defaultdict(collections.Counter)
    for before, answer in answers["train"]:
        counts[before][answer] += 1
    best = {before: count.most_common(1)[0][0] for before, count in counts.items()}
    learned = np.mean([best.get(before) == answer for before, answer in answers["valid"]])
    assert learned == pytest.approx(stated, abs=0.01)


def test_shortcuts():
    recall = found("recall(length=64, pairs=4)", "next_token")
    assert recall["any value shown"] == 0.25
    assert recall["most frequent answer"] < 0.01
    one_kind = found("dyck(length=16, kinds=1)", "next_token")
    assert one_kind["last four tokens"] == 1.0
    flat = found("dyck(length=16, kinds=4, depth=1)", "next_token")
    assert flat["last four tokens"] == 1.0  # the bracket before is the one to close
    deep = found("dyck(length=64, kinds=4, depth=8)", "next_token")
    assert 0.25 < deep["last four tokens"] < 0.9
    # Dyck-(4, 4), as in configs/tasks/dyck.py: 0.82.
    less_deep = found("dyck(length=32, kinds=4, depth=4)", "next_token")
    assert less_deep["last four tokens"] == pytest.approx(0.82, abs=0.01)
    pairs = found("listops(length=4, min_length=4, depth=1, args=2)", "classify")
    # Of two digits: MIN is 0 in 19 of 100, MAX is 9 in 19, MED is 4 (or 4 of 9, 0) in 18 or 20 …
    assert 0.15 < pairs["first operator"] < 0.3
