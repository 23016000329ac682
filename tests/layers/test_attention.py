import jax
import numpy as np
import oracle
import pytest
from jax import numpy as jnp

from tfm.layers.attention import MultiHeadAttention
from tfm.names import UserError
from tfm.ops import masks
from tfm.ops.dropout import Dropout
from tfm.ops.normalizers import NORMALIZERS
from tfm.ops.positions import POSITIONS
from tfm.ops.scores import SCORES

BATCH, ROWS, COLS, WIDTH, HEADS, HEAD_WIDTH = 2, 5, 7, 12, 4, 6
X = jax.random.normal(jax.random.key(0), (BATCH, ROWS, WIDTH))
SOURCE = jax.random.normal(jax.random.key(1), (BATCH, COLS, 8))


def layer(**options):
    return MultiHeadAttention(**{"heads": HEADS, "head_width": HEAD_WIDTH, **options})


def init(module, *args, **options):
    """Random parameters everywhere, so that none hides behind its zeros or ones."""
    tree = module.init(jax.random.key(2), *args, **options)
    leaves, shape = jax.tree.flatten(tree)
    keys = jax.random.split(jax.random.key(3), len(leaves))
    return shape.unflatten(
        [jax.random.normal(key, leaf.shape) / 2 for key, leaf in zip(keys, leaves, strict=True)]
    )


def rms(x, scale):
    return x / np.sqrt(np.mean(np.square(x), -1, keepdims=True) + 1e-6) * scale


def by_definition(module, tree, x, source, visible=None, pos=None):
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree["params"])
    x, source = np.asarray(x, np.float64), np.asarray(source, np.float64)

    def project(name, x):
        return np.einsum("btd,dhk->bthk", x, p[name]["kernel"]) + p[name].get("bias", 0)

    q, k = project("query", x), project("query" if module.share_qk else "key", source)
    v = project("value", source)
    if module.qk_norm:
        q, k = rms(q, p["query_norm"]["scale"]), rms(k, p["key_norm"]["scale"])
    if module.position.rotate is not None:
        for array in (q, k):
            for b, t, h in np.ndindex(*array.shape[:3]):
                array[b, t, h] = oracle.rotary(array[b, t, h], t)
    score = next(name for name, entry in SCORES.items() if entry is module.score)
    held = {k.removeprefix("score_"): v for k, v in p.items() if k.startswith("score_")}
    bias = None
    if module.position.bias is not None:
        name = "relative" if "position_w_UH" in p else "alibi"
        table = {"w_UH": p["position_w_UH"]} if name == "relative" else {}
        bias = lambda t, s, h: oracle.BIASES[name](t, s, h, module.heads, **table)
    out, weights = oracle.attention(
        q, k, v,
        score=lambda *pair: oracle.SCORES[score](*pair, **held),
        bias=bias,
        visible=visible,
        cap=module.cap,
    )  # fmt: skip
    out = np.einsum("bthk,hkd->btd", out, p["out"]["kernel"]) + p["out"].get("bias", 0)
    return out, weights


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kv_heads": 2},
        {"kv_heads": 1},
        {"qkv_bias": True, "out_bias": True},
        {"qk_norm": True},
        {"share_qk": True},
        {"cap": 1.5},
        {"position": POSITIONS["rotary"]()},
        {"position": POSITIONS["alibi"]()},
        {"position": POSITIONS["relative"]()},
        {"qk_norm": True, "position": POSITIONS["rotary"](), "kv_heads": 2},
        *({"score": score, "max_length": 9} for score in SCORES.values()),
    ],
)
def test_by_definition(options):
    module = layer(**options)
    tree = init(module, X)
    causal = lambda b, h, i, j, t, s: j <= i
    out, weights = module.apply(tree, X, mask=masks.causal(), return_weights=True)
    wanted, wanted_weights = by_definition(module, tree, X, X, causal)
    np.testing.assert_allclose(weights, wanted_weights, atol=2e-5)
    np.testing.assert_allclose(out, wanted, atol=5e-5)
    np.testing.assert_allclose(module.apply(tree, X, mask=masks.causal()), wanted, atol=5e-5)


def test_cross_attention_with_another_width():
    module = layer()
    tree = init(module, X, SOURCE)
    assert tree["params"]["key"]["kernel"].shape == (8, HEADS, HEAD_WIDTH)
    out = module.apply(tree, X, SOURCE)
    np.testing.assert_allclose(out, by_definition(module, tree, X, SOURCE)[0], atol=5e-5)


@pytest.mark.parametrize("score", SCORES)
def test_gradients_reach_every_parameter(score):
    module = layer(
        score=SCORES[score],
        max_length=ROWS,
        qk_norm=True,
        position=POSITIONS["relative"](buckets=4),
    )
    tree = init(module, X)
    grads = jax.grad(lambda tree: jnp.sum(module.apply(tree, X) ** 2))(tree)
    untouched = {
        jax.tree_util.keystr(path)
        for path, grad in jax.tree_util.tree_leaves_with_path(grads)
        if not np.any(np.abs(grad) > 1e-6)
    }
    # A score without key content (or none at all) leaves those projections unused, by definition.
    unused = {"linear": {"key"}, "static": {"key", "query"}}.get(score, set())
    assert {path.split("'")[3].removesuffix("_norm") for path in untouched} == unused


