"""Negative sampling over all pairs of a row, against loops over the pairs."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from tests.helpers.quick import jit
from tests.objectives.test_prepare import data, ragged
from tfm.data.dataset import Examples, Ragged
from tfm.data.plan.order import Epochs
from tfm.models.spec import Word2VecSpec
from tfm.models.word2vec import Word2Vec as Model
from tfm.objectives.base import eval_step
from tfm.objectives.batches import train_batch
from tfm.objectives.word2vec import Word2Vec, kept_share, noise, unigram_counts
from tfm.optim.optimizer import OptimizerSpec
from tfm.run.spec import TrainSpec
from tfm.train import step as steps

VOCAB = 12


def rows():
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, VOCAB, n) for n in (7, 4, 1, 7)]
    return data("text", Examples(tokens=ragged(*texts)), vocab=VOCAB, max_length=7, count=4)


def softplus(x):
    return np.log1p(np.exp(x))


@pytest.mark.parametrize("kind", ["skip_gram", "cbow"])
def test_the_loss_is_that_of_all_pairs(kind):
    """By definition: for each word in the middle, each word in its reach; k of noise for each pair,
    as the mean over all noise of the row."""
    objective, dataset = Word2Vec(kind=kind, window=3, negatives=5, pool=6), rows()
    batch = train_batch(objective, dataset, Epochs(4, 4, 0), 0, 0)
    module = Model(Word2VecSpec(vocab=VOCAB, width=4, kind=kind))
    tree = module.init(jax.random.key(0), **batch.inputs)
    rng = np.random.default_rng(1)
    params = {
        name: rng.normal(size=x.shape).astype(np.float32) for name, x in tree["params"].items()
    }
    got = eval_step(module, objective, {"params": params}, batch)
    into, out = params["input"], params["output"]
    for row in range(4):
        words, valid = batch.inputs["words_BC"][row], batch.inputs["valid_BC"][row]
        reach, candidates = batch.labels[row], batch.inputs["candidates_BN"][row]
        assert candidates[:7].tolist() == words.tolist()
        loss = count = 0
        for t in np.flatnonzero(valid):
            around = [s for s in np.flatnonzero(valid) if s != t and abs(s - t) <= reach[t]]
            vector = into[words[t]] if kind == "skip_gram" else into[words[around]].sum(0)
            true = around if kind == "skip_gram" else [t][: len(around)]
            for s in true:
                against = softplus(out[candidates[7:]] @ vector)
                loss += softplus(-vector @ out[words[s]]) + 5 * against.mean()
                count += 1
        assert got["loss"][row] == pytest.approx(loss, rel=1e-5)
        assert got["count"][row] == count == batch.weights[row].sum()


@pytest.mark.parametrize(("kind", "average"), [("skip_gram", False), ("cbow", True)])
def test_a_step_moves_as_word2vec_c_does(kind, average):
    """By the updates of word2vec.c: g = α (label − σ(f)), f = x · y; y moves by g x and x by g y.
    There α is for each pair; here it is for their mean. Moves are added up instead of made one by
    one, and each word of the noise weighs k / pool. The mean of a context is a mean going back too,
    where word2vec.c gives all of it to each word.
    """
    objective, dataset = Word2Vec(kind=kind, window=3, negatives=5, pool=6), rows()
    batch = train_batch(objective, dataset, Epochs(4, 4, 0), 0, 0)
    module = Model(Word2VecSpec(vocab=VOCAB, width=4, kind=kind, average=average))
    rate, pairs = 0.025, float(batch.weights.sum())
    opt = OptimizerSpec(name="sgd", learning_rate=rate * pairs, clip=None)
    spec = TrainSpec(steps=10)
    state = steps.init(module, opt, spec, batch, jnp.uint32(0))
    rng = np.random.default_rng(1)
    before = {name: rng.normal(size=(VOCAB, 4)).astype(np.float32) for name in state.params}
    state = state.replace(params=jax.tree.map(jnp.asarray, before))
    numbers = steps.numbers_of(opt, spec, {}, 0)
    step = jit(lambda *x: steps.train_step(module, objective, opt, spec, *x))
    after = step(state, batch, numbers).params

    syn0, syn1neg = (before[name].astype(np.float64) for name in ("input", "output"))
    moved0, moved1 = syn0.copy(), syn1neg.copy()
    for row in range(4):
        words, valid = batch.inputs["words_BC"][row], batch.inputs["valid_BC"][row]
        pool = batch.inputs["candidates_BN"][row, 7:]
        for t in np.flatnonzero(valid):
            around = [
                s for s in np.flatnonzero(valid) if s != t and abs(s - t) <= batch.labels[row, t]
            ]
            if kind == "skip_gram":
                reads, targets = [words[t]], words[around]
            else:
                reads, targets = words[around], words[[t][: len(around)]]
            for target in targets:
                x, neu1e = syn0[reads].mean(0), np.zeros(4)
                for word, label, weight in [(target, 1, 1.0), *((w, 0, 5 / 6) for w in pool)]:
                    g = rate * weight * (label - 1 / (1 + np.exp(-x @ syn1neg[word])))
                    neu1e += g * syn1neg[word]
                    moved1[word] += g * x
                for word in reads:
                    moved0[word] += neu1e / len(reads)
    np.testing.assert_allclose(after["input"], moved0, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after["output"], moved1, rtol=1e-5, atol=1e-6)


def test_how_far_and_which_noise():
    """Reaches are uniform from 1 to the window, noise is the unigram to three quarters."""
    rng = np.random.default_rng(0)
    texts = rng.choice(4, (500, 20), p=[0.5, 0.3, 0.15, 0.05])
    dataset = data("text", Examples(tokens=Ragged.of(texts)), vocab=4, max_length=20, count=500)
    batch = train_batch(Word2Vec(window=4, negatives=1), dataset, Epochs(500, 500, 0), 0, 0)
    share = np.bincount(batch.labels.ravel(), minlength=5)[1:] / batch.labels.size
    assert np.all(np.abs(share - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 10_000))
    drawn = batch.inputs["candidates_BN"][:, 20:]
    assert drawn.shape == (500, 64)
    wanted = noise(np.bincount(texts.ravel()))
    share = np.bincount(drawn.ravel(), minlength=4) / drawn.size
    assert np.all(np.abs(share - wanted) < 4 * np.sqrt(wanted * (1 - wanted) / drawn.size))


def test_counts_are_those_of_training():
    dataset = dataclasses.replace(rows(), counts=lambda: np.arange(VOCAB))
    assert unigram_counts(dataset).tolist() == list(range(VOCAB))
    assert unigram_counts(rows()).sum() == 19
    batch = train_batch(Word2Vec(negatives=1), dataset, Epochs(4, 4, 0), 0, 0)
    assert 0 not in batch.inputs["candidates_BN"][:, 7:]  # it does not occur


def test_frequent_words_are_left_out():
    """word2vec.c keeps √(t/f) + t/f; what is left stands side by side."""
    texts = np.tile([0, 1, 0, 2, 0, 3, 0, 4], (3000, 1))
    dataset = data("text", Examples(tokens=Ragged.of(texts)), vocab=5, max_length=8, count=3000)
    np.testing.assert_allclose(kept_share(dataset, 0.05), [np.sqrt(0.1) + 0.1, 1, 1, 1, 1])
    objective = Word2Vec(negatives=2, subsample=0.05, window=1)
    batch = train_batch(objective, dataset, Epochs(3000, 3000, 0), 0, 0)
    words, valid = batch.inputs["words_BC"], batch.inputs["valid_BC"]
    kept = np.bincount(words[valid], minlength=5) / 3000
    assert kept[0] / 4 == pytest.approx(np.sqrt(0.1) + 0.1, abs=4 * np.sqrt(0.25 / 12_000))
    np.testing.assert_array_equal(kept[1:], 1)  # √0.4 + 0.4 is above 1
    lengths = valid.sum(1)
    np.testing.assert_array_equal(valid, np.arange(8) < lengths[:, None])
    np.testing.assert_array_equal(
        batch.weights.sum(1), 2 * (lengths - 1)
    )  # each with its neighbours


def test_words_with_the_same_neighbours_get_near_vectors():
    """0 and 1 stand beside 4 and 5, 2 and 3 beside 6 and 7."""
    pairs = np.array([(a, b) for a in range(4) for b in ((4, 5) if a < 2 else (6, 7))])
    dataset = data("text", Examples(tokens=Ragged.of(pairs)), vocab=8, max_length=2, count=8)
    objective = Word2Vec(negatives=4, window=1, pool=16)
    module = Model(Word2VecSpec(vocab=8, width=4))

    @jit
    def step(params, batch):
        def loss(params):
            return jnp.sum(eval_step(module, objective, {"params": params}, batch)["loss"])

        return jax.tree.map(lambda x, grad: x - 0.05 * grad, params, jax.grad(loss)(params))

    make = functools.partial(train_batch, objective, dataset, Epochs(8, 8, 0), 0)
    params = module.init(jax.random.key(0), **make(0).inputs)["params"]
    for number in range(300):
        params = step(params, make(number))
    unit = params["input"] / np.linalg.norm(params["input"], axis=1, keepdims=True)
    alike = np.asarray(unit @ unit.T)
    assert min(alike[0, 1], alike[2, 3]) > 0.9
    assert np.max(alike[:2, 2:4]) < 0.5
