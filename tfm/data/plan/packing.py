"""Packing: several rows of a data set stand in one row of a batch, kept apart by segments."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track

from tfm.data.draws import key_of
from tfm.data.formats import cache
from tfm.data.plan.lengths import digest
from tfm.data.plan.order import Drawn, Epochs, Kind, Packing, shuffled

OPEN = 128  # packed rows that may still get another
BLOCK = 1 << 16  # rows whose lengths are Python's numbers at a time
SLOW = 1_000_000  # rows that take some seconds, which a bar shows


class Packed(NamedTuple):
    """The rows of a data set, packed row by packed row."""

    lengths: tuple[int, ...]  # positions of a packed row, of each side
    order: cache.Column
    ends: cache.Column  # of each packed row, in `order`


def into_rows(lengths_NS: np.ndarray, room_S: Sequence[int]) -> Packed:
    """Rows that take `lengths_NS` positions, packed into rows of `room_S` positions."""

    def build(writer: cache.Writer) -> dict[str, object]:
        # Neighbours in a file are often alike; in random order long ones meet short ones.
        order = shuffled(len(lengths_NS), key_of(0, "packing"))
        bin_N = first_fit(lengths_NS[order], room_S)
        writer.append("order", order[np.argsort(bin_N, kind="stable")].astype(np.int64))
        writer.append("ends", np.cumsum(np.bincount(bin_N)).astype(np.int64))
        return {"rows": len(lengths_NS), "packed": int(bin_N.max()) + 1}

    room = tuple(int(room) for room in room_S)
    key = cache.key_of(plan="packing", lengths=digest(lengths_NS), room=room, open=OPEN)
    entry = cache.entry(key, {"what": "packing"}, build)
    return Packed(room, entry["order"], entry["ends"])


def first_fit(lengths_NS: np.ndarray, room_S: Sequence[int], most: int = OPEN) -> np.ndarray:
    """The bin of each row: the first that has room for it, or a new one.  Johnson 1973.

    Of more than `most` bins, the one with the least room left is closed.
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
class PackedRows:
    """Packed rows in a fresh order each epoch, in which each comes exactly once; so does every row
    of the data set. Which rows stand together is the same in all epochs and for all seeds."""

    rows: Packed
    size: int  # packed rows of a batch
    seed: int

    def draw(self, step: int) -> Drawn:
        packed_B = Epochs(len(self.rows.ends), self.size, self.seed).rows(step)
        end_B = self.rows.ends[packed_B]
        begin_B = np.where(packed_B > 0, self.rows.ends[np.maximum(packed_B - 1, 0)], 0)
        count_B = end_B - begin_B
        row_N = np.repeat(np.arange(self.size), count_B)
        before_B = np.cumsum(count_B) - count_B
        place_N = np.arange(len(row_N)) + np.repeat(begin_B - before_B, count_B)
        packing = Packing(row_N, self.size, self.rows.lengths)
        return Drawn(self.rows.order[place_N], packing=packing)

    def kinds(self) -> Sequence[Kind]:
        return (Kind(1.0, self.draw(0)),)
