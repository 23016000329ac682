"""Opening data sets: fingerprints, counts, and what a user's own may get wrong."""

import dataclasses
import hashlib
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from tfm.config.names import UserError
from tfm.data import datasets
from tfm.data.dataset import Dataset, Examples, Generated, Ragged
from tfm.data.datasets import fingerprint, open_dataset
from tfm.data.plan.order import Epochs


def test_ragged():
    x_NT = np.array([[5, 6, 7], [8, 0, 0]])
    valid_NT = np.array([[1, 1, 1], [1, 0, 0]], bool)
    ragged = Ragged.of(x_NT, valid_NT)
    assert (ragged.ids.tolist(), ragged.lengths.tolist()) == ([5, 6, 7, 8], [3, 1])
    np.testing.assert_array_equal(ragged.padded(3), x_NT)
    np.testing.assert_array_equal(ragged.padded(4), np.pad(x_NT, ((0, 0), (0, 1))))
    np.testing.assert_array_equal(ragged.valid(3), valid_NT)
    flags = ragged.padded(3, np.array([True, False, True, True]))
    np.testing.assert_array_equal(flags, [[1, 0, 1], [1, 0, 0]])
    full = Ragged.of(x_NT)
    np.testing.assert_array_equal(full.padded(3), x_NT)
    np.testing.assert_array_equal(full.padded(5)[:, 3:], np.zeros((2, 2)))


def test_a_hundred_million_rows():
    """The rows of step 10⁶ are made without those before, in memory for one batch."""
    tracemalloc.start()
    dataset = open_dataset("recall", "train", 100_000_000)
    plan = Epochs(len(dataset), 64, 0)
    dataset.take(plan.draw(10**6).rows)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000


SCRIPT = """
import hashlib
import numpy as np
from tfm.data.datasets import open_dataset
from tfm.data.plan.order import Epochs
total = hashlib.sha256()
for text in ("listops(length=20)", "recall(vocab=64)"):
    dataset = open_dataset(text, "valid", 100, seed=5)
    for step in (40, 3, 0):
        examples = dataset.take(Epochs(100, 16, 7).draw(step).rows)
        total.update(examples.tokens.ids.astype(np.int32).tobytes())
    total.update(dataset.fingerprint.encode())
print(total.hexdigest())
"""


def test_another_process_sees_the_same(capsys):
    exec(SCRIPT)
    here = capsys.readouterr().out
    env = {"PYTHONHASHSEED": "123", "PATH": ""}
    there = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=env)
    assert there.stdout == here, there.stderr
    assert len(here.strip()) == hashlib.sha256().digest_size * 2


def test_splits_and_seeds_are_independent():
    made = {
        (split, seed): open_dataset("copy(length=20)", split, 200, seed)
        .take(np.arange(200))
        .tokens.ids.reshape(200, 20)
        for split in ("train", "valid", "test")
        for seed in (0, 1)
    }
    seen = [tuple(row) for x in made.values() for row in x.tolist()]
    assert len(set(seen)) == len(seen)
    first, *others = (np.ravel(x).astype(float) for x in made.values())
    assert all(abs(np.corrcoef(first, other)[0, 1]) < 0.06 for other in others)


def test_fingerprints():
    base = fingerprint("recall")
    assert base == fingerprint("recall()") == fingerprint(" recall(pairs=4, length=64)")
    assert base == open_dataset("recall", "train", 2).fingerprint
    assert fingerprint("recall(length=32, pairs=8)") == fingerprint("recall(pairs=8, length=32)")
    others = ["recall(pairs=8)", "recall(length=32)", "recall(alpha=1.0)", "induction", "copy"]
    assert len({base, *map(fingerprint, others)}) == 6


def mine(size: int = 3):
    def make(draws):
        tokens = draws.integers(3, 9, (size,))
        return Examples(tokens=Ragged.of(tokens), labels=(tokens[:, 0] > 5) * 1)

    return Generated(make, form="labels", vocab=9, classes=2, max_length=size)


def test_data_sets_of_ones_own(monkeypatch):
    monkeypatch.setitem(datasets.DATASETS, "mine", mine)
    monkeypatch.setitem(datasets.DATASETS, "wrong", lambda: 3)
    opened = open_dataset("mine(size=5)", "train", 10)
    assert (len(opened), opened.max_length) == (10, 5)
    assert fingerprint("mine") == fingerprint("mine(size=3)") != fingerprint("mine(size=2)")
    with pytest.raises(UserError, match="data set 'wrong' must be a Source, not 3"):
        open_dataset("wrong", "train", 10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(split="trian"), "data set 'copy': unknown split 'trian'; did you mean 'train'"),
        (dict(count=None), "data set 'copy': its examples are endless; say how many for 'train'"),
        (dict(count=0), "0 examples: it must be a whole number of at least 1"),
        (dict(name="copy & sort"), "only masks join"),
        (dict(name="addition", count=9999), "9999 examples: .* from 1 to 4704, all that 'train'"),
    ],
)
def test_bad_requests_are_named(arguments, message):
    with pytest.raises(UserError, match=message):
        open_dataset(**dict(name="copy", split="train", count=3) | arguments)


def ragged(*rows):
    return Ragged(
        np.concatenate([np.array(row, int) for row in rows]), np.array([len(row) for row in rows])
    )


PAIRS = Examples(tokens=ragged([5, 6], [7]), target=ragged([7], [5, 6, 4]))
LABELS = Examples(tokens=ragged([5, 6], [7]), labels=np.array([0, 2]))
TAGS = Examples(tokens=ragged([5, 6], [7]), tags=np.array([1, 2, 3]), scored=np.ones(3, bool))
FACTS = {
    "pairs": dict(form="pairs", vocab=8, max_length=2, max_target=3),
    "labels": dict(form="labels", vocab=8, classes=3, max_length=2),
    "tags": dict(form="tags", vocab=8, max_length=2),
}
GOOD = {"pairs": PAIRS, "labels": LABELS, "tags": TAGS}


@pytest.mark.parametrize(
    ("form", "facts", "changes", "message"),
    [
        ("pairs", {}, {}, None),
        ("labels", {}, {}, None),
        ("tags", {}, {}, None),
        ("pairs", dict(vocab=7), {}, "tokens holds 5 to 7, but vocab=7"),
        ("pairs", dict(max_target=2), {}, "target has lengths from 1 to 3, but max_target=2"),
        ("pairs", dict(aligned=True), {}, "tokens and target must have the same lengths"),
        ("pairs", {}, dict(target=None), "Examples.target is for the form 'pairs', and needed"),
        ("pairs", {}, dict(labels=np.array([0, 1])), "Examples.labels is for the form 'labels'"),
        ("pairs", {}, dict(target=ragged([-1], [5])), "target holds -1 to 5"),
        ("labels", dict(classes=2), {}, "labels holds 0 to 2, but classes=2"),
        ("labels", {}, dict(labels=np.array([0.0, 1.0])), "must be whole numbers, not float64"),
        ("labels", {}, dict(labels=np.array([0])), r"labels has shape .1,., but it must be .2,."),
        ("labels", {}, dict(tokens=ragged([5])), "tokens has 1 rows, but 2 were requested"),
        ("labels", {}, dict(tokens=ragged([5], [])), "lengths from 0 to 1, but max_length=2"),
        ("tags", dict(padded=False), {}, "lengths from 1 to 2, but max_length=2 and padded=False"),
        ("tags", {}, dict(scored=np.ones(3)), "scored must be boolean, not float64"),
        ("tags", {}, dict(scored=np.ones(2, bool)), "scored has shape"),
        ("tags", dict(form="tag"), {}, "unknown form 'tag'; did you mean 'tags'"),
    ],
)  # fmt: skip
def test_bad_examples_are_named(form, facts, changes, message):
    examples = dataclasses.replace(GOOD[form], **changes)
    dataset = Dataset(read=lambda rows: examples, count=2, **FACTS[form] | facts)
    if message is None:
        taken = dataset.take(np.arange(2))
        assert taken.tokens is examples.tokens
        assert taken.rows.tolist() == [0, 1]
        return
    with pytest.raises(UserError, match=message):
        dataset.take(np.arange(2))
