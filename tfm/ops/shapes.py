"""Names that end in their shape: `q_BTHK` has four axes, `w_HK` is heads × head width."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax import Array
from jax import numpy as jnp
from jax.typing import ArrayLike

from tfm.config.names import UserError

AXES = {
    "B": "batch",
    "T": "query length",
    "S": "key length",
    "D": "model width",
    "H": "heads",
    "G": "key/value heads",
    "K": "head width",
    "J": "head width",
    "X": "heads",
    "E": "value width",
    "L": "maximum query length",
    "M": "maximum key length",
}
SECOND = {"J": "K", "X": "H"}  # a second axis of the same size: w_HKJ, w_HX


def suffix(name: str) -> str:
    return name.rpartition("_")[2]


def doubled(sizes: Mapping[str, int]) -> dict[str, int]:
    """Sizes, with those of the letters for a second axis."""
    return {**{two: sizes[one] for two, one in SECOND.items() if one in sizes}, **sizes}


def shape_of(name: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """What a parameter's name asks for: `shape_of("w_HK", {"H": 8, "K": 64})` is (8, 64)."""
    axes, sizes = suffix(name), doubled(sizes)
    twice = sorted({axis for axis in axes if axes.count(axis) > 1})
    unknown = sorted(set(axes) - set(sizes))
    if twice or unknown:
        names = {one: f" (a second axis of {AXES[one]} is {two})" for two, one in SECOND.items()}
        wrong = [f"axis {axis} stands twice{names.get(axis, '')}" for axis in twice]
        wrong += [f"{axis} ({AXES.get(axis, 'no axis of ours')}) has no size" for axis in unknown]
        known = ", ".join(f"{axis} = {size}" for axis, size in sizes.items())
        raise UserError(
            f"parameter {name!r} must end in its shape, as w_HK does: {', '.join(wrong)}; "
            f"sizes here: {known}"
        )
    return tuple(sizes[axis] for axis in axes)


def check_number(name: str, x: ArrayLike, valid: Callable[[Any], bool], range_: str) -> None:
    """Raise unless `x` is one number and, where it is known already, in its range."""
    if jnp.ndim(x) or isinstance(x, bool):
        raise UserError(f"{name} must be one number, not {x!r}")
    if not isinstance(x, jax.core.Tracer) and not valid(x):
        raise UserError(f"{name} {x} must be {range_}")


def check(name: str, array: ArrayLike, sizes: dict[str, int], *, free: str = "") -> None:
    """Raise unless `array` has the axes its name ends in. Sizes met for the first time are noted
    in `sizes`; an axis listed in `free` may also have size 1."""
    axes, shape = suffix(name), jnp.shape(array)
    if "_" not in name or (not axes.isupper() and axes):
        raise UserError(f"{name!r} must end in its shape, as w_HK does; one number is {name}_")
    wanted = ", ".join(str(sizes.get(axis, axis)) for axis in axes)
    if len(shape) != len(axes):
        raise UserError(f"{name} must have {len(axes)} axes ({wanted}), but its shape is {shape}")
    for axis, size in zip(axes, shape, strict=True):
        if sizes.setdefault(axis, size) != size and not (axis in free and size == 1):
            raise UserError(
                f"{name} has shape {shape}, expected ({wanted}): "
                f"axis {axis} ({AXES.get(axis, axis)}) is {size} instead of {sizes[axis]}"
            )


def check_positions(name: str, pos: Array, sizes: dict[str, int]) -> Array:
    """Positions as int32; unsigned ones would make distances wrap around."""
    check(name, pos, sizes, free="B")
    if not jnp.issubdtype(pos.dtype, jnp.integer):
        raise UserError(f"{name} must be whole numbers, not {pos.dtype}")
    return pos.astype(jnp.int32)
