"""Batches as functions of (seed, step), rows that hold several examples, and sizes of models.

There is no iterator whose state could be lost: a resumed run sees the batches that it would have
seen. Packed examples are kept apart by segments, and positions start anew in each (Krell et al.
2021; T5, Raffel et al. 2020, §3.1.3).
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from tfm.config.names import UserError
from tfm.config.spec import SpecError
from tfm.data.dataset import Dataset
from tfm.data.draws import key_of
from tfm.data.plan.order import Drawn, Packing, Plan
from tfm.objectives.base import Batch, Objective, Rng, Targets

T = TypeVar("T")
VALID = ("valid_BT", "source_valid_BS", "decoder_valid_BT")
BESIDE = ("segment", "pos", "types", "reach")  # inputs that go with tokens, and are none
BLOCK = 1024  # examples that are shown at a time, to count their positions


def train_batch(objective: Objective, dataset: Dataset, plan: Plan, seed: int, step: int) -> Batch:
    """Returns the batch of a step; what the objective draws is a function of (seed, step) too."""
    return _drawn(objective, dataset, plan.draw(step), _rng(key_of(seed, "objective"), step))


class Share(NamedTuple):
    """A batch, and the share of all batches that have its shape."""

    share: float
    batch: Batch


def each_shape(objective: Objective, dataset: Dataset, plan: Plan) -> Sequence[Share]:
    """Returns one batch of every shape that a plan has."""
    rng = np.random.default_rng(0)
    return [Share(kind.share, _drawn(objective, dataset, kind.drawn, rng)) for kind in plan.kinds()]


def _drawn(objective: Objective, dataset: Dataset, drawn: Drawn, rng: Rng) -> Batch:
    dataset = shaped(dataset, drawn.max_length, drawn.max_target)
    batch = _prepare(objective, dataset, drawn.rows, rng).replace(begins_B=drawn.begins_B)
    return batch if drawn.packing is None else packed(batch, drawn.packing)


@functools.lru_cache(maxsize=64)
def shaped(dataset: Dataset, max_length: int | None, max_target: int | None = None) -> Dataset:
    """Returns the data set with rows padded to the lengths of a bucket."""
    lengths = {"max_length": max_length, "max_target": max_target}
    changes = {name: value for name, value in lengths.items() if value is not None}
    return dataclasses.replace(dataset, **changes) if changes else dataset  # type: ignore[arg-type]


class Read(NamedTuple):
    """The number of tokens that a model reads of a batch."""

    tokens: int  # with padding, since it is computed as well
    padding: int


def read_of(batch: Batch) -> Read:
    """Counts the tokens that a model reads of a batch."""
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
    """Yields all examples in order, in batches of one shape; fills the last with weight 0."""
    for rows, rng in _eval_rows(dataset, size):
        batch = _prepare(objective, dataset, np.minimum(rows, len(dataset) - 1), rng)
        weights = np.array(batch.weights)
        weights[rows >= len(dataset)] = 0
        yield batch.replace(weights=weights)


def eval_targets(objective: Objective, dataset: Dataset, size: int) -> Iterator[Targets]:
    """Yields which tokens of the text the batches of `eval_batches` ask for."""
    for rows, rng in _eval_rows(dataset, size):
        examples = dataset.take(np.minimum(rows, len(dataset) - 1))
        yield Targets(
            *(x[rows < len(dataset)] for x in objective.predicted(examples, dataset, rng))
        )


def _eval_rows(dataset: Dataset, size: int) -> Iterator[tuple[np.ndarray, np.random.Generator]]:
    for number, begin in enumerate(range(0, len(dataset), size)):
        yield np.arange(begin, begin + size), _rng(key_of(0, "evaluation"), number)


def _prepare(objective: Objective, dataset: Dataset, rows: np.ndarray, rng: Rng) -> Batch:
    """Returns the batch of some rows, without `valid` inputs if no row is padded."""
    batch = objective.prepare(dataset.take(rows), dataset, rng)
    if dataset.padded or objective.pads:
        return batch
    return batch.replace(inputs={k: x for k, x in batch.inputs.items() if k not in VALID})


def _rng(key: int, number: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=key, counter=[0, number, 0, 0]))


def positions(objective: Objective, dataset: Dataset, lengths_NS: np.ndarray) -> np.ndarray:
    """Returns how many positions each row takes in a batch, on each side that a model reads.

    Rows of the same lengths take the same, so one of each kind is counted.
    """
    kinds, row_K, kind_N = np.unique(lengths_NS, axis=0, return_index=True, return_inverse=True)
    counts = []
    for begin in range(0, len(kinds), BLOCK):
        rows = row_K[begin : begin + BLOCK]
        batch = objective.prepare(dataset.take(rows), dataset, np.random.default_rng(0))
        valid = _valid(batch)
        counts.append(np.stack([x.sum(1) for x in valid.values()], 1))
    return np.concatenate(counts)[kind_N.reshape(-1)].astype(np.int32)


def _valid(batch: Batch) -> dict[str, np.ndarray]:
    """Returns the inputs that say which positions are real, by name: the source comes first."""
    valid = {name: np.asarray(x) for name, x in batch.inputs.items() if "valid_B" in name}
    labels = np.asarray(batch.labels)
    axes = {name[-1] for name in valid}
    for name, x in batch.inputs.items():
        if x.ndim != 2 or name[-1] not in axes:
            raise UserError(f"data.pack: the objective gives {name}, which cannot be packed")
    if labels.ndim != 2 or "T" not in axes:
        raise UserError("data.pack: the objective has one answer for a row, so rows stay apart")
    return dict(sorted(valid.items(), key=lambda item: item[0][-1]))  # S before T


def packed(batch: Batch, packing: Packing) -> Batch:
    """Packs the examples of a batch into fewer rows, one after another."""
    inputs, valid = dict[str, np.ndarray](), _valid(batch)
    labels, weights = batch.labels, batch.weights
    for (name, valid_NT), length in zip(valid.items(), packing.lengths, strict=True):
        axis, place = name[-1], _Places(valid_NT, packing.row_N, packing.rows, length)
        for key, x in batch.inputs.items():
            if key[-1] == axis:
                inputs[key] = place(np.asarray(x))
        inputs[name.replace("valid", "segment")] = place(place.segment_N[:, None] + 0 * valid_NT)
        inputs[name.replace("valid", "pos")] = place(np.arange(valid_NT.shape[1]) + 0 * valid_NT)
        if axis == "T":
            if np.any(np.asarray(weights)[~valid_NT]):
                raise UserError("data.pack: the objective scores what is no real token")
            labels, weights = place(np.asarray(labels)), place(np.asarray(weights))
    return Batch(inputs, labels, weights)


class _Places:
    """The places of the real positions of examples."""

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


def check_same_ids(
    objective: Objective, vocab: int, vocabulary: str | None, other: Dataset
) -> None:
    """Raises if an id means something else in other data than in the training data."""
    if vocabulary != other.vocabulary:
        raise UserError("its ids stand for other characters than those of the training data")
    if objective.same_vocab and vocab != other.vocab:
        raise UserError(f"it has {other.vocab} ids, and the training data {vocab}")


def open_sizes(model: T, objective: Objective, dataset: Dataset, trains: bool = False) -> T:
    """Fills in the sizes and the head that the config of a model leaves open. Raises if those that
    it sets are not enough for the data and the objective or, if it `trains` on the data, if it has
    classes that the data do not have."""
    spec: Any = model
    changes: dict[str, Any] = {}
    for key, needed in objective.head.items():
        value = getattr(spec, key, needed)
        if value == needed:
            continue
        if value in (None, ()) or (key == "types" and value == 0):
            changes[key] = needed
        else:
            raise UserError(f"model.{key}={value!r}: the objective needs {needed!r}")
    for key, least in objective.sizes(dataset).items():
        value = getattr(spec, key, least)
        if value is None:
            changes[key] = least
        else:
            exact = key == "vector" or (trains and key == "classes")
            if value < least or (exact and value != least):
                how = "exactly" if exact else "at least"
                raise UserError(f"model.{key}={value}: the data need {how} {least}")
    target = getattr(spec, "decoder_vocab", None)
    if target is not None and target < objective.sizes(dataset)["vocab"]:
        raise UserError(f"model.decoder_vocab={target}: the data need at least {dataset.vocab}")
    # A tied head is the embedding, so its classes are the vocabulary.
    if "classes" in changes and getattr(spec, "tied", False):
        if objective.sizes(dataset).get("classes", 0) > (spec.vocab or dataset.vocab):
            raise UserError("model.tied: the data have more classes than the vocabulary has words")
        changes.pop("classes", None)
    try:
        return dataclasses.replace(spec, **changes) if changes else model
    except SpecError as e:
        raise e.below("model.") from None
