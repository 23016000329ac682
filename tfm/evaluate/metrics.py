"""What a model is worth on a set of examples, with intervals over the examples."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from jax import Array

from tfm.data.dataset import Dataset
from tfm.objectives.base import Batch, Objective, Sums, chunked_loss
from tfm.objectives.batches import eval_batches


def eval_step(
    module: nn.Module,
    objective: Objective,
    variables: Mapping[str, Any],
    batch: Batch,
    chunk: int | None = None,
) -> dict[str, Array]:
    """Sums for each example (B): loss, correct answers, count, and what else is counted. With
    `chunk`, the logits of so many positions are held at a time."""
    x: Any = module.apply(variables, **batch.inputs, **head_options(chunk))
    return sums_of(module, objective, variables, x, batch, None, chunk)


def head_options(chunk: int | None) -> dict[str, Any]:
    """How a model is called whose logits are made in parts."""
    return {} if chunk is None else {"head": False}


def sums_of(
    module: nn.Module,
    objective: Objective,
    variables: Mapping[str, Any],
    x: Array,
    batch: Batch,
    label_smoothing: Array | None,
    chunk: int | None,
) -> dict[str, Array]:
    """What the objective counts of x: of logits, or with `chunk` of states before the head."""
    if chunk is None:
        return objective.loss(x, batch, label_smoothing)

    def logits(x_BTD: Array) -> Array:
        found: Any = module.apply(variables, x_BTD, method="logits")
        return found

    if x.shape[1] <= chunk:  # one part: nothing is made twice
        return objective.loss(logits(x), batch, label_smoothing)
    return chunked_loss(objective, logits, x, batch, label_smoothing, chunk)


def evaluate(
    eval_step: Callable[..., dict[str, Array]], variables: Any, batches: Iterable[Batch]
) -> Sums:
    """The sums of every example that counts, in order."""
    found = [jax.device_get(eval_step(variables, batch)) for batch in batches]
    sums = {name: np.concatenate([one[name] for one in found]) for name in found[0]}
    scored = sums["count"] > 0
    return {name: x[scored].astype(np.float64) for name, x in sums.items()}


def measured(
    objective: Objective,
    dataset: Dataset,
    eval_step: Callable[..., dict[str, Array]],
    variables: Any,
    size: int,
) -> Sums:
    """What the metrics of an objective need of each example of a data set."""
    sums = evaluate(eval_step, variables, eval_batches(objective, dataset, size))
    return objective.per_example(sums, dataset)


def intervals(
    objective: Objective,
    sums: Sums,
    dataset: Dataset,
    level: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
) -> dict[str, tuple[float, float]]:
    """Bootstrap intervals: examples drawn again with replacement.  Efron 1979."""
    count = len(sums["count"])
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(draws):
        rows = rng.integers(0, count, count)
        found.append(objective.metrics({name: x[rows] for name, x in sums.items()}, dataset))
    tails = [50 * (1 - level), 50 * (1 + level)]
    return {
        name: tuple(np.percentile([one[name] for one in found], tails).tolist())
        for name in found[0]
    }
