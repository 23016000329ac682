"""A block beside its definition in NumPy, for every switch."""

import functools
import math

import jax
import numpy as np
import oracle
import pytest
from jax import numpy as jnp
from quick import jit

from tfm.layers import norm
from tfm.layers.attention import MultiHeadAttention
from tfm.layers.block import Block, Context
from tfm.layers.feedforward import KINDS, FeedForward
from tfm.ops import masks
from tfm.ops.dropout import Dropouts

BATCH, ROWS, COLS, WIDTH, HEADS = 2, 5, 6, 8, 2
X = jax.random.normal(jax.random.key(0), (BATCH, ROWS, WIDTH))
SOURCE = jax.random.normal(jax.random.key(1), (BATCH, COLS, WIDTH))
VALID = np.arange(COLS)[None] < np.array([[COLS], [4]])
CONTEXT = Context(masks.causal(), source_BSD=SOURCE, source_mask=masks.padding(VALID))


def block(kind="layer", cross=False, feedforward="gelu", attention=True, **switches):
    look = functools.partial(MultiHeadAttention, HEADS, WIDTH // HEADS, qkv_bias=True)
    return Block(
        norm=norm.maker(kind, 1e-5, True, None),
        attention=look if attention else None,
        cross=look if cross else None,
        feedforward=functools.partial(FeedForward, feedforward, 12) if feedforward else None,
        **switches,
    )


def init(module):
    tree = module.init(jax.random.key(2), X, 0, CONTEXT)
    leaves, shape = jax.tree.flatten(tree)
    keys = jax.random.split(jax.random.key(3), len(leaves))
    return shape.unflatten(
        [jax.random.normal(k, x.shape) / 2 for k, x in zip(keys, leaves, strict=True)]
    )


erf = np.vectorize(math.erf)
ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x / 2 * (1 + erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
}


def by_definition(module, tree, kind):
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree["params"])

    def normalise(name, x):
        if kind == "none":
            return x
        if kind == "layer":
            x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + (1e-5))
        return x * p[name]["scale"] + p[name].get("bias", 0)

    def attention(name, x, source, visible):
        w = p[name]
        q, k, v = (
            np.einsum("btd,dhk->bthk", y, w[part]["kernel"]) + w[part]["bias"]
            for part, y in (("query", x), ("key", source), ("value", source))
        )
        score = lambda q, k, *rest: q @ k / math.sqrt(q.shape[-1])
        out, _ = oracle.attention(q, k, v, score=score, visible=visible)
        return np.einsum("bthk,hkd->btd", out, w["out"]["kernel"])

    def feedforward(x):
        w = p["feedforward"]
        dense = lambda name, x: x @ w[name]["kernel"] + w[name]["bias"]
        f = ACTIVATIONS[{"reglu": "relu", "geglu": "gelu", "geglu_tanh": "gelu_tanh",
                         "swiglu": "silu"}.get(which, which)]  # fmt: skip
        hidden = dense("up", x)
        hidden = f(dense("gate", x)) * hidden if "gate" in w else f(hidden)
        return dense("down", hidden)

    which = module.feedforward.args[0] if module.feedforward else None
    parts = {}
    if module.attention:
        causal = lambda b, h, i, j, t, s: j <= i
        parts["attention"] = lambda x: attention("attention", x, x, causal)
    if module.cross:
        real = lambda b, h, i, j, t, s: VALID[b, j]
        parts["cross"] = lambda x: attention("cross", x, np.asarray(SOURCE, np.float64), real)
    if module.feedforward:
        parts["feedforward"] = feedforward
    if module.parallel:
        all_ = list(parts.values())
        parts = {"": lambda x: sum(part(x) for part in all_)}
    x = np.asarray(X, np.float64)
    for name, part in parts.items():
        own = f"{name}_" if name else ""
        out = part(x if module.place == "post" else normalise(f"{own}norm", x))
        if module.place == "sandwich":
            out = normalise(f"{own}out_norm", out)
        x = x + out if module.residual else out
        if module.place == "post":
            x = normalise(f"{own}norm", x)
    return x


@pytest.mark.parametrize(
    "switches",
    [
        {"place": "pre", "cross": True},
        {"place": "post", "cross": True, "kind": "rms"},
        {"place": "sandwich", "kind": "rms"},
        {"place": "sandwich", "cross": True, "parallel": True},
        {"place": "post", "parallel": True},
        {"place": "pre", "parallel": True, "kind": "rms"},
        {"kind": "none"},
        {"residual": False},
        {"residual": False, "place": "post", "kind": "none"},
        {"feedforward": None},
        {"attention": False},
        *({"feedforward": kind} for kind in KINDS),
    ],
    ids=str,
)
def test_by_definition(switches):
    module = block(**switches)
    tree = init(module)
    out, made = jit(module.apply)(tree, X, 0, CONTEXT)
    wanted = by_definition(module, tree, switches.get("kind", "layer"))
    np.testing.assert_allclose(out, wanted, atol=5e-5, rtol=1e-5)
    assert made == {}


def test_what_is_wanted_is_returned():
    module = block(cross=True, want=("states", "weights"))
    out, made = module.apply(init(module), X, 0, CONTEXT)
    np.testing.assert_array_equal(made["states_BTD"], out)
    assert made["weights_BHTS"].shape == (BATCH, HEADS, ROWS, ROWS)
    assert not np.any(np.triu(made["weights_BHTS"], 1))
    crossed = np.asarray(made["cross_weights_BHTS"])
    np.testing.assert_allclose(crossed.sum(-1), 1, atol=1e-6)
    assert not np.any(crossed[1, :, :, 4:])


@pytest.mark.parametrize("place", ["attention", "residual", "feedforward"])
def test_every_place_drops(place):
    module = block(cross=True)
    tree = init(module)

    @jit
    def apply(rate, key, number):
        return module.apply(
            tree, X, number, CONTEXT._replace(dropouts=Dropouts({place: rate}, key))
        )[0]

    key = jax.random.key(0)
    off = jit(module.apply)(tree, X, 0, CONTEXT)[0]
    np.testing.assert_allclose(apply(0.0, key, 0), off, atol=1e-5)
    assert np.any(np.abs(apply(0.5, key, 0) - off) > 1e-3)
    np.testing.assert_array_equal(apply(0.5, key, 0), apply(0.5, key, 0))
    assert np.any(apply(0.5, key, 0) != apply(0.5, key, 1))  # layers differ
    assert apply._cache_size() == 1  # a rate is data


def test_dropped_residuals_are_scaled():
    """With attention silenced, x + drop(f(x)): each entry is x, or x + 2 f(x) at rate 1/2."""
    module = block(attention=False, kind="none")
    tree = init(module)
    whole = module.apply(tree, X, 0, CONTEXT)[0] - X
    drops = Dropouts({"residual": jnp.float32(0.5)}, jax.random.key(7))
    got = module.apply(tree, X, 0, CONTEXT._replace(dropouts=drops))[0] - X
    kept = np.abs(got) > 1e-6
    np.testing.assert_allclose(got, np.where(kept, 2 * whole, 0), atol=1e-5)
    assert 0.3 < kept.mean() < 0.7
