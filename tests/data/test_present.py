"""Each form under each objective, written out by hand."""

import dataclasses

import numpy as np
import pytest

from tfm.data.batch import Labels, Marks, Pairs
from tfm.data.present import OBJECTIVES, allowed, present, vocab_needed
from tfm.names import UserError


def ids(*rows):
    return np.array(rows, np.int32)


def mask(*rows):
    return np.array(rows, bool)


PAIRS = Pairs(
    source_NS=ids([5, 6, 7], [8, 9, 0]),
    source_valid_NS=mask([1, 1, 1], [1, 1, 0]),
    target_NT=ids([7, 0], [5, 6]),
    target_valid_NT=mask([1, 0], [1, 1]),
    vocab=10,
)
EQUAL = dataclasses.replace(
    PAIRS, target_NT=ids([7, 6, 5], [9, 8, 0]), target_valid_NT=PAIRS.source_valid_NS
)
LABELS = Labels(
    tokens_NT=ids([5, 6, 7], [8, 9, 0]),
    valid_NT=mask([1, 1, 1], [1, 1, 0]),
    label_N=np.array([0, 2], np.int32),
    vocab=10,
    classes=3,
)
MARKS = Marks(
    tokens_NT=ids([5, 6, 7], [8, 9, 0]),
    valid_NT=mask([1, 1, 1], [1, 1, 0]),
    target_NT=ids([6, 7, 8], [9, 3, 0]),
    marked_NT=mask([0, 1, 1], [1, 0, 0]),
    vocab=10,
)
NEXT = dataclasses.replace(MARKS, follows=True)
SAME = {"tokens_BT": [[5, 6, 7], [8, 9, 0]], "valid_BT": [[1, 1, 1], [1, 1, 0]]}
BOTH = {"source_BS": SAME["tokens_BT"], "source_valid_BS": SAME["valid_BT"]}
AS_MARKED = {
    **SAME,
    "targets_BT": [[6, 7, 8], [9, 3, 0]],
    "weights_BT": [[0, 1, 1], [1, 0, 0]],
}

WANTED = {
    "pairs, next_token": {
        "tokens_BT": [[5, 6, 7, 1, 7, 0], [8, 9, 1, 5, 6, 0]],
        "valid_BT": [[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 0]],
        "targets_BT": [[0, 0, 0, 7, 2, 0], [0, 0, 5, 6, 2, 0]],
        "weights_BT": [[0, 0, 0, 1, 1, 0], [0, 0, 1, 1, 1, 0]],
    },
    "pairs, seq2seq": {
        **BOTH,
        "target_BT": [[1, 7, 0], [1, 5, 6]],
        "target_valid_BT": [[1, 1, 0], [1, 1, 1]],
        "targets_BT": [[7, 2, 0], [5, 6, 2]],
        "weights_BT": [[1, 1, 0], [1, 1, 1]],
    },
    "equal, tag": {
        **SAME,
        "targets_BT": [[7, 6, 5], [9, 8, 0]],
        "weights_BT": [[1, 1, 1], [1, 1, 0]],
    },
    "labels, next_token": {
        "tokens_BT": [[5, 6, 7, 1], [8, 9, 1, 0]],
        "valid_BT": [[1, 1, 1, 1], [1, 1, 1, 0]],
        "targets_BT": [[0, 0, 0, 3], [0, 0, 5, 0]],
        "weights_BT": [[0, 0, 0, 1], [0, 0, 1, 0]],
    },
    "labels, seq2seq": {
        **BOTH,
        "target_BT": [[1], [1]],
        "target_valid_BT": [[1], [1]],
        "targets_BT": [[3], [5]],
        "weights_BT": [[1], [1]],
    },
    "labels, classify": {**SAME, "targets_B": [0, 2], "weights_B": [1, 1]},
    "marks, next_token": AS_MARKED,
    "marks, tag": AS_MARKED,
    "next, next_token": AS_MARKED,
}
FORMS = {"pairs": PAIRS, "equal": EQUAL, "labels": LABELS, "marks": MARKS, "next": NEXT}


@pytest.mark.parametrize("case", WANTED)
def test_by_hand(case):
    form, objective = case.split(", ")
    made = present(FORMS[form], objective)
    assert list(made) == list(WANTED[case])
    for name, wanted in WANTED[case].items():
        np.testing.assert_array_equal(made[name], np.array(wanted), err_msg=name)
        kind = "float32" if "weights" in name else "bool" if "valid" in name else "int32"
        assert made[name].dtype == kind, name


