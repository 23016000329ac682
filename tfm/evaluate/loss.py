"""Loss, accuracy and the objective's other metrics, with intervals over the examples; floors.

Floors are accuracies that need no solution of the task: of the most frequent answer at each
position, and of the shortcuts that the dataset declares.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from jax import Array

from tfm.data.dataset import Dataset, spaced_rows
from tfm.evaluate.evaluator import Declared, EvalContext, Evaluator, Result
from tfm.objectives.base import Batch, Objective, Sums, check_declared
from tfm.objectives.batches import eval_batches

EXAMPLES = 500  # for floors, to learn from and to evaluate on
TOKENS = 500_000  # the same: more examples, if they are short
EvalStep = Callable[..., dict[str, Array]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loss(Evaluator):
    """Computes the objective's metrics, and bootstrap intervals from `draws` resamples."""

    draws: int = 1000

    def declares(self, spec: Any, objective: Objective, dataset: Dataset | None) -> Declared:
        return objective.declares(dataset)

    def evaluate(self, context: EvalContext, dataset: Dataset) -> Result:
        objective = context.objective
        sums = measure(objective, dataset, context.eval_step, context.variables, context.batch)
        spread = intervals(objective, sums, dataset, draws=self.draws)
        details = {"examples": len(sums["count"]), "intervals": spread}
        return Result(metrics(objective, sums, dataset), details=details)


def measure(
    objective: Objective, dataset: Dataset, eval_step: EvalStep, variables: Any, size: int
) -> Sums:
    """Returns the sums of each example from which the objective computes its metrics."""
    sums = evaluate(eval_step, variables, eval_batches(objective, dataset, size))
    return objective.per_example(sums, dataset)


def metrics(objective: Objective, sums: Sums, dataset: Dataset) -> dict[str, float]:
    """Returns the objective's metrics; raises if it does not declare one of them."""
    values = objective.metrics(sums, dataset)
    check_declared(values, objective.declares(dataset), type(objective).__name__)
    return values


def evaluate(eval_step: EvalStep, variables: Any, batches: Iterable[Batch]) -> Sums:
    """Returns the sums of every example with a scored label, in order."""
    parts = [jax.device_get(eval_step(variables, batch)) for batch in batches]
    sums = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    scored = sums["count"] > 0
    return {name: x[scored].astype(np.float64) for name, x in sums.items()}


def intervals(
    objective: Objective, sums: Sums, dataset: Dataset, draws: int = 1000, level: float = 0.95
) -> dict[str, tuple[float, float]]:
    """Returns bootstrap intervals: examples are drawn again with replacement.  Efron 1979."""
    count, rng, samples = len(sums["count"]), np.random.default_rng(0), []
    for _ in range(draws):
        rows = rng.integers(0, count, count)
        samples.append(objective.metrics({name: x[rows] for name, x in sums.items()}, dataset))
    tails = [50 * (1 - level), 50 * (1 + level)]
    values = {name: [sample[name] for sample in samples] for name in samples[0]}
    return {name: tuple(np.percentile(x, tails).tolist()) for name, x in values.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Floors(Evaluator):
    """Computes the accuracy of each floor, as a slice."""

    def evaluate(self, context: EvalContext, dataset: Dataset) -> Result:
        accuracies = floors(context.objective, context.data("train"), dataset)
        return Result({}, {name: {"accuracy": x} for name, x in accuracies.items()})


def floors(objective: Objective, train: Dataset, valid: Dataset) -> dict[str, float]:
    """Returns accuracies by name: of the most frequent answer, and of the dataset's shortcuts."""
    accuracies = {}
    if objective.chooses:
        accuracies["most frequent answer"] = _most_frequent_answer(objective, train, valid)
    if valid.shortcuts:
        examples = valid.take(np.arange(min(len(valid), EXAMPLES)))
        accuracies |= {name: float(reach(examples)) for name, reach in valid.shortcuts.items()}
    return accuracies


def _most_frequent_answer(objective: Objective, train: Dataset, valid: Dataset) -> float:
    labels, position = _answers(objective, train)
    # Count each (position, label); after sorting, the last of each position is the most frequent.
    base = int(labels.max()) + 1
    pairs, counts = np.unique(position * base + labels, return_counts=True)
    pairs = pairs[np.lexsort((counts, pairs // base))]
    guess = dict(zip((pairs // base).tolist(), (pairs % base).tolist(), strict=True))
    labels, position = _answers(objective, valid)
    return float(np.mean([guess.get(t) for t in position.tolist()] == labels))


def _answers(objective: Objective, dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Returns the scored labels of some examples, and their positions."""
    most = max(EXAMPLES, TOKENS // max(dataset.max_length, dataset.max_target))
    row_N, read = spaced_rows(len(dataset), most), dataset.read
    dataset = dataclasses.replace(dataset, count=len(row_N), read=lambda rows: read(row_N[rows]))
    labels, positions = [], []
    for batch in eval_batches(objective, dataset, 250):
        labels_BT = np.asarray(batch.labels).reshape(len(batch.labels), -1)
        row, position = np.nonzero(np.asarray(batch.weights).reshape(labels_BT.shape))
        labels.append(labels_BT[row, position])
        positions.append(position)
    return np.concatenate(labels), np.concatenate(positions)
