"""Batches as functions of (seed, step). There is no iterator whose state could be lost: a run that
is resumed anywhere sees what it would have seen."""

from collections.abc import Iterator

import numpy as np

from tfm.data.dataset import Dataset
from tfm.data.draws import key_of
from tfm.data.order import Plan
from tfm.objectives.base import Batch, Objective, Targets

VALID = ("valid_BT", "source_valid_BS", "decoder_valid_BT")


def train_batch(objective: Objective, dataset: Dataset, plan: Plan, seed: int, step: int) -> Batch:
    """The batch of a step. What the objective draws is a function of (seed, step) too."""
    rng = _rng(key_of(seed, "objective"), step)
    return _prepare(objective, dataset, plan.rows(step), rng)


def eval_batches(objective: Objective, dataset: Dataset, size: int) -> Iterator[Batch]:
    """All examples in order, in batches of one shape: the last is filled up with weight 0."""
    for rows, rng in _eval_rows(dataset, size):
        batch = _prepare(objective, dataset, np.minimum(rows, len(dataset) - 1), rng)
        weights = np.array(batch.weights)
        weights[rows >= len(dataset)] = 0
        yield batch.replace(weights=weights)


def eval_targets(objective: Objective, dataset: Dataset, size: int) -> Iterator[Targets]:
    """Which tokens of the text the batches of `eval_batches` ask for."""
    for rows, rng in _eval_rows(dataset, size):
        examples = dataset.take(np.minimum(rows, len(dataset) - 1))
        yield Targets(
            *(x[rows < len(dataset)] for x in objective.predicted(examples, dataset, rng))
        )


def _eval_rows(dataset: Dataset, size: int) -> Iterator[tuple[np.ndarray, np.random.Generator]]:
    for number, begin in enumerate(range(0, len(dataset), size)):
        yield np.arange(begin, begin + size), _rng(key_of(0, "evaluation"), number)


def _prepare(
    objective: Objective, dataset: Dataset, rows: np.ndarray, rng: np.random.Generator
) -> Batch:
    """The batch of some rows. Where no row is padded, a model need not know which tokens are."""
    batch = objective.prepare(dataset.take(rows), dataset, rng)
    if dataset.padded or objective.pads:
        return batch
    return batch.replace(inputs={k: x for k, x in batch.inputs.items() if k not in VALID})


def _rng(key: int, number: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=key, counter=[0, number, 0, 0]))
