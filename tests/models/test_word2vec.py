import jax
import numpy as np
import pytest
from jax import numpy as jnp

from tests.helpers.by_hand import init
from tfm.config.names import UserError
from tfm.models import word2vec
from tfm.models.spec import Word2VecSpec, model_spec
from tfm.objectives import word2vec as objective

VOCAB, WIDTH = 12, 4
WORDS = np.array([[3, 5, 3, 7], [1, 2, 0, 11]])
VALID = np.array([[1, 1, 1, 0], [1, 1, 1, 1]], bool)


def model(**options):
    return word2vec.Word2Vec(Word2VecSpec(vocab=VOCAB, width=WIDTH, **options))


@pytest.mark.parametrize("average", [False, True])
def test_cbow(average):
    module = model(kind="cbow", average=average)
    tree = init(module, WORDS)
    into, out = tree["params"]["input"], tree["params"]["output"]
    sums = np.array([into[3] + into[5] + into[3], into[1] + into[2] + into[0] + into[11]])
    wanted = sums / np.array([[3], [4]]) if average else sums
    logits = module.apply(tree, WORDS, VALID)
    np.testing.assert_allclose(logits, wanted @ out.T, atol=1e-5)
    some = np.array([[0, 4, 4], [11, 1, 2]])
    candidates = module.apply(tree, WORDS, VALID, some)
    np.testing.assert_allclose(candidates, np.take_along_axis(logits, some, 1), atol=1e-5)
    full = module.apply(tree, WORDS[1:])
    np.testing.assert_allclose(full, logits[1:], atol=1e-5)


def test_skip_gram():
    module = model()
    tree = init(module, WORDS[:, :1])
    into, out = tree["params"]["input"], tree["params"]["output"]
    logits = module.apply(tree, WORDS[:, :1])
    np.testing.assert_allclose(logits, into[[3, 1]] @ out.T, atol=1e-5)


def test_begins_as_word2vec_c_does():
    tree = model().init(jax.random.key(0), WORDS[:, :1])["params"]
    assert {name: x.shape for name, x in tree.items()} == dict.fromkeys(
        ("input", "output"), (VOCAB, WIDTH)
    )
    assert not np.any(tree["output"])
    assert 0.4 / WIDTH < np.max(np.abs(tree["input"])) <= 0.5 / WIDTH


def test_noise_is_the_unigram_to_three_quarters():
    noise = objective.noise(jnp.array([16, 1, 81, 0]))
    np.testing.assert_allclose(noise, np.array([8, 1, 27, 0]) / 36, rtol=1e-5)


def test_tied():
    module = model(tied=True)
    tree = init(module, WORDS[:, :1])
    assert list(tree["params"]) == ["input"]
    into = tree["params"]["input"]
    logits = module.apply(tree, WORDS[:, :1])
    np.testing.assert_allclose(logits, into[[3, 1]] @ into.T, atol=1e-5)


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("kind", ["skip_gram", "cbow"])
def test_every_word_in_the_middle(kind, average):
    """A row at once is its words one after the other."""
    if average and kind == "skip_gram":
        return
    module = model(kind=kind, average=average)
    tree = init(module, WORDS[:, :1])
    reach = np.array([[1, 2, 1, 0], [3, 1, 2, 1]])
    candidates = np.concatenate([WORDS, [[4, 4], [9, 3]]], 1)
    got = module.apply(tree, WORDS, VALID, candidates, reach)
    assert got.shape == (2, 4, 6)
    for row, middle in np.argwhere(VALID):
        own = {"words_BC": WORDS[row : row + 1, middle : middle + 1]}
        if kind == "cbow":
            far = np.abs(np.arange(4) - middle)
            own["words_BC"] = WORDS[row : row + 1]
            own["valid_BC"] = ((far > 0) & (far <= reach[row, middle]) & VALID[row])[None]
        wanted = module.apply(tree, **own, candidates_BN=candidates[row : row + 1])
        np.testing.assert_allclose(got[row, middle], wanted[0], atol=1e-5)


def test_through_the_door():
    for kind, length in (("skip_gram", 1), ("cbow", 6)):
        part = {"family": "word2vec", "vocab": VOCAB, "width": WIDTH, "kind": kind}
        spec = model_spec({"model": part})
        assert isinstance(spec.build(), word2vec.Word2Vec)
        assert spec.example(2, 6)["words_BC"].shape == (2, length)


def test_bad_input_is_named():
    with pytest.raises(UserError, match="unknown kind 'skipgram'; did you mean 'skip_gram'"):
        model(kind="skipgram")
    with pytest.raises(UserError, match="average: skip-gram reads one word"):
        model(average=True)
    with pytest.raises(UserError, match="skip-gram reads one word"):
        model().init(jax.random.key(0), WORDS)
    with pytest.raises(
        UserError, match="reach_BC needs candidates_BN, because every word is a center"
    ):
        model().init(jax.random.key(0), WORDS, VALID, None, WORDS)
    with pytest.raises(UserError, match="valid_BC has shape"):
        model(kind="cbow").init(jax.random.key(0), WORDS, VALID[:, :2])
    with pytest.raises(UserError, match="candidates_BN has shape"):
        model(kind="cbow").init(jax.random.key(0), WORDS, None, WORDS[:1])
