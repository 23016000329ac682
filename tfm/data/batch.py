"""The one schema: what a task is, whatever the model. Arrays of three forms, examples first.

Id 0 is padding, 1 begins and separates, 2 ends; a task's own symbols start at 3. Text has no
special ids: its ids are those of its vocabulary. Padding comes last, and the masks tell it.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tfm.names import UserError

PAD, BOS, EOS = 0, 1, 2
SEP = BOS
FIRST = 3  # of a task's own symbols

SPLITS = ("train", "valid", "test")


class _Form:
    vocab: int

    def __post_init__(self) -> None:
        _check(self, {"vocab": self.vocab, "classes": getattr(self, "classes", 0)})

    def __len__(self) -> int:
        return len(next(iter(vars(self).values())))


@dataclasses.dataclass(frozen=True, eq=False)
class Pairs(_Form):
    """A sequence and the sequence that is wanted for it."""

    source_NS: np.ndarray
    source_valid_NS: np.ndarray
    target_NT: np.ndarray
    target_valid_NT: np.ndarray
    vocab: int  # number of ids, the special ones included


@dataclasses.dataclass(frozen=True, eq=False)
class Labels(_Form):
    """A sequence and the class that is wanted for it."""

    tokens_NT: np.ndarray
    valid_NT: np.ndarray
    label_N: np.ndarray
    vocab: int
    classes: int


@dataclasses.dataclass(frozen=True, eq=False)
class Marks(_Form):
    """A sequence and the tokens that are wanted at its marked positions.

    `follows`: they are the tokens that come next, as in language modelling, so that only a model
    that sees no later token may be asked.
    """

    tokens_NT: np.ndarray
    valid_NT: np.ndarray
    target_NT: np.ndarray
    marked_NT: np.ndarray
    vocab: int
    follows: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if np.any(once(self.marked_NT) & ~once(self.valid_NT)):
            raise UserError("Marks.marked_NT marks padding")


Examples = Pairs | Labels | Marks


class Best(NamedTuple):
    """The highest accuracy that there is, of scored tokens and of whole examples."""

    token: float
    exact: float


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """What can make examples.

    `make(rng, count, split)` gives `count` examples of a split. `sizes` says how many each split
    has; without it there is no end of them. `stands_for` tells, for an option that names a file,
    what it holds; `bytes_per_token` (of each split) and `decode` are those of text.
    """

    make: Callable[[np.random.Generator, int, str], Examples]
    best: Best | None = None  # None: nobody knows
    sizes: Mapping[str, int] | None = None
    stands_for: Mapping[str, str] = dataclasses.field(default_factory=dict)
    bytes_per_token: Mapping[str, float] = dataclasses.field(default_factory=dict)
    decode: Callable[[Sequence[int] | np.ndarray], str] | None = None


def once(x: np.ndarray) -> np.ndarray:
    """`x` without the axes along which it only repeats itself: of size 1, as before broadcast."""
    return x[tuple(slice(1) if stride == 0 else slice(None) for stride in x.strides)]


def _cells(x: np.ndarray) -> np.ndarray:
    """All that is in `x`; of windows that overlap, each cell once."""
    x = once(x)
    if x.ndim == 2 and x.strides[0] == x.strides[1]:
        return np.concatenate([x[:, 0], x[-1]])
    return x


def _check(form: object, limits: Mapping[str, int]) -> None:
    what, sizes = type(form).__name__, dict[str, int]()
    for name, x in vars(form).items():
        axes = name.rpartition("_")[2]
        if not axes.isupper():
            continue
        if not isinstance(x, np.ndarray) or x.ndim != len(axes) or not x.size:
            raise UserError(f"{what}.{name} must be a NumPy array of {len(axes)} axes, not empty")
        for axis, size in zip(axes, x.shape, strict=True):
            if sizes.setdefault(axis, size) != size:
                raise UserError(f"{what}.{name} is {x.shape}, but axis {axis} is {sizes[axis]}")
        if "marked" in name or "valid" in name:
            if x.dtype != bool:
                raise UserError(f"{what}.{name} must be boolean, not {x.dtype}")
            seen = once(x)
            if "valid" in name and np.any(seen[:, 1:] & ~seen[:, :-1]):
                raise UserError(f"{what}.{name}: padding must come last")
            continue
        if not np.issubdtype(x.dtype, np.integer):
            raise UserError(f"{what}.{name} must be whole numbers, not {x.dtype}")
        limit = "classes" if name == "label_N" else "vocab"
        cells = _cells(x)
        if cells.min() < 0 or cells.max() >= limits[limit]:
            raise UserError(
                f"{what}.{name} holds {cells.min()} to {cells.max()}, but {limit}={limits[limit]}"
            )
