"""How long the rows of a data set are: what buckets and packing are made from."""

import hashlib

import numpy as np

from tfm.data.dataset import Dataset

BLOCK = 4096  # rows that are read at a time


def lengths_of(dataset: Dataset) -> np.ndarray:
    """The length of each row: N1, or N2 of pairs. Where the data set does not know them, all rows
    are read once."""
    if dataset.lengths is not None:
        return dataset.lengths()[: len(dataset)].astype(np.int32, copy=False)
    blocks = []
    for begin in range(0, len(dataset), BLOCK):
        some = dataset.take(np.arange(begin, min(begin + BLOCK, len(dataset))))
        sides = [side.lengths for side in (some.tokens, some.target) if side is not None]
        blocks.append(np.stack(sides, 1).astype(np.int32))
    return np.concatenate(blocks)


def digest(lengths_NS: np.ndarray) -> str:
    """A hash of lengths, by which what follows from them is cached."""
    content = hashlib.sha256(repr((lengths_NS.shape, lengths_NS.dtype.str)).encode())
    content.update(np.ascontiguousarray(lengths_NS).data)
    return content.hexdigest()
