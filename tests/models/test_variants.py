"""Variants that people ask about: each is one config value, and is what its definition says."""

import dataclasses

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from tests.helpers.quick import jit
from tfm.config.names import UserError
from tfm.config.spec import to_spec
from tfm.layers.attention import AttentionSpec, MultiHeadAttention
from tfm.layers.block import FeedForward, FeedForwardSpec
from tfm.layers.context import Context
from tfm.layers.dims import Dims, Dropouts
from tfm.layers.norm import NormSpec
from tfm.models.spec import DecoderSpec, EncoderDecoderSpec, EncoderSpec, SeqToSeqSpec
from tfm.ops import masks
from tfm.ops.attend import attend
from tfm.ops.positions import POSITIONS

EVERYTHING = Context(masks.everything())
TREE = {
    "family": "encoder",
    "vocab": 11,
    "width": 8,
    "layers": 2,
    "max_length": 8,
    "attention": {"heads": 2},
    "feedforward": {"width": 8},
}


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_a_feedforward_is_attention_over_learned_keys_and_values():
    """W₂ relu(W₁ x): the queries are the tokens, and relu takes the place of the softmax."""
    x = normal(0, 2, 5, 6)
    module = FeedForward(FeedForwardSpec(width=9, kind="relu", bias=False), Dims(6))
    variables = module.init(jax.random.key(0), x)
    found, _ = module.apply(variables, x)
    up_DF, down_FD = (variables["params"][name]["kernel"] for name in ("up", "down"))
    keys = jnp.broadcast_to(up_DF.T[None, :, None], (2, 9, 1, 6))
    values = jnp.broadcast_to(down_FD[None, :, None], (2, 9, 1, 6))
    wanted = attend(jnp.asarray(x)[:, :, None], keys, values, score="dot", normalizer="relu")
    np.testing.assert_allclose(found, wanted[:, :, 0], atol=1e-5)


def test_the_uniform_score_averages_what_is_visible():
    q, v = normal(0, 1, 5, 1, 4), normal(1, 1, 5, 1, 4)
    found = attend(*map(jnp.asarray, (q, q, v)), score="uniform", mask=masks.causal())
    wanted = np.cumsum(v, 1) / np.arange(1, 6)[None, :, None, None]
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_hard_attention_takes_the_best_key_and_learns_as_the_softmax_does():
    q, k, v = (jnp.asarray(normal(seed, 1, 5, 2, 4)) for seed in range(3))
    found = attend(q, k, v, normalizer="hard", mask=masks.causal())
    scores = np.einsum("bthk,bshk->bhts", q, k)
    scores = np.where(np.tril(np.ones((5, 5), bool)), scores, -np.inf)
    best = scores.argmax(-1)
    wanted = np.stack([[v[0, best[0, h, t], h] for h in range(2)] for t in range(5)])[None]
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    # The gradient of Σ w·v is the softmax's, at the same cotangent.
    value = lambda name: lambda q: jnp.sum(attend(q, k, v, normalizer=name))
    hard, soft = jax.grad(value("hard"))(q), jax.grad(value("softmax"))(q)
    np.testing.assert_allclose(hard, soft, atol=1e-5)


def test_attention_without_projections_is_softmax_of_x_with_itself():
    """softmax(X Xᵀ / √D) X."""
    x = normal(0, 1, 5, 6)
    module = MultiHeadAttention(AttentionSpec(heads=1, projections=()), Dims(6))
    found, _, _ = module.apply({}, x, EVERYTHING)
    scores = np.exp(x[0] @ x[0].T / np.sqrt(6))
    np.testing.assert_allclose(found[0], scores / scores.sum(-1, keepdims=True) @ x[0], atol=1e-5)
    assert not jax.tree.leaves(module.init(jax.random.key(0), x, EVERYTHING))


