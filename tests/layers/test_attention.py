import dataclasses

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from jax.nn import initializers

from tests.helpers import oracle
from tests.helpers.by_hand import init, untouched
from tfm.config.names import UserError
from tfm.layers.attention import AttentionSpec, MultiHeadAttention
from tfm.layers.context import Context
from tfm.layers.dims import Dims, Dropouts
from tfm.ops import masks
from tfm.ops.positions import POSITIONS, Position
from tfm.ops.scores import SCORES, Score, scaled_dot

BATCH, ROWS, COLS, WIDTH, HEADS, HEAD_WIDTH = 2, 5, 7, 12, 4, 6
X = jax.random.normal(jax.random.key(0), (BATCH, ROWS, WIDTH))
SOURCE = jax.random.normal(jax.random.key(1), (BATCH, COLS, 8))
EVERYTHING, CAUSAL = Context(masks.everything()), Context(masks.causal())


def layer(position=None, max_length=None, dtype=jnp.float32, **options):
    spec = AttentionSpec(**{"heads": HEADS, "head_width": HEAD_WIDTH, **options})
    entry = Position() if position is None else POSITIONS[position]()
    return MultiHeadAttention(spec, Dims(WIDTH, max_length, dtype=jnp.dtype(dtype)), entry)


def apply(module, tree, x=X, context=EVERYTHING):
    return module.apply(tree, x, context)[0]


def cross(module, x, source, **options):
    """Attention to a sequence of its own length and width, as a module's method."""
    return module.attend(x, *module.keys_values(source), **options)


def rms(x, scale):
    return x / np.sqrt(np.mean(np.square(x), -1, keepdims=True) + 1e-6) * scale


def by_definition(module, tree, x, source, visible=None):
    spec = module.spec
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree.get("params", {}))
    x, source = np.asarray(x, np.float64), np.asarray(source, np.float64)

    def project(name, x):
        heads = spec.heads if name == "query" else spec.groups
        if name not in spec.projections:
            return x.reshape(*x.shape[:2], heads, -1)
        name = "query" if name == "key" and spec.share_qk else name
        return np.einsum("btd,dhk->bthk", x, p[name]["kernel"]) + p[name].get("bias", 0)

    q, k, v = project("query", x), project("key", source), project("value", source)
    if spec.qk_norm:
        q, k = rms(q, p["query_norm"]["scale"]), rms(k, p["key_norm"]["scale"])
    if module.position.rotate is not None:
        for array in (q, k):
            for b, t, h in np.ndindex(*array.shape[:3]):
                array[b, t, h] = oracle.rotary(array[b, t, h], t)
    held = {k.removeprefix("score_"): v for k, v in p.items() if k.startswith("score_")}
    bias = None
    if module.position.bias is not None:
        name = "relative" if "position_w_UH" in p else "alibi"
        table = {"w_UH": p["position_w_UH"]} if name == "relative" else {}
        bias = lambda t, s, h: oracle.BIASES[name](t, s, h, spec.heads, **table)
    out, weights = oracle.attention(
        q, k, v,
        score=lambda *pair: oracle.SCORES[spec.score](*pair, **held),
        bias=bias,
        visible=visible,
        cap=spec.cap,
    )  # fmt: skip
    if "out" not in spec.projections:
        return out.reshape(*out.shape[:2], -1), weights
    return np.einsum("bthk,hkd->btd", out, p["out"]["kernel"]) + p["out"].get("bias", 0), weights


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kv_heads": 2},
        {"kv_heads": 1},
        {"value_width": 3},
        {"qkv_bias": True, "out_bias": True},
        {"qk_norm": True},
        {"share_qk": True},
        {"cap": 1.5},
        {"position": "rotary"},
        {"position": "alibi"},
        {"position": "relative"},
        {"qk_norm": True, "position": "rotary", "kv_heads": 2},
        {"projections": ("query", "key", "value")},
        {"projections": ("value", "out"), "head_width": None},
        {"projections": (), "head_width": None},
        *({"score": score, "max_length": 9} for score in SCORES),
    ],
    ids=str,
)
def test_by_definition(options):
    module = layer(**options)
    tree = init(module, X, CAUSAL)
    causal = lambda b, h, i, j, t, s: j <= i
    context = CAUSAL.replace(capture=("weights",))
    out, cache, auxiliary = module.apply(tree, X, context)
    wanted, wanted_weights = by_definition(module, tree, X, X, causal)
    np.testing.assert_allclose(auxiliary.intermediates["weights_BHTS"], wanted_weights, atol=2e-5)
    np.testing.assert_allclose(out, wanted, atol=5e-5)
    np.testing.assert_allclose(apply(module, tree, X, CAUSAL), wanted, atol=5e-5)
    assert (cache, auxiliary.losses) == (None, {})


