"""Position schemes: they give attention, which ignores order, access to it.

A scheme acts in one of three places: a `table` joins the embeddings, `rotate` rotates queries and
keys, `bias` is added to the logits. Positions are arrays, so packed rows can restart them.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping

import numpy as np
from jax import Array
from jax import numpy as jnp
from jax.nn import initializers

from tfm.config.names import UserError
from tfm.ops.fast import add_last

F32 = jnp.float32


@dataclasses.dataclass(frozen=True, eq=False)
class Position:
    """A position scheme and the initializers of its parameters."""

    table: Callable[..., Array] | None = None  # (pos_BT, width, **params) → BTD
    rotate: Callable[..., Array] | None = None  # (x_BTHK, pos_BT, **params) → BTHK
    bias: Callable[..., Array] | None = None  # (q_pos_BT, k_pos_BS, heads, **params) → BHTS
    params: Mapping[str, initializers.Initializer] = dataclasses.field(default_factory=dict)
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    causal: bool = True  # a token's position does not depend on the tokens after it


def none() -> Position:
    """Adds no positions, so attention ignores order."""
    return Position()


def sinusoidal(base: float = 10_000.0) -> Position:
    """Adds fixed sine and cosine waves to the embeddings.  Vaswani et al. 2017, §3.5."""
    if base <= 0:
        raise UserError(f"sinusoidal: base={base} must be above 0")
    return Position(table=functools.partial(sinusoidal_table, base=base))


def sinusoidal_table(pos_BT: Array, width: int, *, base: float = 10_000.0) -> Array:
    """Computes PE(p, 2i) = sin(p / base^(2i/D)), PE(p, 2i+1) = cos of the same angle."""
    if width % 2:
        raise UserError(f"sinusoidal positions need an even width, not {width}")
    angle_BTF = _angles(pos_BT, _frequencies(width, base))
    pairs_BTF2 = jnp.stack([jnp.sin(angle_BTF), jnp.cos(angle_BTF)], axis=-1)
    return pairs_BTF2.reshape(*pos_BT.shape, width)


def learned(stddev: float = 0.02) -> Position:
    """Adds a trained vector for each position.  Gehring et al. 2017; GPT-2 and BERT."""
    return Position(table=learned_table, params={"w_LD": initializers.normal(stddev)})


def learned_table(pos_BT: Array, width: int, *, w_LD: Array) -> Array:
    return jnp.take(w_LD, pos_BT, axis=0, mode="fill", fill_value=math.nan)


def index() -> Position:
    """Adds the index itself to every feature; it is unbounded."""
    return Position(table=lambda pos_BT, width: _repeated(pos_BT.astype(F32), width))


def unit() -> Position:
    """Adds index / last index, in [0, 1]; the size of a step depends on the length."""

    def table(pos_BT: Array, width: int, *, length_B: Array) -> Array:
        last_B1 = jnp.maximum(length_B - 1, 1)[:, None]
        return _repeated(pos_BT.astype(F32) / last_B1.astype(F32), width)

    return Position(table=table, causal=False)


def binary() -> Position:
    """Adds the bits of the index, one in each feature, lowest first."""

    def table(pos_BT: Array, width: int) -> Array:
        bit_D = jnp.arange(width)
        bits_BTD = pos_BT[..., None] >> jnp.minimum(bit_D, 31)[None, None] & 1
        return jnp.where(bit_D[None, None] < 32, bits_BTD, 0).astype(F32)

    return Position(table=table)


def sine(base: float = 10_000.0) -> Position:
    """Adds the sine waves of `sinusoidal` without the cosines, so positions can collide."""
    if base <= 0:
        raise UserError(f"sine: base={base} must be above 0")

    def table(pos_BT: Array, width: int) -> Array:
        return jnp.sin(_angles(pos_BT, base ** (-np.arange(width) / width)))

    return Position(table=table)


def _repeated(x_BT: Array, width: int) -> Array:
    return jnp.broadcast_to(x_BT[..., None], (*x_BT.shape, width))


def rotary(
    base: float = 10_000.0,
    fraction: float = 1.0,
    scaling: str = "none",
    factor: float = 1.0,
    low: float = 1.0,
    high: float = 4.0,
    trained: int = 8192,
) -> Position:
    """Rotates feature pairs of q and k by an angle that grows with position.  Su et al. 2021, §3.2.

    Rotates `fraction` of the features; the rest passes through (GPT-NeoX). To reach `factor` times
    the trained length, `scaling="linear"` divides positions (Chen et al. 2023) and `scaling="ntk"`
    increases the base (bloc97 2023). `scaling="llama3"` divides the frequencies that turn less than
    `low` times within the `trained` length, keeps those that turn more than `high` times, and
    interpolates in between (Llama team 2024).
    """
    if scaling not in ("none", "linear", "ntk", "llama3"):
        raise UserError(f"rotary: scaling={scaling!r} must be 'none', 'linear', 'ntk' or 'llama3'")
    if not 0 < fraction <= 1 or factor < 1 or base <= 0:
        raise UserError(
            "rotary: need 0 < fraction ≤ 1, factor ≥ 1 and base > 0, "
            f"not {fraction}, {factor} and {base}"
        )
    if scaling == "none" and factor != 1:
        raise UserError(f"rotary: factor={factor} does nothing without a scaling")
    if scaling == "llama3" and not 0 < low < high:
        raise UserError(f"rotary: need 0 < low < high, not {low}, {high}")

    def frequencies(width: int) -> np.ndarray:
        stretch = factor ** (width / (width - 2)) if scaling == "ntk" and width > 2 else 1.0
        frequency_F = _frequencies(width, base * stretch)
        if scaling == "linear":
            return frequency_F / factor
        if scaling == "llama3":
            turns_F = trained * frequency_F / (2 * math.pi)
            keep_F = np.clip((turns_F - low) / (high - low), 0, 1)
            return frequency_F * (keep_F + (1 - keep_F) / factor)
        return frequency_F

    return Position(rotate=functools.partial(rotate, fraction=fraction, frequencies=frequencies))


def rotate(
    x_BTHK: Array, pos_BT: Array, *, fraction: float, frequencies: Callable[[int], np.ndarray]
) -> Array:
    """Rotates feature i with i + n/2 of the n rotated ones, like LLaMA's published weights."""
    turned = int(x_BTHK.shape[-1] * fraction)
    if turned < 2 or turned % 2:
        raise UserError(
            f"rotary rotates pairs: fraction={fraction} of head width {x_BTHK.shape[-1]} "
            f"is {turned} features, which must be even"
        )
    angle_BT1F = _angles(pos_BT, frequencies(turned))[:, :, None]
    cos, sin = jnp.cos(angle_BT1F), jnp.sin(angle_BT1F)
    a, b, rest = jnp.split(x_BTHK.astype(F32), [turned // 2, turned], axis=-1)
    out = jnp.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)
    return out.astype(x_BTHK.dtype)


def _frequencies(width: int, base: float) -> np.ndarray:
    """Computes 1 / base^(2i/width) for each pair i of features, in float64."""
    return base ** (-np.arange(0, width, 2) / width)


def _angles(pos_BT: Array, frequency_F: np.ndarray) -> Array:
    return pos_BT.astype(F32)[..., None] * jnp.asarray(frequency_F, F32)[None, None]


def alibi() -> Position:
    """Adds −slope · |distance| to the logits, one slope per head.  Press et al. 2022, §3."""
    return Position(bias=alibi_bias)


def alibi_bias(q_pos_BT: Array, k_pos_BS: Array, heads: int) -> Array:
    distance_BTS = jnp.abs(q_pos_BT[:, :, None] - k_pos_BS[:, None])
    slope_H = jnp.asarray(alibi_slopes(heads), F32)
    return -slope_H[None, :, None, None] * distance_BTS.astype(F32)[:, None]


def alibi_slopes(heads: int) -> list[float]:
    """Computes 2^(−8h/H) for a power of two; for other numbers, like the authors' code, the slopes
    of the power of two below, then every other slope of the power of two above."""
    below = 2 ** int(math.log2(heads))
    slopes = [2 ** (-8 * (h + 1) / below) for h in range(below)]
    between = [2 ** (-8 * (h + 1) / (2 * below)) for h in range(0, 2 * below, 2)]
    return slopes + between[: heads - below]


def relative(
    buckets: int = 32, max_distance: int = 128, bidirectional: bool = True, stddev: float = 1.0
) -> Position:
    """Adds a trained number per head and bucket of distances to the logits.  Raffel et al. 2020."""
    exact = (buckets // 2 if bidirectional else buckets) // 2
    if exact < 1 or max_distance <= exact:
        raise UserError(
            f"relative: buckets={buckets} leaves {exact} exact distances; "
            f"that must be at least 1 and below max_distance={max_distance}"
        )
    return Position(
        bias=functools.partial(
            relative_bias, buckets=buckets, max_distance=max_distance, bidirectional=bidirectional
        ),
        params={"w_UH": initializers.normal(stddev)},
        sizes={"U": buckets},
    )


def relative_bias(
    q_pos_BT: Array,
    k_pos_BS: Array,
    heads: int,
    *,
    w_UH: Array,
    buckets: int,
    max_distance: int,
    bidirectional: bool,
) -> Array:
    ahead_BTS = k_pos_BS[:, None] - q_pos_BT[:, :, None]
    bucket_BTS = relative_bucket(ahead_BTS, buckets, max_distance, bidirectional)
    return jnp.moveaxis(w_UH[bucket_BTS], -1, 1)


def relative_bucket(ahead: Array, buckets: int, max_distance: int, bidirectional: bool) -> Array:
    """Maps distances to buckets: half exact, half growing logarithmically up to max_distance."""
    first = jnp.zeros_like(ahead)
    if bidirectional:
        buckets //= 2
        first = jnp.where(ahead > 0, buckets, 0)
        distance = jnp.abs(ahead)
    else:
        distance = jnp.maximum(-ahead, 0)
    exact = buckets // 2
    growth = jnp.log(jnp.maximum(distance, 1).astype(F32) / exact) / math.log(max_distance / exact)
    far = exact + (growth * (buckets - exact)).astype(ahead.dtype)
    return first + jnp.where(distance < exact, distance, jnp.minimum(far, buckets - 1))


POSITIONS = {
    "none": none,
    "index": index,
    "unit": unit,
    "binary": binary,
    "sine": sine,
    "sinusoidal": sinusoidal,
    "learned": learned,
    "rotary": rotary,
    "alibi": alibi,
    "relative": relative,
}


def add(x_BTD: Array, table_BTD: Array) -> Array:
    if len(table_BTD) > 1:
        return x_BTD + table_BTD
    # One table for all rows: its gradient is a sum over rows, like that of a bias.
    return add_last(x_BTD.reshape(len(x_BTD), -1), table_BTD.ravel()).reshape(x_BTD.shape)


def multiply(x_BTD: Array, table_BTD: Array) -> Array:
    return x_BTD * table_BTD


def concatenate(x_BTD: Array, table_BTE: Array) -> Array:
    table_BTE = jnp.broadcast_to(table_BTE, (*x_BTD.shape[:2], table_BTE.shape[-1]))
    return jnp.concatenate([x_BTD, table_BTE], axis=-1)


JOINS = {"add": add, "multiply": multiply, "concatenate": concatenate}
