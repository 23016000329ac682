"""What can be reached without solving a task: the least that an accuracy must be compared with."""

import dataclasses

import numpy as np

from tfm.data.dataset import Dataset
from tfm.objectives.base import Objective
from tfm.objectives.batches import eval_batches

EXAMPLES = 500  # to learn from, and to evaluate on


def floors(objective: Objective, train: Dataset, valid: Dataset) -> dict[str, float]:
    """Accuracies by name: of the most frequent answer at each position, which needs no input; and
    of the shortcuts that the data set knows."""
    found = {}
    if objective.chooses:
        found["most frequent answer"] = _most_frequent(objective, train, valid)
    some = valid.take(np.arange(min(len(valid), EXAMPLES))) if valid.shortcuts else None
    return found | {name: float(reach(some)) for name, reach in valid.shortcuts.items() if some}


def _most_frequent(objective: Objective, train: Dataset, valid: Dataset) -> float:
    labels, position = _answers(objective, train)
    # For each position and label how often it is right; the last of each position is the best.
    pairs, counts = np.unique(np.stack([position, labels]), axis=1, return_counts=True)
    order = np.lexsort((counts, pairs[0]))
    guess = dict(zip(*pairs[:, order].tolist(), strict=True))
    labels, position = _answers(objective, valid)
    return float(np.mean([guess.get(t) for t in position.tolist()] == labels))


def _answers(objective: Objective, dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """The scored labels of the first examples, and where each stands in its row."""
    dataset = dataclasses.replace(dataset, count=min(len(dataset), EXAMPLES))
    labels, positions = [], []
    for batch in eval_batches(objective, dataset, 250):
        labels_BT = np.asarray(batch.labels).reshape(len(batch.labels), -1)
        row, position = np.nonzero(np.asarray(batch.weights).reshape(labels_BT.shape))
        labels.append(labels_BT[row, position])
        positions.append(position)
    return np.concatenate(labels), np.concatenate(positions)
