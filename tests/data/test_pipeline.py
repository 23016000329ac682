import hashlib
import subprocess
import sys

import numpy as np
import pytest

from tfm.data import pipeline
from tfm.data.batch import Labels, Task
from tfm.data.order import shuffled
from tfm.data.pipeline import Source, batch, fingerprint, in_order, load
from tfm.names import UserError


def numbered(count, width=1):
    """A source whose examples say which they are."""
    row = np.arange(count, dtype=np.uint16)
    arrays = {
        "tokens_BT": np.repeat(row[:, None], width, 1),
        "targets_B": row,
        "weights_B": np.ones(count, np.float32),
    }
    return Source(Task(lambda *_: None), "train", arrays, {"vocab": count}, "")


def rows(count, seed, step, size):
    return batch(numbered(count), seed, step, size)["targets_B"].tolist()


@pytest.mark.parametrize(("count", "size"), [(12, 4), (10, 4), (7, 7), (3, 8), (1, 2), (100, 33)])
def test_every_epoch_is_a_shuffle(count, size):
    """Batches one after another are permutation after permutation, also across their borders."""
    steps = -(-5 * count // size)
    seen = np.concatenate([rows(count, 0, step, size) for step in range(steps)])[: 5 * count]
    epochs = seen.reshape(5, count)
    np.testing.assert_array_equal(np.sort(epochs, 1), np.tile(np.arange(count), (5, 1)))
    if count > 6:
        assert len({tuple(epoch) for epoch in epochs.tolist()}) == 5
        assert tuple(range(count)) not in {tuple(epoch) for epoch in epochs.tolist()}


def test_a_batch_is_a_function_of_seed_and_step():
    source = load("sort(length=5, min_length=2)", "train", "seq2seq", 50, seed=3)
    there = [batch(source, 1, step, 8) for step in range(20)]
    shuffled.cache_clear()
    back = [batch(source, np.int64(1), np.int32(step), 8) for step in reversed(range(20))][::-1]
    for a, b in zip(there, back, strict=True):
        assert list(a) == list(b)
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])
            assert a[name].flags.writeable
    assert rows(50, 1, 0, 8) != rows(50, 2, 0, 8)
    assert rows(50, 1, 0, 8) != rows(50, 1, 1, 8)


def test_examples_stay_together():
    source = numbered(40, width=3)
    made = batch(source, 0, 3, 16)
    np.testing.assert_array_equal(made["tokens_BT"], np.tile(made["targets_B"][:, None], (1, 3)))
    assert made["targets_B"].dtype == made["tokens_BT"].dtype == np.int32


def test_the_shuffle_is_fair():
    """Each example is as likely in each place: χ² of 60 × 60 counts with 59² degrees of freedom."""
    orders = np.array([shuffled(60, seed, "fair") for seed in range(2000)])
    counts = np.array([np.bincount(orders[:, place], minlength=60) for place in range(60)])
    wanted = 2000 / 60
    chi2 = np.sum((counts - wanted) ** 2 / wanted)
    assert abs(chi2 - 59**2) < 4 * np.sqrt(2 * 59**2)
    pairs = np.mean(orders[:, 1:] - orders[:, :-1] == 1)  # neighbours stay so by chance only
    assert abs(pairs - 1 / 60) < 0.002


def test_a_million_is_shuffled_whole():
    order = shuffled(1_000_000, 0, "million")
    assert np.all(np.bincount(order) == 1)
    assert abs(np.corrcoef(order, np.arange(1_000_000))[0, 1]) < 0.005
    with pytest.raises(ValueError, match="read-only"):
        order[0] = 1


SCRIPT = """
import hashlib
from tfm.data.pipeline import batch, load
total = hashlib.sha256()
for task, objective in (("listops(length=20)", "classify"), ("recall(vocab=64)", "tag")):
    source = load(task, "valid", objective, 100, seed=5)
    for step in (40, 3, 0):
        for name, x in batch(source, 7, step, 16).items():
            total.update(name.encode() + x.tobytes())
    total.update(source.fingerprint.encode())
print(total.hexdigest())
"""


def test_another_process_sees_the_same(capsys):
    exec(SCRIPT)
    here = capsys.readouterr().out
    env = {"PYTHONHASHSEED": "123", "PATH": ""}
    there = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=env)
    assert there.stdout == here, there.stderr
    assert len(here.strip()) == hashlib.sha256().digest_size * 2


