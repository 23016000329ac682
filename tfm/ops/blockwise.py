"""Attention tile by tile, with an online softmax: memory grows linearly with length.

Forward, each row of tiles visits the columns that the mask may show, with a running maximum and sum
(Milakov & Gimelshein 2018). Backward, each column of tiles visits its rows and recomputes every
tile from the saved log-sum-exp of the rows (Dao et al. 2022); JAX differentiates the score, the
bias and their parameters, one tile at a time. Tiles that the mask hides by index are never visited;
in a visited tile, work is skipped if nothing turns out to be visible.

`rowwise` is for normalizers that need whole rows: each step holds a few rows of logits over all
keys, and recomputes them in the backward pass. It skips no pair, whatever the mask hides.
"""

import functools
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from tfm.ops.fast import LOWEST
from tfm.ops.mask import At, Span
from tfm.ops.normalizers import Normalizer
from tfm.ops.reference import F32, HIDDEN, Inputs, Plane, attend_rows, mix, tile_logits
from tfm.ops.scores import wide


class Grid(NamedTuple):
    """The tiles of the plane, known before compilation."""

    rows: int
    cols: int
    row_edge: int
    col_edge: int
    plain: bool  # positions equal indices


class Visits(NamedTuple):
    """For each row (or column) of tiles: the columns (or rows) to visit, and their number."""

    which: np.ndarray
    how_many: np.ndarray


def visits(grid: Grid, plane: Plane) -> tuple[Visits, Visits]:
    """Returns the tiles that the mask does not hide, by row and by column."""

    def spans(length: int, edge: int) -> list[range]:
        return [range(length)[start : start + edge] for start in range(0, length, edge)]

    shown = np.array(
        [
            [
                plane.offset_B is not None or not plane.mask.hides(Span(row, col, grid.plain))
                for col in spans(grid.cols, grid.col_edge)
            ]
            for row in spans(grid.rows, grid.row_edge)
        ]
    )
    return _visits(shown), _visits(shown.T)


def _visits(shown: np.ndarray) -> Visits:
    count = shown.sum(axis=1, dtype=np.int32)
    which = np.argsort(~shown, axis=1, kind="stable").astype(np.int32)
    return Visits(which[:, : max(1, count.max())], count)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def blockwise(inputs: Inputs, norm: Normalizer, grid: Grid) -> Array:
    return _forward(inputs, norm, grid)[0]


def _forward(inputs, norm, grid):
    q_BTHK, k_BSGK, v_BSGE, logits, plane = inputs
    by_row, _ = visits(grid, plane)
    q_tiles = cut(q_BTHK, grid.row_edge)
    k_tiles, v_tiles = (cut(x, grid.col_edge) for x in (k_BSGK, v_BSGE))

    def row(_, x):
        i, q, which, count = x

        def visit(n, carry):
            j = which[n]
            at, visible = _look(plane, grid, i, j)

            def work(carry):
                most, total, out = carry
                s = tile_logits(logits, q, k_tiles[j], at)
                if norm.each is None:
                    s = jnp.where(visible, s, HIDDEN)
                    most = jnp.maximum(carry[0], jnp.max(s, axis=-1))
                    weights = jnp.exp(s - most[..., None])
                    shrink = jnp.exp(carry[0] - most)
                    total = total * shrink + jnp.sum(weights, axis=-1)
                    out = out * _BTH1(shrink)
                else:
                    weights = jnp.where(visible, norm.each(s), 0.0)
                return most, total, out + mix(plane.drop(weights, at), v_tiles[j])

            return lax.cond(jnp.any(visible), work, lambda carry: carry, carry)

        zero_BTH1 = jnp.zeros_like(q[..., :1], F32)  # derived from q, so that it is sharded like q
        zero_BHT = zero_BTH1[..., 0].swapaxes(1, 2)
        width = v_BSGE.shape[-1]
        start = zero_BHT + LOWEST, zero_BHT, jnp.repeat(zero_BTH1, width, axis=-1)
        most, total, out = lax.fori_loop(0, count, visit, start)
        lse = most + jnp.log(jnp.where(total > 0, total, 1.0))
        if norm.each is None:
            out = out * _BTH1(jnp.exp(most - norm.total(lse)))
        return None, (out, lse)

    xs = jnp.arange(len(q_tiles)), q_tiles, *map(jnp.asarray, by_row)
    _, (out_tiles, lse_tiles) = lax.scan(row, None, xs)
    out = uncut(out_tiles, grid.rows).astype(v_BSGE.dtype)
    return out, (inputs, out_tiles, lse_tiles)


