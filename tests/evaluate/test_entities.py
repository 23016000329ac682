"""Entities by type, against a loop over spans."""

import numpy as np

from tfm.evaluate.entities import counts_by_type

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
