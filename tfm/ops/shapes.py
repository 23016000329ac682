"""Checks of arguments: arrays whose names end in their shape, numbers, and functions.

`q_BTHK` has four axes; `w_HK` is heads × head width.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
from jax import Array
from jax import numpy as jnp
from jax.tree_util import Partial
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
    """Returns the sizes together with those of second axes."""
    return {**{two: sizes[one] for two, one in SECOND.items() if one in sizes}, **sizes}


def shape_of(name: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Returns the shape in a parameter's name: `shape_of("w_HK", {"H": 8, "K": 64})` is (8, 64)."""
    axes, sizes = suffix(name), doubled(sizes)
    twice = sorted({axis for axis in axes if axes.count(axis) > 1})
    unknown = sorted(set(axes) - set(sizes))
    if twice or unknown:
        names = {one: f" (a second axis of {AXES[one]} is {two})" for two, one in SECOND.items()}
        wrong = [f"axis {axis} appears twice{names.get(axis, '')}" for axis in twice]
        wrong += [f"{axis} ({AXES.get(axis, 'not an axis')}) has no size" for axis in unknown]
        known = ", ".join(f"{axis} = {size}" for axis, size in sizes.items())
        raise UserError(
            f"parameter {name!r} must end in its shape, like w_HK: {', '.join(wrong)}; "
            f"sizes here: {known}"
        )
    return tuple(sizes[axis] for axis in axes)


def check_number(name: str, x: ArrayLike, valid: Callable[[Any], bool], range_: str) -> None:
    """Raises unless `x` is one number and, if it is not traced, in its range."""
    if jnp.ndim(x) or isinstance(x, bool):
        raise UserError(f"{name} must be one number, not {x!r}")
    if not isinstance(x, jax.core.Tracer) and not valid(x):
        raise UserError(f"{name} {x} must be {range_}")


def check(name: str, array: ArrayLike, sizes: dict[str, int], *, free: str = "") -> None:
    """Raises unless `array` has the axes that its name ends in. Adds new axes to `sizes`; an axis
    in `free` may also have size 1."""
    axes, shape = suffix(name), jnp.shape(array)
    if "_" not in name or (not axes.isupper() and axes):
        raise UserError(f"{name!r} must end in its shape, like w_HK; a scalar is {name}_")
    expected = ", ".join(str(sizes.get(axis, axis)) for axis in axes)
    if len(shape) != len(axes):
        raise UserError(f"{name} must have {len(axes)} axes ({expected}), but its shape is {shape}")
    for axis, size in zip(axes, shape, strict=True):
        if sizes.setdefault(axis, size) != size and not (axis in free and size == 1):
            raise UserError(
                f"{name} has shape {shape}, expected ({expected}): "
                f"axis {axis} ({AXES.get(axis, axis)}) is {size} instead of {sizes[axis]}"
            )


def check_positions(name: str, pos: Array, sizes: dict[str, int]) -> Array:
    """Returns positions as int32; distances of unsigned ones would wrap around."""
    check(name, pos, sizes, free="B")
    if not jnp.issubdtype(pos.dtype, jnp.integer):
        raise UserError(f"{name} must be whole numbers, not {pos.dtype}")
    return pos.astype(jnp.int32)


def as_partial(kind: str, fn: Callable[..., Any]) -> Partial:
    """Returns `fn` as a Partial, which carries arrays through jit, grad and scan. Raises if a
    closure hides a traced value: some implementations, and so some lengths, cannot differentiate
    it."""
    bound = fn if isinstance(fn, Partial) else Partial(fn)
    if any(
        isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(list(_hidden(bound.func)))
    ):
        raise UserError(
            f"the {kind} {_name(bound)} closes over a traced value; pass it as an argument: "
            "jax.tree_util.Partial(fn, name=value)"
        )
    return bound


def check_call(kind: str, bound: Partial, *args: str, **options: str) -> None:
    """Raises if `bound` cannot accept these arguments, or has no parameter of a bound name."""
    try:
        signature = inspect.signature(_plain(bound.func))
        signature.bind(*args, **bound.keywords, **options)
    except TypeError as e:
        called = ", ".join([*args, "**parameters", *(f"{name}=…" for name in options)])
        raise UserError(f"the {kind} {_name(bound)} is called as fn({called}): {e}") from None
    for name in bound.keywords:
        if name not in signature.parameters:
            raise UserError(f"the {kind} {_name(bound)} has no parameter {name!r}")


def _plain(fn: Any) -> Any:
    """Returns the function itself; JAX wraps a functools.partial to make it hashable."""
    return getattr(fn, "fun", fn)


def _name(bound: Partial) -> str:
    fn = _plain(bound.func)
    return getattr(fn, "__name__", repr(fn))


def _hidden(fn: Any) -> Iterator[Any]:
    fn = _plain(fn)
    while isinstance(fn, functools.partial):
        yield fn.args
        yield fn.keywords
        fn = fn.func
    for cell in getattr(fn, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue
