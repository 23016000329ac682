"""Simple methods: against definitions written as loops, and by hand."""

import dataclasses
import math
from collections import Counter

import numpy as np
import pytest

from tests.objectives.test_prepare import data, flat, ragged
from tfm.config.names import read
from tfm.data.dataset import Examples, Ragged
from tfm.evaluate.baselines import baselines, naive_bayes
from tfm.evaluate.ngram import NGram
from tfm.objectives.table import OBJECTIVES

VOCAB = 6


def corpus(rows=60, length=12, seed=0):
    """A text in which a token tends to follow the sum of the two before it."""
    rng = np.random.default_rng(seed)
    out = rng.integers(0, VOCAB - 1, (rows, length))  # the last id never occurs
    for t in range(2, length):
        follows = (out[:, t - 1] + out[:, t - 2]) % (VOCAB - 1)
        out[:, t] = np.where(rng.random(rows) < 0.7, follows, out[:, t])
    return out


def kneser_ney(text, history, word, order):
    """P(word | history) as Chen & Goodman write it, from Counters."""
    grams = {
        n: Counter(tuple(row[i : i + n]) for row in text for i in range(len(row) - n + 1))
        for n in range(1, order + 1)
    }
    counts = {order: grams[order]}
    for n in range(1, order):  # how many different tokens come before
        counts[n] = Counter(gram[1:] for gram in grams[n + 1])

    def p(history, n):
        if n == 0:
            return 1 / VOCAB
        history = tuple(history[len(history) - n + 1 :]) if n > 1 else ()
        if n > 1 and grams[n - 1][history] == 0:
            return p(history[1:], n - 1)
        follow = {gram: c for gram, c in counts[n].items() if gram[:-1] == history}
        total = sum(follow.values())
        if not total:
            return p(history[1:], n - 1)
        once, twice = (sum(c == k for c in counts[n].values()) for k in (1, 2))
        discount = once / (once + 2 * twice) if once and twice else 0.5
        own = max(follow.get((*history, word), 0) - discount, 0)
        return (own + discount * len(follow) * p(history[1:], n - 1)) / total

    return p(tuple(history), min(order, len(history) + 1))


@pytest.mark.parametrize("order", [1, 2, 3])
def test_kneser_ney_by_definition(order):
    text, other = corpus(rows=12), corpus(rows=5, length=6, seed=1)
    other[0, 3] = VOCAB - 1  # which was never seen
    model = NGram(text, np.ones(text.shape, bool), VOCAB, order)
    got = model.probabilities(other, np.ones(other.shape, bool))
    text = [tuple(map(int, row)) for row in text]
    for row, t in np.ndindex(other.shape):
        history = tuple(map(int, other[row, max(0, t - order + 1) : t]))
        wanted = kneser_ney(text, history, int(other[row, t]), order)
        assert got[row, t] == pytest.approx(wanted, rel=1e-9), (row, t)


def test_probabilities_add_up_to_one():
    text = corpus()
    model = NGram(text, np.ones(text.shape, bool), VOCAB, 3)
    for history in ([], [2], [2, 3], [5, 1], [1, 5]):
        rows = np.array([[*history, word] for word in range(VOCAB)])
        p = model.probabilities(rows, np.ones(rows.shape, bool))[:, -1]
        assert p.sum() == pytest.approx(1)


def text_data(rows):
    return data(
        "text", Examples(tokens=Ragged.of(rows)), vocab=VOCAB, max_length=rows.shape[1],
        count=len(rows), padded=False,
    )  # fmt: skip


def test_of_text():
    """The unigram is near the entropy of tokens, the trigram far below; each on what is asked."""
    train, valid = text_data(corpus(2000)), text_data(corpus(200, seed=1))
    entropy = math.log(VOCAB - 1)
    for name in ("next_token", "masked_lm", "span_corruption", "ul2", "prefix_lm", "word2vec"):
        found = baselines(read(name, OBJECTIVES, ""), train, valid)
        assert found["unigram"]["loss"] == pytest.approx(entropy, abs=0.03), name
        assert found["trigram"]["loss"] < entropy - 0.3, name


