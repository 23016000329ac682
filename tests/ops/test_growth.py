"""Memory and work as sequences grow."""

import time

import jax
import pytest
from jax import numpy as jnp
from jax.tree_util import Partial

from tfm.ops import masks, scores
from tfm.ops.attend import attend

pytestmark = pytest.mark.ci

HEADS, WIDTH = 2, 16
SCORES = {
    "scaled_dot": Partial(scores.scaled_dot),
    "additive": Partial(scores.additive, w_HK=jnp.ones((HEADS, WIDTH))),
}


def compiled(length, score, implementation, backward, mask, normalizer="softmax"):
    def run(q, k, v, score):
        options = {"mask": mask, "normalizer": normalizer, "implementation": implementation}
        return jnp.sum(attend(q, k, v, score=score, **options))

    fn = jax.grad(run, (0, 1, 2, 3)) if backward else run
    shape = jax.ShapeDtypeStruct((1, length, HEADS, WIDTH), jnp.float32)
    return jax.jit(fn).lower(shape, shape, shape, SCORES[score]).compile()


def memory(*args):
    return compiled(*args).memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("score", SCORES)
def test_memory(score, backward):
    """Eight times the length: at most eight times the memory tile by tile, sixty-four whole."""
    short, long = (memory(n, score, "blockwise", backward, masks.causal()) for n in (2048, 16384))
    assert long < 8 * short
    short, long = (memory(n, score, "reference", backward, masks.causal()) for n in (2048, 16384))
    assert long > 60 * short


@pytest.mark.parametrize("normalizer", ["entmax15", "topk"])
def test_memory_of_whole_rows(normalizer):
    """Some rows at a time, forwards and backwards: what `auto` picks when they are many."""
    args = "scaled_dot", "auto", True, masks.causal(), normalizer
    short, long = (memory(n, *args) for n in (2048, 16384))
    assert long < 8 * short


def test_work_within_a_window():
    """Eight times the length, the same window of 256: eight times the time, not sixty-four. The
    bound of 16 leaves room for a noisy machine and none for quadratic work."""

    def seconds(length):
        step = compiled(length, "scaled_dot", "blockwise", True, masks.window(255))
        args = [jnp.ones((1, length, HEADS, WIDTH))] * 3

        def once():
            start = time.perf_counter()
            jax.block_until_ready(step(*args, SCORES["scaled_dot"]))
            return time.perf_counter() - start

        return min(once() for _ in range(7))

    assert seconds(16384) < 16 * seconds(2048)
