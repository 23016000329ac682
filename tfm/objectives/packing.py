"""Batches whose rows hold several examples, kept apart by segments; positions start anew in each.

Krell et al. 2021; T5, Raffel et al. 2020, §3.1.3.
"""

import numpy as np

from tfm.config.names import UserError
from tfm.data.dataset import Dataset
from tfm.data.plan.order import Packing
from tfm.objectives.base import Batch, Objective

BLOCK = 1024  # examples that are shown at a time


def positions(objective: Objective, dataset: Dataset, lengths_NS: np.ndarray) -> np.ndarray:
    """How many positions each row takes in a batch: of the one side that a model has, or of both.

    Rows of the same lengths take the same; of each kind one is shown, and its positions counted.
    """
    kinds, row_K, kind_N = np.unique(lengths_NS, axis=0, return_index=True, return_inverse=True)
    counted = []
    for begin in range(0, len(kinds), BLOCK):
        rows = row_K[begin : begin + BLOCK]
        batch = objective.prepare(dataset.take(rows), dataset, np.random.default_rng(0))
        valid = _valid(batch)
        counted.append(np.stack([x.sum(1) for x in valid.values()], 1))
    return np.concatenate(counted)[kind_N.reshape(-1)].astype(np.int32)


def _valid(batch: Batch) -> dict[str, np.ndarray]:
    """What says which positions are real, by name: the source comes first."""
    found = {name: np.asarray(x) for name, x in batch.inputs.items() if "valid_B" in name}
    labels = np.asarray(batch.labels)
    axes = {name[-1] for name in found}
    for name, x in batch.inputs.items():
        if x.ndim != 2 or name[-1] not in axes:
            raise UserError(f"data.pack: the objective gives {name}, which cannot be packed")
    if labels.ndim != 2 or "T" not in axes:
        raise UserError("data.pack: the objective has one answer for a row, so rows stay apart")
    return dict(sorted(found.items(), key=lambda item: item[0][-1]))  # S before T


def packed(batch: Batch, packing: Packing) -> Batch:
    """The batch with its examples in fewer rows, one after another."""
    inputs, valid = dict[str, np.ndarray](), _valid(batch)
    labels, weights = batch.labels, batch.weights
    for (name, valid_NT), length in zip(valid.items(), packing.lengths, strict=True):
        axis, place = name[-1], _Places(valid_NT, packing.row_N, packing.rows, length)
        for own, x in batch.inputs.items():
            if own[-1] == axis:
                inputs[own] = place(np.asarray(x))
        inputs[name.replace("valid", "segment")] = place(place.segment_N[:, None] + 0 * valid_NT)
        inputs[name.replace("valid", "pos")] = place(np.arange(valid_NT.shape[1]) + 0 * valid_NT)
        if axis == "T":
            if np.any(np.asarray(weights)[~valid_NT]):
                raise UserError("data.pack: the objective scores what is no real token")
            labels, weights = place(np.asarray(labels)), place(np.asarray(weights))
    return Batch(inputs, labels, weights)


class _Places:
    """Where the real positions of examples go."""

    def __init__(self, valid_NT: np.ndarray, row_N: np.ndarray, rows: int, length: int):
        self.valid_NT, self.shape = valid_NT, (rows, length)
        length_N = valid_NT.sum(1)
        before_N = np.cumsum(length_N) - length_N
        first_N = np.searchsorted(row_N, row_N)  # the first example of the same row
        begin_N = before_N - before_N[first_N]
        self.segment_N = np.arange(len(row_N)) - first_N + 1  # 0 is padding
        if np.any(begin_N + length_N > length):
            raise UserError(
                f"data.pack: rows of the same lengths take different numbers of positions, so they "
                f"do not fit into {length}"
            )
        within = np.arange(length_N.sum()) - np.repeat(before_N, length_N)
        self.places = np.repeat(row_N * length + begin_N, length_N) + within

    def __call__(self, x_NT: np.ndarray) -> np.ndarray:
        out = np.zeros(self.shape[0] * self.shape[1], x_NT.dtype)
        out[self.places] = x_NT[self.valid_NT]
        if out.dtype == np.int64:
            out = out.astype(np.int32)
        return out.reshape(self.shape)