@pytest.mark.parametrize("left", ["query", "key", "value", "out"])
def test_each_projection_can_be_left_out(left):
    kept = tuple(name for name in ("query", "key", "value", "out") if name != left)
    x = normal(0, 1, 5, 6)
    module = MultiHeadAttention(AttentionSpec(heads=2, projections=kept), Dims(6))
    variables = module.init(jax.random.key(0), x, EVERYTHING)
    assert set(variables["params"]) == set(kept)
    p = {name: np.asarray(variables["params"][name]["kernel"]) for name in kept}
    make = lambda name: (
        np.einsum("td,dhk->thk", x[0], p[name]) if name in p else x[0].reshape(5, 2, 3)
    )
    q, k, v = (make(name) for name in ("query", "key", "value"))
    weights = np.exp(np.einsum("thk,shk->hts", q, k) / np.sqrt(3))
    out = np.einsum("hts,shk->thk", weights / weights.sum(-1, keepdims=True), v)
    wanted = np.einsum("thk,hkd->td", out, p["out"]) if "out" in p else out.reshape(5, 6)
    np.testing.assert_allclose(module.apply(variables, x, EVERYTHING)[0][0], wanted, atol=1e-5)


def test_values_have_their_own_width():
    """And with it the additive score's hidden width is free."""
    spec = AttentionSpec(heads=2, head_width=5, value_width=3, score="additive")
    x = normal(0, 1, 4, 6)
    module = MultiHeadAttention(spec, Dims(6))
    params = module.init(jax.random.key(0), x, EVERYTHING)["params"]
    assert params["query"]["kernel"].shape == (6, 2, 5)
    assert params["value"]["kernel"].shape == (6, 2, 3)
    assert params["score_w_HK"].shape == (2, 5)
    assert params["out"]["kernel"].shape == (2, 3, 6)


@pytest.mark.parametrize(
    ("scheme", "wanted"),
    {
        "index": [[0] * 4, [1] * 4, [2] * 4, [3] * 4, [4] * 4],
        "unit": [[0] * 4, [0.25] * 4, [0.5] * 4, [0.75] * 4, [1] * 4],
        "binary": [[0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0]],
        "sine": np.sin(np.arange(5)[:, None] / np.array([1, 10, 100, 1000])),
    }.items(),
)
def test_positions_by_their_values(scheme, wanted):
    table = POSITIONS[scheme]().table
    options = {"length_B": jnp.array([5])} if scheme == "unit" else {}
    found = table(jnp.arange(5)[None], 4, **options)[0]
    np.testing.assert_allclose(found, np.asarray(wanted, np.float32), atol=1e-6)


def test_the_unit_position_counts_real_tokens_only():
    spec = to_spec(
        EncoderSpec, {**TREE, "position": {"scheme": "unit"}, "outputs": ("tag",), "classes": 3}
    )
    module = spec.build()
    tokens = np.arange(6)[None] % 11
    variables = module.init(jax.random.key(0), tokens)
    valid = np.arange(6)[None] < 4
    padded = module.apply(variables, tokens, valid_BT=jnp.asarray(valid))
    alone = module.apply(variables, tokens[:, :4])
    np.testing.assert_allclose(padded[:, :4], alone, atol=1e-5)


def test_positions_that_change_with_the_length_are_refused_in_a_decoder():
    tree = {**TREE, "family": "decoder", "position": {"scheme": "unit"}}
    with pytest.raises(UserError, match="position.scheme='unit' depends on later tokens"):
        to_spec(DecoderSpec, tree).build()


