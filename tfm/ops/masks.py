"""Who may look at whom. Masks are boolean, True = visible, and join with `&`, `|` and `~`.

A mask is asked two things. `visible` is evaluated on a tile: the indices of its rows and columns
(their places in the arrays) and their positions (which restart in packed sequences). `hides` and
`shows` tell, from indices alone and before anything is compiled, whether a tile is wholly hidden or
wholly visible; "don't know" is False.
"""

import dataclasses
import inspect
from collections.abc import Callable
from typing import NamedTuple, dataclass_transform

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp
from jax.tree_util import Partial
from jax.typing import ArrayLike

from tfm.names import UserError
from tfm.ops.functions import as_partial
from tfm.ops.shapes import check


class At(NamedTuple):
    """Where a tile lies: the indices and the positions of its rows and columns.

    In cached decoding the first query of an example stands at the key of index `offset_B`.
    """

    q_index_T: Array
    k_index_S: Array
    q_pos_BT: Array
    k_pos_BS: Array
    offset_B: Array | None = None

    @property
    def back_BTS(self) -> Array:
        """How many steps a key lies before its query."""
        back_BTS = self.q_index_T[None, :, None] - self.k_index_S[None, None]
        return back_BTS if self.offset_B is None else back_BTS + self.offset_B[:, None, None]


class AtPositions(At):
    """A tile in which steps are counted by positions."""

    @property
    def back_BTS(self) -> Array:
        return self.q_pos_BT[:, :, None] - self.k_pos_BS[:, None]


class Span(NamedTuple):
    """A tile before compilation. `plain`: positions are the indices themselves."""

    rows: range
    cols: range
    plain: bool

    @property
    def reach(self) -> tuple[int, int]:
        """The least and the greatest (row − column) in the tile."""
        return self.rows[0] - self.cols[-1], self.rows[-1] - self.cols[0]


class Mask:
    """Base class: a mask that shows everything and knows nothing of tiles."""

    def visible(self, at: At) -> Array:
        """Booleans that broadcast to BHTS."""
        return jnp.ones((1, 1, 1, 1), bool)

    def hides(self, span: Span) -> bool:
        return False

    def shows(self, span: Span) -> bool:
        return False

    def window(self) -> int | None:
        """No query sees a key that lies more steps before it; None: there is no such limit."""
        return None

    def check(self, sizes: dict[str, int]) -> None:
        """Raise if an array in the mask, whose name ends in its axes, does not fit."""
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, Mask):
                value.check(sizes)
            elif isinstance(value, Array):
                check(field.name, value, sizes, free="BH")

    def is_causal(self, length: int = 64) -> bool:
        """Whether no query sees a key after itself, tried on `length` positions."""
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
    """`x`, if it is a mask."""
    if isinstance(x, Mask):
        return x
    what = f"the function {x.__name__}" if inspect.isfunction(x) else f"a {type(x).__name__}"
    raise UserError(
        f"{what} is not a mask; masks are made by functions, as masks.causal(), and an array of "
        "booleans BHTS becomes one by masks.given(array)"
    )


@dataclass_transform(frozen_default=True)
def mask_dataclass(*, data: tuple[str, ...] = (), meta: tuple[str, ...] = ()):
    """A frozen dataclass that JAX can take apart: `data` are arrays, `meta` is structure."""

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


@mask_dataclass(meta=("left", "right"))
class Band(Mask):
    """Visible from `left` steps back to `right` steps ahead, by index; None is no limit."""

    left: int | None
    right: int | None

    def visible(self, at):
        visible_BTS = jnp.ones_like(at.back_BTS, bool)
        if self.left is not None:
            visible_BTS &= at.back_BTS <= self.left
        if self.right is not None:
            visible_BTS &= at.back_BTS >= -self.right
        return visible_BTS[:, None]

    def hides(self, span):
        least, most = span.reach
        too_old = self.left is not None and least > self.left
        too_new = self.right is not None and most < -self.right
        return too_old or too_new

    def shows(self, span):
        least, most = span.reach
        return (self.left is None or most <= self.left) and (
            self.right is None or least >= -self.right
        )

    def window(self):
        return self.left


