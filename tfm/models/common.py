"""Helpers of models: masks from the batch, intermediates by name, the cache of a Transformer."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from flax import struct
from jax import Array
from jax import numpy as jnp

from tfm.config.names import UserError, suggest
from tfm.config.spec import Named
from tfm.layers.block import BlockSpec
from tfm.layers.context import Context
from tfm.layers.dims import Dropouts
from tfm.ops import masks
from tfm.ops.mask import Mask
from tfm.ops.shapes import check


class CallOptions(TypedDict, total=False):
    """Options of every model's call. A Transformer passes them on in the context of its layers."""

    dropouts: Dropouts | None
    train: bool
    capture: tuple[str, ...]  # names of the intermediates to return


def within(options: CallOptions, part: str) -> CallOptions:
    """Returns the options for a part of the model, whose dropouts have their own key."""
    dropouts = options.get("dropouts")
    return options if dropouts is None else {**options, "dropouts": dropouts.within(part)}


def known(size: int | None) -> int:
    """Returns a size that a config may leave open, but a built model has."""
    assert size is not None
    return size


def visible(
    mask: Mask,
    valid_BS: Array | None,
    q_segment_BT: Array | None = None,
    k_segment_BS: Array | None = None,
) -> Mask:
    """Returns `mask` restricted to real tokens and to the same segment of a packed row."""
    if valid_BS is not None:
        mask = mask & masks.padding(valid_BS)
    if q_segment_BT is not None:
        mask = mask & masks.segments(q_segment_BT, k_segment_BS)
    return mask


def check_packable(spec: BlockSpec) -> None:
    """Raises if a part of the model cannot keep the segments of packed rows apart."""
    parts = {
        f"mixer={spec.mixer!r}": spec.used_mixer is None or spec.attends,
        f"norm.kind={spec.norm.kind!r}": getattr(spec.norm.kind.entry, "causal", True),
        f"position.scheme={spec.position.scheme!r}": spec.position.scheme.entry.causal,
    }
    for name, keeps_apart in parts.items():
        if not keeps_apart:
            raise UserError(f"{name} cannot keep the segments of a packed row apart")


def check_valid(name: str, valid: Array | None, sizes: dict[str, int]) -> None:
    """Raises unless `valid` is None, or boolean with the shape that its name ends in."""
    if valid is None:
        return
    check(name, valid, sizes)
    if valid.dtype != bool:
        raise UserError(f"{name} must be boolean, True = a real token, not {valid.dtype}")


def captured(options: CallOptions, *known: str) -> tuple[str, ...]:
    """Returns the intermediates to return; raises unless they are a tuple of known names, and if
    the call has an unknown option."""
    for name in options.keys() - CallOptions.__annotations__.keys():
        raise TypeError(f"this model's call has no argument {name!r}")
    capture = options.get("capture", ())
    if isinstance(capture, str):
        raise UserError(f"capture={capture!r} must be a tuple of names: capture=({capture!r},)")
    for name in capture:
        if name not in (*known, "losses"):
            raise UserError(f"no intermediate {name!r} here{suggest(name, known)}")
    return capture


def outputs(
    logits: Any,
    capture: Sequence[str],
    intermediates: Mapping[str, Any],
    losses: Mapping[str, Array] | None = None,
) -> Any:
    """Returns the logits; with `capture`, also the intermediates by name."""
    if not capture:
        return logits
    extra = {"losses": dict(losses or {})} if "losses" in capture else {}
    return logits, {**intermediates, **extra}


class TransformerCache(struct.PyTreeNode):
    """The state of decoding between calls.

    Beyond `length` tokens there is no room, and logits become NaN. A `rolling` cache holds the last
    tokens only, for masks that hide all others.
    """

    layers: Any
    count_B: Array  # tokens of each example in the cache; equal for all with `even`
    source_valid_BS: Array | None = None
    prefix_B: Array | None = None  # length of the prefix of each example that all tokens see
    length: int = struct.field(pytree_node=False, default=0)
    even: bool = struct.field(pytree_node=False, default=False)
    rolling: bool = struct.field(pytree_node=False, default=False)

    def extended(
        self,
        run: Callable[..., Any],
        x_BTD: Array,
        mask: Mask,
        valid_BT: Array | None,
        **options: Any,
    ) -> tuple[Array, "TransformerCache"]:
        """Calls `run`, the layers, on tokens that follow those in the cache; padding comes last.
        Returns their states and the new cache. The mask must be causal (`check_cacheable`), which
        also hides the empty room of the cache."""
        pos_BT = self.count_B[:, None] + jnp.arange(x_BTD.shape[1])[None]
        options |= {"even": self.even, "rolling": self.rolling}
        context = Context(mask, valid_BT, pos_BT, self.count_B, **options)
        x_BTD, layers, _ = run(x_BTD, context, self.layers)
        new: Any = x_BTD.shape[1] if valid_BT is None else jnp.sum(valid_BT, 1)
        return x_BTD, self.replace(layers=layers, count_B=self.count_B + new)

    def decoded(
        self,
        model: Any,
        x_BTD: Array,
        mask: Mask,
        valid_BT: Array | None,
        last: bool,
        **options: Any,
    ) -> tuple[Array, "TransformerCache"]:
        """Returns logits (NaN for examples that do not fit) of what `extended` runs, or with `last`
        of each row's last token, and the new cache."""
        x_BTD, cache = self.extended(model.decoder, x_BTD, mask, valid_BT, **options)
        logits_BTV = model.logits(last_of(x_BTD, valid_BT) if last else x_BTD)
        fits_B = cache.count_B <= cache.length
        return jnp.where(fits_B[:, None, None], logits_BTV, jnp.nan), cache


def last_of(x_BTD: Array, valid_BT: Array | None) -> Array:
    """Returns the last real token of each row (B1D)."""
    if valid_BT is None:
        return x_BTD[:, -1:]
    place_B = jnp.maximum(jnp.sum(valid_BT, 1) - 1, 0)
    return jnp.take_along_axis(x_BTD, place_B[:, None, None], 1)


def slots(spec: BlockSpec, mask: Mask, length: int) -> int:
    """Returns how many of `length` tokens a cache must hold: fewer under a window."""
    window = mask.window() if spec.attends else None
    return length if window is None else min(length, window + 1)


def check_cacheable(spec: Any, mask: Named, scheme: Named, length: int) -> None:
    """Raises if the model cannot decode token by token; the error gives the reason."""
    reason = spec.why_uncacheable(mask, length)
    if reason is not None:
        raise UserError(f"this model cannot decode with a cache: {reason}")
    if scheme.entry.params.keys() & {"w_LD"} and length > spec.max_length:
        raise UserError(f"a cache of length {length} is beyond max_length={spec.max_length}")
