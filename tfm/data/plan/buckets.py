"""Length buckets: rows of similar length share a batch, which reduces padding.

Each bucket is one shape. The step alone determines its bucket; (seed, step) determines which of
the bucket's rows are read.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfm.data import cache
from tfm.data.draws import hashed, key_of, permuted
from tfm.data.plan.order import Drawn, Kind, Plan

CANDIDATES = 512  # lengths at which a bucket may end


class Sorted(NamedTuple):
    """The rows of a data set, bucket by bucket."""

    edges: tuple[tuple[int, ...], ...]  # the longest row of each bucket, per side
    counts: tuple[int, ...]  # rows of each bucket
    order: cache.Column  # row numbers, those of the first bucket first


def into_buckets(lengths_NS: np.ndarray, most: int) -> Sorted:
    """Sorts rows into at most `most` buckets that need as little padding as possible."""

    def build(writer: cache.Writer) -> dict[str, object]:
        ends, edges = best_edges(lengths_NS, most)
        bucket_N = np.searchsorted(ends, lengths_NS.max(1))
        writer.append("order", np.argsort(bucket_N, kind="stable").astype(np.int64))
        counts = np.bincount(bucket_N, minlength=len(ends))
        return {"edges": edges.tolist(), "counts": counts.tolist(), "rows": len(lengths_NS)}

    key = cache.key_of(plan="buckets", lengths=cache.array_digest(lengths_NS), most=most)
    entry = cache.entry(key, {"what": "buckets"}, build)
    edges = tuple(tuple(edge) for edge in entry.facts["edges"])
    return Sorted(edges, tuple(entry.facts["counts"]), entry["order"])


def best_edges(lengths_NS: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the last length of each bucket, by the longer side, and the longest row per side.

    Minimizes the sum of rows × padded length by dynamic programming over all lengths that occur,
    or, if there are more than 512, over 512 with about equally many rows between them.
    """
    longer_N = lengths_NS.max(1)
    order = np.argsort(longer_N, kind="stable")
    ends_K, first_K, count_K = np.unique(longer_N[order], return_index=True, return_counts=True)
    longest_KS = np.maximum.accumulate(np.maximum.reduceat(lengths_NS[order], first_K))
    number_K = np.cumsum(count_K)
    if len(ends_K) > CANDIDATES:
        quantiles = np.linspace(0, number_K[-1], CANDIDATES + 1)[1:]
        some = np.unique(np.minimum(np.searchsorted(number_K, quantiles), len(ends_K) - 1))
        ends_K, longest_KS, number_K = ends_K[some], longest_KS[some], number_K[some]
    # A row of one token has nothing to predict, so a batch of length 1 would be empty.
    longest_KS = np.minimum(np.maximum(longest_KS, 2), np.maximum(longest_KS[-1:], 1))
    width_K = longest_KS.sum(1).astype(np.float64)
    best_K, before = number_K * width_K, []
    for _ in range(min(most, len(ends_K)) - 1):
        # The rows between bucket end i and bucket end j are padded to the length of j.
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
class Buckets(Plan):
    """Visits every row exactly once per epoch.

    A bucket is read in full batches. Its remainder, less than a batch, is passed to the next
    bucket, where it fits as well; the remainder of the last bucket is passed to the next epoch. So
    a batch may contain the end of one epoch and the beginning of the next, and all are full.
    """

    rows: Sorted
    sizes: tuple[int, ...]  # rows of a batch of each bucket
    seed: int

    @functools.cached_property
    def _totals(self) -> list[int]:
        """Rows that each bucket reads in an epoch, including the previous bucket's remainder."""
        totals, left = [], 0
        for count, size in zip(self.rows.counts, self.sizes, strict=True):
            totals.append(count + left)
            left = totals[-1] % size
        return totals

    @functools.cached_property
    def _batches(self) -> list[int]:
        """Batches in an epoch, for all buckets but the last."""
        return [n // size for n, size in zip(self._totals[:-1], self.sizes, strict=False)]

    def _begin(self, epoch: int) -> int:
        """First step of an epoch. Epochs differ by one step because of the last remainder."""
        return epoch * (sum(self._batches) * self.sizes[-1] + self._totals[-1]) // self.sizes[-1]

    def place(self, step: int) -> tuple[int, int, int]:
        """Returns the epoch of a step, its bucket, and the number of the batch in the bucket."""
        size, batches = self.sizes[-1], sum(self._batches)
        epoch = ((int(step) + 1) * size - 1) // (batches * size + self._totals[-1])
        begin, end = self._begin(epoch), self._begin(epoch + 1)
        key = hashed(key_of(0, "buckets"), np.array([epoch]))  # the same for all seeds
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
        """Returns rows of a bucket: the previous bucket's remainder, then its own, shuffled."""
        left = self._totals[bucket] - self.rows.counts[bucket]
        out_N = np.zeros(len(index_N), np.int64)
        inside = index_N >= left
        if np.any(inside):
            key_N = hashed(key_of(self.seed, "order", bucket), epoch_N[inside])
            place_N = permuted(self.rows.counts[bucket], key_N, index_N[inside] - left)
            out_N[inside] = self.rows.order[place_N + sum(self.rows.counts[:bucket])]
        if not np.all(inside):
            index_N = index_N + self._totals[bucket - 1] - left
            out_N[~inside] = self._read(bucket - 1, epoch_N[~inside], index_N[~inside])
        return out_N

    def kinds(self) -> Sequence[Kind]:
        batches = [*self._batches, self._totals[-1] / self.sizes[-1]]
        kinds = []
        for bucket, (size, count) in enumerate(zip(self.sizes, self.rows.counts, strict=True)):
            if batches[bucket]:
                place_N = sum(self.rows.counts[:bucket]) + np.arange(size) % count
                drawn = self._drawn(bucket, self.rows.order[place_N])
                kinds.append(Kind(batches[bucket] / sum(batches), drawn))
        return kinds
