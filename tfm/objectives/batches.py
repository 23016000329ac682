"""Batches as functions of (seed, step). There is no iterator whose state could be lost: a run that
is resumed anywhere sees what it would have seen."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tfm.data.dataset import Dataset
from tfm.data.draws import key_of
from tfm.data.plan.order import Drawn, Plan
from tfm.objectives.base import Batch, Objective, Targets
from tfm.objectives.packing import packed

VALID = ("valid_BT", "source_valid_BS", "decoder_valid_BT")
BESIDE = ("segment", "pos", "types", "reach")  # inputs that go with tokens, and are none


def train_batch(objective: Objective, dataset: Dataset, plan: Plan, seed: int, step: int) -> Batch:
    """The batch of a step. What the objective draws is a function of (seed, step) too."""
    return _drawn(objective, dataset, plan.draw(step), _rng(key_of(seed, "objective"), step))


class Share(NamedTuple):
    """A batch, and the share of all batches that have its shape."""

    share: float
    batch: Batch


def each_shape(objective: Objective, dataset: Dataset, plan: Plan) -> Sequence[Share]:
    """One batch of every shape that a plan has."""
    rng = np.random.default_rng(0)
    return [Share(kind.share, _drawn(objective, dataset, kind.drawn, rng)) for kind in plan.kinds()]


def _drawn(objective: Objective, dataset: Dataset, drawn: Drawn, rng: np.random.Generator) -> Batch:
    dataset = shaped(dataset, drawn.max_length, drawn.max_target)
    batch = _prepare(objective, dataset, drawn.rows, rng).replace(begins_B=drawn.begins_B)
    return batch if drawn.packing is None else packed(batch, drawn.packing)


@functools.lru_cache(maxsize=64)
def shaped(dataset: Dataset, max_length: int | None, max_target: int | None = None) -> Dataset:
    """The data set for rows of a bucket, which are padded to these lengths."""
    given = {"max_length": max_length, "max_target": max_target}
    changes = {name: value for name, value in given.items() if value is not None}
    return dataclasses.replace(dataset, **changes) if changes else dataset  # type: ignore[arg-type]


class Read(NamedTuple):
    """How many tokens a model reads of a batch."""

    tokens: int  # with padding, since it is computed as well
    padding: int


def tokens_in(batch: Batch) -> int:
    """How many tokens a model reads of a batch; padding counts, since it is computed as well."""
    return read_of(batch).tokens


def read_of(batch: Batch) -> Read:
    tokens = padding = 0
    valid = {name[-1]: x for name, x in batch.inputs.items() if "valid_B" in name}
    for name, x in batch.inputs.items():
        if x.dtype.kind not in "iu" or name.rpartition("_")[0].endswith(BESIDE):
            continue
        tokens += x.size
        real = valid.get(name[-1])
        padding += 0 if real is None else x.size - int(np.sum(real))
    return Read(tokens, padding)


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
