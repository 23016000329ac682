"""A batch that shows what is to be predicted is found before the first step."""

import dataclasses

import numpy as np
import pytest

from tests.evaluate.test_leaks import TRANSFORMER, run
from tests.helpers.runs import Silent
from tfm.config.names import UserError
from tfm.data.dataset import Dataset, Examples, Ragged
from tfm.data.datasets import open_dataset
from tfm.evaluate.leaks import _tokens_of_labels, find_shown_answer
from tfm.objectives.base import Batch, Objective
from tfm.objectives.classify import Classify, Pair, Regress
from tfm.objectives.masked_lm import Bert, MaskedLM
from tfm.objectives.next_token import NextToken, PrefixLM
from tfm.objectives.seq2seq import Seq2Seq, VectorToSequence
from tfm.objectives.span_corruption import UL2, SpanCorruption
from tfm.objectives.table import OBJECTIVES
from tfm.objectives.tag import Tag
from tfm.objectives.word2vec import Word2Vec
from tfm.train import loop


def vectors(rows):
    """Each row's tokens are 5, 6, 7, … from its number on."""
    tokens_NT = 5 + (rows[:, None] + np.arange(6)) % 4
    return Examples(tokens=Ragged.of(tokens_NT), vectors=np.ones((len(rows), 2), np.float32))


def two_sentences(rows):
    """Each row is two sentences of three words and a label, 0 or 1."""
    tokens_NT = 5 + (rows[:, None] + np.arange(6)) % 4
    segments = np.tile([0, 0, 0, 1, 1, 1], len(rows))
    return Examples(tokens=Ragged.of(tokens_NT), labels=rows % 2, segments=segments)


def numbers(rows):
    return dataclasses.replace(two_sentences(rows), labels=rows / 2)


def dataset(text):
    facts = dict(count=12, form="labels", vocab=9, max_length=6)
    if text == "two sentences":
        return Dataset(read=two_sentences, classes=2, **facts)
    if text == "numbers":
        return Dataset(read=numbers, **facts)
    if text == "vectors":
        return Dataset(read=vectors, count=12, form="vectors", vocab=9, max_length=6, vector=2)
    return open_dataset(text, "valid", 12, 0)


TEXT, PAIRS, CLASSES = "dyck(length=30)", "copy(length=9, vocab=9)", "listops(length=40)"
HONEST = {
    "masked_lm": (MaskedLM(rate=0.4), TEXT),
    "all become the mask": (MaskedLM(rate=0.9, masked=1.0, random=0.0), TEXT),
    "none becomes the mask": (MaskedLM(rate=0.9, masked=0.0, random=0.5), TEXT),
    "masked once": (MaskedLM(rate=0.4, static=True), TEXT),
    "prefix_lm": (PrefixLM(), TEXT),
    "prefix_lm of pairs": (PrefixLM(), PAIRS),
    "span_corruption": (SpanCorruption(), TEXT),
    "ul2": (UL2(), TEXT),
    "next_token": (NextToken(), TEXT),
    "next_token of pairs": (NextToken(), PAIRS),
    "next_token of classes": (NextToken(), CLASSES),
    "next_token of tags": (NextToken(), "induction(length=12)"),
    "seq2seq": (Seq2Seq(), PAIRS),
    "seq2seq of classes": (Seq2Seq(), CLASSES),
    "tag": (Tag(), PAIRS),
    "classify": (Classify(), CLASSES),
    "pair": (Pair(), "two sentences"),
    "regress": (Regress(), "numbers"),
    "vector_to_sequence": (VectorToSequence(), "vectors"),
    "masked words of pairs": (Bert(rate=0.5), "stories(pairs=True)"),
    "skip-gram": (Word2Vec(), TEXT),
    "CBOW": (Word2Vec("cbow"), TEXT),
    "negative sampling": (Word2Vec(negatives=3), TEXT),
}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_objective_passes(name):
    objective, text = HONEST[name]
    assert find_shown_answer(objective, dataset(text), 12) is None


def test_every_objective_is_tried():
    tried = {type(objective) for objective, _ in HONEST.values()}
    made = [x if isinstance(x, Objective) else x() for x in OBJECTIVES.values()]
    assert tried == {type(objective) for objective in made}


def leaking(cls, change, **options):
    """An objective whose batches are changed after they are made."""

    class Leaking(cls):
        def prepare(self, examples, dataset, rng):
            return change(super().prepare(examples, dataset, rng), examples)

    return Leaking(**options)


