"""The mask interface: visibility of keys to queries, on any tile of the (query × key) plane.

Masks are boolean, True = visible, and combine with `&`, `|` and `~`. `visible` is evaluated on a
tile, from the indices of its rows and columns (their places in the arrays) and their positions
(which restart in packed rows). `hides` and `shows` return, from indices alone and before anything
is compiled, whether a tile is entirely hidden or entirely visible; False if unknown. `masks.py` has
the built-in masks.
"""

import dataclasses
import inspect
from typing import NamedTuple, dataclass_transform

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp

from tfm.config.names import UserError
from tfm.ops.shapes import check


class At(NamedTuple):
    """The indices and positions of the rows and columns of a tile.

    In cached decoding the first query of an example has the key index `offset_B`.
    """

    q_index_T: Array
    k_index_S: Array
    q_pos_BT: Array
    k_pos_BS: Array
    offset_B: Array | None = None

    @property
    def back_BTS(self) -> Array:
        """Number of steps from a key to its query."""
        back_BTS = self.q_index_T[None, :, None] - self.k_index_S[None, None]
        return back_BTS if self.offset_B is None else back_BTS + self.offset_B[:, None, None]


class AtPositions(At):
    """A tile that counts steps by position."""

    @property
    def back_BTS(self) -> Array:
        return self.q_pos_BT[:, :, None] - self.k_pos_BS[:, None]


class Span(NamedTuple):
    """A tile before compilation. With `plain`, positions equal indices."""

    rows: range
    cols: range
    plain: bool

    @property
    def reach(self) -> tuple[int, int]:
        """Least and greatest (row − column) in the tile."""
        return self.rows[0] - self.cols[-1], self.rows[-1] - self.cols[0]


class Mask:
    """The base class: shows everything, and rules on no tile."""

    def visible(self, at: At) -> Array:
        """Returns booleans that broadcast to BHTS."""
        return jnp.ones((1, 1, 1, 1), bool)

    def hides(self, span: Span) -> bool:
        return False

    def shows(self, span: Span) -> bool:
        return False

    def window(self) -> int | None:
        """Returns how many steps back a query sees at most; None if unlimited."""
        return None

    def check(self, sizes: dict[str, int]) -> None:
        """Raises if an array of the mask does not have the shape in which its name ends."""
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, Mask):
                value.check(sizes)
            elif isinstance(value, Array):
                check(field.name, value, sizes, free="BH")

    def is_causal(self, length: int = 64) -> bool:
        """Returns True if no query sees a later key; tries it on `length` positions."""
        with jax.ensure_compile_time_eval():  # the answer is structure, under jit too
            index = jnp.arange(length)
            at = At(index, index, index[None], index[None])
            visible_BHTS = np.broadcast_to(self.visible(at), (1, 1, length, length))
            return not np.any(np.triu(visible_BHTS, 1))

    def __and__(self, other: "Mask") -> "Mask":
        return And(self, a_mask(other))

    def __or__(self, other: "Mask") -> "Mask":
        return Or(self, a_mask(other))

    def __invert__(self) -> "Mask":
        return Not(self)


def a_mask(x: object) -> Mask:
    """Returns `x` if it is a mask, else raises."""
    if isinstance(x, Mask):
        return x
    kind = f"the function {x.__name__}" if inspect.isfunction(x) else f"a {type(x).__name__}"
    raise UserError(
        f"{kind} is not a mask; functions make masks, such as masks.causal(), and an array of "
        "booleans BHTS becomes one by masks.given(array)"
    )


@dataclass_transform(frozen_default=True)
def mask_dataclass(*, data: tuple[str, ...] = (), meta: tuple[str, ...] = ()):
    """Registers a frozen dataclass with JAX: `data` fields are arrays, `meta` fields static."""

    def wrap(cls):
        return jax.tree_util.register_dataclass(
            dataclasses.dataclass(frozen=True)(cls), data_fields=data, meta_fields=meta
        )

    return wrap


@mask_dataclass()
class Everything(Mask):
    def shows(self, span):
        return True


@mask_dataclass(data=("a", "b"))
class And(Mask):
    a: Mask
    b: Mask

    def visible(self, at):
        return self.a.visible(at) & self.b.visible(at)

    def hides(self, span):
        return self.a.hides(span) or self.b.hides(span)

    def shows(self, span):
        return self.a.shows(span) and self.b.shows(span)

    def window(self):
        return min((x for x in (self.a.window(), self.b.window()) if x is not None), default=None)


@mask_dataclass(data=("a", "b"))
class Or(Mask):
    a: Mask
    b: Mask

    def visible(self, at):
        return self.a.visible(at) | self.b.visible(at)

    def hides(self, span):
        return self.a.hides(span) and self.b.hides(span)

    def shows(self, span):
        return self.a.shows(span) or self.b.shows(span)

    def window(self):
        a, b = self.a.window(), self.b.window()
        return None if a is None or b is None else max(a, b)


@mask_dataclass(data=("a",))
class Not(Mask):
    a: Mask

    def visible(self, at):
        return ~self.a.visible(at)

    def hides(self, span):
        return self.a.shows(span)

    def shows(self, span):
        return self.a.hides(span)
