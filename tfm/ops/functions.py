"""Functions that hold arrays: `jax.tree_util.Partial` carries them through jit, grad and scan."""

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.tree_util import Partial

from tfm.config.names import UserError


def as_partial(kind: str, fn: Callable[..., Any]) -> Partial:
    """`fn` as a Partial. A traced value hidden in a closure is refused: whether JAX could
    differentiate it would depend on the implementation, and so on the length of the sequence."""
    bound = fn if isinstance(fn, Partial) else Partial(fn)
    if any(
        isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(list(_hidden(bound.func)))
    ):
        raise UserError(
            f"the {kind} {_name(bound)} closes over a traced value; hand it in as an argument: "
            "jax.tree_util.Partial(fn, name=value)"
        )
    return bound


def check_call(kind: str, bound: Partial, *args: str, **options: str) -> None:
    """Raise unless `bound` can be called so, and knows each parameter it holds by name."""
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
    """The function itself: JAX wraps a functools.partial to give it a hash."""
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
        except ValueError:  # a name that is not assigned yet
            continue
