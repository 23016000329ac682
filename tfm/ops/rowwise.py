"""Some whole rows at a time, for normalizers that need them: memory grows with length, not with its
square.

Each step holds a few rows of logits over all keys, and computes them again for the backward pass.
No pair is left out, whatever the mask hides.
"""

import jax
from jax import Array, lax
from jax import numpy as jnp

from tfm.ops.blockwise import Grid, cut, uncut
from tfm.ops.normalizers import Normalizer
from tfm.ops.reference import attend_rows
from tfm.ops.scores import wide
from tfm.ops.tiles import Logits, Plane


def rowwise(
    q_BTHK: Array,
    k_BSGK: Array,
    v_BSGE: Array,
    logits: Logits,
    plane: Plane,
    norm: Normalizer,
    grid: Grid,
) -> Array:
    given = k_BSGK, v_BSGE, logits
    # Gradients are summed over the steps: in float32, whatever the type of the arrays.
    widened = jax.tree.map(lambda x: jnp.asarray(x).astype(wide(jnp.asarray(x))), given)

    @jax.checkpoint
    def some_rows(x: tuple[Array, Array]) -> Array:
        i, q = x
        k, v, own = jax.tree.map(lambda x, like: x.astype(jnp.result_type(like)), widened, given)
        rows_T = i * grid.row_edge + jnp.arange(grid.row_edge)
        return attend_rows(q, k, v, own, plane, norm, rows_T)[0]

    q_tiles = cut(q_BTHK, grid.row_edge)
    return uncut(lax.map(some_rows, (jnp.arange(len(q_tiles)), q_tiles)), grid.rows)
