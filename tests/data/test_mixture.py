"""Mixtures: weights, prefixes, task tokens, labels as text, one tokenizer for all."""

import dataclasses

import numpy as np
import pytest

from tfm.config.files import load, user_entries
from tfm.config.names import UserError
from tfm.data.dataset import Reading
from tfm.data.datasets import open_dataset
from tfm.data.reader import of_data
from tfm.run import spec

ENGLISH = ["the dog sleeps", "a cat runs", "the cat sees a dog", "a dog runs to the big cat"] * 5
FRENCH = ["le chien dort", "un chat court", "le chat voit un chien", "un chien court"] * 5
LABELS = ["good", "bad", "very bad"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TFM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TFM_DATA", str(tmp_path))
    for split, rows in {"train": slice(None), "valid": slice(0, 6)}.items():
        (tmp_path / f"{split}.en").write_text("\n".join(ENGLISH[rows]) + "\n")
        (tmp_path / f"{split}.fr").write_text("\n".join(FRENCH[rows]) + "\n")
        films = [f"{text} film\t{LABELS[i % 3]}" for i, text in enumerate(ENGLISH[rows])]
        (tmp_path / f"{split}.tsv").write_text("text\tlabel\n" + "\n".join(films) + "\n")
    return tmp_path


TO_FRENCH = "parallel(train='train', valid='valid', source='en', target='fr')"
TO_ENGLISH = "parallel(train='train', valid='valid', source='fr', target='en')"
FILMS = "table(train='train.tsv', valid='valid.tsv', text='text', label='label')"
BOTH = f"mixture(parts=({TO_FRENCH!r}, {TO_ENGLISH!r}), prefixes=('to French: ', 'to English: '))"
T5 = (
    f"mixture(parts=({TO_FRENCH!r}, {FILMS!r}), prefixes=('to French: ', 'film: '), "
    "labels_as_text=True)"
)
WORDS = Reading("words")


def pairs(dataset):
    """The rows as texts."""
    some = dataset.take(np.arange(len(dataset)))
    sides = [
        np.split(side.ids, np.cumsum(side.lengths)[:-1]) for side in (some.tokens, some.target)
    ]
    return [tuple(map(of_data(dataset, None).decode, pair)) for pair in zip(*sides, strict=True)]


def test_both_directions_of_a_translation():
    wanted = [(f"to French: {en}", fr) for en, fr in zip(ENGLISH, FRENCH, strict=True)]
    wanted += [(f"to English: {fr}", en) for en, fr in zip(ENGLISH, FRENCH, strict=True)]
    train = open_dataset(BOTH, "train", reading=WORDS)
    spaced = [(a.replace(":", " :"), b) for a, b in wanted]  # as words are joined
    assert sorted(pairs(train)) == sorted(spaced)
    assert pairs(train) != sorted(pairs(train))  # shuffled
    valid = open_dataset(BOTH, "valid", reading=WORDS)
    assert valid.vocabulary == train.vocabulary
    first, second = valid.parts.values()
    assert pairs(first) == spaced[:6]
    assert pairs(second) == spaced[20:26]
    assert (first.vocab, first.max_length) == (valid.vocab, valid.max_length)


def test_labels_are_written_as_text():
    train = open_dataset(T5, "train", reading=WORDS)
    assert (train.form, train.classes) == ("pairs", None)
    films = [(f"film : {en} film", LABELS[i % 3]) for i, en in enumerate(ENGLISH)]
    assert sorted(pair for pair in pairs(train) if "film" in pair[0]) == sorted(films)
    measured = dataclasses.replace(train, lengths=None).row_lengths()
    np.testing.assert_array_equal(train.row_lengths(), measured)
    translation, films = open_dataset(T5, "valid", reading=WORDS).parts.values()
    assert translation.target_texts(np.arange(6)) == FRENCH[:6]
    assert films.target_texts(np.arange(6)) == [LABELS[i % 3] for i in range(6)]


def test_labels_of_one_set_stay_labels():
    text = f"mixture(parts=({FILMS!r}, {FILMS!r}), weights=(1, 2), prefixes=('a ', 'b '))"
    train = open_dataset(text, "train", reading=WORDS)
    assert (train.form, train.label_names) == ("labels", ("bad", "good", "very bad"))
    assert len(train) == 20 + 40


def test_weights_are_shares_of_an_epoch_that_has_every_row():
    copy, reverse = "copy(length=3, vocab=40)", "reverse(length=5, vocab=30)"
    text = f"mixture(parts=({copy!r}, {reverse!r}), weights=(3, 1), tokens=True)"
    dataset = open_dataset(text, "train", 40, seed=1)
    assert (dataset.vocab, dataset.max_length, dataset.padded) == (42, 6, True)
    some = dataset.take(np.arange(len(dataset)))
    rows = np.split(some.tokens.ids, np.cumsum(some.tokens.lengths)[:-1])
    wanted = np.split(some.target.ids, np.cumsum(some.target.lengths)[:-1])
    tasks = [int(row[0]) for row in rows]
    assert (tasks.count(40), tasks.count(41)) == (30, 10)
    for row, target in zip(rows, wanted, strict=True):
        np.testing.assert_array_equal(target, row[1:] if row[0] == 40 else row[:0:-1])
    alone = open_dataset(copy, "train", 30, seed=1)
    known = {tuple(row) for row in alone.take(np.arange(30)).tokens.ids.reshape(30, 3)}
    assert {tuple(row[1:]) for row in rows if row[0] == 40} == known


@pytest.mark.parametrize("weights", [(1, 1), (5, 1), (1, 7), (0.3, 0.7)])
def test_small_sets_are_repeated(folder, weights):
    (folder / "few.en").write_text("one\ntwo\n")
    (folder / "few.fr").write_text("un\ndeux\n")
    few = "parallel(train='few', valid='valid', source='en', target='fr')"
    text = f"mixture(parts=({TO_FRENCH!r}, {few!r}), weights={weights})"
    train = open_dataset(text, "train", reading=WORDS)
    found = pairs(train)
    many = [found.count((word, mot)) for word, mot in (("one", "un"), ("two", "deux"))]
    assert sum(many) / len(found) == pytest.approx(weights[1] / sum(weights), abs=0.02)
    assert abs(many[0] - many[1]) <= 1
    assert min(many) >= 1
    assert len(set(found)) == 4 + 2
    valid = open_dataset(text, "valid", reading=WORDS)
    assert len(valid) == 12  # no weights there


def test_a_prefix_takes_its_room_from_the_text():
    cut = WORDS._replace(max_length=6, max_target=2)
    train = open_dataset(BOTH, "train", reading=cut)
    assert (train.max_length, train.max_target) == (6, 2)
    lengths = train.row_lengths()
    assert lengths.max(0).tolist() == [6, 2]
    np.testing.assert_array_equal(lengths, dataclasses.replace(train, lengths=None).row_lengths())
    over = [max(len(en.split()) - 3, 0) for en in ENGLISH]  # "to", "French" and ":" stay
    notes = [note for note in train.notes if "part 0" in note and "max_length" in note]
    assert f"{np.count_nonzero(over)} rows truncated to data.max_length=6, 3 of it" in notes[0]
    assert f"{sum(over)} tokens lost" in notes[0]


def test_text_after_a_prefix_is_scored_as_it_was(folder):
    (folder / "a.txt").write_text("abcdefgh\n" * 20)
    (folder / "b.txt").write_text("01234567\n" * 20)
    parts = tuple(f"text(train='{name}.txt', length=8)" for name in "ab")
    text = f"mixture(parts={parts}, prefixes=('A:', 'B:'))"
    valid = open_dataset(text, "valid", reading=Reading("characters"))
    some = valid.take(np.arange(len(valid)))
    alone = [open_dataset(part, "valid", reading=Reading("characters")) for part in parts]
    whole = sum(int(np.sum(x.take(np.arange(len(x))).tokens.lengths - 1)) for x in alone)
    assert some.scored.sum() == whole
    starts = np.cumsum(some.tokens.lengths) - some.tokens.lengths
    assert {of_data(valid, None).decode(some.tokens.ids[s : s + 2]) for s in starts} == {"A:", "B:"}
    assert not some.scored[starts[:, None] + np.arange(3)].any()


def test_the_fingerprint_is_of_what_files_hold(folder):
    def fingerprint(text=BOTH):
        return open_dataset(text, "train", reading=WORDS).fingerprint

    first = fingerprint()
    other = BOTH.replace("train='train'", "train='copied'")
    assert other != BOTH
    for side in ("en", "fr"):
        (folder / f"copied.{side}").write_bytes((folder / f"train.{side}").read_bytes())
    assert fingerprint(other) == first
    assert fingerprint(BOTH.replace("to French", "to france")) != first
    (folder / "train.en").write_text("\n".join([*ENGLISH[:-1], "a new line"]) + "\n")
    assert fingerprint() != first


OWN = """
from ml_collections import ConfigDict
from tfm.data.datasets import DATASETS as KNOWN

def mine(length: int = 3):
    return KNOWN["copy"](length=length, vocab=8)

DATASETS = {"mine": mine}

def get_config():
    return ConfigDict({
        "objective": "seq2seq",
        "model": {"family": "seq2seq", "width": 4, "hidden": 8},
        "data": {"dataset": "mixture(parts=('mine(length=4)', 'copy(vocab=8)'), tokens=True)"},
        "train": {"steps": 1},
    })
"""


def test_an_entry_of_a_users_own_counts_in_a_mixture(folder, own_tables):
    (folder / "own.py").write_text(OWN)
    run = spec.read(load(str(folder / "own.py")).to_dict())
    assert list(user_entries(run)) == ["DATASETS.mine"]


BAD = {
    "mixture(parts=())": "must be data sets in quotes",
    "mixture(parts=('copi',))": "did you mean 'copy'",
    "mixture(parts=('copy', 'sort'), weights=(1,))": "one for each of 2 parts",
    "mixture(parts=('copy', 'sort'), weights=(1, 0))": "above 0",
    "mixture(parts=('copy', 'sort'), prefixes=('a', 'b'))": "the parts are ids; tokens=True",
    "mixture(parts=('copy', 'parity'), tokens=True)": "has labels, and 'copy' has pairs",
    f"mixture(parts=('copy', {FILMS!r}))": "some parts are text",
    f"mixture(parts=({TO_FRENCH!r}, {FILMS!r}))": "labels_as_text=True",
}


@pytest.mark.parametrize("text", BAD)
def test_what_cannot_be_mixed(text):
    reading = WORDS if "parallel" in text and "'copy'" not in text else Reading()
    with pytest.raises(UserError) as caught:
        open_dataset(text, "train", None if "parallel" in text else 20, reading=reading)
    assert BAD[text] in str(caught.value)
