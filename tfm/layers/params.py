"""Parameters that a table entry asks for by name."""

from collections.abc import Mapping

from flax import linen as nn
from jax import Array

from tfm.ops.positions import Position
from tfm.ops.scores import Score
from tfm.ops.shapes import shape_of


def create(
    module: nn.Module, prefix: str, entry: Score | Position, sizes: Mapping[str, int]
) -> dict[str, Array]:
    """The parameters of `entry`, owned by `module` as `prefix_name`; a name ends in its shape."""
    sizes = {**sizes, **entry.sizes}
    return {
        name: module.param(f"{prefix}_{name}", init, shape_of(name, sizes))
        for name, init in entry.params.items()
    }
