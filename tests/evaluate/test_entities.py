"""Entities by type, against a loop over spans."""

import numpy as np
import pytest

from tfm.data.dataset import Reading
from tfm.data.datasets import open_dataset
from tfm.evaluate.baselines import baselines
from tfm.evaluate.entities import counts_by_type
from tfm.objectives.batches import eval_batches
from tfm.objectives.scores import with_lost_tags
from tfm.objectives.table import OBJECTIVES

TAG = OBJECTIVES["tag"]
NAMES = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


def spans(tags):
    """Returns (type, begin, end) of each entity, as conlleval: I-X after another tag begins one."""
    out, begin, kind = set(), None, None
    for t, tag in enumerate([*tags, 0]):
        name = NAMES[tag]
        inside = name[:2] == "I-" and name[2:] == kind
        if kind is not None and not inside:
            out.add((kind, begin, t))
            kind = None
        if name != "O" and not inside:
            begin, kind = t, name[2:]
    return out


def test_counts_of_each_type_by_a_loop():
    rng = np.random.default_rng(0)
    tags_BT, predicted_BT = rng.integers(0, 5, (2, 40, 12))
    length_B = rng.integers(1, 13, 40)
    padding_BT = np.arange(12) >= length_B[:, None]
    counts = counts_by_type(np.where(padding_BT, -1, tags_BT), predicted_BT, NAMES)
    for kind in ("PER", "LOC"):
        wanted = np.zeros(3)
        for tags, predicted, length in zip(tags_BT, predicted_BT, length_B, strict=True):
            true, said = spans(tags[:length]), spans(predicted[:length])
            wanted += [sum(x[0] == kind for x in found) for found in (true, said, true & said)]
        np.testing.assert_array_equal(counts[kind], wanted)


@pytest.mark.parametrize("mixed", [False, True])
def test_entities_that_are_cut_off_are_missed(tmp_path, monkeypatch, mixed):
    """A tagger that is right about each word that it reads, against seqeval on whole sentences."""
    seqeval = pytest.importorskip("seqeval.metrics")
    sequence_labeling = pytest.importorskip("seqeval.metrics.sequence_labeling")
    monkeypatch.setenv("TFM_CACHE", str(tmp_path / "cache"))
    rng, most = np.random.default_rng(1), 5
    names = np.array(["O", "B-PER", "I-PER", "B-LOC", "I-LOC"])
    sentences = [names[rng.integers(0, 5, n)].tolist() for n in rng.integers(1, 12, 60)]
    blocks = ["".join(f"word {tag}\n" for tag in tags) for tags in sentences]
    (tmp_path / "b.txt").write_text("\n".join(blocks))
    path = repr(str(tmp_path / "b.txt"))
    task = f"bio(train={path}, valid={path})"
    task = f"mixture(parts=({task!r}, {task!r}))" if mixed else task
    data = open_dataset(task, "valid", None, reading=Reading(tokenizer="words", max_length=most))
    tags_BT = np.concatenate(
        [np.where(batch.weights > 0, batch.labels, -1) for batch in eval_batches(TAG, data, 60)]
    )
    sums = {"tags_BT": tags_BT, "predicted_BT": np.maximum(tags_BT, 0)}
    sums |= {name: np.ones(len(tags_BT)) for name in ("count", "loss", "correct")}
    found = TAG.metrics(TAG.per_example(sums, data), data)
    true = [row for row in sentences for _ in range(1 + mixed)]
    said = [row[:most] + ["O"] * (len(row) - most) for row in true]
    wanted = {
        name: getattr(seqeval, f"{name}_score")(true, said)
        for name in ("precision", "recall", "f1")
    }
    assert wanted["precision"] < 1  # the beginning of one is not the whole
    assert {name: found[f"entity_{name}"] for name in wanted} == pytest.approx(wanted)
    by_type = counts_by_type(
        *with_lost_tags(tags_BT, np.maximum(tags_BT, 0), data), data.label_names
    )
    assert sum(by_type.values())[0] == len(sequence_labeling.get_entities(true))
    if not mixed:
        (guess,) = baselines(TAG, data, data).values()
        assert guess["entity_recall"] <= wanted["recall"]
        assert "rows truncated to data.max_length=5" in data.notes[0]