def test_cross_attention_with_another_width():
    module = layer()
    tree = init(module, X, SOURCE, method=cross)
    assert tree["params"]["key"]["kernel"].shape == (8, HEADS, HEAD_WIDTH)
    out, captured = module.apply(tree, X, SOURCE, method=cross)
    np.testing.assert_allclose(out, by_definition(module, tree, X, SOURCE)[0], atol=5e-5)
    assert captured == {}


@pytest.mark.parametrize(
    "options",
    [{}, {"kv_heads": 2, "value_width": 3}, {"projections": ("query", "key", "out")}],
    ids=str,
)
def test_from_a_cache(options):
    """Tokens written at their positions, two and then three, are as all five at once."""
    module = layer(**options, position="rotary")
    tree = init(module, X, CAUSAL)
    whole = apply(module, tree, X, CAUSAL)
    cache, out = module.init_cache(BATCH, 8), []
    for begin, end in ((0, 2), (2, 5)):
        offset = jnp.full(BATCH, begin)
        pos = jnp.broadcast_to(jnp.arange(begin, end), (BATCH, end - begin))
        context = CAUSAL.replace(pos_BT=pos, offset_B=offset)
        y, cache, _ = module.apply(tree, X[:, begin:end], context, cache)
        out.append(y)
    np.testing.assert_allclose(jnp.concatenate(out, 1), whole, atol=1e-5)
    assert not np.any(cache["k_BGKS"][..., 5:])


@pytest.mark.parametrize("score", SCORES)
def test_gradients_reach_every_parameter(score):
    module = layer(score=score, max_length=ROWS, qk_norm=True, position="relative")
    tree = init(module, X, EVERYTHING)
    grads = jax.grad(lambda tree: jnp.sum(apply(module, tree) ** 2))(tree)
    # Far distances do not occur. A score without key content (or without any) leaves those
    # projections unused, by definition.
    nothing = {"key", "query"}
    unused = {"linear": {"key"}, "static": nothing, "uniform": nothing}.get(score, set())
    assert {path.split("/")[1].removesuffix("_norm") for path in untouched(grads)} == unused


def test_parameters_are_named_and_shaped_by_their_score():
    def shapes(**options):
        tree = jax.eval_shape(layer(**options).init, jax.random.key(0), X, EVERYTHING)
        return {k: v.shape for k, v in tree["params"].items() if k.startswith("score_")}

    assert shapes(score="scaled_dot") == {}
    assert shapes(score="additive") == {"score_w_HK": (4, 6)}
    assert shapes(score="bilinear") == {"score_w_HKJ": (4, 6, 6)}
    assert shapes(score="static", max_length=9) == {"score_w_HLM": (4, 9, 9)}


def test_counts_of_parameters():
    def count(**options):
        tree = jax.eval_shape(layer(**options).init, jax.random.key(0), X, EVERYTHING)
        return sum(leaf.size for leaf in jax.tree.leaves(tree))

    square = WIDTH * HEADS * HEAD_WIDTH
    assert count() == 4 * square
    assert count(qkv_bias=True, out_bias=True) == 4 * square + 3 * HEADS * HEAD_WIDTH + WIDTH
    assert count(kv_heads=1) == 2 * square + 2 * WIDTH * HEAD_WIDTH
    assert count(share_qk=True) == 3 * square
    assert count(qk_norm=True) == 4 * square + 2 * HEAD_WIDTH
    assert count(value_width=3) == 3 * square
    assert count(projections=("query", "key")) == 2 * square


def test_weights_cost_nothing_unless_asked_for():
    long = jax.ShapeDtypeStruct((1, 4096, WIDTH), jnp.float32)
    module = layer()
    tree = jax.eval_shape(module.init, jax.random.key(0), long, CAUSAL)
    step = jax.jit(lambda tree, x: apply(module, tree, x, CAUSAL))
    memory = step.lower(tree, long).compile().memory_analysis().temp_size_in_bytes
    assert memory < 4 * HEADS * 4096**2 / 4


def test_bfloat16_computes_in_bfloat16_with_float32_parameters():
    module = layer(score="additive", position="relative", dtype=jnp.bfloat16)
    tree = init(module, X, EVERYTHING)
    assert {leaf.dtype for leaf in jax.tree.leaves(tree)} == {jnp.dtype(jnp.float32)}
    out = apply(module, tree)
    assert out.dtype == jnp.bfloat16
    exact = apply(layer(score="additive", position="relative"), tree)
    np.testing.assert_allclose(np.asarray(out, np.float32), exact, atol=0.05)


