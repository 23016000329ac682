"""Beam search on the device, as transformers does it: the scores, ties and stops are the same.

At each step every row has K running beams. Of all their continuations the best (1 + ends) · K are
looked at, 2K at least: those among the first K that end are finished, with their score, and the
best K that do not end run on. A row keeps its K best finished ones. When `DecodeSpec.stopping`
says so, it takes no more; the loop stops when that is true of all rows.
"""

from typing import Any, NamedTuple

import jax
from flax import struct
from jax import Array, lax
from jax import numpy as jnp

from tfm.decode.sample import penalised
from tfm.decode.start import Start, prefill, programs

LOW = -1e9  # of what must not be chosen
# What of a cache is the same for all beams of a row, and is never moved.
SHARED = {"source", "source_valid_BS", "keys_values", "context_BE", "count_B", "prefix_B"}


class Numbers(NamedTuple):
    """Another value compiles nothing; None is off, which is another program."""

    length_penalty: Array
    repetition_penalty: Array | None = None


class Sequences(struct.PyTreeNode):
    """K sequences of each row: ids, the log-probability of each, and the score of the whole."""

    tokens_BKN: Array
    logprobs_BKN: Array
    score_BK: Array

    def take(self, place_BJ: Array) -> "Sequences":
        """Some of them."""
        return jax.tree.map(lambda x: _take(x, place_BJ), self)


class Beams(struct.PyTreeNode):
    """What the loop carries. `running.score_BK` are sums of log-probabilities, `best.score_BK` are
    normalised by length. Rows that are not `open_B` take no more."""

    cache: Any  # of B·K rows
    running: Sequences
    best: Sequences
    length_BK: Array  # of `best`, their end included
    finished_BK: Array  # whether there is one at all
    open_B: Array
    stop: Array
    step: Array
    seen_BKV: Array | None

    @property
    def over(self) -> bool:
        return bool(self.stop)


def _take(x_BK: Array, place_BJ: Array) -> Array:
    return jnp.take_along_axis(x_BK, place_BJ.reshape(*place_BJ.shape, *(1,) * (x_BK.ndim - 2)), 1)


def _is_shared(path: Any) -> bool:
    return any(getattr(key, "key", getattr(key, "name", None)) in SHARED for key in path)


def _moved(cache: Any, from_BK: Array) -> Any:
    """The cache of the beams that run on. Their sources are the same."""
    rows = jnp.arange(from_BK.shape[0])[:, None] * from_BK.shape[1] + from_BK

    def move(path: Any, x: Array) -> Array:
        return x if _is_shared(path) else jnp.take(x, rows.ravel(), axis=0, mode="clip")

    return jax.tree_util.tree_map_with_path(move, cache)


