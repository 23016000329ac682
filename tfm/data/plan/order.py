"""Batch plans: which rows form the batch at (seed, step); and batches made ahead of their step."""

import dataclasses
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

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


class Plan(Protocol):
    """Maps a step to the rows and the shape of its batch.

    The shape does not depend on the seed, so runs of different seeds can be stacked.
    """

    def draw(self, step: int) -> Drawn: ...

    def kinds(self) -> Sequence[Kind]:
        """Lists the shapes of all batches."""
        ...


@dataclasses.dataclass(frozen=True)
class Epochs:
    """Visits every row exactly once per epoch, in a fresh order. A batch may contain the end of
    one epoch and the beginning of the next."""

    count: int  # rows of the data set
    size: int  # rows of a batch
    seed: int

    def rows(self, step: int) -> np.ndarray:
        place = int(step) * self.size + np.arange(self.size, dtype=np.int64)
        epoch, index = np.divmod(place, self.count)
        return permuted(self.count, hashed(key_of(self.seed, "order"), epoch), index)

    def draw(self, step: int) -> Drawn:
        return Drawn(self.rows(step))

    def kinds(self) -> Sequence[Kind]:
        return (Kind(1.0, self.draw(0)),)


@dataclasses.dataclass(frozen=True)
class Streams:
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

    def kinds(self) -> Sequence[Kind]:
        return (Kind(1.0, self.draw(0)),)


class Prefetch(Generic[T]):
    """Computes `make(step)` for the steps from `begin` to `end` − 1 in a thread, `depth` ahead.

    A batch is a function of its step, so closing loses no state. `next` raises an error of `make`
    in place of the batch. `waited` is the total time in seconds that `next` has waited.
    """

    def __init__(self, make: Callable[[int], T], begin: int, end: int, depth: int = 2):
        self.waited = 0.0
        self._queue: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(depth)
        self._closed = threading.Event()
        work = make, begin, end
        self._thread = threading.Thread(target=self._run, args=work, name="prefetch", daemon=True)
        self._thread.start()

    def next(self) -> T:
        begin = time.monotonic()
        batch, error = self._queue.get()
        self.waited += time.monotonic() - begin
        if error is not None:
            raise error
        return batch  # type: ignore[return-value]

    def __enter__(self) -> "Prefetch[T]":
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self, make: Callable[[int], T], begin: int, end: int) -> None:
        for step in range(begin, end):
            try:
                item: tuple[Any, BaseException | None] = make(step), None
            except BaseException as e:
                item = None, e
            if not self._put(item) or item[1] is not None:
                return
        self._put((None, IndexError(f"no batch after step {end - 1}")))

    def _put(self, item: tuple[Any, BaseException | None]) -> bool:
        while not self._closed.is_set():
            try:
                self._queue.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False