def test_parameters_are_named_and_shaped_by_their_score():
    def shapes(score, **options):
        tree = layer(score=SCORES[score], **options).init(jax.random.key(0), X)
        params = tree["params"]
        return {k: v.shape for k, v in params.items() if k.startswith("score_")}

    assert shapes("scaled_dot") == {}
    assert shapes("additive") == {"score_w_HK": (4, 6)}
    assert shapes("bilinear") == {"score_w_HKJ": (4, 6, 6)}
    assert shapes("static", max_length=9) == {"score_w_HLM": (4, 9, 9)}


def test_counts_of_parameters():
    def count(**options):
        return sum(
            leaf.size for leaf in jax.tree.leaves(layer(**options).init(jax.random.key(0), X))
        )

    square = WIDTH * HEADS * HEAD_WIDTH
    assert count() == 4 * square
    assert count(qkv_bias=True, out_bias=True) == 4 * square + 3 * HEADS * HEAD_WIDTH + WIDTH
    assert count(kv_heads=1) == 2 * square + 2 * WIDTH * HEAD_WIDTH
    assert count(share_qk=True) == 3 * square
    assert count(qk_norm=True) == 4 * square + 2 * HEAD_WIDTH


def test_weights_cost_nothing_unless_asked_for():
    long = jax.ShapeDtypeStruct((1, 4096, WIDTH), jnp.float32)
    module = layer()
    tree = jax.eval_shape(module.init, jax.random.key(0), long)
    step = jax.jit(lambda tree, x: module.apply(tree, x, mask=masks.causal()))
    memory = step.lower(tree, long).compile().memory_analysis().temp_size_in_bytes
    assert memory < 4 * HEADS * 4096**2 / 4


def test_bfloat16_computes_in_bfloat16_with_float32_parameters():
    module = layer(score=SCORES["additive"], position=POSITIONS["relative"](), dtype=jnp.bfloat16)
    tree = init(module, X)
    assert {leaf.dtype for leaf in jax.tree.leaves(tree)} == {jnp.dtype(jnp.float32)}
    out = module.apply(tree, X)
    assert out.dtype == jnp.bfloat16
    exact = module.clone(dtype=None).apply(tree, X)
    np.testing.assert_allclose(np.asarray(out, np.float32), exact, atol=0.05)


def test_dropout_is_off_unless_given():
    module = layer()
    tree = init(module, X)
    drop = lambda seed: module.apply(tree, X, dropout=Dropout(0.5, jax.random.key(seed)))
    np.testing.assert_array_equal(module.apply(tree, X), module.apply(tree, X))
    np.testing.assert_array_equal(drop(0), drop(0))
    assert np.any(drop(0) != drop(1))
    assert np.any(drop(0) != module.apply(tree, X))


def test_packed_positions_reach_rotation_and_bias():
    for position in ("rotary", "relative", "alibi"):
        module = layer(position=POSITIONS[position]())
        tree = init(module, X)
        two = jnp.concatenate([X, X[:, ::-1]], axis=1)
        pos = jnp.tile(jnp.arange(ROWS), 2)[None]
        segment = jnp.repeat(jnp.arange(2), ROWS)[None]
        packed = module.apply(tree, two, mask=masks.segments(segment), q_pos_BT=pos)
        np.testing.assert_allclose(packed[:, :ROWS], module.apply(tree, X), atol=2e-5)
        np.testing.assert_allclose(packed[:, ROWS:], module.apply(tree, X[:, ::-1]), atol=2e-5)


@pytest.mark.parametrize(
    ("options", "args", "message"),
    [
        ({"kv_heads": 3}, (X,), "kv_heads=3 must divide heads=4"),
        ({"share_qk": True, "kv_heads": 2}, (X,), "share_qk needs kv_heads=2"),
        ({"score": SCORES["static"]}, (X,), r"L \(maximum query length\) has no size"),
        ({"score": SCORES["static"], "max_length": 3}, (X,), "reaches to length 3"),
        ({"implementation": "flash"}, (X,), "unknown implementation 'flash'"),
        (
            {"implementation": "fused", "normalizer": NORMALIZERS["sigmoid"]},
            (X,),
            "'blockwise' can",
        ),
        ({}, (X[0],), "x_BTD must have 3 axes"),
        ({}, (X, SOURCE[:1]), "source_BSD has shape"),
    ],
)
def test_bad_input_is_named(options, args, message):
    with pytest.raises(UserError, match=message):
        layer(**options).init(jax.random.key(0), *args)
