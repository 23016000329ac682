"""Leak checks: experiments that show whether a model sees what it must predict.

A batch may show the answers. It is prepared again from examples with other answers and the same
random numbers; the model's inputs must not change. Exceptions are `Objective.labels_in`, which the
second check covers, and labels that the objective shows on purpose (`Objective.shown`).

A model may look ahead. An objective that predicts from left to right names the input that holds
its labels, one place later (`Objective.labels_in`). For each place with a scored label, all later
tokens are exchanged; the prediction at this place must not change. Parameters are random and
nonzero, so that every path through the model is open.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tfm.config.names import UserError
from tfm.data.dataset import Dataset, Examples, Ragged
from tfm.evaluate.evaluator import EvalContext, Evaluator, Result
from tfm.evaluate.metric import LOW, Metric
from tfm.objectives.base import Batch, Objective
from tfm.objectives.batches import eval_batches

TOLERANCE = 1e-5  # relative change of the loss; without a leak it is zero, or rounding
Prepare = Callable[[Examples], Batch]
Variables = Mapping[str, Any]
EvalStep = Callable[..., Mapping[str, Any]]


class Leak(NamedTuple):
    """A leak, in words, and how to remove it."""

    reason: str
    cure: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leaks(Evaluator):
    """Reports 1 if the model sees what it must predict, else 0."""

    computes = (Metric("leak", LOW, most=1.0),)

    def evaluate(self, context: EvalContext, dataset: Dataset) -> Result:
        model = context.eval_step, context.variables
        leak = find(context.objective, dataset, context.batch, lambda: model)
        return Result({"leak": float(leak is not None)}, details={"reason": leak and leak.reason})


def find(
    objective: Objective,
    dataset: Dataset,
    size: int,
    model: Callable[[], tuple[EvalStep, Variables]],
    shorter: Dataset | None = None,
) -> Leak | None:
    """Returns the first leak of a batch of `size` examples, or of the model that reads it.

    `model` returns the compiled evaluation step and the variables; it is only called if a model
    can leak. `shorter` is a dataset with shorter rows to try the model on: the cost grows with the
    square of the length.
    """
    if reason := find_shown_answer(objective, dataset, size):
        cure = "hide it in prepare(); if the task is to say what is seen, shown() returns True"
        return Leak(reason, cure)
    if objective.labels_in is None:
        return None
    batch = next(eval_batches(objective, shorter or dataset, size))
    reason = find_leak(*model(), objective, batch, dataset.vocab)
    cure = "choose a causal mask, or a model of one direction"
    return None if reason is None else Leak(reason, cure)


def find_shown_answer(objective: Objective, dataset: Dataset, size: int) -> str | None:
    """Returns which answers a batch of `size` examples shows to the model, in words, or None."""
    examples = dataset.take(np.arange(min(size, len(dataset))))
    shown = objective.shown(examples, dataset, _rng())
    if shown is True:
        return None

    def prepare(examples: Examples) -> Batch:
        return objective.prepare(examples, dataset, _rng())

    batch = prepare(examples)
    if any(x.any() for x in _differences(batch, prepare(examples)).values()):
        raise UserError(
            f"{type(objective).__name__}.prepare returns two different batches for the same "
            "examples and the same rng: draw everything random from rng"
        )
    scored = (np.asarray(batch.weights) > 0) & ~np.asarray(shown, bool)
    special = [id_ for id_ in dataset.special if id_ is not None]
    tokens = _tokens_of_labels(prepare, examples, batch, scored, special)
    variants = {"a token": _exchanged(examples, "tokens", special, tokens)}
    for name in ("target", "tags", "labels"):
        if getattr(examples, name) is not None:
            variants[name] = _exchanged(examples, name, special)
    for answer, variant in variants.items():
        other_batch = prepare(variant)
        for name, changed in _differences(batch, other_batch).items():
            if name == objective.labels_in:  # shifted: at its place it is not yet known
                inputs_BT = np.asarray(other_batch.inputs[name])
                changed[:, 1:] &= inputs_BT[:, 1:] != other_batch.labels[:, :-1]
            if changed.any():
                row, *place = (int(x) for x in np.argwhere(changed)[0])
                return (
                    f"the input {name} changes in {int(changed.sum())} places (the first is {place}"
                    f" of example {row}) when {answer} that is to be predicted changes"
                )
    return None


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def _differences(first: Batch, second: Batch) -> dict[str, np.ndarray]:
    return {n: np.asarray(x != np.asarray(second.inputs[n])) for n, x in first.inputs.items()}


def _tokens_of_labels(
    prepare: Prepare, examples: Examples, batch: Batch, scored: np.ndarray, special: Sequence[int]
) -> np.ndarray:
    """Returns which of `tokens.ids` are scored labels.

    Tokens are numbered within their row. A label belongs to a token whose number has a bit if it
    changes with the tokens that have this bit and not with the others, so two batches per bit of
    the length identify all labels.
    """
    tokens = examples.tokens
    begin_N = np.cumsum(tokens.lengths) - tokens.lengths
    number = np.arange(len(tokens.ids)) - np.repeat(begin_N, tokens.lengths)
    labels = np.asarray(batch.labels)
    number_of, known = np.zeros(labels.shape, np.int64), scored.copy()
    for bit in range(int(tokens.lengths.max()).bit_length()):
        has = (number >> bit & 1).astype(bool)
        changed, unchanged = (
            np.asarray(prepare(_exchanged(examples, "tokens", special, which)).labels) != labels
            for which in (has, ~has)
        )
        known &= changed != unchanged
        number_of |= changed.astype(np.int64) << bit
    length_N = tokens.lengths.reshape(-1, *[1] * (labels.ndim - 1))
    known &= number_of < length_N
    index = np.where(known, number_of, 0) + begin_N.reshape(length_N.shape)
    out = np.zeros(len(tokens.ids), bool)
    out[index[known & (tokens.ids[index] == labels)]] = True
    return out


def _exchanged(
    examples: Examples, name: str, special: Sequence[int], which: np.ndarray | bool = True
) -> Examples:
    """Returns examples with other values in a field; special ids stay, and ids not at `which`."""
    field: Any = getattr(examples, name)
    if isinstance(field, Ragged):
        ids = np.where(which, _other(field.ids, special), field.ids)
        other: Any = dataclasses.replace(field, ids=ids)
    else:
        other = _other(field)
    return dataclasses.replace(examples, **{name: other})


def _other(x: np.ndarray, kept: Sequence[int] = ()) -> np.ndarray:
    """Returns another occurring value for each value, except for those in `kept`."""
    values = np.setdiff1d(x, kept)
    if len(values) < 2:
        return x
    place = np.searchsorted(values, x)
    shift = _rng().integers(1, len(values), x.shape)
    other = values[(place + shift) % len(values)]
    return np.where(np.isin(x, values), other, x).astype(x.dtype)


def find_leak(
    eval_step: EvalStep, variables: Variables, objective: Objective, batch: Batch, vocab: int
) -> str | None:
    """Returns what a model sees that it must predict, in words, or None.

    Each row of a call tries one place, in an example with a label there: T places need 2 T / B
    calls of the compiled step, for a batch of B evaluation examples.
    """
    if objective.labels_in is None:
        return None
    variables, batch = opened(variables), jax.tree.map(np.asarray, batch)
    tokens_BT = batch.inputs[objective.labels_in]
    # Places whose label is scored and is the next input token, each with a row.
    read_BT = (batch.weights > 0)[:, :-1] & (tokens_BT[:, 1:] == batch.labels[:, :-1])
    row_of = {int(t): int(np.argmax(read_BT[:, t])) for t in np.flatnonzero(read_BT.any(0))}
    size, rng = len(batch.weights), np.random.default_rng(0)
    # From far apart to near, so that the first call finds large leaks.
    order = sorted(row_of, key=lambda place: (-(place + 1 & -place - 1), place))
    for begin in range(0, len(order), size):
        place_B = np.resize(order[begin : begin + size], size)
        tried = jax.tree.map(lambda x, place_B=place_B: x[[row_of[t] for t in place_B]], batch)
        pair = _with_other_future(tried, objective.labels_in, place_B, vocab, rng)
        loss_B, other_B = (np.asarray(eval_step(variables, x)["loss"]) for x in pair)
        change_B = np.abs(other_B - loss_B) / np.maximum(np.abs(loss_B), 1)
        worst = int(np.argmax(change_B))  # NaN, if there is one
        if not change_B[worst] <= TOLERANCE:
            return (
                f"what is predicted at position {place_B[worst]} changes when the tokens after "
                f"it, which are to be predicted, change (its loss by {change_B[worst]:.2g} of it)"
            )
    return None


def _with_other_future(
    batch: Batch, name: str, place_B: np.ndarray, vocab: int, rng: np.random.Generator
) -> tuple[Batch, Batch]:
    """Scores one place of each row; returns this batch, and the same with other later tokens."""
    tokens_BT, weights_BT = batch.inputs[name], batch.weights
    position_T = np.arange(tokens_BT.shape[1])
    other_BT = (tokens_BT + rng.integers(1, vocab, tokens_BT.shape)) % vocab
    exchanged_BT = np.where(position_T > place_B[:, None], other_BT, tokens_BT)
    alone_BT = np.where(position_T == place_B[:, None], weights_BT, 0).astype(weights_BT.dtype)
    before = batch.replace(weights=alone_BT)
    inputs = {**batch.inputs, name: exchanged_BT.astype(tokens_BT.dtype)}
    return before, before.replace(inputs=inputs)


def opened(variables: Variables) -> dict[str, Any]:
    """Returns the variables with noise on each parameter, so that none is zero.

    The noise has the size of initial weights: attention to a single key would hide the others.
    """
    rng = np.random.default_rng(1)

    def noisy(x: Any) -> np.ndarray:
        spread = 0.1 if x.ndim < 2 else 0.5 / np.sqrt(max(x.shape[:-1]))
        return np.asarray(x) + rng.normal(0, spread, x.shape).astype(x.dtype)

    return {**variables, "params": jax.tree.map(noisy, variables["params"])}
