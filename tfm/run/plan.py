"""The plan of a run: the rows and the shape of the batch at each step, and what a step costs."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np

from tfm.config.files import user_entries
from tfm.config.names import UserError
from tfm.data.dataset import Dataset
from tfm.data.plan.buckets import Buckets, into_buckets
from tfm.data.plan.order import Epochs, Plan, Streams
from tfm.data.plan.packing import PackedRows, into_rows
from tfm.describe.flops import flops
from tfm.models.spec import ModelSpec
from tfm.objectives.base import Batch, Objective
from tfm.objectives.batches import Share, positions, shaped, tokens_in
from tfm.run.spec import RunSpec


def plan_of(run: RunSpec, dataset: Dataset) -> Plan:
    """Returns the plan by which a run reads its training data."""
    data, objective = run.data, run.objective.entry
    if run.train.carry:
        return _streams(run, dataset)
    if data.pack is None and data.buckets is None:
        return Epochs(len(dataset), _size(run, partial(_width, objective, dataset, 0)), run.seed)
    key = "pack" if data.pack is not None else "buckets"
    if not dataset.padded:
        raise UserError(
            f"data.{key}={getattr(data, key)}: all rows of data.dataset={str(data.dataset)!r} have "
            "the same length, so there is no padding to save"
        )
    lengths_NS = dataset.row_lengths()
    if data.pack is not None:
        return _packed(run, dataset, lengths_NS)
    found = into_buckets(lengths_NS, data.buckets or 1)
    rows = found.order[np.cumsum([0, *found.counts[:-1]])].tolist()  # one of each bucket
    sizes = [
        _size(run, partial(_width, objective, shaped(dataset, *edge), row))
        for edge, row in zip(found.edges, rows, strict=True)
    ]
    return Buckets(found, tuple(sizes), run.seed)


def _streams(run: RunSpec, dataset: Dataset) -> Plan:
    size = _size(run, partial(_width, run.objective.entry, dataset, 0))
    about = f"train.carry=True: data.dataset={str(run.data.dataset)!r}"
    if dataset.next_row is None:
        raise UserError(
            f"{about}: its rows do not go on from one to the next; those of text(…) do, if its "
            "stride divides its length, and those of characters(…) and bytes(…)"
        )
    plan = Streams(len(dataset), size, dataset.next_row)
    if not plan.steps:
        raise UserError(
            f"{about} is too short: a batch of {size} rows needs as many windows side by side; "
            "write a smaller data.batch or length"
        )
    return plan


def _packed(run: RunSpec, dataset: Dataset, lengths_NS: np.ndarray) -> Plan:
    taken_NS = positions(run.objective.entry, dataset, lengths_NS)
    sides, pack = taken_NS.shape[1], run.data.pack
    given = (pack,) if isinstance(pack, int) else tuple(pack or ())
    if len(given) not in (1, sides):
        raise UserError(f"data.pack={pack}: give one number, or {sides}, one for each side")
    room = given * sides if len(given) == 1 else given
    longest = taken_NS.max(0).tolist()
    if any(most > own for most, own in zip(longest, room, strict=True)):
        need = ", ".join(map(str, longest))
        raise UserError(
            f"data.pack={pack}: the longest row takes {need} positions; write more, or truncate "
            "rows with data.max_length and data.max_target"
        )
    return PackedRows(into_rows(taken_NS, room), _size(run, lambda: sum(room)), run.seed)


def _size(run: RunSpec, width: Callable[[], int]) -> int:
    """Returns how many rows of `width` tokens make a batch."""
    data, parts = run.data, run.train.accumulate
    if data.batch_tokens is None:
        return data.batch
    size = data.batch_tokens // width() // parts * parts
    if not size:
        raise UserError(
            f"data.batch_tokens={data.batch_tokens} is too little: a row has {width()} tokens, and "
            f"a batch at least train.accumulate={parts} rows"
        )
    return size


def _width(objective: Objective, dataset: Dataset, row: int) -> int:
    """Counts the tokens that a model reads of a row, padding included."""
    examples = dataset.take(np.array([row]))
    return tokens_in(objective.prepare(examples, dataset, np.random.default_rng(0)))


def train_flops(run: RunSpec, shapes: Sequence[Share]) -> int:
    """Counts forward and backward passes over all steps, without the optimizer."""
    return round(sum(run.train.steps * part.share * step_flops(run, part.batch) for part in shapes))


def step_flops(run: RunSpec, batch: Batch) -> int:
    shapes = {name: (x.shape, x.dtype.name) for name, x in batch.inputs.items()}
    return _step_flops(run.model, tuple(shapes.items()), tuple(user_entries(run).items()))


@lru_cache(maxsize=64)
def _step_flops(model: ModelSpec, shapes: Any, entries: Any) -> int:
    inputs = {name: jax.ShapeDtypeStruct(*shape) for name, shape in shapes}
    return flops(model, inputs)[1].total
