"""Does a model see the answer? A proof by experiment, before the first step.

An objective that predicts from left to right says in which input its labels stand, one place later
(`Objective.labels_in`). For each place whose label is scored and read so, all tokens after it are
exchanged: what is predicted there must not change. Parameters are random and not zero, so that
every path through the model is open. What a batch itself shows is proved in `answers.py`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from tfm.objectives.base import Batch, Objective

TOLERANCE = 1e-5  # of the loss; what does not see the answer changes by nothing at all, or rounding
CURE = "choose a causal mask, or a model of one direction"


def find_leak(
    eval_step: Callable[..., Mapping[str, Any]],
    variables: Mapping[str, Any],
    objective: Objective,
    batch: Batch,
    vocab: int,
) -> str | None:
    """What a model sees that it must predict, in words, or None. `batch` is one of evaluation.

    Each row of a call tries one place, in an example that has a label there: T places need 2 T / B
    calls of the compiled step, the length of a sequence over the size of the batch.
    """
    if objective.labels_in is None:
        return None
    variables, batch = opened(variables), jax.tree.map(np.asarray, batch)
    row_of = _places(batch, batch.inputs[objective.labels_in])
    size, rng = len(batch.weights), np.random.default_rng(0)
    # From far apart to near: what sees much is found by the first call.
    order = sorted(row_of, key=lambda place: (-(place + 1 & -place - 1), place))
    for begin in range(0, len(order), size):
        place_B = np.resize(order[begin : begin + size], size)
        tried = jax.tree.map(lambda x, place_B=place_B: x[[row_of[t] for t in place_B]], batch)
        change_B = _changes(eval_step, variables, objective.labels_in, tried, place_B, vocab, rng)
        worst = int(np.argmax(change_B))  # NaN, if there is one
        if not change_B[worst] <= TOLERANCE:
            return (
                f"what is predicted at position {place_B[worst]} changes when the tokens after "
                f"it, which are to be predicted, change (its loss by {change_B[worst]:.2g} of it)"
            )
    return None


def _places(batch: Batch, tokens_BT: np.ndarray) -> dict[int, int]:
    """The places whose label is scored and is the next token of the input; a row of each."""
    read_BT = np.zeros(tokens_BT.shape, bool)
    read_BT[:, :-1] = (batch.weights > 0)[:, :-1] & (tokens_BT[:, 1:] == batch.labels[:, :-1])
    return {int(t): int(np.argmax(read_BT[:, t])) for t in np.flatnonzero(read_BT.any(0))}


def _changes(
    eval_step: Callable[..., Mapping[str, Any]],
    variables: Mapping[str, Any],
    name: str,
    batch: Batch,
    place_B: np.ndarray,
    vocab: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """By how much the loss at a place of each row changes with the tokens after it."""
    tokens_BT, weights_BT = batch.inputs[name], batch.weights
    position_T = np.arange(tokens_BT.shape[1])
    other_BT = (tokens_BT + rng.integers(1, vocab, tokens_BT.shape)) % vocab
    exchanged_BT = np.where(position_T > place_B[:, None], other_BT, tokens_BT)
    alone_BT = np.where(position_T == place_B[:, None], weights_BT, 0).astype(weights_BT.dtype)
    before = batch.replace(weights=alone_BT)
    after = before.replace(
        inputs={**batch.inputs, name: exchanged_BT.astype(tokens_BT.dtype)},
    )
    one_B, other_B = (np.asarray(eval_step(variables, b)["loss"]) for b in (before, after))
    change_B: np.ndarray = np.abs(other_B - one_B) / np.maximum(np.abs(one_B), 1)
    return change_B


def opened(variables: Mapping[str, Any]) -> dict[str, Any]:
    """The variables with noise on each parameter, so that none of them is zero. It is as small as
    initial weights are: attention that looks at one key alone would hide the others."""
    rng = np.random.default_rng(1)

    def noisy(x: Any) -> np.ndarray:
        spread = 0.1 if x.ndim < 2 else 0.5 / np.sqrt(max(x.shape[:-1]))
        return np.asarray(x) + rng.normal(0, spread, x.shape).astype(x.dtype)

    return {**variables, "params": jax.tree.map(noisy, variables["params"])}