@pytest.mark.parametrize("kind", ["batch", "sentence"])
def test_norms_by_definition(kind):
    """On a padded batch, in float64."""
    from flax import linen as nn

    from tfm.layers.context import Context
    from tfm.layers.norm import normalize
    from tfm.ops import masks

    spec = NormSpec(kind=kind)

    class Holder(nn.Module):
        @nn.compact
        def __call__(self, x, valid, train):
            context = Context(masks.everything(), valid, train=train)
            return normalize(spec, jnp.float32, "norm", x, context)

    x, valid = normal(0, 3, 5, 4), np.arange(5)[None] < np.array([3, 5, 2])[:, None]
    variables = Holder().init(jax.random.key(0), x, valid, False)
    found, state = Holder().apply(variables, x, valid, True, mutable=["batch_stats"])
    real = x.astype(np.float64)
    if kind == "batch":
        mean, variance = real[valid].mean(0), real[valid].var(0)
        np.testing.assert_allclose(state["batch_stats"]["norm"]["mean"], 0.1 * mean, atol=1e-5)
    else:
        each = [real[b][valid[b]] for b in range(3)]
        mean = np.array([rows.mean() for rows in each])[:, None, None]
        variance = np.array([rows.var() for rows in each])[:, None, None]
    wanted = (real - mean) / np.sqrt(variance + spec.eps)
    np.testing.assert_allclose(np.asarray(found)[valid], wanted[valid], atol=1e-5)


def test_a_sentence_norm_is_refused_in_a_decoder():
    tree = {**TREE, "family": "decoder", "norm": {"kind": "sentence"}}
    with pytest.raises(UserError, match="norm.kind='sentence' sees later tokens"):
        to_spec(DecoderSpec, tree).build()


@pytest.mark.parametrize("family", ["encoder_decoder", "seq2seq"])
def test_one_vocabulary_or_two(family):
    if family == "encoder_decoder":
        cls, tree, embeds = (
            EncoderDecoderSpec,
            {**TREE, "family": family},
            ("embed", "decoder_embed"),
        )
    else:
        tree = {"family": family, "vocab": 11, "width": 8, "hidden": 8}
        cls, embeds = SeqToSeqSpec, ("source_embed", "target_embed")
    source, target = np.arange(4)[None], np.arange(5)[None]

    def shapes(**more):
        module = to_spec(cls, {**tree, **more}).build()
        variables = module.init(jax.random.key(0), source, target)
        found = {name: variables["params"].get(name) for name in embeds}
        sizes = {k: v and v["token"]["embedding"].shape for k, v in found.items()}
        return tuple(sizes.values()), module.apply(variables, source, target).shape

    assert shapes(share_embedding=True) == (((11, 8), None), (1, 5, 11))
    assert shapes(share_embedding=False) == (((11, 8), (11, 8)), (1, 5, 11))
    assert shapes(share_embedding=False, decoder_vocab=7) == (((11, 8), (7, 8)), (1, 5, 7))
    with pytest.raises(UserError, match="decoder_vocab needs share_embedding=False"):
        to_spec(cls, {**tree, "share_embedding": True, "decoder_vocab": 7})


def test_contexts_of_a_recurrent_encoder():
    """The last state itself, tanh of its projection, or the mean of all states."""
    base = SeqToSeqSpec(vocab=11, width=8, hidden=8, bidirectional=False)
    source, valid = np.arange(10).reshape(2, 5), np.arange(5)[None] < np.array([3, 5])[:, None]

    def context(name):
        module = dataclasses.replace(base, context=name).build()
        variables = module.init(jax.random.key(0), source, source)
        call = {"source_valid_BS": jnp.asarray(valid)}
        cache = module.apply(variables, source, **call, method="init_cache")
        found = module.apply(variables, source, source, **call, capture=("states",))[1]
        return (
            variables["params"],
            cache.context_BE,
            np.asarray(found["encoder"]["states_NBTH"])[-1],
        )

    _, last, states = context("last")
    np.testing.assert_allclose(last, states[[0, 1], [2, 4]], atol=1e-6)
    params, projected, states = context("tanh")
    kernel, bias = map(np.asarray, (params["summary"]["kernel"], params["summary"]["bias"]))
    np.testing.assert_allclose(
        projected, np.tanh(states[[0, 1], [2, 4]] @ kernel + bias), atol=1e-6
    )
    _, mean, states = context("mean")
    wanted = [states[0, :3].mean(0), states[1].mean(0)]
    np.testing.assert_allclose(mean, wanted, atol=1e-6)