def test_dropout_is_off_unless_given():
    module = layer()
    tree = init(module, X, EVERYTHING)

    def drop(seed):
        dropouts = Dropouts({"attention": 0.5}, jax.random.key(seed))
        return apply(module, tree, X, EVERYTHING.replace(dropouts=dropouts))

    np.testing.assert_array_equal(apply(module, tree), apply(module, tree))
    np.testing.assert_array_equal(drop(0), drop(0))
    assert np.any(drop(0) != drop(1))
    assert np.any(drop(0) != apply(module, tree))


def test_packed_positions_reach_rotation_and_bias():
    for position in ("rotary", "relative", "alibi"):
        module = layer(position=position)
        tree = init(module, X, EVERYTHING)
        two = jnp.concatenate([X, X[:, ::-1]], axis=1)
        pos = jnp.tile(jnp.arange(ROWS), 2)[None]
        segment = jnp.repeat(jnp.arange(2), ROWS)[None]
        packed = apply(module, tree, two, Context(masks.segments(segment), pos_BT=pos))
        np.testing.assert_allclose(packed[:, :ROWS], apply(module, tree), atol=2e-5)
        np.testing.assert_allclose(packed[:, ROWS:], apply(module, tree, X[:, ::-1]), atol=2e-5)


@pytest.mark.parametrize(
    ("options", "x", "message"),
    [
        ({"kv_heads": 3}, X, "kv_heads=3 must divide heads=4"),
        ({"share_qk": True, "kv_heads": 2}, X, "share_qk needs .* kv_heads=None"),
        ({"share_qk": True, "projections": ("value",)}, X, "share_qk needs a projection of q"),
        ({"out_bias": True, "projections": ("query",)}, X, "out_bias: out is not in projections"),
        ({"projections": ("quary",)}, X, "unknown projections 'quary'; did you mean 'query'"),
        ({"projections": ("key", "value")}, X, "leaves out 'query', so its 12 features must be 4"),
        ({"score": "static"}, X, r"L \(maximum query length\) has no size"),
        ({"score": "static", "max_length": 3}, X, "reaches to length 3"),
        ({"implementation": "flash"}, X, "unknown implementation 'flash'"),
        ({"implementation": "fused", "normalizer": "sigmoid"}, X, "'blockwise' can"),
        ({"position": "learned"}, X, "use it in PositionTable"),
        ({}, X[0], "x_BTD must have 3 axes"),
    ],
)
def test_bad_input_is_named(options, x, message):
    with pytest.raises(UserError, match=message):
        layer(**options).init(jax.random.key(0), x, EVERYTHING)


def test_a_bad_source_is_named():
    with pytest.raises(UserError, match="k_BSGK has shape"):
        layer().init(jax.random.key(0), X, SOURCE[:1], method=cross)


def test_specs_are_hashable_and_comparable():
    spec = layer().spec
    assert hash(spec) == hash(dataclasses.replace(spec))
    assert spec != dataclasses.replace(spec, heads=3)


def test_talking_heads(own_tables):
    """Logits are mixed over heads before the softmax.  Shazeer et al. 2020, §3.1, P_l."""

    def talking(q_BTHK, k_BSHK, *, w_HX, **at):
        return jnp.einsum("BHTS,HX->BXTS", scaled_dot(q_BTHK, k_BSHK), w_HX)

    SCORES["talking"] = Score(talking, params={"w_HX": initializers.normal(1.0)})
    module = layer(score="talking")
    tree = module.init(jax.random.key(3), X, CAUSAL)
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree["params"])
    assert p["score_w_HX"].shape == (HEADS, HEADS)
    q, k, v = (np.einsum("btd,dhk->bthk", X, p[n]["kernel"]) for n in ("query", "key", "value"))
    logits = np.einsum("bthk,bshk->bhts", q, k) / np.sqrt(HEAD_WIDTH)
    wanted = np.zeros((BATCH, ROWS, HEADS, HEAD_WIDTH))
    for b, x, t in np.ndindex(BATCH, HEADS, ROWS):
        mixed = sum(p["score_w_HX"][h, x] * logits[b, h, t, : t + 1] for h in range(HEADS))
        weights = np.exp(mixed) / np.exp(mixed).sum()
        wanted[b, t, x] = weights @ v[b, : t + 1, x]
    wanted = np.einsum("bthk,hkd->btd", wanted, p["out"]["kernel"])
    np.testing.assert_allclose(apply(module, tree, context=CAUSAL), wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            Score(scaled_dot, params={"w_HH": initializers.zeros}),
            r"axis H appears twice \(a second axis of heads is X\)",
        ),
        (
            Score(scaled_dot, params={"w_HX": initializers.zeros}, sizes={"X": 3}),
            r"sizes=\{'X': 3\}: the library has X \(heads\)",
        ),
    ],
)
def test_axes_that_cannot_be(own_tables, entry, message):
    SCORES["mine"] = entry
    with pytest.raises(UserError, match=message):
        layer(score="mine").init(jax.random.key(0), X, EVERYTHING)
