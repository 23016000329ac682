import jax
import numpy as np
import pytest
from jax import numpy as jnp

from tests.helpers.by_hand import init
from tests.helpers.quick import jit
from tfm.models import build, word2vec
from tfm.models.spec import Word2VecSpec
from tfm.names import UserError
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


def test_negative_sampling_loss():
    logits = np.random.default_rng(0).normal(size=(3, 6))
    sigmoid = lambda x: 1 / (1 + np.exp(-x))
    wanted = -np.log(sigmoid(logits[:, 0])) - np.log(sigmoid(-logits[:, 1:])).sum(1)
    loss = objective.negative_sampling_loss(jnp.asarray(logits))
    np.testing.assert_allclose(loss, wanted, rtol=1e-5)


def test_noise_is_the_unigram_to_three_quarters():
    noise = objective.noise(jnp.array([16, 1, 81, 0]))
    np.testing.assert_allclose(noise, np.array([8, 1, 27, 0]) / 36, rtol=1e-5)


def test_words_with_the_same_neighbours_get_near_vectors():
    """0 and 1 stand beside 4 and 5, 2 and 3 beside 6 and 7."""
    pairs = np.array([(a, b) for a in range(4) for b in ((4, 5) if a < 2 else (6, 7))])
    module = model()
    noise = objective.noise(jnp.bincount(pairs[:, 1], length=VOCAB))

    def step(params, key):
        others = jax.random.choice(key, VOCAB, (len(pairs), 4), p=noise)
        candidates = jnp.concatenate([jnp.asarray(pairs[:, 1:]), others], 1)
        loss = lambda params: jnp.sum(
            objective.negative_sampling_loss(
                module.apply({"params": params}, pairs[:, :1], None, candidates)
            )
        )
        return jax.tree.map(lambda x, grad: x - 0.05 * grad, params, jax.grad(loss)(params))

    params = module.init(jax.random.key(0), pairs[:, :1])["params"]
    keys = jax.random.split(jax.random.key(1), 300)
    params = jit(lambda params: jax.lax.fori_loop(0, 300, lambda i, p: step(p, keys[i]), params))(
        params
    )
    unit = params["input"] / np.linalg.norm(params["input"], axis=1, keepdims=True)
    alike = np.asarray(unit @ unit.T)
    assert min(alike[0, 1], alike[2, 3]) > 0.9
    assert np.max(alike[:2, 2:4]) < 0.5


def test_through_the_door():
    for kind, length in (("skip_gram", 1), ("cbow", 6)):
        part = {"family": "word2vec", "vocab": VOCAB, "width": WIDTH, "kind": kind}
        spec = build.spec({"model": part})
        assert isinstance(build.model(spec), word2vec.Word2Vec)
        assert build.example(spec, 2, 6)["words_BC"].shape == (2, length)


def test_bad_input_is_named():
    with pytest.raises(UserError, match="unknown kind 'skipgram'; did you mean 'skip_gram'"):
        model(kind="skipgram")
    with pytest.raises(UserError, match="average: skip-gram reads one word"):
        model(average=True)
    with pytest.raises(UserError, match="skip-gram reads one word"):
        model().init(jax.random.key(0), WORDS)
    with pytest.raises(UserError, match="valid_BC has shape"):
        model(kind="cbow").init(jax.random.key(0), WORDS, VALID[:, :2])
    with pytest.raises(UserError, match="candidates_BN has shape"):
        model(kind="cbow").init(jax.random.key(0), WORDS, None, WORDS[:1])