def test_streams_are_independent():
    """Splits and seeds have streams of their own."""
    made = {
        (split, seed): load("copy(length=20)", split, "tag", 200, seed).arrays["tokens_BT"]
        for split in ("train", "valid", "test")
        for seed in (0, 1)
    }
    again = load("copy(length=20)", "valid", "tag", 200, 1).arrays["tokens_BT"]
    np.testing.assert_array_equal(again, made["valid", 1])
    seen = [tuple(row) for x in made.values() for row in x.tolist()]
    assert len(set(seen)) == len(seen)
    first, *others = (np.ravel(x).astype(float) for x in made.values())
    assert all(abs(np.corrcoef(first, other)[0, 1]) < 0.06 for other in others)


@pytest.mark.parametrize("size", [1, 3, 5, 7, 16])
def test_in_order(size):
    source = load("sort(length=4, min_length=1)", "valid", "seq2seq", 15)
    batches = list(in_order(source, size))
    assert len(batches) == -(-15 // size)
    for name, x in source.arrays.items():
        assert {made[name].shape for made in batches} == {(size, *x.shape[1:])}
        whole = np.concatenate([made[name] for made in batches])
        np.testing.assert_array_equal(whole[:15], x)
        if name.startswith("weights"):
            assert not np.any(whole[15:])
    assert np.all(source.arrays["weights_BT"][:, 0] == 1)  # the source itself is untouched


def test_fingerprints():
    base = fingerprint("recall")
    assert base == fingerprint("recall()") == fingerprint(" recall(pairs=4, length=64)")
    assert base == load("recall", "train", "tag", 2).fingerprint
    assert fingerprint("recall(length=32, pairs=8)") == fingerprint("recall(pairs=8, length=32)")
    others = ["recall(pairs=8)", "recall(length=32)", "recall(alpha=1.0)", "induction", "copy"]
    assert len({base, *map(fingerprint, others)}) == 6


def mine(size=3):
    def make(rng, count, split):
        tokens = rng.integers(3, 9, (count, size))
        valid = np.ones(tokens.shape, bool)
        return Labels(tokens, valid, (tokens[:, 0] > 5) * 1, vocab=9, classes=2)

    return Task(make)


def test_own_tasks(monkeypatch):
    monkeypatch.setitem(pipeline.TASKS, "mine", mine)
    monkeypatch.setitem(pipeline.TASKS, "made", mine(2))
    monkeypatch.setitem(pipeline.TASKS, "wrong", lambda: 3)
    monkeypatch.setitem(
        pipeline.TASKS, "short", Task(lambda rng, n, split: mine().make(rng, 1, ""))
    )
    assert load("mine(size=5)", "train", "classify", 10).arrays["tokens_BT"].shape == (10, 5)
    assert load("made", "train", "next_token", 10).needs == {"vocab": 9}
    assert fingerprint("made") == fingerprint("made()") != fingerprint("mine(size=2)")
    with pytest.raises(UserError, match="task 'wrong' must be a Task, not 3"):
        load("wrong", "train", "classify", 10)
    with pytest.raises(UserError, match="task 'short': 1 examples came of 10 asked for"):
        load("short", "train", "classify", 10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(split="trian"), "task 'copy': unknown split 'trian'; did you mean 'train'"),
        (dict(objective="tags"), "task 'copy': unknown objective 'tags'; did you mean 'tag'"),
        (dict(objective="classify"), "task 'copy': objective 'classify' needs labels"),
        (dict(count=None), "task 'copy': count: there is no end of examples"),
        (dict(count=0), "count=0 must be a whole number of at least 1"),
        (dict(seed=-1), "seed=-1 must be a whole number of at least 0"),
        (dict(seed=0.5), "seed=0.5 must be a whole number"),
        (dict(task="copy & sort"), "only masks join"),
        (dict(task="addition", objective="classify", count=9999), "from 1 to 4704, all that 'tra"),
    ],
)
def test_bad_requests_are_named(arguments, message):
    with pytest.raises(UserError, match=message):
        load(**dict(task="copy", split="train", objective="tag", count=3) | arguments)


def test_bad_batches_are_named():
    source = numbered(10)
    for seed, step, size, name in ((-1, 0, 1, "seed"), (0, -1, 1, "step"), (0, 0, 0, "size")):
        with pytest.raises(UserError, match=f"{name}=.* must be a whole number of at least"):
            batch(source, seed, step, size)
    with pytest.raises(UserError, match="size=0"):
        next(in_order(source, 0))
