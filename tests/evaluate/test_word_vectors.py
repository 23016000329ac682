"""Vectors of words: similarity and analogies against gensim and by hand, W·W′ by definition."""

import numpy as np
import pytest

from tests.objectives.test_prepare import TEXT
from tfm.config.names import UserError
from tfm.data.reader import of_data
from tfm.evaluate.word_vectors import analogies, measured, near_identity, similarity, word_ids

IDS = {"king": 0, "queen": 1, "man": 2, "woman": 3, "apple": 4}
VECTORS = np.array([[1, 0, 1], [0, 1, 1], [1, 0, 0], [0, 1, 0], [0.1, 0.1, -1]], float)


def test_similarity_by_hand():
    """Cosines: king–queen 0.5, man–woman 0, king–man 0.71, apple–king below 0."""
    lines = ["# header", "Word 1\tWord 2\tMean", "king\tqueen\t7", "man\twoman\t5", "King\tman\t9",
             "apple\tking\t1", "king\tpear\t3"]  # fmt: skip
    assert similarity(VECTORS, IDS, lines) == {
        "spearman": pytest.approx(1),
        "pairs": 4,
        "unknown": 1,
    }
    turned = [*lines[:4], "king\tman\t1", "apple\tking\t9"]
    assert similarity(VECTORS, IDS, turned)["spearman"] < 0
    with pytest.raises(UserError, match="line 4: not two words and a number: 'man'"):
        similarity(VECTORS, IDS, [*lines[:3], "man"])
    with pytest.raises(UserError, match="of 1 pairs of words 0 are known"):
        similarity(VECTORS, {}, lines[2:3])


def test_analogies_by_hand():
    lines = [": family", "man king woman queen", "man woman king queen", "man woman king apple",
             "man woman pear queen"]  # fmt: skip
    found = analogies(VECTORS, IDS, lines)
    assert found == {"accuracy": pytest.approx(2 / 3), "asked": 3, "unknown": 1}


def test_as_gensim_measures(tmp_path):
    keyed = pytest.importorskip("gensim.models").KeyedVectors(8)
    rng = np.random.default_rng(0)
    words = [f"word{i}" for i in range(60)]
    vectors = rng.normal(size=(60, 8)).astype(np.float32)
    keyed.add_vectors(words, vectors)
    pairs = rng.integers(0, 60, (40, 2))
    text = "\n".join(f"{words[a]}\t{words[b]}\t{rng.random():.3f}" for a, b in pairs)
    (tmp_path / "pairs.tsv").write_text(text)
    ids = {word: i for i, word in enumerate(words)}
    mine = measured(vectors, ids, str(tmp_path / "pairs.tsv"))
    theirs = keyed.evaluate_word_pairs(str(tmp_path / "pairs.tsv"))
    assert mine["spearman"] == pytest.approx(theirs[1].statistic, abs=1e-6)
    quads = [rng.choice(60, 4, replace=False) for _ in range(30)]
    for quad in quads[:10]:  # of which some are right
        quad[3] = ids[keyed.most_similar([words[quad[1]], words[quad[2]]], [words[quad[0]]])[0][0]]
    lines = ": all\n" + "\n".join(" ".join(words[i] for i in quad) for quad in quads)
    (tmp_path / "analogies.txt").write_text(lines)
    mine = measured(vectors, ids, str(tmp_path / "analogies.txt"))
    theirs = keyed.evaluate_word_analogies(str(tmp_path / "analogies.txt"))
    assert mine["accuracy"] == pytest.approx(theirs[0])
    assert 0.3 < mine["accuracy"] < 0.7


def test_the_product_beside_the_identity():
    """By definition, with the V × V matrix; a pseudo-inverse is as near as the rank allows."""
    rng = np.random.default_rng(0)
    w, o = rng.normal(size=(2, 7, 3))
    product = w @ o.T
    alpha = np.linspace(-2, 2, 400_001)
    squares = alpha**2 * np.sum(product**2) - 2 * alpha * np.trace(product) + 7
    got = near_identity(w, o)
    assert got["distance"] == pytest.approx(np.sqrt(squares[alpha >= 0].min() / 7), abs=1e-6)
    assert got["own_word"] == np.mean(product.argmax(1) == np.arange(7))
    inverse = near_identity(w, np.linalg.pinv(w).T)
    assert inverse["distance"] == pytest.approx(inverse["least"]) == pytest.approx(np.sqrt(4 / 7))
    assert inverse["pseudo_inverse"] == pytest.approx(1)
    whole = near_identity(np.eye(4), np.eye(4))
    assert whole == {"distance": 0, "least": 0, "own_word": 1, "pseudo_inverse": pytest.approx(1)}


def test_words_need_a_decoder():
    with pytest.raises(UserError, match="the data have no words"):
        word_ids(of_data(TEXT, None))
