"""Attention: Σ normalize(mask(score(q, k) + bias)) · v.

Every score, bias, mask and normalizer runs under every implementation that supports it:

- `reference` holds the whole weight matrix, and can return it;
- `blockwise` holds one tile at a time, so memory grows linearly with length; for a normalizer that
  needs whole rows it holds a few whole rows at a time, with the same effect;
- `fused` is the platform's own kernel;
- `auto` takes the kernel on GPU and TPU where it supports the combination, else `reference` for
  what fits into one tile and `blockwise` for everything larger.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp
from jax.extend.core import jaxprs_in_params
from jax.tree_util import Partial
from jax.typing import ArrayLike

from tfm.config.names import UserError, pick, read
from tfm.ops.blockwise import Grid, blockwise, rowwise
from tfm.ops.fused import fused, why_not
from tfm.ops.mask import At, Mask, a_mask
from tfm.ops.masks import everything
from tfm.ops.normalizers import NORMALIZERS, Normalizer
from tfm.ops.reference import (
    Dropout,
    Inputs,
    Logits,
    Plane,
    pair_bits,
    reference,
    stages,
    tile_logits,
)
from tfm.ops.scores import SCORES, Score
from tfm.ops.shapes import (
    AXES,
    as_partial,
    check,
    check_call,
    check_number,
    check_positions,
    doubled,
    suffix,
)

IMPLEMENTATIONS = {
    "auto": "the best of the others for the platform, the lengths and the combination",
    "reference": "the whole matrix at once",
    "blockwise": "one tile at a time; a few whole rows, where the normalizer needs them",
    "fused": "the platform's own kernel",
}
PLATFORMS = ("cpu", "cuda", "tpu")
TILE_ELEMENTS = 2**21  # numbers in a tile, over batch and heads, that stay in a CPU's cache
SMALLEST_EDGE, LARGEST_EDGE = 16, 512


def attend(
    q_BTHK: Array,
    k_BSGK: Array,
    v_BSGE: Array,
    *,
    score: str | Score | Callable[..., Array] = "scaled_dot",
    bias: Callable[..., Array] | None = None,
    mask: Mask | None = None,
    normalizer: str | Normalizer = "softmax",
    cap: ArrayLike | None = None,
    dropout: Dropout | None = None,
    q_pos_BT: Array | None = None,
    k_pos_BS: Array | None = None,
    offset_B: Array | None = None,
    implementation: str = "auto",
    edge: int | None = None,
    return_weights: bool = False,
    return_stages: bool = False,
) -> Any:
    """Returns outputs (BTHE); with `return_weights`, also the weights (BHTS) after dropout; with
    `return_stages`, also a dict of score, bias, logits, visibility and weights, each BHTS.

    G key/value heads serve H query heads, H/G each. A score or a bias with parameters is passed as
    `jax.tree_util.Partial(fn, w_HK=…)`, so that gradients reach them. `cap` bounds the logits.
    Positions default to indices. In cached decoding, `offset_B` is the index of the key at which
    the first query stands, for masks that count steps. `edge` is the tile size of `blockwise`.
    Functions must be pure: they are traced once and cached, as by `jax.jit`.
    """
    pick(IMPLEMENTATIONS, implementation, "implementation")
    for name, requested in {"weights": return_weights, "stages": return_stages}.items():
        if requested and implementation not in ("auto", "reference"):
            raise UserError(
                f"implementation={implementation!r} never holds the weights that "
                f"return_{name}=True asks for; 'reference' does"
            )
    if edge is not None and (implementation != "blockwise" or type(edge) is not int or edge < 1):
        raise UserError(
            f"edge={edge} must be a whole number of at least 1, with implementation='blockwise'"
        )
    sizes = _sizes(q_BTHK, k_BSGK, v_BSGE)
    plain = q_pos_BT is None and k_pos_BS is None
    if cap is not None:
        check_number("cap", cap, lambda cap: cap > 0, "above 0; None caps nothing")
    logits = Logits(
        _score(score, sizes, plain), None if bias is None else _bias(bias, sizes, plain), cap
    )
    plane = Plane(
        everything() if mask is None else a_mask(mask),
        _positions("q_pos_BT", q_pos_BT, sizes),
        _positions("k_pos_BS", k_pos_BS, sizes),
        None if dropout is None else pair_bits(dropout, *(sizes[axis] for axis in "BHTS")),
        offset_B,
    )
    plane.mask.check(dict(sizes))
    norm = _normalizer(normalizer)
    inputs = Inputs(q_BTHK, k_BSGK, v_BSGE, logits, plane)
    if return_stages:
        return stages(inputs, norm)
    if return_weights:
        return reference(inputs, norm)
    grid = None
    if implementation != "reference":
        grid = _grid(q_BTHK, k_BSGK, logits, plain, edge, norm.row is not None)
    chosen = {p: choose(implementation, p, inputs, norm, grid) for p in PLATFORMS}
    fused_cap = None if cap is None or "fused" not in chosen.values() else float(np.asarray(cap))
    return _run(inputs, norm, grid, tuple(chosen.items()), fused_cap)


def choose(
    implementation: str, platform: str, inputs: Inputs, norm: Normalizer, grid: Grid | None
) -> str:
    """Returns the implementation to use on `platform`."""
    if implementation in ("reference", "blockwise"):
        return implementation
    here = platform == _platform()
    # `auto` never takes XLA's kernel on CPU. Kernels of other platforms are traced only on request:
    # "fused", lowered for a TPU elsewhere. (Tracing cuDNN's fails without a GPU.)
    if implementation == "fused" or (here and platform != "cpu"):
        unsupported = why_not(platform, inputs, norm)
        if implementation == "fused" and here and unsupported:
            raise UserError(
                f"implementation='fused' on {platform} cannot do {unsupported}; 'reference' and "
                "'blockwise' can, and 'auto' picks for you"
            )
        if not unsupported and (here or platform == "tpu"):
            return "fused"
    assert grid is not None
    one_tile = (grid.row_edge, grid.col_edge) == (grid.rows, grid.cols)
    score, bias, _ = inputs.logits
    names = [*score.keywords, *(bias.keywords if bias else ())]
    holds_plane = any({"L", "M"} <= set(suffix(name)) for name in names)
    return "reference" if one_tile or holds_plane else "blockwise"


def _grid(
    q_BTHK: Array, k_BSGK: Array, logits: Logits, plain: bool, edge: int | None, whole_rows: bool
) -> Grid:
    """Cuts the plane into square tiles of `edge`, by default the largest power of two that keeps a
    tile cached; with `whole_rows`, into as many rows as one such tile holds."""
    rows, cols = q_BTHK.shape[1], k_BSGK.shape[1]
    if edge is None:
        edge = LARGEST_EDGE
        numbers = _numbers_per_pair(q_BTHK, k_BSGK, logits)
        while edge > SMALLEST_EDGE and (
            numbers * min(edge, rows) * (cols if whole_rows else min(edge, cols)) > TILE_ELEMENTS
        ):
            edge //= 2
    return Grid(rows, cols, min(edge, rows), cols if whole_rows else min(edge, cols), plain)


def _numbers_per_pair(q_BTHK: Array, k_BSGK: Array, logits: Logits) -> int:
    """Counts the numbers that a tile holds at once for each of its pairs, over batch and heads: one
    for a product, a whole vector for the additive score. Reads them off the traced logits."""

    def largest(jaxpr: Any) -> int:
        sizes = [v.aval.size for eqn in jaxpr.eqns for v in eqn.outvars]
        inner = [largest(j) for eqn in jaxpr.eqns for j in jaxprs_in_params(eqn.params)]
        return max([0, *sizes, *inner])

    def tile(x_BTHK: Array) -> jax.ShapeDtypeStruct:
        batch, length, *rest = x_BTHK.shape
        return jax.ShapeDtypeStruct((batch, min(length, LARGEST_EDGE), *rest), x_BTHK.dtype)

    q_tile, k_tile = tile(q_BTHK), tile(k_BSGK)
    rows_T, cols_S = jnp.arange(q_tile.shape[1]), jnp.arange(k_tile.shape[1])
    at = At(rows_T, cols_S, rows_T[None], cols_S[None])
    traced = jax.make_jaxpr(functools.partial(tile_logits, at=at))(logits, q_tile, k_tile)
    return -(-largest(traced.jaxpr) // (rows_T.size * cols_S.size))


@functools.partial(jax.jit, static_argnames=("norm", "grid", "chosen", "fused_cap"))
def _run(inputs, norm, grid, chosen, fused_cap):
    def on(platform: str, implementation: str) -> Callable[..., Array]:
        match implementation:
            case "reference":
                return lambda inputs: reference(inputs, norm)[0]
            case "blockwise":
                by_parts: Any = blockwise if norm.row is None else rowwise
                return lambda inputs: by_parts(inputs, norm, grid)
        return functools.partial(fused, platform, fused_cap)

    branches = {platform: on(platform, implementation) for platform, implementation in chosen}
    implementations = {implementation for _, implementation in chosen}
    if len(implementations) == 1 and "fused" not in implementations:
        return branches["cpu"](inputs)
    return lax.platform_dependent(inputs, **branches, default=on("", "blockwise"))


def _platform() -> str:
    """Returns the platform of this process, as `lax.platform_dependent` names it."""
    backend = jax.default_backend()
    return "cuda" if backend == "gpu" else backend


def _sizes(q_BTHK: Array, k_BSGK: Array, v_BSGE: Array) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for name, x in (("q_BTHK", q_BTHK), ("k_BSGK", k_BSGK), ("v_BSGE", v_BSGE)):
        check(name, x, sizes)
        if 0 in x.shape:
            raise UserError(f"{name} has shape {x.shape}; no axis may be empty")
        if x.dtype != q_BTHK.dtype or not jnp.issubdtype(x.dtype, jnp.floating):
            raise UserError(f"{name} is {x.dtype}; q, k and v must share one floating dtype")
    if sizes["H"] % sizes["G"]:
        raise UserError(
            f"k_BSGK has {sizes['G']} heads, which do not divide the {sizes['H']} of q_BTHK"
        )
    return doubled(sizes)


def _positions(name: str, pos: Array | None, sizes: dict[str, int]) -> Array:
    if pos is None:
        return jnp.arange(sizes[suffix(name)[1]])[None]
    return check_positions(name, pos, sizes)


def _normalizer(normalizer: str | Normalizer) -> Normalizer:
    if isinstance(normalizer, str):
        return read(normalizer, NORMALIZERS, "normalizer")
    if not isinstance(normalizer, Normalizer):
        raise UserError(f"normalizer must be a name or a Normalizer, not {normalizer!r}")
    return normalizer


def _score(
    score: str | Score | Callable[..., Array], sizes: dict[str, int], plain: bool
) -> Partial:
    if isinstance(score, str):
        score = pick(SCORES, score, "score")
    if isinstance(score, Score):
        if score.params:
            parameters = ", ".join(f"{name}=…" for name in score.params)
            raise UserError(
                f"score {score.fn.__name__!r} has parameters: give it as "
                f"jax.tree_util.Partial({score.fn.__name__}, {parameters})"
            )
        score = score.fn
    bound = as_partial("score", score)
    check_call("score", bound, "q_BTHK", "k_BSHK", q_pos_BT="", k_pos_BS="")
    _check_parameters(bound, sizes, plain)
    return bound


def _bias(bias: Callable[..., Array], sizes: dict[str, int], plain: bool) -> Partial:
    if not callable(bias):
        raise UserError(f"bias must be a function, as Position.bias is, not {bias!r}")
    bound = as_partial("bias", bias)
    check_call("bias", bound, "q_pos_BT", "k_pos_BS", "heads")
    _check_parameters(bound, sizes, plain)
    return bound


def _check_parameters(bound: Partial, sizes: dict[str, int], plain: bool) -> None:
    for name, value in bound.keywords.items():
        if not jnp.issubdtype(jnp.result_type(value), jnp.floating):
            raise UserError(
                f"parameter {name} is {jnp.result_type(value)}, not floating; bind other values "
                "with functools.partial, inside the jax.tree_util.Partial"
            )
        check(name, value, dict(sizes))
        for axis, longest in (("T", "L"), ("S", "M")):
            place = suffix(name).find(longest)
            if plain and place >= 0 and jnp.shape(value)[place] < sizes[axis]:
                raise UserError(
                    f"parameter {name} reaches to length {jnp.shape(value)[place]}, "
                    f"but {axis} ({AXES[axis]}) is {sizes[axis]}"
                )