def _backward(norm, grid, saved, d_out):
    (q_BTHK, k_BSGK, v_BSGE, logits, plane), out_tiles, lse_tiles = saved
    _, by_col = visits(grid, plane)
    q_tiles, d_out_tiles = cut(q_BTHK, grid.row_edge), cut(d_out, grid.row_edge).astype(F32)
    k_tiles, v_tiles = (cut(x, grid.col_edge) for x in (k_BSGK, v_BSGE))
    if norm.each is None:
        # Σ weight · d_weight over a whole row: all that a tile needs of the others.
        delta = jnp.einsum("NBTHK,NBTHK->NBHT", d_out_tiles, out_tiles)
        total_tiles, pull_total = jax.vjp(norm.total, lse_tiles)
        (d_lse_tiles,) = pull_total(-delta)

    def col(carry, x):
        j, k, v, which, count = x

        def visit(n, carry):
            i = which[n]
            at, visible = _look(plane, grid, i, j)

            def work(carry):
                s, pull_logits = jax.vjp(
                    functools.partial(tile_logits, at=at), logits, q_tiles[i], k
                )
                if norm.each is None:
                    s = jnp.where(visible, s, HIDDEN)
                    weights = jnp.exp(s - total_tiles[i][..., None])
                else:
                    weights, pull_each = jax.vjp(lambda s: jnp.where(visible, norm.each(s), 0.0), s)
                _, pull_mix = jax.vjp(lambda w, v: mix(plane.drop(w, at), v), weights, v)
                d_weights, d_v = pull_mix(d_out_tiles[i])
                if norm.each is None:
                    share = jnp.exp(s - lse_tiles[i][..., None])
                    d_s = weights * d_weights + share * d_lse_tiles[i][..., None]
                else:
                    (d_s,) = pull_each(d_weights)
                d_logits, d_q, d_k = pull_logits(d_s)
                d_q_tiles, *sums = carry
                added = jax.tree.map(lambda a, b: a + b.astype(F32), sums, [d_k, d_v, d_logits])
                return d_q_tiles.at[i].add(d_q.astype(F32)), *added

            return lax.cond(jnp.any(visible), work, lambda carry: carry, carry)

        d_q_tiles, d_logits = carry
        start = d_q_tiles, *_zeros((k, v)), d_logits
        d_q_tiles, d_k, d_v, d_logits = lax.fori_loop(0, count, visit, start)
        return (d_q_tiles, d_logits), (d_k, d_v)

    xs = jnp.arange(len(k_tiles)), k_tiles, v_tiles, *map(jnp.asarray, by_col)
    (d_q_tiles, d_logits), (d_k_tiles, d_v_tiles) = lax.scan(col, _zeros((q_tiles, logits)), xs)
    d_q, d_k, d_v = (
        uncut(tiles, x.shape[1]).astype(x.dtype)
        for tiles, x in ((d_q_tiles, q_BTHK), (d_k_tiles, k_BSGK), (d_v_tiles, v_BSGE))
    )
    d_logits = jax.tree.map(lambda d, x: d.astype(x.dtype), d_logits, logits)
    no_gradient: Any = None
    return (Inputs(d_q, d_k, d_v, d_logits, no_gradient),)


blockwise.defvjp(_forward, _backward)


def rowwise(inputs: Inputs, norm: Normalizer, grid: Grid) -> Array:
    q_BTHK, *arrays, plane = inputs
    # Gradients are summed over the steps in float32, whatever the dtype of the arrays.
    widened = jax.tree.map(lambda x: jnp.asarray(x).astype(wide(jnp.asarray(x))), arrays)

    @jax.checkpoint
    def some_rows(x: tuple[Array, Array]) -> Array:
        i, q = x
        k, v, narrow_logits = jax.tree.map(
            lambda x, like: x.astype(jnp.result_type(like)), widened, arrays
        )
        rows_T = i * grid.row_edge + jnp.arange(grid.row_edge)
        return attend_rows(Inputs(q, k, v, narrow_logits, plane), norm, rows_T)[0]

    q_tiles = cut(q_BTHK, grid.row_edge)
    return uncut(lax.map(some_rows, (jnp.arange(len(q_tiles)), q_tiles)), grid.rows)


def _look(plane: Plane, grid: Grid, i: Array, j: Array) -> tuple[At, Array]:
    """Returns the place of tile (i, j) and the visibility of its pairs."""
    at = plane.at(
        i * grid.row_edge + jnp.arange(grid.row_edge), j * grid.col_edge + jnp.arange(grid.col_edge)
    )
    visible = plane.mask.visible(at)
    if grid.rows % grid.row_edge:
        visible &= (at.q_index_T < grid.rows)[None, None, :, None]
    if grid.cols % grid.col_edge:
        visible &= (at.k_index_S < grid.cols)[None, None, None]
    return at, visible


def cut(x_BTHK: Array, edge: int) -> Array:
    """Cuts x into tiles of `edge` rows (NBTHK). Fills the last tile with copies of the last row, on
    which any score of the other rows is defined."""
    batch, rows, *rest = x_BTHK.shape
    if missing := -rows % edge:
        last = jnp.repeat(x_BTHK[:, -1:], missing, axis=1)
        x_BTHK = jnp.concatenate([x_BTHK, last], axis=1)
    return x_BTHK.reshape(batch, -1, edge, *rest).swapaxes(0, 1)


def uncut(x_NBTHK: Array, rows: int) -> Array:
    _, batch, _, *rest = x_NBTHK.shape
    return x_NBTHK.swapaxes(0, 1).reshape(batch, -1, *rest)[:, :rows]


def _zeros(tree):
    return jax.tree.map(lambda x: jnp.zeros_like(x, F32), tree)


def _BTH1(x_BHT: Array) -> Array:
    return x_BHT.swapaxes(1, 2)[..., None]
