"""Packing: several rows of a data set share one row of a batch, separated by segments."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track

from tfm.data import cache
from tfm.data.dataset import spans
from tfm.data.draws import key_of, shuffled
from tfm.data.plan.order import Drawn, Epochs, Packing, Plan

OPEN = 128  # packed rows that may still receive a row
BLOCK = 1 << 16  # rows whose lengths are converted to Python integers at a time
SLOW = 1_000_000  # rows that take some seconds; a bar shows the progress


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
        packed_B = Epochs(len(self.rows.ends), self.size, self.seed).rows(step)
        end_B = self.rows.ends[packed_B]
        begin_B = np.where(packed_B > 0, self.rows.ends[np.maximum(packed_B - 1, 0)], 0)
        row_N = np.repeat(np.arange(self.size), end_B - begin_B)
        packing = Packing(row_N, self.size, self.rows.lengths)
        return Drawn(self.rows.order[spans(begin_B, end_B - begin_B)], packing=packing)