@mask_dataclass(meta=("stride",))
class Strided(Mask):
    stride: int

    def visible(self, at):
        return (at.back_BTS % self.stride == 0)[:, None]

    def hides(self, span):
        least, most = span.reach
        return most // self.stride * self.stride < least

    def shows(self, span):
        return self.stride == 1


@mask_dataclass(meta=("count",))
class GlobalTokens(Mask):
    count: int

    def visible(self, at):
        sees_BTS = at.q_pos_BT[:, :, None] < self.count
        seen_BTS = at.k_pos_BS[:, None] < self.count
        return (sees_BTS | seen_BTS)[:, None]

    def hides(self, span):
        return span.plain and min(span.rows[0], span.cols[0]) >= self.count

    def shows(self, span):
        return span.plain and (span.rows[-1] < self.count or span.cols[-1] < self.count)


@mask_dataclass(data=("length_B",))
class Prefix(Mask):
    length_B: Array

    def visible(self, at):
        return (at.k_pos_BS < self.length_B[:, None])[:, None, None]


@mask_dataclass(meta=("length",))
class FixedPrefix(Mask):
    length: int

    def visible(self, at):
        return (at.k_pos_BS < self.length)[:, None, None]

    def hides(self, span):
        return span.plain and span.cols[0] >= self.length

    def shows(self, span):
        return span.plain and span.cols[-1] < self.length


@mask_dataclass(data=("valid_BS",))
class Padding(Mask):
    valid_BS: Array

    def visible(self, at):
        return _columns(self.valid_BS, at.k_index_S, False)[:, None, None]


@mask_dataclass(data=("q_segment_BT", "k_segment_BS"))
class Segments(Mask):
    q_segment_BT: Array
    k_segment_BS: Array

    def visible(self, at):
        _check_no_offset(at, "segments")
        q_BT = _columns(self.q_segment_BT, at.q_index_T, -1)
        k_BS = _columns(self.k_segment_BS, at.k_index_S, -2)
        return (q_BT[:, :, None] == k_BS[:, None])[:, None]


@mask_dataclass(data=("visible_BHTS",))
class Given(Mask):
    visible_BHTS: Array

    def visible(self, at):
        _check_no_offset(at, "given")
        rows = jnp.take(self.visible_BHTS, at.q_index_T, axis=2, mode="fill", fill_value=False)
        return jnp.take(rows, at.k_index_S, axis=3, mode="fill", fill_value=False)


@mask_dataclass(data=("fn",))
class Predicate(Mask):
    fn: Partial

    def visible(self, at):
        q_pos_BT1, k_pos_B1S = at.q_pos_BT[:, :, None], at.k_pos_BS[:, None]
        visible_BTS = jnp.asarray(self.fn(q_pos_BT1, k_pos_B1S))
        shape = jnp.broadcast_shapes(q_pos_BT1.shape, k_pos_B1S.shape)
        if visible_BTS.dtype != bool or visible_BTS.shape != shape:
            raise UserError(
                f"a predicate gets positions BT1 and B1S and must return booleans BTS {shape}, "
                f"not {visible_BTS.dtype} of shape {visible_BTS.shape}"
            )
        return visible_BTS[:, None]


@mask_dataclass(data=("a",), meta=("slots",))
class Rolling(Mask):
    """A causal mask `a`, if the first `slots` keys are those of a rolling cache, whose order is not
    that of the text; new keys come after them, in order. Empty slots have positions below 0."""

    a: Mask
    slots: int

    def visible(self, at):
        return self.a.visible(AtPositions(*at)) & (at.k_pos_BS >= 0)[:, None, None]

    def hides(self, span):
        new = range(span.cols.start - self.slots, span.cols.stop - self.slots)
        return new.start >= 0 and self.a.hides(span._replace(cols=new, plain=False))


