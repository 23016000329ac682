import math

import numpy as np
import pytest
from jax import numpy as jnp

from tfm.evaluate.metrics import intervals, metrics
from tfm.objectives.tokens import losses

SUMS = {
    "loss": np.array([2.0, 4.0, 6.0]),
    "right": np.array([2.0, 1.0, 4.0]),
    "count": np.array([2.0, 4.0, 4.0]),
}


def test_metrics_by_hand():
    found = metrics(SUMS, bytes_per_token=2.0)
    assert found["loss"] == pytest.approx(1.2)
    assert found["perplexity"] == pytest.approx(math.exp(1.2))
    assert found["accuracy"] == pytest.approx(0.7)
    assert found["exact"] == pytest.approx(2 / 3)
    assert found["bits_per_byte"] == pytest.approx(1.2 / math.log(2) / 2)


def test_intervals_cover_the_mean_as_often_as_they_say():
    """Accuracies of 100 coin tosses each: about 95 of 100 intervals hold the truth."""
    rng, hits = np.random.default_rng(0), 0
    for _ in range(100):
        right = rng.random(100) < 0.6
        sums = {"loss": right * 1.0, "right": right * 1.0, "count": np.ones(100)}
        low, high = intervals(sums, draws=200)["accuracy"]
        hits += low <= 0.6 <= high
    assert 88 <= hits <= 99


def test_losses_by_definition():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 3, 5)).astype(np.float32)
    targets = rng.integers(0, 5, (2, 3))
    weights = np.array([[1, 0, 1], [1, 1, 0]], np.float32)
    got = losses(
        jnp.asarray(logits), {"targets_BT": targets, "weights_BT": weights}, jnp.float32(0.1)
    )
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    smooth = np.full((2, 3, 5), 0.1 / 5)
    for b, t in np.ndindex(2, 3):
        smooth[b, t, targets[b, t]] += 0.9
    own = -np.log(np.take_along_axis(p, targets[..., None], -1)[..., 0])
    np.testing.assert_allclose(got["loss"], (own * weights).sum(1), rtol=1e-5)
    wanted = -(smooth * np.log(p)).sum(-1)
    np.testing.assert_allclose(got["smooth"], (wanted * weights).sum(1), rtol=1e-5)
    right = (logits.argmax(-1) == targets) * weights
    np.testing.assert_array_equal(got["right"], right.sum(1))
    np.testing.assert_array_equal(got["count"], weights.sum(1))
