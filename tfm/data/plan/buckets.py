"""Length buckets: rows of like length share a batch, so that little of it is padding.

Each bucket is one shape. Which bucket a step uses is a function of the step alone; which of the
bucket's rows are read, of (seed, step).
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfm.data.draws import hashed, key_of
from tfm.data.formats import cache
from tfm.data.plan.lengths import digest
from tfm.data.plan.order import Drawn, Kind, permuted

CANDIDATES = 512  # lengths at which a bucket may end


class Sorted(NamedTuple):
    """The rows of a data set, bucket by bucket."""

    edges: tuple[tuple[int, ...], ...]  # of each bucket: its longest row, of each side
    counts: tuple[int, ...]  # rows of each bucket
    order: cache.Column  # the rows, those of the first bucket first


def into_buckets(lengths_NS: np.ndarray, most: int) -> Sorted:
    """At most `most` buckets, chosen so that the rows need as little padding as possible."""

    def build(writer: cache.Writer) -> dict[str, object]:
        ends, edges = best_edges(lengths_NS, most)
        bucket_N = np.searchsorted(ends, lengths_NS.max(1))
        writer.append("order", np.argsort(bucket_N, kind="stable").astype(np.int64))
        counts = np.bincount(bucket_N, minlength=len(ends))
        return {"edges": edges.tolist(), "counts": counts.tolist(), "rows": len(lengths_NS)}

    key = cache.key_of(plan="buckets", lengths=digest(lengths_NS), most=most)
    entry = cache.entry(key, {"what": "buckets"}, build)
    edges = tuple(tuple(edge) for edge in entry.facts["edges"])
    return Sorted(edges, tuple(entry.facts["counts"]), entry["order"])


def best_edges(lengths_NS: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Where buckets end, by the longer side of a row; and how long each side may be there.

    The sum of rows × padded length is the least that is possible, by dynamic programming over the
    lengths that there are (of more than 512, over 512 that have about as many rows between them).
    """
    longer_N = lengths_NS.max(1)
    order = np.argsort(longer_N, kind="stable")
    ends_K, first_K, count_K = np.unique(longer_N[order], return_index=True, return_counts=True)
    longest_KS = np.maximum.accumulate(np.maximum.reduceat(lengths_NS[order], first_K))
    number_K = np.cumsum(count_K)
    if len(ends_K) > CANDIDATES:
        wanted = np.linspace(0, number_K[-1], CANDIDATES + 1)[1:]
        some = np.unique(np.minimum(np.searchsorted(number_K, wanted), len(ends_K) - 1))
        ends_K, longest_KS, number_K = ends_K[some], longest_KS[some], number_K[some]
    # A row of one token has nothing to predict, so a shape of one would be empty.
    longest_KS = np.minimum(np.maximum(longest_KS, 2), np.maximum(longest_KS[-1:], 1))
    width_K = longest_KS.sum(1).astype(np.float64)
    best_K, before = number_K * width_K, []
    for _ in range(min(most, len(ends_K)) - 1):
        # From bucket end i to bucket end j: the rows between, as long as j says.
        cost_KK = best_K[:, None] + (number_K[None] - number_K[:, None]) * width_K[None]
        cost_KK[np.tril_indices(len(ends_K))] = np.inf
        before.append(np.argmin(cost_KK, 0))
        best_K = np.min(cost_KK, 0)
    chosen = [len(ends_K) - 1]
    for last in reversed(before):
        chosen.append(int(last[chosen[-1]]))
    kept = np.array(chosen[::-1])
    shapes = longest_KS[kept]
    kept = kept[np.append(np.any(shapes[1:] != shapes[:-1], 1), True)]  # each shape once
    return ends_K[kept], longest_KS[kept]


@dataclasses.dataclass(frozen=True, eq=False)
class Buckets:
    """In every epoch each row comes exactly once.

    A bucket is read in full batches. What is left of it, less than a batch, goes to the next one,
    where it fits as well; what is left of the last goes to the next epoch. So a batch may hold the
    end of one epoch and the beginning of the next, and none is ever filled up.
    """

    rows: Sorted
    sizes: tuple[int, ...]  # rows of a batch of each bucket
    seed: int

    @functools.cached_property
    def _totals(self) -> list[int]:
        """Rows that a bucket reads in an epoch, with those that the one before has left."""
        totals, left = [], 0
        for count, size in zip(self.rows.counts, self.sizes, strict=True):
            totals.append(count + left)
            left = totals[-1] % size
        return totals

    @functools.cached_property
    def _batches(self) -> list[int]:
        """Of an epoch, of all buckets but the last."""
        return [n // size for n, size in zip(self._totals[:-1], self.sizes, strict=False)]

    def _begin(self, epoch: int) -> int:
        """The first step of an epoch. Epochs differ by a step, where the last bucket's end is."""
        return epoch * (sum(self._batches) * self.sizes[-1] + self._totals[-1]) // self.sizes[-1]

    def place(self, step: int) -> tuple[int, int, int]:
        """The epoch of a step, its bucket, and which batch of the bucket it reads."""
        size, batches = self.sizes[-1], sum(self._batches)
        epoch = ((int(step) + 1) * size - 1) // (batches * size + self._totals[-1])
        begin, end = self._begin(epoch), self._begin(epoch + 1)
        key = hashed(key_of(0, "buckets"), np.array([epoch]))  # for all seeds the same
        slot = int(permuted(end - begin, key, np.array([int(step) - begin]))[0])
        for bucket, count in enumerate(self._batches):
            if slot < count:
                return epoch, bucket, slot
            slot -= count
        return epoch, len(self.sizes) - 1, begin - epoch * batches + slot

    def draw(self, step: int) -> Drawn:
        epoch, bucket, number = self.place(step)
        size = self.sizes[bucket]
        index_N = number * size + np.arange(size, dtype=np.int64)
        epoch_N = np.full(size, epoch)
        if bucket == len(self.sizes) - 1:  # its batches are counted from the first epoch on
            epoch_N, index_N = np.divmod(index_N, self._totals[-1])
        return self._drawn(bucket, self._read(bucket, epoch_N, index_N))

    def _drawn(self, bucket: int, rows: np.ndarray) -> Drawn:
        edges = self.rows.edges[bucket]
        return Drawn(rows, edges[0], edges[1] if len(edges) > 1 else None)

    def _read(self, bucket: int, epoch_N: np.ndarray, index_N: np.ndarray) -> np.ndarray:
        """Rows of a bucket: first what the one before has left, then its own, shuffled."""
        left = self._totals[bucket] - self.rows.counts[bucket]
        out_N = np.zeros(len(index_N), np.int64)
        own = index_N >= left
        if np.any(own):
            key_N = hashed(key_of(self.seed, "order", bucket), epoch_N[own])
            place_N = permuted(self.rows.counts[bucket], key_N, index_N[own] - left)
            out_N[own] = self.rows.order[place_N + sum(self.rows.counts[:bucket])]
        if not np.all(own):
            index_N = index_N + self._totals[bucket - 1] - left
            out_N[~own] = self._read(bucket - 1, epoch_N[~own], index_N[~own])
        return out_N

    def kinds(self) -> Sequence[Kind]:
        each = [*self._batches, self._totals[-1] / self.sizes[-1]]
        found = []
        for bucket, (size, batches) in enumerate(zip(self.sizes, each, strict=True)):
            if batches:
                place_N = (
                    sum(self.rows.counts[:bucket]) + np.arange(size) % self.rows.counts[bucket]
                )
                drawn = self._drawn(bucket, self.rows.order[place_N])
                found.append(Kind(batches / sum(each), drawn))
        return found
