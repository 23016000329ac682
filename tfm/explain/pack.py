"""Arrays as text in a page: small ones in 32 bits per number, large ones in 8.

Each is compressed by itself, so that the page unpacks only what it draws.
"""

import base64
import zlib
from typing import Any

import numpy as np

EXACT = 4096  # numbers of an array that is held in float32
ROOT = 1.75  # of numbers from 0 on; a greater one shows smaller numbers, and compresses less


class Blobs:
    """The packed arrays of a page, and their size in bytes."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._places: dict[str, int] = {}  # what is the same is held once
        self.coarse = False  # some array is held in 8 bits

    @property
    def size(self) -> int:
        return sum(map(len, self.texts))

    def add(
        self, x: np.ndarray, where: np.ndarray | None = None, exact: bool = False
    ) -> dict[str, Any]:
        """Packs a matrix. Only numbers at `where` count for its range.

        In 8 bits, numbers from 0 on (weights) are held as roots, so that small ones differ.
        """
        x = np.asarray(x, np.float32)
        x = x if x.ndim == 2 else x.reshape(1, -1)
        if where is not None:
            x = np.where(where, x, 0)
        shown = x if where is None else x[where]
        low, high = (float(shown.min()), float(shown.max())) if shown.size else (0.0, 0.0)
        about = {"shape": list(x.shape), "low": low, "high": high}
        if exact or x.size <= EXACT:
            return {**about, "type": "f4", "blob": self.pack(x.astype("<f4"))}
        self.coarse = True
        base, power = (0.0, ROOT) if low >= 0 else (low, 1)
        share = np.clip((x - base) / (high - base or 1.0), 0, 1)
        codes = np.round(255 * share ** (1 / power)).astype(np.uint8)
        return {**about, "type": "u1", "base": base, "power": power, "blob": self.pack(codes)}

    def bits(self, x: np.ndarray) -> dict[str, Any]:
        """Packs a matrix of booleans."""
        about = {"shape": list(x.shape), "low": 0.0, "high": 1.0, "type": "bits"}
        return {**about, "blob": self.pack(np.asarray(x, np.uint8))}

    def pack(self, x: np.ndarray) -> int:
        text = base64.b64encode(zlib.compress(x.tobytes(), 6)).decode()
        if text not in self._places:
            self._places[text] = len(self.texts)
            self.texts.append(text)
        return self._places[text]


def coarser(x_TS: np.ndarray, factor: int, where: np.ndarray | None = None) -> np.ndarray:
    """Averages each `factor` × `factor` cells, of those at `where`, including the remainder at the
    end."""
    if factor == 1:
        return x_TS
    kept = np.ones(x_TS.shape, bool) if where is None else where
    total, count = (_summed(np.asarray(x, np.float64), factor) for x in (x_TS * kept, kept))
    return (total / np.maximum(count, 1)).astype(np.float32)


def _summed(x_TS: np.ndarray, factor: int) -> np.ndarray:
    for axis in (0, 1):
        x_TS = np.add.reduceat(x_TS, np.arange(0, x_TS.shape[axis], factor), axis)
    return x_TS


def narrower(x_TD: np.ndarray, most: int) -> tuple[np.ndarray, int]:
    """Averages neighbouring columns to about `most` numbers; returns also how many columns."""
    columns = max(8, most // max(len(x_TD), 1))
    group = -(-x_TD.shape[1] // columns)
    return (x_TD if group == 1 else means(x_TD, group, 1)), group


def means(x: np.ndarray, group: int, axis: int) -> np.ndarray:
    """Averages each `group` entries along an axis, including the remainder at the end."""
    starts = np.arange(0, x.shape[axis], group)
    sizes = np.diff([*starts, x.shape[axis]])
    return np.add.reduceat(x, starts, axis) / sizes.reshape(-1, *[1] * (x.ndim - axis - 1))
