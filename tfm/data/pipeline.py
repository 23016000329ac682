"""From the name of a task to batches. A batch is a function of (seed, step): there is no iterator
whose state could be lost, and a run resumed anywhere sees what it would have seen."""

import ast
import dataclasses
import hashlib
import inspect
import operator
from collections.abc import Iterator
from typing import Any

import numpy as np

from tfm.data.batch import SPLITS, Task
from tfm.data.order import shuffled, stream
from tfm.data.present import present, vocab_needed
from tfm.data.tasks import TASKS
from tfm.names import UserError, pick, read


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """A split of a task as an objective shows it: arrays with the examples first."""

    task: Task
    split: str
    arrays: dict[str, np.ndarray]
    needs: dict[str, int]  # the least `vocab` and `classes` of a model
    fingerprint: str

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    @property
    def bytes_per_token(self) -> float | None:
        """Of the split's text, for bits per byte; None if it is not text."""
        return self.task.bytes_per_token.get(self.split)


def load(
    task: str,
    split: str,
    objective: str,
    count: int | None = None,
    seed: int = 0,
    peek: bool = False,
) -> Source:
    """`count` examples of a split, or all that there are; the same ones for the same seed.

    With `peek` all is checked but one example made, to see what form they have.
    """
    made = _task(task)
    rng = np.random.Generator(np.random.Philox(stream(_index("seed", seed), "examples", split)))
    try:
        count = _count(made, split, count)
        count = 1 if peek else count
        examples = made.make(rng, count, split)
        if len(examples) != count:
            raise UserError(f"{len(examples)} examples came of {count} asked for")
        arrays, needs = present(examples, objective), vocab_needed(examples, objective)
    except UserError as e:
        raise UserError(f"task {task!r}: {e}") from e
    return Source(made, split, arrays, needs, _fingerprint(task, made))


def fingerprint(task: str) -> str:
    """A hash of the task's name, of the options that differ from their defaults, and of its files:
    a file counts by what it holds, not by its path."""
    return _fingerprint(task, _task(task))


def batch(source: Source, seed: int, step: int, size: int) -> dict[str, np.ndarray]:
    """The batch of a step. Each epoch is a fresh shuffle, in which each example comes once."""
    seed, left = _index("seed", seed), _index("size", size, 1)
    row, rows = _index("step", step) * left, []
    while left:
        epoch, begin = divmod(row, len(source))
        rows.append(shuffled(len(source), seed, "epoch", epoch)[begin : begin + left])
        row, left = row + len(rows[-1]), left - len(rows[-1])
    return _take(source, np.concatenate(rows))


def in_order(source: Source, size: int) -> Iterator[dict[str, np.ndarray]]:
    """All examples in order, in batches of one shape: the last is filled up with weight 0."""
    size = _index("size", size, 1)
    for begin in range(0, len(source), size):
        rows = np.arange(begin, begin + size)
        made = _take(source, np.minimum(rows, len(source) - 1))
        for name, x in made.items():
            if name.startswith("weights"):
                x[rows >= len(source)] = 0
        yield made


def _take(source: Source, rows: np.ndarray) -> dict[str, np.ndarray]:
    made = {name: x[rows] for name, x in source.arrays.items()}
    return {name: x.astype(np.int32) if x.dtype.kind in "iu" else x for name, x in made.items()}


def _task(text: str) -> Task:
    task = read(text, TASKS, "task")
    if not isinstance(task, Task):
        raise UserError(f"task {text!r} must be a Task, not {task!r}")
    return task


def _count(task: Task, split: str, count: int | None) -> int:
    pick(dict.fromkeys(SPLITS), split, "split")
    most = None if task.sizes is None else pick(task.sizes, split, "split")
    if count is None and most is None:
        raise UserError(f"count: there is no end of examples; how many for {split!r}?")
    count = most if count is None else count
    if type(count) is not int or count < 1 or (most is not None and count > most):
        limit = "of at least 1" if most is None else f"from 1 to {most}, all that {split!r} has"
        raise UserError(f"count={count!r} must be a whole number {limit}")
    return count


def _fingerprint(text: str, task: Task) -> str:
    node, options = ast.parse(text.strip(), mode="eval").body, dict[str, Any]()
    if isinstance(node, ast.Call):
        options = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
        node = node.func
    name = ast.unparse(node)
    entry = TASKS[name]
    takes = inspect.signature(entry).parameters if callable(entry) else {}
    options = {k: v for k, v in options.items() if v != takes[k].default} | {**task.stands_for}
    return hashlib.sha256(repr((name, sorted(options.items()))).encode()).hexdigest()


def _index(name: str, value: Any, least: int = 0) -> int:
    try:
        whole = operator.index(value)
    except TypeError:
        whole = least - 1
    if whole < least:
        raise UserError(f"{name}={value!r} must be a whole number of at least {least}")
    return whole
