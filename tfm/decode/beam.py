"""Beam search on the device, with the scores, ties and stopping rules of transformers.

At each step every row has K running beams. Of all their continuations the best (1 + ends) · K, at
least 2K, are candidates: those among the first K that end are finished, with their score, and the
best K that do not end keep running. A row keeps its K best finished ones, until
`DecodeSpec.stopping` closes it; the loop stops when all rows are closed.
"""

from typing import Any, NamedTuple

import jax
from flax import struct
from jax import Array, lax
from jax import numpy as jnp

from tfm.decode.prompts import Prompts, prefill
from tfm.decode.sample import penalised
from tfm.layers.cache import BY_POSITION

LOW = -1e9  # score of what must not be chosen
CHUNK = 16  # positions of a cache that are moved at a time
# Parts of a cache that all beams of a row share, and that are never moved.
SHARED = {"source", "source_valid_BS", "keys_values", "context_BE", "count_B", "prefix_B"}


class Numbers(NamedTuple):
    """Another value compiles nothing; None is off, which is another program."""

    length_penalty: Array
    most: Array  # tokens that are written
    repetition_penalty: Array | None = None


class Sequences(struct.PyTreeNode):
    """K sequences of each row: ids, their log-probabilities, and the score of the whole."""

    tokens_BKN: Array
    logprobs_BKN: Array
    score_BK: Array


class Finished(struct.PyTreeNode):
    """The best K sequences that ended, with scores normalised by length."""

    best: Sequences
    length_BK: Array  # their end included
    real_BK: Array  # False where there is none yet


