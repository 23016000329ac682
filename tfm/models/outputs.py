"""What models share at their edges: masks from the batch, and intermediates by name."""

from collections.abc import Mapping, Sequence
from typing import Any

from jax import Array

from tfm.names import UserError, suggest
from tfm.ops import masks
from tfm.ops.masks import Mask


def visible(
    mask: Mask,
    valid_BS: Array | None,
    q_segment_BT: Array | None = None,
    k_segment_BS: Array | None = None,
) -> Mask:
    """`mask`, and what the batch says: no padding, and nobody else's segment of a packed row."""
    if valid_BS is not None:
        mask = mask & masks.padding(valid_BS)
    if q_segment_BT is not None:
        mask = mask & masks.segments(q_segment_BT, k_segment_BS)
    return mask


def check_want(want: Sequence[str], known: Sequence[str]) -> None:
    if isinstance(want, str):
        raise UserError(f"want={want!r} must be a tuple of names: want=({want!r},)")
    for name in want:
        if name not in known:
            raise UserError(f"nothing is called {name!r} here{suggest(name, known)}")


def outputs(logits: Any, made: Mapping[str, Any], want: Sequence[str]) -> Any:
    """The logits; beside them, if anything is wanted, the intermediates by name."""
    return (logits, dict(made)) if want else logits
