"""What models share at their edges: masks from the batch, intermediates by name, the cache."""

from collections.abc import Mapping, Sequence
from typing import Any

from flax import struct
from jax import Array
from jax import numpy as jnp

from tfm.config.names import UserError, suggest
from tfm.config.spec import Named
from tfm.layers.block import BlockSpec
from tfm.layers.context import Context
from tfm.ops import masks
from tfm.ops.mask import Mask
from tfm.ops.shapes import check


def known(size: int | None) -> int:
    """A size that a config may leave open, but a model has."""
    assert size is not None
    return size


def visible(
    mask: Mask,
    valid_BS: Array | None,
    q_segment_BT: Array | None = None,
    k_segment_BS: Array | None = None,
) -> Mask:
    """`mask`, and what the batch says: no padding, and only one's own segment of a packed row."""
    if valid_BS is not None:
        mask = mask & masks.padding(valid_BS)
    if q_segment_BT is not None:
        mask = mask & masks.segments(q_segment_BT, k_segment_BS)
    return mask


def check_packed(spec: BlockSpec, segment_BT: Array | None) -> None:
    """Raise if rows are packed, but a part of the model would mix what is packed into one."""
    if segment_BT is not None:
        check_packable(spec)


def check_packable(spec: BlockSpec) -> None:
    parts = {
        f"mixer={spec.mixer!r}": spec.used_mixer is None or spec.attends,
        f"norm.kind={spec.norm.kind!r}": getattr(spec.norm.kind.entry, "causal", True),
        f"position.scheme={spec.position.scheme!r}": spec.position.scheme.entry.causal,
    }
    for name, keeps_apart in parts.items():
        if not keeps_apart:
            raise UserError(f"{name} cannot keep the segments of a packed row apart")


def check_valid(name: str, valid: Array | None, sizes: dict[str, int]) -> None:
    """Raise unless `valid` is None, or booleans of the shape that its name ends in."""
    if valid is None:
        return
    check(name, valid, sizes)
    if valid.dtype != bool:
        raise UserError(f"{name} must be boolean, True = a real token, not {valid.dtype}")


def check_capture(capture: Sequence[str], *known: str) -> None:
    if isinstance(capture, str):
        raise UserError(f"capture={capture!r} must be a tuple of names: capture=({capture!r},)")
    for name in capture:
        if name not in (*known, "losses"):
            raise UserError(f"no intermediate {name!r} here{suggest(name, known)}")


def outputs(
    logits: Any,
    capture: Sequence[str],
    intermediates: Mapping[str, Any],
    losses: Mapping[str, Array] | None = None,
) -> Any:
    """The logits; if anything is captured, a pair of them and the intermediates by name."""
    if not capture:
        return logits
    extra = {"losses": dict(losses or {})} if "losses" in capture else {}
    return logits, {**intermediates, **extra}


class Cache(struct.PyTreeNode):
    """What decoding keeps from one call to the next.

    `count_B` is how many tokens of each example are in it; with `even`, all have as many. Beyond
    `length` there is no place, and logits become NaN. A `rolling` one keeps the last tokens alone,
    where no others are seen.
    """

    layers: Any
    count_B: Array
    source_valid_BS: Array | None = None
    prefix_B: Array | None = None  # so many tokens of each example are seen by all that follow
    length: int = struct.field(pytree_node=False, default=0)
    even: bool = struct.field(pytree_node=False, default=False)
    rolling: bool = struct.field(pytree_node=False, default=False)

    def context(self, mask: Mask, tokens_BT: Array, valid_BT: Array | None, **more: Any) -> Context:
        """For tokens that follow those in the cache; each row's padding comes last. The mask hides
        what comes later (`check_cacheable`), and so the room that is still empty."""
        pos_BT = self.count_B[:, None] + jnp.arange(tokens_BT.shape[1])[None]
        return Context(
            mask,
            valid_BT=valid_BT,
            pos_BT=pos_BT,
            offset_B=self.count_B,
            even=self.even,
            rolling=self.rolling,
            **more,
        )

    def after(self, tokens_BT: Array, valid_BT: Array | None) -> Array:
        """`count_B` when these tokens are in the cache."""
        new: Any = tokens_BT.shape[1] if valid_BT is None else jnp.sum(valid_BT, 1)
        return self.count_B + new

    def guard(self, logits_BTV: Array, count_B: Array) -> Array:
        """NaN where the cache was too short."""
        return jnp.where((count_B <= self.length)[:, None, None], logits_BTV, jnp.nan)


def last_of(x_BTD: Array, valid_BT: Array | None) -> Array:
    """B1D: of each row the last token that is no padding."""
    if valid_BT is None:
        return x_BTD[:, -1:]
    place_B = jnp.maximum(jnp.sum(valid_BT, 1) - 1, 0)
    return jnp.take_along_axis(x_BTD, place_B[:, None, None], 1)


def slots(spec: BlockSpec, mask: Mask, length: int) -> int:
    """How many of `length` tokens a cache must keep: under a window, the last ones."""
    window = mask.window() if spec.attends else None
    return length if window is None else min(length, window + 1)


def check_cacheable(spec: BlockSpec, mask: Named, scheme: Named, length: int) -> None:
    """Raise if tokens cannot be decoded one after the other, with the reason."""
    mixer, norm = spec.used_mixer, spec.norm.kind.entry
    reason = None
    if mixer is not None and not mixer.cacheable:
        reason = f"mixer={spec.mixer!r} mixes the whole sequence at once"
    elif norm is not None and not norm.causal:
        reason = f"norm.kind={spec.norm.kind!r} sees later tokens"
    elif spec.attends and not mask.entry.is_causal(max(length, 64)):
        reason = f"mask={mask!r} shows later tokens"
    elif spec.attends and spec.attention and not spec.attention.score.entry.cacheable:
        reason = f"attention.score={spec.attention.score!r} is not cacheable"
    if reason is not None:
        raise UserError(f"this model cannot decode with a cache: {reason}")
    if scheme.entry.params.keys() & {"w_LD"} and length > spec.max_length:
        raise UserError(f"a cache of length {length} is beyond max_length={spec.max_length}")