class Beams(struct.PyTreeNode):
    """The carry of the loop. `running.score_BK` are sums of log-probabilities. Rows that are not
    `open_B` are closed."""

    cache: Any  # of B·K rows
    running: Sequences
    finished: Finished
    open_B: Array
    stop: Array
    step: Array
    seen_BKV: Array | None

    @property
    def last_N(self) -> Array:
        """The last token of each beam, which is not yet in the cache."""
        tokens_BKN = self.running.tokens_BKN
        return lax.dynamic_index_in_dim(tokens_BKN, self.step - 1, 2, keepdims=False).reshape(-1)

    def wrote(self, logits_NV: Array, end_E: Array, numbers: Numbers, stopping: str) -> "Beams":
        """Returns the state after one more token."""
        step = self.step
        batch, beams, _ = self.running.tokens_BKN.shape
        logprob_BKV = jax.nn.log_softmax(logits_NV.astype(jnp.float32)).reshape(batch, beams, -1)
        logprob_BKV = penalised(logprob_BKV, self.seen_BKV, numbers.repetition_penalty)
        vocab = logprob_BKV.shape[-1]
        total_BKV = self.running.score_BK[..., None] + logprob_BKV
        count = min(max(2, 1 + len(end_E)) * beams, beams * vocab)
        score_BC, place_BC = lax.top_k(total_BKV.reshape(batch, -1), count)
        logprob_BC = jnp.take_along_axis(logprob_BKV.reshape(batch, -1), place_BC, 1)
        candidates = Candidates(place_BC // vocab, place_BC % vocab, logprob_BC, score_BC)
        ends_BC = jnp.any(candidates.token_BC[..., None] == end_E.reshape(1, 1, -1), -1)
        ends_BC |= step + 1 == numbers.most

        # Candidates that keep running.
        score_BK, place_BK = lax.top_k(jnp.where(ends_BC, score_BC + LOW, score_BC), beams)
        going = candidates.take(place_BK)._replace(score_BC=score_BK)
        seen_BKV = self.seen_BKV
        if seen_BKV is not None:
            seen_BKV = _take(seen_BKV, going.from_BC)
            seen_BKV |= going.token_BC[..., None] == jnp.arange(vocab).reshape(1, 1, -1)

        # Candidates that end: in most steps, none.
        ended_BK = ends_BC[:, :beams]
        finished = lax.cond(
            jnp.any(ended_BK),
            lambda: _finished(
                self, Candidates(*(x[:, :beams] for x in candidates)), ended_BK, numbers, stopping
            ),
            lambda: self.finished,
        )

        # Can a row still gain?
        hoped = numbers.most if stopping == "never" else step + 1
        hoped = jnp.where(numbers.length_penalty > 0, hoped, step + 1).astype(jnp.float32)
        hope_B = score_BK[:, 0] / jnp.power(hoped, numbers.length_penalty)
        worst_B1 = jnp.min(finished.best.score_BK, 1, keepdims=True)
        worst_BK = jnp.where(finished.real_BK, worst_B1, LOW)
        open_B = self.open_B & jnp.any(hope_B[:, None] > worst_BK, 1)
        done_B = ~open_B
        if stopping == "full":
            done_B |= jnp.all(finished.real_BK, 1)
        return Beams(
            cache=_moved(self, going.from_BC),
            running=going.after(self.running, step),
            finished=finished,
            open_B=open_B,
            stop=jnp.all(done_B) | jnp.all(ends_BC),
            step=step + 1,
            seen_BKV=seen_BKV,
        )

    def differ(self, count_N: Array) -> tuple[Array, Array]:
        """Returns the first and the last position at which tokens in the cache differ between the
        beams of a row; `count_N` is the number of tokens."""
        tokens_BKN = self.running.tokens_BKN
        differ_BN = jnp.any(tokens_BKN != tokens_BKN[:, :1], 1)
        place_BN = jnp.where(differ_BN, jnp.arange(tokens_BKN.shape[2])[None], self.step)
        count_BK = count_N.reshape(tokens_BKN.shape[:2])
        return jnp.min(count_BK[:, 0] - self.step + jnp.min(place_BN, 1)), jnp.max(count_N)


def _take(x_BK: Array, place_BJ: Array) -> Array:
    return jnp.take_along_axis(x_BK, place_BJ.reshape(*place_BJ.shape, *(1,) * (x_BK.ndim - 2)), 1)


def _names(path: Any) -> set[str]:
    """Returns the names on the path to an array in a cache."""
    return {getattr(key, "key", getattr(key, "name", "")) for key in path}


def _moved(state: Beams, from_BK: Array) -> Any:
    """Returns the cache of the beams that keep running. Beams share their source, and the keys and
    values before the first token in which they differ: only later ones are moved, some positions
    at a time, since a copy of all takes a quarter of a step."""
    rows_N = (jnp.arange(from_BK.shape[0])[:, None] * from_BK.shape[1] + from_BK).ravel()
    leaves, tree = jax.tree_util.tree_flatten_with_path(state.cache)
    rolling = getattr(state.cache, "rolling", False)
    whole: dict[int, Array] = {}
    in_chunks: dict[int, Array] = {}
    for number, (path, x) in enumerate(leaves):
        if not _names(path) & SHARED:
            by_position = _names(path) & BY_POSITION and not rolling and x.shape[-1] % CHUNK == 0
            (in_chunks if by_position else whole)[number] = x

    def move(x: Array) -> Array:
        return jnp.take(x, rows_N, axis=0, mode="clip")

    def move_chunk(number: Array, arrays: Any) -> Any:
        start = number * CHUNK
        parts = {i: move(lax.dynamic_slice_in_dim(x, start, CHUNK, -1)) for i, x in arrays.items()}
        return {
            i: lax.dynamic_update_slice_in_dim(x, parts[i], start, -1) for i, x in arrays.items()
        }

    moved = {i: move(x) for i, x in whole.items()}
    if in_chunks:
        first, end = state.differ(state.cache.count_B)
        moved |= lax.fori_loop(first // CHUNK, -(-end // CHUNK), move_chunk, in_chunks)
    return jax.tree.unflatten(tree, [moved.get(i, x) for i, (_, x) in enumerate(leaves)])


class Candidates(NamedTuple):
    """C continuations of each row by one token: from which beam, by which token."""

    from_BC: Array
    token_BC: Array
    logprob_BC: Array  # of the token
    score_BC: Array  # sum of the log-probabilities of the whole

    def take(self, place_BJ: Array) -> "Candidates":
        """Selects some of the candidates."""
        return Candidates(*(jnp.take_along_axis(x, place_BJ, 1) for x in self))

    def after(self, running: Sequences, step: Array) -> Sequences:
        """Returns the whole sequences."""

        def put(x_BKN: Array, x_BC: Array) -> Array:
            x_BCN = _take(x_BKN, self.from_BC)
            return lax.dynamic_update_slice(
                x_BCN, x_BC[..., None].astype(x_BKN.dtype), (0, 0, step)
            )

        return Sequences(
            put(running.tokens_BKN, self.token_BC),
            put(running.logprobs_BKN, self.logprob_BC),
            self.score_BC,
        )


def _finished(
    state: Beams, first: Candidates, ended_BK: Array, numbers: Numbers, stopping: str
) -> Finished:
    """Returns the best K of those finished before and of the first K candidates that ended."""
    length, before = state.step + 1, state.finished
    closed_B = ~state.open_B
    if stopping == "full":
        closed_B |= jnp.all(before.real_BK, 1)
    score_BK = first.score_BC / jnp.power(length.astype(jnp.float32), numbers.length_penalty)
    score_BK += LOW * (closed_B[:, None].astype(jnp.float32) + (~ended_BK).astype(jnp.float32))
    new = Finished(
        first._replace(score_BC=score_BK).after(state.running, state.step),
        jnp.full_like(before.length_BK, length),
        ended_BK,
    )
    both = jax.tree.map(lambda x, y: jnp.concatenate([x, y], 1), before, new)
    _, place_BK = lax.top_k(both.best.score_BK, ended_BK.shape[1])
    return jax.tree.map(lambda x: _take(x, place_BK), both)


def begin(
    module: Any,
    variables: Any,
    prompts: Prompts,
    end_E: Array,
    numbers: Numbers,
    *,
    length: int,
    new: int,
    beams: int,
    **options: Any,
) -> Beams:
    """Reads the prompts and scores the first token. At most `new` tokens will be written; the cache
    has room for `length`, the prompt included. `options` are those of `Beams.wrote`."""
    logits_BV, cache = prefill(module, variables, prompts, length)
    batch, vocab = logits_BV.shape

    def repeated(x: Array) -> Array:
        return jnp.repeat(x, beams, 0)

    shape = batch, beams, new
    first_BK = jnp.where(jnp.arange(beams) == 0, 0.0, LOW)[None]  # all beams are still the same
    score_BK = jnp.repeat(first_BK, batch, 0)
    empty = Sequences(jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.float32), score_BK)
    seen_BKV = None
    if numbers.repetition_penalty is not None:
        seen_BKV = repeated(prompts.seen(vocab)).reshape(batch, beams, vocab)
    state = Beams(
        jax.tree.map(repeated, cache),
        empty,
        Finished(
            empty.replace(score_BK=jnp.full((batch, beams), LOW)),
            jnp.zeros((batch, beams), jnp.int32),
            jnp.zeros((batch, beams), bool),
        ),
        prompts.wanted_B,
        jnp.bool_(False),
        jnp.int32(0),
        seen_BKV,
    )
    return state.wrote(repeated(logits_BV), end_E, numbers, **options)
