"""Built-in masks: causal, windows, strides, prefixes, padding, segments.

A new mask is a class with `visible` (see `mask.py`), a function that creates it and a line in
MASKS; `predicate` turns a function of two positions into a mask.
"""

from collections.abc import Callable

from jax import Array
from jax import numpy as jnp
from jax.tree_util import Partial
from jax.typing import ArrayLike

from tfm.config.names import UserError
from tfm.ops.mask import At, AtPositions, Everything, Mask, mask_dataclass
from tfm.ops.shapes import as_partial


@mask_dataclass(meta=("left", "right"))
class Band(Mask):
    """Shows keys from `left` steps back to `right` steps ahead, by index; None is no limit."""

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
    """The causal mask `a` over a rolling cache. The first `slots` keys are the cache, not in the
    order of the text; new keys follow in order. Empty slots have positions below 0."""

    a: Mask
    slots: int

    def visible(self, at):
        return self.a.visible(AtPositions(*at)) & (at.k_pos_BS >= 0)[:, None, None]

    def hides(self, span):
        new = range(span.cols.start - self.slots, span.cols.stop - self.slots)
        return new.start >= 0 and self.a.hides(span._replace(cols=new, plain=False))


def _check_no_offset(at: At, name: str) -> None:
    if at.offset_B is not None:
        raise UserError(
            f"mask {name!r} has an entry for each query, so it cannot be used with a cache"
        )


def _columns(x_BS: Array, index_S: Array, beyond: int | bool) -> Array:
    return jnp.take(x_BS, index_S, axis=1, mode="fill", fill_value=beyond)


def everything() -> Mask:
    """Shows every pair."""
    return Everything()


def causal() -> Mask:
    """Hides later tokens, by index.  Vaswani et al. 2017, §3.2.3."""
    return Band(None, 0)


def window(left: int, right: int = 0) -> Mask:
    """Shows `left` tokens back to `right` ahead, by index, and itself.  Beltagy et al. 2020."""
    return Band(_whole("window: left", left, 0), _whole("window: right", right, 0))


def strided(stride: int) -> Mask:
    """Shows every `stride`-th token, counted by index from itself.  Child et al. 2019, §4.3."""
    return Strided(_whole("strided: stride", stride, 1))


def global_tokens(count: int) -> Mask:
    """Lets the first `count` positions see all and be seen by all.  Beltagy et al. 2020."""
    return GlobalTokens(_whole("global_tokens: count", count, 0))


def prefix(length: ArrayLike) -> Mask:
    """Shows the first `length` positions (one number, or one per example) to all.

    A prefix LM is `causal() | prefix(length)`.  Raffel et al. 2020, §3.2.1.
    """
    if type(length) is int:  # static, as in a config; an array is data
        return FixedPrefix(_whole("prefix: length", length, 0))
    return Prefix(jnp.atleast_1d(jnp.asarray(length)))


def padding(valid_BS: ArrayLike) -> Mask:
    """Hides padding keys."""
    return Padding(_booleans("valid_BS", valid_BS))


def segments(q_segment_BT: ArrayLike, k_segment_BS: ArrayLike | None = None) -> Mask:
    """Shows only tokens of the same segment of a packed row."""
    q_segment_BT = jnp.asarray(q_segment_BT)
    return Segments(
        q_segment_BT, q_segment_BT if k_segment_BS is None else jnp.asarray(k_segment_BS)
    )


def given(visible_BHTS: ArrayLike) -> Mask:
    """Uses a matrix of booleans (BHTS); B and H may be 1."""
    return Given(_booleans("visible_BHTS", visible_BHTS))


def predicate(fn: Callable[[Array, Array], Array]) -> Mask:
    """Shows pairs for which `fn(query position, key position)` is True; both are arrays.

    Pass traced values as `predicate(jax.tree_util.Partial(fn, limit=limit))`.
    """
    return Predicate(as_partial("predicate", fn))


def near(reach_BT: Array, valid_BT: Array | None = None) -> Array:
    """Returns booleans (BTS): the tokens within reach of each token, excluding itself.

    Not a mask for `attend`: the reach differs from token to token.
    """
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
