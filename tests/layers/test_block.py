"""A block beside its definition in NumPy, for every switch."""

import math

import jax
import numpy as np
import pytest
from flax import linen as nn
from jax import numpy as jnp

from tests.helpers import oracle
from tests.helpers.by_hand import init
from tests.helpers.quick import jit
from tfm.config.names import UserError
from tfm.layers.attention import AttentionSpec
from tfm.layers.block import FEEDFORWARDS, MIXERS, Block, BlockSpec, FeedForwardSpec
from tfm.layers.context import Auxiliary, Context, Mixer
from tfm.layers.dims import Dims, Dropouts
from tfm.layers.norm import NormSpec
from tfm.ops import masks
from tfm.ops.positions import Position

BATCH, ROWS, COLS, WIDTH, HEADS = 2, 5, 6, 8, 2
X = jax.random.normal(jax.random.key(0), (BATCH, ROWS, WIDTH))
SOURCE = jax.random.normal(jax.random.key(1), (BATCH, COLS, WIDTH))
VALID = np.arange(COLS)[None] < np.array([[COLS], [4]])
CONTEXT = Context(masks.causal(), source_BSD=SOURCE, source_mask=masks.padding(VALID))


EACH = (0, None)  # the layer's number, and no cache


def block(kind="layer", placement="pre", cross=False, feedforward="gelu", **switches):
    attention = AttentionSpec(heads=HEADS, qkv_bias=True)
    spec = BlockSpec(
        width=WIDTH, layers=1, max_length=8,
        attention=attention,
        feedforward=FeedForwardSpec(width=12, kind=feedforward),
        norm=NormSpec(kind=kind, placement=placement),
        **switches,
    )  # fmt: skip
    return Block(spec, Dims(WIDTH), Position(), attention if cross else None)


erf = np.vectorize(math.erf)
ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x / 2 * (1 + erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
}


def by_definition(module, tree):
    spec, kind = module.spec, module.spec.norm.kind
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

    which = spec.feedforward.kind
    parts = {}
    if spec.used_mixer:
        causal = lambda b, h, i, j, t, s: j <= i
        parts["attention"] = lambda x: attention("attention", x, x, causal)
    if module.has_cross:
        real = lambda b, h, i, j, t, s: VALID[b, j]
        parts["cross"] = lambda x: attention("cross", x, np.asarray(SOURCE, np.float64), real)
    if which != "none":
        parts["feedforward"] = feedforward
    if spec.parallel:
        all_ = list(parts.values())
        parts = {"": lambda x: sum(part(x) for part in all_)}
    x = np.asarray(X, np.float64)
    for name, part in parts.items():
        own = f"{name}_" if name else ""
        out = part(x if spec.norm.placement == "post" else normalise(f"{own}norm", x))
        if spec.norm.placement == "sandwich":
            out = normalise(f"{own}out_norm", out)
        x = x + out if spec.residual else out
        if spec.norm.placement == "post":
            x = normalise(f"{own}norm", x)
    return x


@pytest.mark.parametrize(
    "switches",
    [
        {"placement": "pre", "cross": True},
        {"placement": "post", "cross": True, "kind": "rms"},
        {"placement": "sandwich", "kind": "rms"},
        {"placement": "sandwich", "cross": True, "parallel": True},
        {"placement": "post", "parallel": True},
        {"placement": "pre", "parallel": True, "kind": "rms"},
        {"kind": "none"},
        {"residual": False},
        {"residual": False, "placement": "post", "kind": "none"},
        {"feedforward": "none"},
        {"mixer": "none"},
        *({"feedforward": kind} for kind in FEEDFORWARDS),
    ],
    ids=str,
)
def test_by_definition(switches):
    module = block(**switches)
    tree = init(module, X, EACH, CONTEXT)
    out, (cache, auxiliary) = jit(module.apply)(tree, X, EACH, CONTEXT)
    wanted = by_definition(module, tree)
    np.testing.assert_allclose(out, wanted, atol=5e-5, rtol=1e-5)
    assert (cache, auxiliary) == (None, Auxiliary())


