"""Does a batch show the answers? A proof by experiment, before the first step.

The batch is made again from examples with other answers and the same random numbers. What a model
is given must be the same, for it sees nothing else; but for `Objective.labels_in`, of which
`leaks.py` proves that no prediction depends on it, and for what the objective shows on purpose
(`Objective.shown`).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfm.config.names import UserError
from tfm.data.dataset import Dataset, Examples
from tfm.objectives.base import Batch, Objective

CURE = "hide it in prepare(); if the task is to say what is seen, let shown() return True"
Prepare = Callable[[Examples], Batch]


def find_shown_answer(objective: Objective, dataset: Dataset, size: int) -> str | None:
    """What of the answers a batch of `size` examples shows to the model, in words, or None."""
    examples = dataset.take(np.arange(min(size, len(dataset))))
    shown = objective.shown(examples, dataset, _rng())
    if shown is True:
        return None

    def prepare(examples: Examples) -> Batch:
        return objective.prepare(examples, dataset, _rng())

    batch = prepare(examples)
    if any(x.any() for x in _differences(batch, prepare(examples)).values()):
        raise UserError(
            f"{type(objective).__name__}.prepare gives two batches for the same examples and the "
            "same rng: draw all that is random from rng"
        )
    wanted = (np.asarray(batch.weights) > 0) & ~np.asarray(shown, bool)
    special = [id_ for id_ in dataset.special if id_ is not None]
    tokens = _tokens_of_labels(prepare, examples, batch, wanted, special)
    others = [("a token", _other_tokens(examples, tokens, special))]
    for name in ("target", "tags", "labels"):
        if getattr(examples, name) is not None:
            others.append((name, _other_answers(examples, name, special)))
    for what, other in others:
        other_batch = prepare(other)
        for name, changed in _differences(batch, other_batch).items():
            if name == objective.labels_in:  # shifted: at its place it is not yet known
                changed[:, 1:] &= (
                    np.asarray(other_batch.inputs[name])[:, 1:] != other_batch.labels[:, :-1]
                )
            if changed.any():
                row, *place = (int(x) for x in np.argwhere(changed)[0])
                return (
                    f"the input {name} changes in {int(changed.sum())} places (the first is {place}"
                    f" of example {row}) when {what} that is to be predicted changes"
                )
    return None


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def _differences(one: Batch, other: Batch) -> dict[str, np.ndarray]:
    return {name: np.asarray(x != np.asarray(other.inputs[name])) for name, x in one.inputs.items()}


def _tokens_of_labels(
    prepare: Prepare,
    examples: Examples,
    batch: Batch,
    wanted: np.ndarray,
    special: Sequence[int],
) -> np.ndarray:
    """Which of `tokens.ids` are a label that is wanted.

    A label is the token whose number in its row has a bit, if it changes with the tokens that have
    it and not with the others: all are found from two batches for each bit of the length.
    """
    tokens = examples.tokens
    begin_N = np.cumsum(tokens.lengths) - tokens.lengths
    number = np.arange(len(tokens.ids)) - np.repeat(begin_N, tokens.lengths)
    labels = np.asarray(batch.labels)
    found, known = np.zeros(labels.shape, np.int64), wanted.copy()
    for bit in range(int(tokens.lengths.max()).bit_length()):
        has = (number >> bit & 1).astype(bool)
        changed, unchanged = (
            np.asarray(prepare(_other_tokens(examples, which, special)).labels) != labels
            for which in (has, ~has)
        )
        known &= changed != unchanged
        found |= changed.astype(np.int64) << bit
    length_N = tokens.lengths.reshape(-1, *[1] * (labels.ndim - 1))
    known &= found < length_N
    found = np.where(known, found, 0) + begin_N.reshape(length_N.shape)
    out = np.zeros(len(tokens.ids), bool)
    out[found[known & (tokens.ids[found] == labels)]] = True
    return out


def _other_tokens(examples: Examples, which: np.ndarray, special: Sequence[int]) -> Examples:
    ids = np.where(which, _other(examples.tokens.ids, special), examples.tokens.ids)
    return dataclasses.replace(examples, tokens=dataclasses.replace(examples.tokens, ids=ids))


def _other_answers(examples: Examples, name: str, special: Sequence[int]) -> Examples:
    field: Any = getattr(examples, name)
    if name == "target":
        target = dataclasses.replace(field, ids=_other(field.ids, special))
        return dataclasses.replace(examples, target=target)
    other: dict[str, Any] = {name: _other(field)}
    return dataclasses.replace(examples, **other)


def _other(x: np.ndarray, kept: Sequence[int] = ()) -> np.ndarray:
    """For each value another of those that there are, the same each time; some are kept."""
    values = np.setdiff1d(x, kept)
    if len(values) < 2:
        return x
    place = np.searchsorted(values, x)
    shift = _rng().integers(1, len(values), x.shape)
    other = values[(place + shift) % len(values)]
    return np.where(np.isin(x, values), other, x).astype(x.dtype)
