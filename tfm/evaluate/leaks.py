"""Does a model see the answer? A proof by experiment, before the first step.

An objective that predicts from left to right says in which input its labels stand, one place later
(`Objective.labels_in`). For each of many places, all tokens after it are exchanged. What is
predicted up to there must not change. Parameters are random and not zero, so that every path
through the model is open.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from tfm.objectives.base import Batch, Objective

ROUNDS = 4  # batches: as many places are tried as they have rows
TOLERANCE = 1e-5  # of the loss; what does not see the answer changes by nothing at all, or rounding


def find_leak(
    eval_step: Callable[..., Mapping[str, Any]],
    variables: Mapping[str, Any],
    objective: Objective,
    batch: Batch,
    vocab: int,
) -> str | None:
    """What a model sees that it must predict, in words, or None. `batch` is one of evaluation."""
    name = objective.labels_in
    if name is None:
        return None
    tokens_BT, weights_BT = np.asarray(batch.inputs[name]), np.asarray(batch.weights)
    variables = opened(variables)
    rng = np.random.default_rng(0)
    # Places whose label is the next token of the input.
    shown_BT = np.zeros(weights_BT.shape, bool)
    shown_BT[:, :-1] = (weights_BT > 0)[:, :-1] & (
        tokens_BT[:, 1:] == np.asarray(batch.labels)[:, :-1]
    )
    places = [np.flatnonzero(shown_T) for shown_T in shown_BT]
    if not any(len(place) for place in places):
        return None
    for round_ in range(ROUNDS):
        place_B = np.array([_spread(place, row, round_) for row, place in enumerate(places)])
        after_BT = np.arange(tokens_BT.shape[1]) > place_B[:, None]
        other_BT = (tokens_BT + rng.integers(1, vocab, tokens_BT.shape)) % vocab
        exchanged_BT = np.where(after_BT & (place_B >= 0)[:, None], other_BT, tokens_BT)
        counted = batch.replace(weights=np.where(after_BT, 0, weights_BT).astype(np.float32))
        changed = counted.replace(
            inputs={**batch.inputs, name: exchanged_BT.astype(tokens_BT.dtype)}
        )
        before, after = (np.asarray(eval_step(variables, b)["loss"]) for b in (counted, changed))
        change_B = np.abs(after - before) / np.maximum(np.abs(before), 1)
        worst = int(np.argmax(np.where(place_B >= 0, change_B, -1)))
        if not change_B[worst] <= TOLERANCE:
            return (
                f"what is predicted up to position {place_B[worst]} changes when the tokens after "
                f"it, which are to be predicted, change (its loss by {change_B[worst]:.2g} of it)"
            )
    return None


def _spread(place: np.ndarray, row: int, round_: int) -> int:
    """Another place for each row and round: first ones first, then spread over the rest."""
    if not len(place):
        return -1
    if round_ == 0:
        return int(place[row % len(place)])
    return int(place[(row * 7919 + round_ * 104729) % len(place)])


def opened(variables: Mapping[str, Any]) -> dict[str, Any]:
    """The variables with noise on each parameter, so that none of them is zero. It is as small as
    initial weights are: attention that looks at one key alone would hide the others."""
    rng = np.random.default_rng(1)

    def noisy(x: Any) -> np.ndarray:
        spread = 0.1 if x.ndim < 2 else 0.5 / np.sqrt(max(x.shape[:-1]))
        return np.asarray(x) + rng.normal(0, spread, x.shape).astype(x.dtype)

    return {**variables, "params": jax.tree.map(noisy, variables["params"])}
