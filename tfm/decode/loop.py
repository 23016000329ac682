"""Decoding on the device: one compiled loop over the cache, without host round trips."""

from typing import Any

import jax
import numpy as np
from flax import struct
from jax import Array, lax
from jax import numpy as jnp

from tfm.decode.prompts import Prompts, prefill, programs
from tfm.decode.sample import Filters, choose, penalised


class State(struct.PyTreeNode):
    """The carry of the loop. Each row has `count_B` tokens; what follows is 0."""

    cache: Any
    token_B: Array  # the last one, which is not yet in the cache
    tokens_BN: Array
    logprobs_BN: Array  # by the model itself, whatever filters were in force
    count_B: Array
    done_B: Array
    step: Array
    key_B: Array
    seen_BV: Array | None

    @property
    def over(self) -> bool:
        """True if every row has ended."""
        return bool(np.all(self.done_B))


def _wrote(
    state: State, logits_BV: Array, filters: Filters, top_k: int | None, end_E: Array
) -> Any:
    """Appends one token to each row."""
    logits_BV = logits_BV.astype(jnp.float32)
    shown_BV = penalised(logits_BV, state.seen_BV, filters.repetition_penalty)
    key_B = state.key_B
    if filters.temperature is not None:
        key_B = jax.vmap(jax.random.fold_in, (0, None))(key_B, state.step)
    token_B = choose(key_B, shown_BV, filters, top_k).astype(jnp.int32)
    logprob_B = jnp.take_along_axis(logits_BV, token_B[:, None], 1)[:, 0]
    logprob_B -= jax.nn.logsumexp(logits_BV, -1)
    token_B = jnp.where(state.done_B, 0, token_B)
    logprob_B = jnp.where(state.done_B, 0.0, logprob_B)

    def put(x_BN: Array, x_B: Array) -> Array:
        return lax.dynamic_update_slice(x_BN, x_B[:, None].astype(x_BN.dtype), (0, state.step))

    seen_BV = state.seen_BV
    if seen_BV is not None:
        seen_BV |= token_B[:, None] == jnp.arange(seen_BV.shape[1])[None]
    return state.replace(
        token_B=token_B,
        tokens_BN=put(state.tokens_BN, token_B),
        logprobs_BN=put(state.logprobs_BN, logprob_B),
        count_B=state.count_B + ~state.done_B,
        done_B=state.done_B | jnp.any(token_B[:, None] == end_E[None], 1),
        step=state.step + 1,
        seen_BV=seen_BV,
    )


def _begin(
    module: Any,
    variables: Any,
    prompts: Prompts,
    end_E: Array,
    filters: Filters,
    key_B: Array,
    *,
    length: int,
    new: int,
    top_k: int | None = None,
) -> State:
    """Reads the prompts and writes the first token. At most `new` tokens will be written; the cache
    has room for `length`, the prompt included."""
    logits_BV, cache = prefill(module, variables, prompts, length)
    batch = logits_BV.shape[0]
    zeros_B = jnp.zeros(batch, jnp.int32)
    seen_BV = None
    if filters.repetition_penalty is not None:
        seen_BV = prompts.seen(logits_BV.shape[-1])
    state = State(
        cache,
        zeros_B,
        jnp.zeros((batch, new), jnp.int32),
        jnp.zeros((batch, new), jnp.float32),
        zeros_B,
        ~prompts.wanted_B,
        jnp.int32(0),
        key_B,
        seen_BV,
    )
    return _wrote(state, logits_BV, filters, top_k, end_E)


def _advance(
    module: Any,
    variables: Any,
    state: State,
    end_E: Array,
    filters: Filters,
    *,
    until: Array,
    top_k: int | None = None,
) -> State:
    """Writes until there are `until` tokens, or every row has ended."""

    def step(state: State) -> State:
        logits_B1V, cache = module.apply(
            variables, state.token_B[:, None], state.cache, method="decode"
        )
        return _wrote(state.replace(cache=cache), logits_B1V[:, 0], filters, top_k, end_E)

    return lax.while_loop(lambda state: (state.step < until) & ~jnp.all(state.done_B), step, state)


begin = programs(_begin, static_argnames=("module", "length", "new", "top_k"))
advance = programs(_advance, static_argnames=("module", "top_k"), donate_argnames=("state",))
