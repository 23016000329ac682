"""Decoding on the device: one compiled loop over the cache, without host round trips."""

from typing import Any

import jax
from flax import struct
from jax import Array, lax
from jax import numpy as jnp

from tfm.decode.prompts import Prompts, prefill
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
    def stop(self) -> Array:
        """True if every row has ended."""
        return jnp.all(self.done_B)

    @property
    def last_N(self) -> Array:
        return self.token_B

    def wrote(self, logits_BV: Array, end_E: Array, filters: Filters) -> "State":
        """Appends one token to each row."""
        logits_BV = logits_BV.astype(jnp.float32)
        shown_BV = penalised(logits_BV, self.seen_BV, filters.repetition_penalty)
        key_B = self.key_B
        if filters.temperature is not None:
            key_B = jax.vmap(jax.random.fold_in, (0, None))(key_B, self.step)
        token_B = choose(key_B, shown_BV, filters).astype(jnp.int32)
        logprob_B = jnp.take_along_axis(logits_BV, token_B[:, None], 1)[:, 0]
        logprob_B -= jax.nn.logsumexp(logits_BV, -1)
        token_B = jnp.where(self.done_B, 0, token_B)
        logprob_B = jnp.where(self.done_B, 0.0, logprob_B)

        def put(x_BN: Array, x_B: Array) -> Array:
            return lax.dynamic_update_slice(x_BN, x_B[:, None].astype(x_BN.dtype), (0, self.step))

        seen_BV = self.seen_BV
        if seen_BV is not None:
            seen_BV |= token_B[:, None] == jnp.arange(seen_BV.shape[1])[None]
        return self.replace(
            token_B=token_B,
            tokens_BN=put(self.tokens_BN, token_B),
            logprobs_BN=put(self.logprobs_BN, logprob_B),
            count_B=self.count_B + ~self.done_B,
            done_B=self.done_B | jnp.any(token_B[:, None] == end_E[None], 1),
            step=self.step + 1,
            seen_BV=seen_BV,
        )


def begin(
    module: Any,
    variables: Any,
    prompts: Prompts,
    end_E: Array,
    filters: Filters,
    key_B: Array,
    *,
    length: int,
    new: int,
    **options: Any,
) -> State:
    """Reads the prompts and writes the first token. At most `new` tokens will be written; the cache
    has room for `length`, the prompt included. `options` are those of `State.wrote`: none."""
    logits_BV, cache = prefill(module, variables, prompts, length)
    batch, vocab = logits_BV.shape
    zeros_B = jnp.zeros(batch, jnp.int32)
    state = State(
        cache=cache,
        token_B=zeros_B,
        tokens_BN=jnp.zeros((batch, new), jnp.int32),
        logprobs_BN=jnp.zeros((batch, new), jnp.float32),
        count_B=zeros_B,
        done_B=~prompts.wanted_B,
        step=jnp.int32(0),
        key_B=key_B,
        seen_BV=None if filters.repetition_penalty is None else prompts.seen(vocab),
    )
    return state.wrote(logits_BV, end_E, filters, **options)
