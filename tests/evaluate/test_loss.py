import numpy as np

from tfm.data.datasets import open_dataset
from tfm.evaluate.loss import evaluate, intervals
from tfm.objectives.base import Objective
from tfm.objectives.batches import eval_batches
from tfm.objectives.table import OBJECTIVES


def test_intervals_cover_the_mean_as_often_as_they_say():
    """Accuracies of 100 coin tosses each: about 95 of 100 intervals hold the truth."""
    rng, hits, dataset = np.random.default_rng(0), 0, open_dataset("copy", "valid", 1)
    for _ in range(100):
        right = rng.random(100) < 0.6
        sums = {"loss": right * 1.0, "correct": right * 1.0, "count": np.ones(100)}
        low, high = intervals(Objective(), sums, dataset, draws=200)["accuracy"]
        hits += low <= 0.6 <= high
    assert 88 <= hits <= 99


def test_every_example_is_counted_once():
    """A step that gives each example's first label as its loss."""
    objective, dataset = OBJECTIVES["tag"], open_dataset("sort(length=4)", "valid", 15)

    def eval_step(variables, batch):
        return {"loss": batch.labels[:, 0] * variables, "count": batch.weights.sum(1)}

    found = evaluate(eval_step, 2.0, eval_batches(objective, dataset, 4))
    first = dataset.take(np.arange(15)).target.ids.reshape(15, 4)[:, 0]
    np.testing.assert_array_equal(found["loss"], 2.0 * first)
    np.testing.assert_array_equal(found["count"], np.full(15, 4))