def test_windows_that_overlap_are_counted_once():
    """Windows at every offset teach what windows side by side teach."""
    whole = corpus(1, 600)[0]
    windows = np.lib.stride_tricks.sliding_window_view(whole, 12)
    apart = whole.reshape(-1, 12)
    valid = text_data(corpus(20, seed=1))
    one, other = (
        baselines(OBJECTIVES["next_token"], text_data(x), valid) for x in (windows, apart)
    )
    assert one == other


def test_of_pairs():
    """A target that is always the same has, with its end, hardly any surprise for a trigram."""
    rows = Examples(tokens=ragged(*[[5, 4]] * 50), target=ragged(*[[3, 4, 3]] * 50))
    dataset = data("pairs", rows, vocab=VOCAB, max_target=3, count=50)
    found = baselines(OBJECTIVES["seq2seq"], dataset, dataset)
    assert found["trigram"]["loss"] < 0.3
    # BOS, which is in the counts but is not asked for; 3 twice, 4 once, the end once.
    assert found["unigram"]["loss"] == pytest.approx(
        -(2 * math.log(0.4) + 2 * math.log(0.2)) / 4, abs=0.02
    )


def test_of_classes():
    """Token 4 is of class 1, 5 of class 0, 3 of both; class 0 is the more frequent."""
    tokens = ragged([3, 5], [5, 3, 5], [3, 4], [5], [3, 3, 5])
    learned = Examples(tokens=tokens, labels=np.array([0, 0, 1, 0, 0]))
    asked = Examples(tokens=ragged([4, 4], [5, 3], [3, 4, 4]), labels=np.array([1, 0, 1]))
    train = data("labels", learned, vocab=VOCAB, classes=2, count=5)
    valid = data("labels", asked, vocab=VOCAB, classes=2, count=3)
    found = baselines(OBJECTIVES["classify"](), train, valid)
    assert found["majority class"]["accuracy"] == pytest.approx(1 / 3)
    assert found["bag of words"]["accuracy"] == 1
    assert found["bag of words"]["macro_f1"] == 1


def test_naive_bayes_as_scikit_learn_has_it():
    sklearn = pytest.importorskip("sklearn.naive_bayes")
    rng = np.random.default_rng(0)
    text, label = rng.integers(0, 20, (200, 9)), rng.integers(0, 3, 200)
    text[label == 1] //= 2
    logits = naive_bayes(
        Examples(tokens=Ragged.of(text), labels=label), Ragged.of(text[:50]), 20, 3
    )
    counts = np.array([np.bincount(row, minlength=20) for row in text])
    theirs = sklearn.MultinomialNB().fit(counts, label)
    np.testing.assert_array_equal(logits.argmax(1), theirs.predict(counts[:50]))


def test_of_tags():
    """Words of one or two pieces, of which the first is scored: 7 is twice a 1, 7-8 is always 2."""
    tokens = ragged([7, 7, 8], [7, 7, 8], [9])
    tags, scored = flat([1, 2, 0], [0, 2, 0], [3]), flat([1, 1, 0], [1, 1, 0], [1]) > 0
    learned = Examples(tokens=ragged([7, 7, 8], [7, 7, 8], [9], [7, 5]),
                       tags=flat([1, 2, 0], [0, 2, 0], [3], [1, 3]),
                       scored=flat([1, 1, 0], [1, 1, 0], [1], [1, 1]) > 0)  # fmt: skip
    train = data("tags", learned, tags=4, count=4)
    valid = data("tags", Examples(tokens=tokens, tags=tags, scored=scored), tags=4, count=3)
    (found,) = baselines(OBJECTIVES["tag"], train, valid).values()
    assert found == {"accuracy": pytest.approx(4 / 5)}  # one 7 is a 0
    unseen = dataclasses.replace(
        valid, read=Examples(tokens=ragged([4], [4], [4]), tags=flat([3], [3], [1])).take
    )
    (found,) = baselines(OBJECTIVES["tag"], train, unseen).values()
    assert found["accuracy"] == pytest.approx(2 / 3)  # 3 is the tag of the words seen once
    names = ("O", "B-X", "I-X", "B-Y")
    named = dataclasses.replace(valid, label_names=names)
    (found,) = baselines(OBJECTIVES["tag"], train, named).values()
    # Entities: 7 with 7-8 as X, the second 7-8 as X, 9 as Y. The other 7 is taken for a B-X.
    assert found["entity_recall"] == pytest.approx(2 / 3)