def test_what_is_captured_is_returned():
    module = block(cross=True)
    tree = init(module, X, EACH, CONTEXT)
    context = CONTEXT.replace(capture=("states", "weights"))
    out, (_, (_, made)) = module.apply(tree, X, EACH, context)
    np.testing.assert_array_equal(made["states_BTD"], out)
    assert made["weights_BHTS"].shape == (BATCH, HEADS, ROWS, ROWS)
    assert not np.any(np.triu(made["weights_BHTS"], 1))
    crossed = np.asarray(made["cross_weights_BHTS"])
    np.testing.assert_allclose(crossed.sum(-1), 1, atol=1e-6)
    assert not np.any(crossed[1, :, :, 4:])


@pytest.mark.parametrize("site", ["attention", "residual", "feedforward"])
def test_every_site_drops(site):
    module = block(cross=True)
    tree = init(module, X, EACH, CONTEXT)

    @jit
    def apply(rate, key, number):
        context = CONTEXT.replace(dropouts=Dropouts({site: rate}, key))
        return module.apply(tree, X, (number, None), context)[0]

    key = jax.random.key(0)
    off = jit(module.apply)(tree, X, EACH, CONTEXT)[0]
    np.testing.assert_allclose(apply(0.0, key, 0), off, atol=1e-5)
    assert np.any(np.abs(apply(0.5, key, 0) - off) > 1e-3)
    np.testing.assert_array_equal(apply(0.5, key, 0), apply(0.5, key, 0))
    assert np.any(apply(0.5, key, 0) != apply(0.5, key, 1))  # layers differ
    assert apply._cache_size() == 1  # a rate is data


def test_dropped_residuals_are_scaled():
    """With attention silenced, x + drop(f(x)): each entry is x, or x + 2 f(x) at rate 1/2."""
    module = block(mixer="none", kind="none")
    tree = init(module, X, EACH, CONTEXT)
    whole = module.apply(tree, X, EACH, CONTEXT)[0] - X
    drops = Dropouts({"residual": jnp.float32(0.5)}, jax.random.key(7))
    got = module.apply(tree, X, EACH, CONTEXT.replace(dropouts=drops))[0] - X
    kept = np.abs(got) > 1e-6
    np.testing.assert_allclose(got, np.where(kept, 2 * whole, 0), atol=1e-5)
    assert 0.3 < kept.mean() < 0.7


class Average(nn.Module):
    """The mean of all tokens so far, and how large it is as a loss of its own."""

    @nn.compact
    def __call__(self, x_BTD, context, cache=None):
        count_T = jnp.arange(1, x_BTD.shape[1] + 1).reshape(1, -1, 1)
        y_BTD = jnp.cumsum(x_BTD, 1) / count_T
        return y_BTD, cache, Auxiliary({"size": jnp.mean(y_BTD**2)}, {"mean_BTD": y_BTD})


def average() -> Mixer:
    return Mixer(lambda spec, dims, position, **options: Average(**options), cacheable=False)


def test_a_mixer_of_ones_own(monkeypatch):
    monkeypatch.setitem(MIXERS, "average", average)
    module = block(mixer="average", kind="none", feedforward="none")
    out, (_, auxiliary) = module.apply({}, X, EACH, CONTEXT)
    mean = np.stack([np.mean(np.asarray(X)[:, : t + 1], 1) for t in range(ROWS)], 1)
    np.testing.assert_allclose(out, X + mean, atol=1e-6)
    np.testing.assert_allclose(auxiliary.intermediates["mean_BTD"], mean, atol=1e-6)
    np.testing.assert_allclose(auxiliary.losses["average_size"], np.mean(mean**2), rtol=1e-5)
    with pytest.raises(UserError, match="mask='window.*mixer='average' takes no mask"):
        block(mixer="average", mask="window(left=2)")
    with pytest.raises(UserError, match="unknown mixer 'averag'; did you mean 'average'"):
        block(mixer="averag")


def test_attention_must_be_configured():
    with pytest.raises(UserError, match="attention is missing: mixer='attention' needs it"):
        BlockSpec(width=8, layers=1, max_length=8, feedforward=FeedForwardSpec(width=8))
