"""Which rows stand in the batch of a step, as a function of (seed, step)."""

import dataclasses
import math
from typing import Protocol

import numpy as np

from tfm.data.draws import hashed, key_of


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


class Plan(Protocol):
    """Which rows of a data set make the batch of a step.

    Mixtures of data sets by weight, packing and length buckets are other plans: each must be a
    function of the step alone, without memory that grows with the number of rows.
    """

    def rows(self, step: int) -> np.ndarray: ...


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