@pytest.mark.parametrize("score", ["none", "additive"])
def test_scheduled_sampling_at_a_rate(score):
    """At 0 it is the plain pass; near 1 the decoder reads only what it predicts itself."""
    attention = AttentionSpec(heads=1, score=score)
    module = SeqToSeqSpec(vocab=11, width=8, hidden=8, attention=attention).build()
    rng = np.random.default_rng(0)
    source, target = rng.integers(0, 11, (2, 3, 6))
    shapes = jax.eval_shape(module.init, jax.random.key(0), source, target)
    variables = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(x.dtype) / 2, shapes)
    plain = module.apply(variables, source, target)

    def sampled(rate, tokens):
        dropouts = Dropouts({"scheduled_sampling": jnp.float32(rate)}, jax.random.key(1))
        return module.apply(variables, source, tokens, train=True, dropouts=dropouts)

    sampled = jit(sampled)
    np.testing.assert_allclose(sampled(0.0, target), plain, atol=1e-5)
    own = sampled(1 - 1e-7, target)
    other = np.concatenate([target[:, :1], (target[:, 1:] + 1) % 11], 1)
    np.testing.assert_allclose(own, sampled(1 - 1e-7, other), atol=1e-5)  # gold is not read
    cache = module.apply(variables, source, method="init_cache")
    token, wanted = jnp.asarray(target[:, :1]), []
    for _ in range(6):
        logits, cache = module.apply(variables, token, cache, method="decode")
        token = jnp.argmax(logits, -1)
        wanted.append(logits)
    np.testing.assert_allclose(own, jnp.concatenate(wanted, 1), atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mixer": "convolution", "mask": "window(left=1)"}, "mask='window.*takes no mask"),
        ({"mixer": "convolution", "position": {"scheme": "rotary"}}, "'rotary' acts in attention"),
        ({"mixer": "state_space", "dropout": {"attention": 0.1}}, "there is no attention"),
        ({"attention": {"heads": 2, "projections": ("query", "key", "value"), "value_width": 3}},
         "attention.projections: without 'out', 2 heads of 3 must be width=8"),
        ({"attention": {"heads": 2, "projections": ("query",), "value_width": 3}},
         "value_width: values are not projected"),
    ],
)  # fmt: skip
def test_what_would_be_ignored_or_cannot_be_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        to_spec(EncoderSpec, {**TREE, **changes}, "model.")


@pytest.mark.parametrize("kind", ["batch", "sentence"])
def test_padding_changes_nothing_in_the_masked_lm_head(kind):
    spec = to_spec(EncoderSpec, {**TREE, "norm": {"kind": kind}, "outputs": ("masked_lm",)})
    module = spec.build()
    tokens, valid = np.arange(6)[None], np.arange(6)[None] < 4
    variables = module.init(jax.random.key(0), tokens)
    other = np.where(valid, tokens, 9)
    one, two = (
        module.apply(variables, x, valid_BT=jnp.asarray(valid), train=True, mutable=["batch_stats"])
        for x in (tokens, other)
    )
    np.testing.assert_allclose(one[0][:, :4], two[0][:, :4], atol=1e-5)
    if kind == "batch":
        assert np.any(one[1]["batch_stats"]["masked_lm_norm"]["mean"] != 0)


def test_packed_rows_are_refused_where_segments_would_mix():
    for changes in ({"mixer": "convolution"}, {"norm": {"kind": "sentence"}}):
        module = to_spec(EncoderSpec, {**TREE, **changes}).build()
        with pytest.raises(UserError, match="cannot keep the segments of a packed row apart"):
            module.init(jax.random.key(0), np.zeros((1, 4), int), segment_BT=np.zeros((1, 4), int))
