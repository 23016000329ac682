"""Gradients in bfloat16, by value: each parameter's against its own in float32.

Every token has the same label, so that what is summed over tokens does not cancel: a sum in
bfloat16 stops growing at some 2⁸ terms. Whole models round some fifty times in a row, 2⁻⁹ each
time; added up in norm, and with room for what attention cancels, that is 16 units of the last
place, 2⁻⁸. Sums over 8,192 tokens in bfloat16 are wrong by five times as much and more.
"""

import dataclasses

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from tests.helpers.quick import jit
from tests.helpers.tiers import first_tier
from tests.test_configs import shrink, small, tree
from tfm.config.names import read
from tfm.config.spec import to_tree
from tfm.layers.attention import AttentionSpec, MultiHeadAttention
from tfm.layers.block import MIXERS
from tfm.layers.context import Context
from tfm.layers.dims import DTYPES, Dims
from tfm.models.spec import FAMILIES, model_spec
from tfm.ops import masks
from tfm.ops.positions import relative
from tfm.ops.scores import SCORES

BOUND = 16 * 2**-8
LONG, MANY = (32, 256), (1024, 8)  # examples × tokens
# A recurrent state is rounded at each step, so there the tokens are those of many examples.
MODELS = {"bert:base": LONG, "gpt2:small": LONG, "t5:small": LONG, "rnn:lstm,N:N": MANY,
          "seq2seq:gru,additive": MANY, "cnn:": MANY, "mlp:": MANY}  # fmt: skip


def assert_near(half, exact, name=""):
    """Where the gradient is 0, as that of a key's bias is, it counts beside all the others."""
    whole = np.sqrt(sum(np.sum(np.square(x, dtype=np.float64)) for x in jax.tree.leaves(exact)))
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(exact), jax.tree.leaves(half), strict=True
    ):
        assert b.dtype == jnp.float32
        error = np.linalg.norm(np.asarray(b, np.float64) - np.asarray(a, np.float64))
        where = f"{name}{jax.tree_util.keystr(path)}"
        assert error <= BOUND * np.linalg.norm(a) + 1e-3 * whole, (where, error, np.linalg.norm(a))


def noisy(tree):
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda x: x + 0.1 * rng.normal(size=x.shape).astype(np.float32), tree)


@pytest.mark.parametrize("where", first_tier(MODELS, ["gpt2:small", "rnn:lstm,N:N", "cnn:"]))
def test_every_parameter_of_every_family(where):
    batch, length = MODELS[where]
    spec = small(where)
    if "max_length" in to_tree(spec):
        spec = dataclasses.replace(spec, max_length=length)
    rng = np.random.default_rng(0)
    shapes = spec.example(batch, length)
    inputs = {name: rng.integers(0, spec.vocab, x.shape) for name, x in shapes.items()}
    start = jit(lambda: spec.build().init(jax.random.key(0), **inputs))()
    start = {**start, "params": noisy(start["params"])}

    def gradient(dtype):
        module = dataclasses.replace(spec, dtype=dtype).build()

        def loss(params):
            out = module.apply({**start, "params": params}, **inputs)
            return -sum(jnp.mean(jax.nn.log_softmax(x)[..., 0]) for x in jax.tree.leaves(out))

        return jit(jax.grad(loss))(start["params"])

    assert_near(gradient("bfloat16"), gradient("float32"))


def test_no_family_is_left_out():
    tested = {model_spec(tree(where)).family for where in MODELS}
    in_float32 = {name for name, own in FAMILIES.items() if not hasattr(own.spec, "dtype")}
    assert in_float32 == {"word2vec"}
    assert tested | in_float32 == set(FAMILIES)


def gradients(make, x, context):
    """Of a module's parameters, in bfloat16 and in float32."""
    params = None
    for dtype in ("float32", "bfloat16"):
        module = make(Dims(8, max_length=x.shape[1], causal=True, dtype=DTYPES[dtype]))
        params = params or noisy(module.init(jax.random.key(0), x[:1], context)["params"])

        def loss(params, module=module, dtype=dtype):
            y_BTD = module.apply({"params": params}, x.astype(dtype), context)[0]
            y_BTD = y_BTD.astype(jnp.float32)
            return jnp.mean(y_BTD) + jnp.mean(jnp.square(y_BTD))

        yield jit(jax.grad(loss))(params)


@pytest.mark.ci
@pytest.mark.parametrize("score", [name for name, score in SCORES.items() if score.params])
def test_every_parameter_of_a_score_and_of_relative_positions(score):
    spec = AttentionSpec(heads=2, score=score, qkv_bias=True, out_bias=True)
    x = np.random.default_rng(2).normal(size=(8, 256, 8)).astype(np.float32)
    make = lambda dims: MultiHeadAttention(spec, dims, relative())
    exact, half = gradients(make, x, Context(masks.causal()))
    assert_near(half, exact, score)


@pytest.mark.ci
@pytest.mark.parametrize("name", [name for name in MIXERS if name != "attention"])
def test_every_parameter_of_a_mixer(name):
    x = np.random.default_rng(2).normal(size=(256, 16, 8)).astype(np.float32)
    spec = shrink(model_spec(tree("gpt2:small")))
    make = lambda dims: read(name, MIXERS, "mixer").make(spec, dims, None)
    exact, half = gradients(make, x, Context(masks.causal()))
    assert_near(half, exact, name)