REFUSED = {
    "pairs, tag": "a target for each position.*this task allows: next_token, seq2seq$",
    "pairs, classify": "needs labels, but the task gives pairs; this task allows: next_token, seq",
    "equal, classify": "this task allows: next_token, seq2seq, tag$",
    "labels, tag": "needs pairs or marks, but the task gives labels; .*: next_token, seq2seq, clas",
    "marks, seq2seq": "needs pairs or labels, but the task gives marks; .*: next_token, tag$",
    "marks, classify": "objective 'classify' needs labels",
    "next, tag": "objective 'tag' would show the wanted tokens.*this task allows: next_token$",
    "next, seq2seq": "this task allows: next_token$",
    "next, classify": "this task allows: next_token$",
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_shown_is_refused(case):
    form, objective = case.split(", ")
    with pytest.raises(UserError, match=REFUSED[case]):
        present(FORMS[form], objective)


def test_shown_or_refused():
    shown = {f"{form}, {o}" for form, examples in FORMS.items() for o in allowed(examples)}
    assert shown - set(WANTED) == {"equal, next_token", "equal, seq2seq"}
    assert len(shown | set(REFUSED)) == len(FORMS) * len(OBJECTIVES)
    with pytest.raises(UserError, match="unknown objective 'seqseq'; did you mean 'seq2seq'"):
        present(PAIRS, "seqseq")


def test_what_the_model_needs():
    assert vocab_needed(PAIRS, "next_token") == vocab_needed(PAIRS, "seq2seq") == {"vocab": 10}
    assert vocab_needed(EQUAL, "tag") == vocab_needed(MARKS, "tag") == {"vocab": 10, "classes": 10}
    assert vocab_needed(LABELS, "classify") == {"vocab": 10, "classes": 3}
    assert vocab_needed(LABELS, "next_token") == {"vocab": 10}
    many = dataclasses.replace(LABELS, classes=8)
    assert vocab_needed(many, "next_token") == vocab_needed(many, "seq2seq") == {"vocab": 11}
    with pytest.raises(UserError, match="unknown objective"):
        vocab_needed(PAIRS, "taq")


def test_broadcast_masks_take_no_room():
    everywhere = np.broadcast_to(True, MARKS.tokens_NT.shape)
    made = present(dataclasses.replace(MARKS, valid_NT=everywhere, marked_NT=everywhere), "tag")
    assert made["weights_BT"].strides == (0, 0)
    np.testing.assert_array_equal(made["weights_BT"], np.ones((2, 3)))


@pytest.mark.parametrize(
    ("form", "field", "value", "message"),
    [
        (PAIRS, "source_NS", ids([5, 6, 10], [0, 0, 0]), "source_NS holds 0 to 10, but vocab=10"),
        (PAIRS, "target_NT", ids([5, -1], [0, 0]), "Pairs.target_NT holds -1 to 5"),
        (
            PAIRS,
            "target_NT",
            ids([5, 1, 2], [0, 0, 0]),
            "is .2, 2., but axis T is 3",
        ),
        (PAIRS, "target_NT", ids([5, 1]), "target_NT is .1, 2., but axis N is 2"),
        (PAIRS, "source_valid_NS", ids([1, 1, 1], [1, 1, 0]), "must be boolean, not int32"),
        (PAIRS, "source_valid_NS", mask([1, 0, 1], [1, 1, 0]), "padding must come last"),
        (LABELS, "label_N", np.array([0, 3]), "Labels.label_N holds 0 to 3, but classes=3"),
        (LABELS, "label_N", np.array([0.0, 1.0]), "must be whole numbers, not float64"),
        (LABELS, "label_N", [0, 1], "must be a NumPy array of 1 axes"),
        (LABELS, "tokens_NT", np.zeros((0, 3), int), "not empty"),
        (MARKS, "marked_NT", mask([0, 1, 1], [1, 0, 1]), "Marks.marked_NT marks padding"),
    ],
)
def test_bad_examples_are_named(form, field, value, message):
    with pytest.raises(UserError, match=message):
        dataclasses.replace(form, **{field: value})


def test_ids_of_overlapping_windows_are_all_checked():
    windows = np.lib.stride_tricks.sliding_window_view(np.arange(10), 4)
    everywhere = np.broadcast_to(True, windows.shape)
    Marks(windows, everywhere, windows, everywhere, vocab=10)
    for wrong in (0, 5, 9):
        text = np.arange(10)
        text[wrong] = 10
        windows = np.lib.stride_tricks.sliding_window_view(text, 4)
        with pytest.raises(UserError, match="tokens_NT holds"):
            Marks(windows, everywhere, windows, everywhere, vocab=10)