def also(batch, **inputs):
    return batch.replace(inputs={**batch.inputs, **inputs})


def one_place(batch, _):
    """The mask is forgotten at the last hidden place of the last example."""
    tokens_BT = batch.inputs["tokens_BT"].copy()
    at = np.flatnonzero((batch.weights[-1] > 0) & (tokens_BT[-1] != batch.labels[-1]))[-1]
    tokens_BT[-1, at] = batch.labels[-1, at]
    return also(batch, tokens_BT=tokens_BT)


LEAKS = {
    "nothing is hidden": (
        leaking(MaskedLM, lambda b, _: also(b, tokens_BT=b.labels), rate=0.4), TEXT),
    "one place is not hidden": (leaking(MaskedLM, one_place, rate=0.4), TEXT),
    "another input shows it": (
        leaking(MaskedLM, lambda b, _: also(b, types_BT=b.labels % 2), rate=0.4), TEXT),
    "the sum of all": (
        leaking(MaskedLM, lambda b, _: also(b, sum_B=b.labels.sum(1)), rate=0.4), TEXT),
    "not shifted": (leaking(NextToken, lambda b, _: also(b, tokens_BT=b.labels)), TEXT),
    "the decoder's input is not shifted": (
        leaking(Seq2Seq, lambda b, _: also(b, decoder_input_BT=b.labels)), PAIRS),
    "the source holds the target": (
        leaking(Seq2Seq, lambda b, _: also(b, source_BS=b.labels[:, :-1])), PAIRS),
    "the vector": (
        leaking(VectorToSequence, lambda b, _: also(b, vector_BD=b.labels * 1.0)), "vectors"),
    "the class": (
        leaking(Classify, lambda b, x: also(b, vector_BD=x.labels[:, None] * 1.0)), CLASSES),
    "the word in the middle": (
        leaking(Word2Vec, lambda b, _: also(b, words_BC=b.labels[:, None])), TEXT),
}  # fmt: skip


@pytest.mark.parametrize("name", LEAKS)
def test_a_batch_that_shows_the_answer_is_found(name):
    objective, text = LEAKS[name]
    assert "that is to be predicted changes" in find_shown_answer(objective, dataset(text), 12)


def test_which_token_a_label_is():
    """Each label is a token of its row, wherever that stands; a sum of tokens is none."""
    ids = np.array([5, 6, 7, 8, 9, 4, 5, 6, 9, 8])
    examples = Examples(tokens=Ragged(ids, np.array([6, 4])))

    def prepare(examples):
        rows = [examples.tokens.ids[:6], examples.tokens.ids[6:]]
        labels = np.array([[row[3], row[0], row[-1], row[0] + row[1]] for row in rows])
        return Batch({}, labels, np.ones((2, 4)))

    batch = prepare(examples)
    wanted = np.array([[True, True, True, True], [True, False, False, True]])
    found = _tokens_of_labels(prepare, examples, batch, wanted, [])
    assert np.flatnonzero(found).tolist() == [0, 3, 5, 9]


def test_what_is_random_comes_from_rng():
    numbers = np.random.default_rng(0)
    change = lambda b, _: also(b, noise_B=numbers.random(len(b.labels)))
    with pytest.raises(UserError, match="Leaking.prepare returns two different batches"):
        find_shown_answer(leaking(MaskedLM, change), dataset(TEXT), 12)


@pytest.mark.usefixtures("own_tables")
def test_it_is_refused_and_nothing_is_left_behind(tmp_path):
    OBJECTIVES["leaking"] = leaking(MaskedLM, lambda b, _: also(b, tokens_BT=b.labels))
    model = {"family": "encoder", **TRANSFORMER}
    spec = run(model, "leaking", "dyck(length=16)")
    with pytest.raises(UserError, match=r"sees the answer: hide it in prepare\(\)"):
        loop.train(spec, str(tmp_path / "a"), Silent())
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "there").mkdir()  # a folder that was there stays
    with pytest.raises(UserError, match="sees the answer"):
        loop.train(spec, str(tmp_path / "there"), Silent())
    assert [path.name for path in (tmp_path / "there").iterdir()] in ([], ["lock"])
    watcher = Silent()
    allowed = dataclasses.replace(spec, train=dataclasses.replace(spec.train, allow_leak=True))
    assert loop.train(allowed, str(tmp_path / "b"), watcher)["status"] == "done"
    assert any("the model sees the answer" in text for text in watcher.messages)
