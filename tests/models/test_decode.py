"""Decoding from a cache gives the logits of the full pass, however the tokens are cut."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from tests.helpers.by_hand import init
from tests.helpers.quick import jit
from tests.helpers.tiers import first_tier
from tfm.config.names import UserError
from tfm.layers.attention import AttentionSpec, attention
from tfm.layers.block import MIXERS, FeedForwardSpec
from tfm.layers.embed import PositionSpec
from tfm.models.spec import FAMILIES, DecoderSpec, EncoderDecoderSpec, RecurrentSpec, SeqToSeqSpec
from tfm.ops.positions import POSITIONS
from tfm.ops.scores import SCORES, Score

VOCAB, LENGTH, ROOM = 11, 7, 9
RNG = np.random.default_rng(0)
TOKENS, SOURCE = RNG.integers(0, VOCAB, (3, LENGTH)), RNG.integers(0, VOCAB, (3, 5))
SOURCE_VALID = np.arange(5)[None] < np.array([[5], [2], [4]])
VECTORS = RNG.normal(size=(3, 4)).astype(np.float32)
CUTS = {"one by one": range(LENGTH + 1), "a chunk at last": (0, 1, 2, 3, 7), "at once": (0, 7)}


def transformer(cls, scheme="sinusoidal", share=True, heads=2, **changes):
    names = ("kv_heads", "value_width", "score", "qk_norm", "normalizer")
    attention = {name: changes.pop(name) for name in names if name in changes}
    spec = cls(
        vocab=VOCAB, width=8, layers=2, max_length=12,
        attention=AttentionSpec(heads=heads, **attention),
        feedforward=FeedForwardSpec(width=12),
        position=PositionSpec(scheme=scheme, share=share),
        **changes,
    )  # fmt: skip
    return spec.build()


def recurrent(**options):
    return RecurrentSpec(vocab=VOCAB, width=6, hidden=5, **options).build()


def seq2seq(attention=None, **options):
    attention = attention and AttentionSpec(**attention)
    return SeqToSeqSpec(
        vocab=VOCAB, width=6, hidden=6, max_length=8, attention=attention, **options
    ).build()


def decoder(**changes):
    return transformer(DecoderSpec, **changes)


def both(**changes):
    return transformer(EncoderDecoderSpec, **changes)


CAUSAL = [name for name, make in POSITIONS.items() if make().causal]
MODELS = {
    **{f"decoder-{scheme}": lambda scheme=scheme: decoder(scheme=scheme) for scheme in CAUSAL},
    "decoder-own-relative": lambda: decoder(scheme="relative", share=False, scan=False),
    "decoder-unrolled": lambda: decoder(scheme="learned", scan=False),
    "decoder-remat": lambda: decoder(scheme="rotary", remat="full"),
    "decoder-window": lambda: decoder(scheme="rotary", mask="causal & window(left=2)"),
    "decoder-window-of-one": lambda: decoder(scheme="alibi", mask="window(left=0)"),
    "decoder-window-relative": lambda: decoder(
        scheme="relative", mask="window(left=1) | causal & window(left=3)", scan=False
    ),
    "decoder-window-linear": lambda: decoder(score="linear", mask="causal & window(left=2)"),
    "decoder-strided": lambda: decoder(
        scheme="alibi", mask="causal & (strided(stride=3) | window(left=1))"
    ),
    "decoder-global": lambda: decoder(mask="causal & (window(left=1) | global_tokens(count=1))"),
    "decoder-prefix": lambda: decoder(mask="causal & (window(left=1) | prefix(length=2))"),
    "decoder-grouped": lambda: decoder(
        scheme="rotary", heads=4, kv_heads=2, value_width=3, qk_norm=True
    ),
    "decoder-static": lambda: decoder(score="static", normalizer="sigmoid"),
    "decoder-linear": lambda: decoder(score="linear"),
    "decoder-without-attention": lambda: decoder(score="none"),
    "both": lambda: both(scheme="relative", decoder_scheme="relative(bidirectional=False)"),
    "both-window": lambda: both(scheme="rotary", decoder_mask="window(left=2)"),
    "both-unrolled": lambda: both(scan=False, decoder_layers=3, kv_heads=1),
    "recurrent": lambda: recurrent(layers=2),
    "recurrent-from-a-vector": lambda: recurrent(shape="1:N", vector=4, cell="gru"),
    "seq2seq": seq2seq,
    "seq2seq-luong-last-state": lambda: seq2seq(decoder="luong", cell="rnn"),
    "seq2seq-bahdanau": lambda: seq2seq({"heads": 2, "score": "static"}, layers=2),
    "seq2seq-luong": lambda: seq2seq(
        {"heads": 1, "score": "bilinear"}, decoder="luong", cell="lstm"
    ),
}


def inputs(module):
    """What the full pass is given beside the tokens; what the cache is started with."""
    if module.spec.family in ("encoder_decoder", "seq2seq"):
        given = {"source_BS": SOURCE, "source_valid_BS": SOURCE_VALID}
        return given, given
    vector = {"vector_BD": VECTORS} if getattr(module.spec, "vector", None) else {}
    return vector, {"batch": 3, **vector}


def prepare(module):
    """Parameters, logits of the full pass, an empty cache, and a compiled step."""
    given, begin = inputs(module)
    name = "decoder_input_BT" if "source_BS" in given else "tokens_BT"
    tree = init(module, **given, **{name: TOKENS})
    whole = jit(lambda tree: module.apply(tree, **given, **{name: TOKENS}))(tree)
    start = jit(lambda tree: module.apply(tree, **begin, length=ROOM, method="init_cache"))
    step = jit(
        lambda tokens, cache, valid=None: module.apply(
            tree, tokens, cache, valid_BT=valid, method="decode"
        )
    )
    return whole, start(tree), step


COMBINED = {  # of settings that other models have alone
    "decoder-own-relative", "decoder-unrolled", "decoder-remat", "decoder-window-of-one",
    "decoder-window-relative", "decoder-window-linear", "both-window", "both-unrolled",
    "seq2seq-luong-last-state",
}  # fmt: skip


@pytest.mark.parametrize("name", first_tier(MODELS, MODELS.keys() - COMBINED))
def test_decoding_gives_the_logits_of_the_full_pass(name):
    whole, empty, step = prepare(MODELS[name]())
    for cuts in CUTS.values():
        cache, found = empty, []
        for begin, end in itertools.pairwise(cuts):
            valid = np.ones((3, 4), bool) if end - begin == 4 else None
            logits, cache = step(TOKENS[:, begin:end], cache, valid)
            found.append(logits)
        np.testing.assert_allclose(jnp.concatenate(found, 1), whole, atol=1e-5)

    # Prompts of different lengths, with padding last; then two tokens more for each.
    lengths = np.array([2, 4, 3])
    valid = np.arange(4)[None] < lengths[:, None]
    junk = np.where(valid, TOKENS[:, :4], 5)
    logits, cache = step(junk, empty, valid)
    for row, length in enumerate(lengths):
        np.testing.assert_allclose(logits[row, :length], whole[row, :length], atol=1e-5)
    for more in (0, 1):
        token = np.take_along_axis(TOKENS, lengths[:, None] + more, 1)
        logits, cache = step(token, cache)
        wanted = whole[np.arange(3), lengths + more]
        np.testing.assert_allclose(logits[:, 0], wanted, atol=1e-5)


def test_every_family_that_writes_is_here():
    writes = {name for name, own in FAMILIES.items() if hasattr(own.module, "decode")}
    assert writes == {make().spec.family for make in MODELS.values()}


def test_a_cache_that_is_too_short_gives_nan():
    """Of those examples alone that go beyond it."""
    _, cache, step = prepare(decoder())
    _, cache = step(TOKENS, cache)
    valid = np.arange(3)[None] < np.array([[1], [2], [3]])
    logits, _ = step(TOKENS[:, :3], cache, valid)
    assert np.all(np.isfinite(logits[:2, :1]))
    assert np.all(np.isnan(logits[2]))


@pytest.mark.parametrize(
    ("mask", "kept"),
    [
        ("causal", ROOM),
        ("window(left=2)", 3),
        ("causal & window(left=20)", ROOM),
        ("causal & window(left=4) & window(left=3)", 4),
        ("window(left=1) | causal & window(left=3)", 4),
        ("causal & (window(left=1) | global_tokens(count=1))", ROOM),
        ("causal & ~window(left=2)", ROOM),
    ],
)
def test_under_a_window_a_cache_keeps_the_last_tokens(mask, kept):
    layers = decoder(mask=mask).init_cache(3, ROOM).layers["mixer"]
    assert layers["k_BGKS"].shape == (2, 3, 2, 4, kept)


def test_a_window_with_a_prefix():
    """All tokens see the prefix, those that are decoded later too."""
    module = decoder(scheme="rotary", mask="causal & window(left=1)")
    tree = init(module, tokens_BT=TOKENS)
    prefix_B = np.array([2, 4, 3])
    whole = module.apply(tree, TOKENS, prefix_B=prefix_B)
    cache = module.init_cache(3, ROOM, rolling=False)
    valid = np.arange(4)[None] < prefix_B[:, None]
    found, cache = module.apply(
        tree, TOKENS[:, :4], cache, valid_BT=valid, prefix_B=prefix_B, method="decode"
    )
    for more in (0, 1, 2):
        token = np.take_along_axis(TOKENS, prefix_B[:, None] + more, 1)
        found, cache = module.apply(tree, token, cache, method="decode")
        wanted = whole[np.arange(3), prefix_B + more]
        np.testing.assert_allclose(found[:, 0], wanted, atol=1e-5)
    with pytest.raises(UserError, match="init_cache.rolling=False"):
        module.apply(tree, TOKENS, module.init_cache(3, ROOM), prefix_B=prefix_B, method="decode")


def test_the_cache_is_of_the_models_precision():
    module = decoder(dtype="bfloat16", kv_heads=1)
    layers = module.init_cache(3, ROOM).layers["mixer"]
    assert {x.dtype for x in jax.tree.leaves(layers)} == {jnp.dtype("bfloat16")}
    assert layers["k_BGKS"].shape == (2, 3, 1, 4, ROOM)


def whole_sequence():
    return dataclasses.replace(attention(), cacheable=False)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: decoder(mask="everything"), "mask='everything' shows later tokens"),
        (lambda: decoder(mask="causal | prefix(length=2)"), "mask='causal | prefix.* shows later"),
        (lambda: decoder(mask="window(left=2, right=1)"), "mask='window.* shows later tokens"),
        (lambda: decoder(mixer="whole"), "mixer='whole' mixes the whole sequence at once"),
        (lambda: decoder(score="later"), "attention.score='later' is not cacheable"),
        (lambda: decoder(scheme="learned"), "length 20 is beyond max_length=12"),
        (lambda: both(decoder_mask="everything"), "mask='everything' shows later tokens"),
        (lambda: recurrent(bidirectional=True), "reads whole sequences"),
        (lambda: recurrent(shape="N:1"), "reads whole sequences"),
    ],
)
def test_what_cannot_be_decoded_is_refused_with_the_reason(make, message, monkeypatch):
    monkeypatch.setitem(MIXERS, "whole", whole_sequence)
    later = Score(SCORES["dot"].fn, cacheable=False)
    monkeypatch.setitem(SCORES, "later", later)
    module = make()
    _, begin = inputs(module)
    with pytest.raises(UserError, match=message):
        jax.eval_shape(
            lambda: module.init(jax.random.key(0), **begin, length=20, method="init_cache")
        )


def test_which_positions_depend_on_later_tokens():
    assert set(POSITIONS) - set(CAUSAL) == {"unit"}
    with pytest.raises(UserError, match="position.scheme='unit' depends on later tokens"):
        decoder(scheme="unit")
