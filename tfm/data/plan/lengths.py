"""Plans for rows of different lengths, which reduce padding.

Buckets: rows of similar length share a batch. Each bucket is one shape; the step alone determines
its bucket, (seed, step) which of the bucket's rows are read. Packing: several rows of a data set
share one row of a batch, separated by segments.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track

from tfm.data import cache
from tfm.data.dataset import spans
from tfm.data.draws import hashed, key_of, permuted, shuffled
from tfm.data.plan.order import Drawn, Epochs, Kind, Packing, Plan

CANDIDATES = 512  # lengths at which a bucket may end
OPEN = 128  # packed rows that may still receive a row
BLOCK = 1 << 16  # rows whose lengths are converted to Python integers at a time
SLOW = 1_000_000  # rows that take some seconds to pack; a bar shows the progress


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


class Packed(NamedTuple):
    """The rows of a data set, packed row by packed row."""

    lengths: tuple[int, ...]  # positions of a packed row, per side
    order: cache.Column
    ends: cache.Column  # where each packed row ends in `order`


def into_rows(lengths_NS: np.ndarray, room_S: Sequence[int]) -> Packed:
    """Packs rows that take `lengths_NS` positions into rows of `room_S` positions."""

    def build(writer: cache.Writer) -> dict[str, object]:
        # Neighbours in a file are often alike; in random order long rows meet short ones.
        order = shuffled(len(lengths_NS), key_of(0, "packing"))
        bin_N = first_fit(lengths_NS[order], room_S)
        writer.append("order", order[np.argsort(bin_N, kind="stable")].astype(np.int64))
        writer.append("ends", np.cumsum(np.bincount(bin_N)).astype(np.int64))
        return {"rows": len(lengths_NS), "packed": int(bin_N.max()) + 1}

    room = tuple(int(room) for room in room_S)
    digest = cache.array_digest(lengths_NS)
    key = cache.key_of(plan="packing", lengths=digest, room=room, open=OPEN)
    entry = cache.entry(key, {"what": "packing"}, build)
    return Packed(room, entry["order"], entry["ends"])


def first_fit(lengths_NS: np.ndarray, room_S: Sequence[int], most: int = OPEN) -> np.ndarray:
    """Returns the bin of each row: the first with room for it, or a new one.  Johnson 1973.

    If `most` bins are open, a new one replaces the one with the least room left.
    """
    number = np.zeros(most, np.int64)  # of each open bin
    rooms = [np.full(most, -1, np.int64) for _ in room_S]
    out_N = np.zeros(len(lengths_NS), np.int64)
    used = 0
    blocks = track(
        range(0, len(lengths_NS), BLOCK),
        "packing rows",
        console=Console(stderr=True),
        transient=True,
        disable=len(lengths_NS) < SLOW,
    )
    for begin in blocks:
        for row, lengths in enumerate(lengths_NS[begin : begin + BLOCK].tolist(), begin):
            fits = rooms[0] >= lengths[0]
            for room, length in zip(rooms[1:], lengths[1:], strict=True):
                fits &= room >= length
            place = int(fits.argmax())
            if not fits[place]:
                place = used if used < most else int(np.argmin(functools.reduce(np.add, rooms)))
                number[place] = used
                for room, whole in zip(rooms, room_S, strict=True):
                    room[place] = whole
                used += 1
            for room, length in zip(rooms, lengths, strict=True):
                room[place] -= length
            out_N[row] = number[place]
    return out_N


@dataclasses.dataclass(frozen=True, eq=False)
class PackedRows(Plan):
    """Visits every packed row, and so every row of the data set, once per epoch in a fresh order.

    Which rows are packed together is the same in all epochs and for all seeds.
    """

    rows: Packed
    size: int  # packed rows of a batch
    seed: int

    def draw(self, step: int) -> Drawn:
        packed_B = Epochs(len(self.rows.ends), self.size, self.seed).draw(step).rows
        end_B = self.rows.ends[packed_B]
        begin_B = np.where(packed_B > 0, self.rows.ends[np.maximum(packed_B - 1, 0)], 0)
        row_N = np.repeat(np.arange(self.size), end_B - begin_B)
        packing = Packing(row_N, self.size, self.rows.lengths)
        return Drawn(self.rows.order[spans(begin_B, end_B - begin_B)], packing=packing)
