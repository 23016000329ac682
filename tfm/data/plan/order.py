"""Batch plans: which rows form the batch at (seed, step); and batches made ahead of their step."""

import dataclasses
import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from tfm.data.draws import hashed, key_of, permuted

T = TypeVar("T")


class Packing(NamedTuple):
    """Assignment of examples to the rows of a batch, several per row."""

    row_N: np.ndarray  # the row of each example, in ascending order
    rows: int
    lengths: tuple[int, ...]  # positions of a row; of both sides, if there are two


class Drawn(NamedTuple):
    """The rows of the data set that a step reads, and the shape of its batch."""

    rows: np.ndarray
    max_length: int | None = None  # the length they are padded to; None: the data's longest
    max_target: int | None = None
    packing: Packing | None = None
    begins_B: np.ndarray | None = None  # streams: whether a row is the first of its stream


class Kind(NamedTuple):
    """Batches of one shape: their share of all batches, and an example."""

    share: float
    drawn: Drawn


class Plan:
    """Maps a step to the rows and the shape of its batch.

    The shape does not depend on the seed, so runs of different seeds can be stacked.
    """

    def draw(self, step: int) -> Drawn:
        raise NotImplementedError

    def kinds(self) -> Sequence[Kind]:
        """Lists the shapes of all batches; by default there is one."""
        return (Kind(1.0, self.draw(0)),)


@dataclasses.dataclass(frozen=True)
class Epochs(Plan):
    """Visits every row exactly once per epoch, in a fresh order. A batch may contain the end of
    one epoch and the beginning of the next."""

    count: int  # rows of the data set
    size: int  # rows of a batch
    seed: int

    def draw(self, step: int) -> Drawn:
        place = int(step) * self.size + np.arange(self.size, dtype=np.int64)
        epoch, index = np.divmod(place, self.count)
        return Drawn(permuted(self.count, hashed(key_of(self.seed, "order"), epoch), index))


@dataclasses.dataclass(frozen=True)
class Streams(Plan):
    """Cuts a text into one stream per batch row; each batch continues the previous one.

    Every epoch starts over. The remainder at the end, fewer rows than a batch has, is not read.
    The order is the same for every seed.  Mikolov et al. 2010.
    """

    count: int  # rows of the data set
    size: int  # rows of a batch
    next_row: int  # distance to the row that continues a row

    @property
    def steps(self) -> int:
        """Number of steps in an epoch."""
        return ((self.count - 1) // self.next_row + 1) // self.size

    def draw(self, step: int) -> Drawn:
        place = int(step) % self.steps
        window_B = np.arange(self.size, dtype=np.int64) * self.steps + place
        return Drawn(window_B * self.next_row, begins_B=np.full(self.size, place == 0))


class Prefetch(Generic[T]):
    """Computes `make(step)` for the steps from `begin` to `end` − 1 in a thread, `depth` ahead.

    A batch is a function of its step, so closing loses no state. `next` raises an error of `make`
    in place of the batch. `waited` is the total time in seconds that `next` has waited.
    """

    def __init__(self, make: Callable[[int], T], begin: int, end: int, depth: int = 2):
        self.waited = 0.0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        self._batches = (self._pool.submit(make, step) for step in range(begin, end))
        self._ahead = deque(itertools.islice(self._batches, depth + 1))  # one is being made

    def next(self) -> T:
        begin = time.monotonic()
        if not self._ahead:
            raise IndexError("there is no batch after the last step")
        batch = self._ahead.popleft().result()
        self.waited += time.monotonic() - begin
        self._ahead.extend(itertools.islice(self._batches, 1))
        return batch

    def __enter__(self) -> "Prefetch[T]":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
