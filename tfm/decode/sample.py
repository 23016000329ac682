"""Choosing the next token from its logits: the most likely one, or one that is drawn.

No filter sorts the whole vocabulary, since sorts are slow on a CPU.
"""

from typing import NamedTuple

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from tfm.decode.prompts import bucket
from tfm.decode.spec import DecodeSpec
from tfm.ops.fast import argmax_last


class Filters(NamedTuple):
    """Values that do not require compiling again; None turns a filter off, in another program."""

    temperature: Array | None = None  # None: the most likely token
    top_k: Array | None = None  # C, a bucket: True for the first k
    top_p: Array | None = None
    min_p: Array | None = None
    repetition_penalty: Array | None = None

    @classmethod
    def of(cls, spec: DecodeSpec, vocab: int | None = None) -> "Filters":
        """Returns the filters of `spec`, without a `top_k` that keeps all of `vocab` tokens."""
        values = {name: getattr(spec, name) for name in cls._fields}
        values["temperature"] = spec.temperature or None
        if spec.top_p == 1:  # all; a sum of float32 may reach 1 without the least likely
            values["top_p"] = None
        count = values.pop("top_k")
        filters = cls(**{k: None if v is None else jnp.float32(v) for k, v in values.items()})
        if count is None or (vocab is not None and count >= vocab):
            return filters
        most = bucket(count, vocab)
        return filters._replace(top_k=jnp.asarray(np.arange(most) < count))


def penalised(logits_BV: Array, seen_BV: Array | None, penalty: Array | None) -> Array:
    """Makes tokens that occurred before less likely: logits above 0 are divided by the penalty,
    others multiplied.  Keskar et al. 2019, §4.1."""
    if penalty is None or seen_BV is None:
        return logits_BV
    less_BV = jnp.where(logits_BV > 0, logits_BV / penalty, logits_BV * penalty)
    return jnp.where(seen_BV, less_BV, logits_BV)


def choose(key_B: Array, logits_BV: Array, filters: Filters) -> Array:
    """Returns the next token of each row."""
    if filters.temperature is None:
        return argmax_last(logits_BV)
    logits_BC, ids_BC = candidates(logits_BV, filters)
    drawn_B = jax.vmap(jax.random.categorical)(key_B, logits_BC)
    if ids_BC is None:
        return drawn_B
    return jnp.take_along_axis(ids_BC, drawn_B[:, None], 1)[:, 0]


def probabilities(logits_BV: Array, filters: Filters) -> Array:
    """Returns the probability that each token is drawn (BV)."""
    logits_BC, ids_BC = candidates(logits_BV, filters)
    p_BC = jax.nn.softmax(logits_BC)
    if ids_BC is None:
        return p_BC
    rows_B1 = jnp.arange(len(p_BC))[:, None]
    return jnp.zeros(logits_BV.shape, p_BC.dtype).at[rows_B1, ids_BC].set(p_BC)


def candidates(logits_BV: Array, filters: Filters) -> tuple[Array, Array | None]:
    """Returns the logits of the candidates, −∞ where a filter drops one, and their ids, if not all.

    p ∝ exp(logit / temperature).  Ackley et al. 1985.
    """
    if filters.temperature is not None:
        logits_BV = logits_BV / filters.temperature
    if filters.top_k is None:
        return kept(logits_BV, filters), None
    first_C = filters.top_k[: logits_BV.shape[-1]]
    logits_BC, ids_BC = lax.top_k(logits_BV, len(first_C))
    return kept(jnp.where(first_C, logits_BC, -jnp.inf), filters), ids_BC


def kept(logits_BC: Array, filters: Filters) -> Array:
    """Returns the logits, −∞ where `top_p` or `min_p` drops a token."""
    if filters.top_p is None and filters.min_p is None:
        return logits_BC
    p_BC = jax.nn.softmax(logits_BC)
    keep_BC = jnp.ones(p_BC.shape, bool)
    if filters.top_p is not None:
        keep_BC &= p_BC >= nucleus(p_BC, filters.top_p)
    if filters.min_p is not None:
        keep_BC &= p_BC >= filters.min_p * jnp.max(p_BC, -1, keepdims=True)
    return jnp.where(keep_BC, logits_BC, -jnp.inf)


def nucleus(p_BC: Array, top_p: Array) -> Array:
    """Returns the greatest threshold for which the probabilities above it sum to `top_p` (B1).

    Bisects the bits of a float32, which are ordered like the numbers from 0 to 1. Thirty sums find
    the threshold exactly; tokens as likely as the last one that is kept are kept too.
    """

    def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low_B1, high_B1 = bounds
        middle_B1 = (low_B1 + high_B1 + 1) // 2
        there_BC = p_BC >= lax.bitcast_convert_type(middle_B1, jnp.float32)
        enough_B1 = jnp.sum(jnp.where(there_BC, p_BC, 0), -1, keepdims=True) >= top_p
        return jnp.where(enough_B1, middle_B1, low_B1), jnp.where(enough_B1, high_B1, middle_B1 - 1)

    one = 0x3F800000  # the bits of 1.0
    low_B1 = jnp.zeros((p_BC.shape[0], 1), jnp.int32)
    low_B1, _ = lax.fori_loop(0, 30, halve, (low_B1, low_B1 + one))
    return lax.bitcast_convert_type(low_B1, jnp.float32)
