import math

import numpy as np
import pytest
from jax import numpy as jnp

from tfm.data.datasets import open_dataset
from tfm.objectives.base import Batch, Objective
from tfm.objectives.next_token import NextToken
from tfm.objectives.word2vec import Word2Vec

SUMS = {
    "loss": np.array([2.0, 4.0, 6.0]),
    "correct": np.array([2.0, 1.0, 4.0]),
    "count": np.array([2.0, 4.0, 4.0]),
}


def test_metrics_by_hand(tmp_path):
    (tmp_path / "text").write_text("é" * 40)
    text = f"characters(path={str(tmp_path / 'text')!r}, length=4)"
    dataset = open_dataset(text, "valid")
    assert dataset.bytes_per_token == 2
    found = NextToken().metrics(SUMS, dataset)
    assert found["loss"] == pytest.approx(1.2)
    assert found["perplexity"] == pytest.approx(math.exp(1.2))
    assert found["accuracy"] == pytest.approx(0.7)
    assert found["exact"] == pytest.approx(2 / 3)
    assert found["bits_per_byte"] == pytest.approx(1.2 / math.log(2) / 2)
    assert "bits_per_byte" not in NextToken().metrics(SUMS, open_dataset("copy", "valid", 3))


def test_cross_entropy_by_definition():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 3, 5)).astype(np.float32)
    labels = rng.integers(0, 5, (2, 3))
    weights = np.array([[1, 0, 1], [1, 1, 0]], np.float32)
    got = Objective().loss(jnp.asarray(logits), Batch({}, labels, weights), jnp.float32(0.1))
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    smooth = np.full((2, 3, 5), 0.1 / 5)
    for b, t in np.ndindex(2, 3):
        smooth[b, t, labels[b, t]] += 0.9
    own = -np.log(np.take_along_axis(p, labels[..., None], -1)[..., 0])
    np.testing.assert_allclose(got["loss"], (own * weights).sum(1), rtol=1e-5)
    wanted = -(smooth * np.log(p)).sum(-1)
    np.testing.assert_allclose(got["smoothed"], (wanted * weights).sum(1), rtol=1e-5)
    correct = (logits.argmax(-1) == labels) * weights
    np.testing.assert_array_equal(got["correct"], correct.sum(1))
    np.testing.assert_array_equal(got["count"], weights.sum(1))


def test_negative_sampling_by_definition():
    logits = np.random.default_rng(0).normal(size=(3, 6)).astype(np.float32)
    weights = np.array([1, 0, 1], np.float32)
    batch = Batch({}, np.zeros(3, np.int32), weights)
    got = Word2Vec(negatives=5).loss(jnp.asarray(logits), batch)
    sigmoid = lambda x: 1 / (1 + np.exp(-x))
    wanted = -np.log(sigmoid(logits[:, 0])) - np.log(sigmoid(-logits[:, 1:])).sum(1)
    np.testing.assert_allclose(got["loss"], wanted * weights, rtol=1e-5)
    np.testing.assert_array_equal(got["correct"], (logits.argmax(1) == 0) * weights)
    np.testing.assert_array_equal(got["count"], weights)
    assert not Word2Vec(negatives=5).smooths
