"""Dropout of attention weights. The rate is data: an argument of the compiled step."""

from typing import NamedTuple

import jax
from jax import Array
from jax import numpy as jnp
from jax.typing import ArrayLike

from tfm.config.names import UserError
from tfm.ops.shapes import check_number


class Dropout(NamedTuple):
    """A dropout rate and its random key. None in its place drops nothing."""

    rate: ArrayLike
    key: Array


class PairBits(NamedTuple):
    """Random bits for each row and each column; a pair combines those of both."""

    rate: Array
    row_BHT: Array
    col_S: Array


def pair_bits(dropout: Dropout, batch: int, heads: int, rows: int, cols: int) -> PairBits:
    if not isinstance(dropout, Dropout):
        raise UserError(f"dropout must be Dropout(rate, key), not {dropout!r}")
    check_number("dropout rate", dropout.rate, lambda rate: 0 <= rate <= 1, "between 0 and 1")
    row_key, col_key = jax.random.split(dropout.key)
    return PairBits(
        jax.lax.stop_gradient(jnp.asarray(dropout.rate, jnp.float32)),
        jax.random.bits(row_key, (batch, heads, rows), jnp.uint32),
        jax.random.bits(col_key, (cols,), jnp.uint32),
    )


def keep(bits: PairBits, rows_T: Array, cols_S: Array) -> Array:
    """Returns 1 / (1 − rate) for pairs that are kept, 0 for those that are dropped.

    The result depends only on the row and column of a pair, so any tiling drops the same pairs.
    Hashing the two (MurmurHash3's finalizer) costs about as much as an exponential; a full random
    generator per pair would cost many times the attention itself.
    """
    x = jnp.take(bits.row_BHT, rows_T, axis=2, mode="clip")[..., None]
    x = x + jnp.take(bits.col_S, cols_S, mode="clip")[None, None, None]
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    uniform = ((x ^ (x >> 16)) >> 8).astype(jnp.float32) * 2.0**-24
    return jnp.where(uniform >= bits.rate, 1 / (1 - bits.rate), 0.0)