def _grown(state: Beams, logits_NV: Array, end_E: Array, numbers: Numbers, stopping: str) -> Beams:
    """The state after one token more."""
    length_penalty, repetition_penalty = numbers
    running, best, step = state.running, state.best, state.step
    batch, beams, new = running.tokens_BKN.shape
    logprob_BKV = jax.nn.log_softmax(logits_NV.astype(jnp.float32)).reshape(batch, beams, -1)
    logprob_BKV = penalised(logprob_BKV, state.seen_BKV, repetition_penalty)
    vocab = logprob_BKV.shape[-1]
    total_BKV = running.score_BK[..., None] + logprob_BKV
    count = min(max(2, 1 + len(end_E)) * beams, beams * vocab)
    score_BC, place_BC = lax.top_k(total_BKV.reshape(batch, -1), count)
    from_BC, token_BC = place_BC // vocab, place_BC % vocab
    logprob_BC = jnp.take_along_axis(logprob_BKV.reshape(batch, -1), place_BC, 1)

    def put(x_BKN: Array, x_BC: Array) -> Array:
        x_BCN, x_BC1 = _take(x_BKN, from_BC), x_BC[..., None].astype(x_BKN.dtype)
        return lax.dynamic_update_slice(x_BCN, x_BC1, (0, 0, step))

    longer = Sequences(
        put(running.tokens_BKN, token_BC), put(running.logprobs_BKN, logprob_BC), score_BC
    )
    ends_BC = jnp.any(token_BC[..., None] == end_E.reshape(1, 1, -1), -1) | (step + 1 == new)

    # Those that run on.
    score_BK, place_BK = lax.top_k(jnp.where(ends_BC, score_BC + LOW, score_BC), beams)
    from_BK = jnp.take_along_axis(from_BC, place_BK, 1)
    now = longer.take(place_BK).replace(score_BK=score_BK)
    seen_BKV = state.seen_BKV
    if seen_BKV is not None:
        token_BK = lax.dynamic_index_in_dim(now.tokens_BKN, step, 2, keepdims=False)
        seen_BKV = _take(seen_BKV, from_BK)
        seen_BKV |= token_BK[..., None] == jnp.arange(vocab).reshape(1, 1, -1)

    # Those that are finished.
    ended_BC = ends_BC & (jnp.arange(count) < beams)[None]
    closed_B = ~state.open_B
    if stopping == "full":
        closed_B |= jnp.all(state.finished_BK, 1)
    own_BC = score_BC / jnp.power((step + 1).astype(jnp.float32), length_penalty)
    own_BC += LOW * (closed_B[:, None].astype(jnp.float32) + (~ended_BC).astype(jnp.float32))
    merged = jax.tree.map(
        lambda one, other: jnp.concatenate([one, other], 1), best, longer.replace(score_BK=own_BC)
    )
    length_BJ = jnp.concatenate([state.length_BK, jnp.full_like(from_BC, step + 1)], 1)
    finished_BJ = jnp.concatenate([state.finished_BK, ended_BC], 1)
    _, place_BK = lax.top_k(merged.score_BK, beams)
    best, finished_BK = merged.take(place_BK), _take(finished_BJ, place_BK)

    # Can a row still gain?
    hoped = new if stopping == "never" else step + 1
    hoped = jnp.where(length_penalty > 0, hoped, step + 1).astype(jnp.float32)
    hope_B = score_BK[:, 0] / jnp.power(hoped, length_penalty)
    worst_BK = jnp.where(finished_BK, jnp.min(best.score_BK, 1, keepdims=True), LOW)
    open_B = state.open_B & jnp.any(hope_B[:, None] > worst_BK, 1)
    done_B = ~open_B
    if stopping == "full":
        done_B |= jnp.all(finished_BK, 1)
    stop = jnp.all(done_B) | jnp.all(ends_BC)
    return Beams(
        _moved(state.cache, from_BK),
        now,
        best,
        _take(length_BJ, place_BK),
        finished_BK,
        open_B,
        stop,
        step + 1,
        seen_BKV,
    )


def _begin(
    module: Any,
    variables: Any,
    start: Start,
    end_E: Array,
    numbers: Numbers,
    *,
    length: int,
    new: int,
    beams: int,
    stopping: str,
) -> Beams:
    """Read the prompts, and look at the first token. `new` is the most that will be written, and
    `length` the room in the cache, prompt included."""
    logits_BV, cache = prefill(module, variables, start, length)
    batch, vocab = logits_BV.shape

    def repeated(x: Array) -> Array:
        return jnp.repeat(x, beams, 0)

    shape = batch, beams, new
    first_BK = jnp.where(jnp.arange(beams) == 0, 0.0, LOW)[None]  # all beams are the same as yet
    empty = Sequences(
        jnp.zeros(shape, jnp.int32),
        jnp.zeros(shape, jnp.float32),
        jnp.repeat(first_BK, batch, 0),
    )
    seen_BKV = None
    if numbers.repetition_penalty is not None:
        seen_BKV = repeated(start.seen(vocab)).reshape(batch, beams, vocab)
    state = Beams(
        jax.tree.map(repeated, cache),
        empty,
        empty.replace(score_BK=jnp.full((batch, beams), LOW)),
        jnp.zeros((batch, beams), jnp.int32),
        jnp.zeros((batch, beams), bool),
        start.wanted_B,
        jnp.bool_(False),
        jnp.int32(0),
        seen_BKV,
    )
    return _grown(state, repeated(logits_BV), end_E, numbers, stopping)


def _advance(
    module: Any,
    variables: Any,
    state: Beams,
    end_E: Array,
    numbers: Numbers,
    *,
    until: Array,
    stopping: str,
) -> Beams:
    """Search on until `until` tokens are there, or no row takes more."""

    def step(state: Beams) -> Beams:
        tokens_BKN = state.running.tokens_BKN
        token_BK = lax.dynamic_index_in_dim(tokens_BKN, state.step - 1, 2, keepdims=False)
        logits_N1V, cache = module.apply(
            variables, token_BK.reshape(-1, 1), state.cache, method="decode"
        )
        return _grown(state.replace(cache=cache), logits_N1V[:, 0], end_E, numbers, stopping)

    return lax.while_loop(lambda state: (state.step < until) & ~state.stop, step, state)


begin = programs(_begin, static_argnames=("module", "length", "new", "beams", "stopping"))
advance = programs(_advance, static_argnames=("module", "stopping"), donate_argnames=("state",))