def _check_no_offset(at: At, name: str) -> None:
    if at.offset_B is not None:
        raise UserError(f"mask {name!r} has an entry for each query, so it cannot go with a cache")


def _columns(x_BS: Array, index_S: Array, beyond: int | bool) -> Array:
    return jnp.take(x_BS, index_S, axis=1, mode="fill", fill_value=beyond)


def everything() -> Mask:
    """Every pair is visible."""
    return Everything()


def causal() -> Mask:
    """Nothing after itself, by index.  Vaswani et al. 2017, §3.2.3."""
    return Band(None, 0)


def window(left: int, right: int = 0) -> Mask:
    """From `left` tokens back to `right` ahead by index, itself included.  Beltagy et al. 2020."""
    return Band(_whole("window: left", left, 0), _whole("window: right", right, 0))


def strided(stride: int) -> Mask:
    """Every `stride`-th token, counted by index from itself.  Child et al. 2019, §4.3."""
    return Strided(_whole("strided: stride", stride, 1))


def global_tokens(count: int) -> Mask:
    """The first `count` positions see all and are seen by all.  Beltagy et al. 2020."""
    return GlobalTokens(_whole("global_tokens: count", count, 0))


def prefix(length: ArrayLike) -> Mask:
    """The first `length` positions (one number, or one for each example) are seen by all.

    A prefix LM is `causal() | prefix(length)`.  Raffel et al. 2020, §3.2.1.
    """
    if type(length) is int:  # structure, as in a config; an array is data
        return FixedPrefix(_whole("prefix: length", length, 0))
    return Prefix(jnp.atleast_1d(jnp.asarray(length)))


def padding(valid_BS: ArrayLike) -> Mask:
    """Real keys only."""
    return Padding(_booleans("valid_BS", valid_BS))


def segments(q_segment_BT: ArrayLike, k_segment_BS: ArrayLike | None = None) -> Mask:
    """Only within one's own segment of a packed row."""
    q_segment_BT = jnp.asarray(q_segment_BT)
    return Segments(
        q_segment_BT, q_segment_BT if k_segment_BS is None else jnp.asarray(k_segment_BS)
    )


def given(visible_BHTS: ArrayLike) -> Mask:
    """A matrix of booleans as it is; B and H may be 1."""
    return Given(_booleans("visible_BHTS", visible_BHTS))


def predicate(fn: Callable[[Array, Array], Array]) -> Mask:
    """Whatever `fn(query position, key position)` says of two arrays of positions.

    A traced number that it needs is given as `predicate(jax.tree_util.Partial(fn, limit=limit))`.
    """
    return Predicate(as_partial("predicate", fn))


def near(reach_BT: Array, valid_BT: Array | None = None) -> Array:
    """Booleans BTS: which tokens of a row are in reach of each, itself left out. It is not for
    `attend`: the reach differs from token to token."""
    place_T = jnp.arange(reach_BT.shape[1])
    far_TS = jnp.abs(place_T[:, None] - place_T[None])
    near_BTS = (far_TS[None] <= reach_BT[:, :, None]) & (far_TS > 0)[None]
    if valid_BT is None:
        return near_BTS
    return near_BTS & valid_BT[:, None, :] & valid_BT[:, :, None]


def _whole(name: str, value: int, least: int) -> int:
    if type(value) is not int or value < least:
        raise UserError(f"{name}={value} must be a whole number of at least {least}")
    return value


def _booleans(name: str, x: ArrayLike) -> Array:
    array = jnp.asarray(x)
    if array.dtype != bool:
        raise UserError(f"{name} must be boolean, True = visible, not {array.dtype}")
    return array


MASKS = {
    "everything": everything,
    "causal": causal,
    "window": window,
    "strided": strided,
    "global_tokens": global_tokens,
    "prefix": prefix,
    "padding": padding,
    "segments": segments,
    "given": given,
}
