"""Which rows stand in the batch of a step, as a function of (seed, step)."""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from tfm.data.draws import hashed, key_of

BLOCK = 1 << 16


def permuted(count: int, key: int | np.ndarray, index: np.ndarray) -> np.ndarray:
    """Where a random permutation of the numbers below `count` sends `index`, with O(1) memory.

    `key` chooses the permutation; it may differ for each index. A number is a pair (left, right)
    below (a, b), and in turn one of them is moved by a hash of the other: a Feistel network. What
    lands beyond `count` walks on until it is inside.  Black & Rogaway 2002.
    """
    a = math.isqrt(count - 1) + 1
    b = -(-count // a)
    index = np.asarray(index, np.int64)
    key = np.broadcast_to(np.asarray(key, np.uint64), index.shape)
    rounds = 8 if count > 1000 else 32  # few numbers mix slowly
    keys = hashed(key, np.arange(rounds)[:, None])
    out = index.copy()
    todo = np.arange(out.size)
    while todo.size:
        left, right = np.divmod(out[todo].astype(np.uint64), np.uint64(b))
        for round_ in range(rounds):
            own = keys[round_, todo]
            if round_ % 2:
                right = (right + hashed(own, left) % np.uint64(b)) % np.uint64(b)
            else:
                left = (left + hashed(own, right) % np.uint64(a)) % np.uint64(a)
        out[todo] = (left * np.uint64(b) + right).astype(np.int64)
        todo = todo[out[todo] >= count]
    return out


def shuffled(count: int, key: int) -> np.ndarray:
    """All numbers below `count`, in the order of `permuted`; some at a time, to save memory."""
    out = np.zeros(count, np.int64)
    for begin in range(0, count, BLOCK):
        index = np.arange(begin, min(begin + BLOCK, count))
        out[index] = permuted(count, key, index)
    return out


class Packing(NamedTuple):
    """How examples stand in the rows of a batch, several in one."""

    row_N: np.ndarray  # the row of each example; the first ones come first
    rows: int
    lengths: tuple[int, ...]  # positions of a row; of both sides, where there are two


class Drawn(NamedTuple):
    """What a step reads."""

    rows: np.ndarray  # of the data set
    max_length: int | None = None  # to which they are padded; None: as long as the data's longest
    max_target: int | None = None
    packing: Packing | None = None
    begins_B: np.ndarray | None = None  # streams: whether a row is the first of its stream


class Kind(NamedTuple):
    """Batches of one shape: how many there are, as a share of all, and one that is such."""

    share: float
    drawn: Drawn


class Plan(Protocol):
    """Which rows of a data set make the batch of a step, and their shape: a function of the step
    alone. The shape does not depend on the seed, so runs of different seeds can be stacked."""

    def draw(self, step: int) -> Drawn: ...

    def kinds(self) -> Sequence[Kind]:
        """The shapes that there are."""
        ...


@dataclasses.dataclass(frozen=True)
class Epochs:
    """Each epoch is a fresh permutation, in which every row comes exactly once. A batch may hold
    the end of one epoch and the beginning of the next."""

    count: int  # rows of the data set
    size: int  # of a batch
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
    """A text cut into as many streams as a batch has rows: each batch goes on where the one before
    ended, row by row. Each epoch begins anew. What is left over at the end, fewer rows than a batch
    has, is not read. The order is the same for every seed.  Mikolov et al. 2010."""

    count: int  # rows of the data set
    size: int  # of a batch
    next_row: int  # how far the row that goes on is from the one before

    @property
    def steps(self) -> int:
        """Of an epoch."""
        return ((self.count - 1) // self.next_row + 1) // self.size

    def draw(self, step: int) -> Drawn:
        place = int(step) % self.steps
        window_B = np.arange(self.size, dtype=np.int64) * self.steps + place
        return Drawn(window_B * self.next_row, begins_B=np.full(self.size, place == 0))

    def kinds(self) -> Sequence[Kind]:
        return (Kind(1.0, self.draw(0)),)
