"""Stateless random numbers: each is a function of (key, row, number of the draw).

Any row of a generated data set can be made at any time, in any order, in any process.
"""

import hashlib
import json
import math

import numpy as np

GAMMA = 0x9E3779B97F4A7C15  # 2⁶⁴ divided by the golden ratio
BLOCK = 1 << 16  # indices that `shuffled` permutes at a time


def key_of(seed: int, *purpose: str | int) -> int:
    """Returns 64 bits for one use of a seed, the same in every process."""
    digest = hashlib.sha256(json.dumps([int(seed), *purpose]).encode()).digest()
    return int.from_bytes(digest[:8], "little")


def mix(x: np.ndarray) -> np.ndarray:
    """Applies a bijection of 64 bits whose outputs look random.  SplitMix64, Steele et al. 2014."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def hashed(key: int | np.ndarray, number: np.ndarray) -> np.ndarray:
    """Returns 64 random bits for each pair of a key and a number."""
    counter = np.asarray(number).astype(np.uint64) + np.uint64(1)
    return mix(np.asarray(key, np.uint64) + counter * np.uint64(GAMMA))


def permuted(count: int, key: int | np.ndarray, index: np.ndarray) -> np.ndarray:
    """Applies a random permutation of the numbers below `count` to `index`, with O(1) memory.

    `key` selects the permutation; it may differ for each index. A number is a pair (left, right)
    below (a, b); a Feistel network alternately shifts one of them by a hash of the other. Numbers
    that land beyond `count` are permuted again until they are inside.  Black & Rogaway 2002.
    """
    a = math.isqrt(count - 1) + 1
    b = -(-count // a)
    index = np.asarray(index, np.int64)
    key = np.broadcast_to(np.asarray(key, np.uint64), index.shape)
    rounds = 8 if count > 1000 else 32  # small ranges mix slowly
    keys = hashed(key, np.arange(rounds)[:, None])
    out = index.copy()
    todo = np.arange(out.size)
    while todo.size:
        left, right = np.divmod(out[todo].astype(np.uint64), np.uint64(b))
        for i in range(rounds):
            round_key = keys[i, todo]
            if i % 2:
                right = (right + hashed(round_key, left) % np.uint64(b)) % np.uint64(b)
            else:
                left = (left + hashed(round_key, right) % np.uint64(a)) % np.uint64(a)
        out[todo] = (left * np.uint64(b) + right).astype(np.int64)
        todo = todo[out[todo] >= count]
    return out


def shuffled(count: int, key: int) -> np.ndarray:
    """Returns all numbers below `count` in the order of `permuted`, computed in blocks."""
    out = np.zeros(count, np.int64)
    for begin in range(0, count, BLOCK):
        index = np.arange(begin, min(begin + BLOCK, count))
        out[index] = permuted(count, key, index)
    return out


class Draws:
    """Random draws for many rows at once. N, the first axis of every draw, is the rows.

    Each call draws the next numbers of each row, which depend on the row's key alone.
    """

    def __init__(self, key_N: np.ndarray):
        self.key_N = key_N
        self.count = 0

    def __len__(self) -> int:
        return len(self.key_N)

    def bits(self, shape: tuple[int, ...] = ()) -> np.ndarray:
        size = math.prod(shape)
        number = np.arange(self.count, self.count + size, dtype=np.uint64)
        self.count += size
        return hashed(self.key_N[:, None], number).reshape(len(self), *shape)

    def integers(self, low: int, high: int, shape: tuple[int, ...] = ()) -> np.ndarray:
        """Draws int32 from `low` to `high` − 1, equally likely up to (high − low) / 2³²."""
        drawn = (self.bits(shape) >> np.uint64(32)) * np.uint64(high - low) >> np.uint64(32)
        return drawn.astype(np.int32) + np.int32(low)

    def uniform(self, shape: tuple[int, ...] = ()) -> np.ndarray:
        """Draws numbers strictly between 0 and 1."""
        return ((self.bits(shape) >> np.uint64(12)) + 0.5) * 2.0**-52

    def permutation(self, size: int) -> np.ndarray:
        """Draws a random order of the numbers below `size` for each row."""
        return np.argsort(self.bits((size,)), axis=1)

    def distinct(self, size: int, among: int) -> np.ndarray:
        """Draws `size` different numbers below `among`, in random order.  Floyd; Bentley 1987."""
        drawn_NP = np.zeros((len(self), size), np.int32)
        for i, top in enumerate(range(among - size, among)):
            new_N = self.integers(0, top + 1)
            taken_N = np.any(drawn_NP[:, :i] == new_N[:, None], axis=1)
            drawn_NP[:, i] = np.where(taken_N, top, new_N)
        return np.take_along_axis(drawn_NP, self.permutation(size), axis=1)
