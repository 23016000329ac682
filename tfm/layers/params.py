"""Parameters that a table entry asks for by name, and positions."""

from collections.abc import Mapping

from flax import linen as nn
from jax import Array
from jax import numpy as jnp

from tfm.config.names import UserError
from tfm.ops.positions import Position
from tfm.ops.scores import Score
from tfm.ops.shapes import AXES, check_positions, shape_of


def positions(x_BTD: Array, pos_BT: Array | None) -> Array:
    """The positions of x: those given, or its indices."""
    if pos_BT is None:
        return jnp.arange(x_BTD.shape[1])[None]
    return check_positions("pos_BT", pos_BT, {"B": x_BTD.shape[0], "T": x_BTD.shape[1]})


def create(
    module: nn.Module, prefix: str, entry: Score | Position, sizes: Mapping[str, int]
) -> dict[str, Array]:
    """The parameters of `entry`, owned by `module` as `prefix_name`; a name ends in its shape."""
    taken = sorted(set(entry.sizes) & set(AXES))
    if taken:
        own = ", ".join(f"{axis} ({AXES[axis]})" for axis in taken)
        raise UserError(f"{prefix}: sizes={dict(entry.sizes)}: the library has {own}")
    sizes = {**sizes, **entry.sizes}
    return {
        name: module.param(f"{prefix}_{name}", init, shape_of(name, sizes))
        for name, init in entry.params.items()
    }
