import jax
import numpy as np
import pytest
from jax import numpy as jnp

from tests.helpers import by_hand, oracle
from tests.helpers.quick import jit
from tfm.config.names import UserError
from tfm.layers.attention import AttentionSpec
from tfm.layers.block import DropoutSpec
from tfm.layers.dims import Dropouts, InitSpec
from tfm.models.seq2seq import SeqToSeq
from tfm.models.spec import DECODERS, SeqToSeqSpec, model_spec
from tfm.ops.scores import SCORES

VOCAB, WIDTH, HIDDEN = 9, 5, 6
RNG = np.random.default_rng(1)
SOURCE, TARGET = RNG.integers(0, VOCAB, (3, 6)), RNG.integers(0, VOCAB, (3, 4))
S_LENGTHS, T_LENGTHS = (3, 6, 1), (4, 2, 3)
S_VALID = np.arange(6)[None] < np.array(S_LENGTHS)[:, None]
T_VALID = np.arange(4)[None] < np.array(T_LENGTHS)[:, None]


def model(attention=None, **options):
    sizes = {"vocab": VOCAB, "width": WIDTH, "hidden": HIDDEN, "max_length": 8}
    attention = attention and AttentionSpec(**attention)
    return SeqToSeq(SeqToSeqSpec(attention=attention, **sizes | options))


def by_definition(module, tree, options, row):
    """Logits TV and weights HTS of one pair of sentences, one target token at a time."""
    spec, p = module.spec, by_hand.float64(tree["params"])
    x = p["source_embed"]["token"]["embedding"][SOURCE[row, : S_LENGTHS[row]]]
    layers, last = by_hand.stack(spec.cell, p["encoder"], x)
    vectors = [
        np.concatenate(
            [part for c, h in ends for part in ((c, h) if spec.cell == "lstm" else (h,))]
        )
        for ends in last
    ]
    state = by_hand.start(spec.cell, p["start"], vectors)
    if options:
        a, heads = p["attention"], options["heads"]
        for name in ("query", "key"):
            assert (f"{name}_norm" in a) == options.get("qk_norm", False)
            assert ("bias" in a[name]) == options.get("qkv_bias", False)

        def head(name, x):
            y = np.einsum("td,dhk->thk", x, a[name]["kernel"]) + a[name].get("bias", 0)
            if f"{name}_norm" not in a:
                return y
            return y / np.sqrt(np.mean(y**2, -1, keepdims=True) + 1e-6) * a[f"{name}_norm"]["scale"]

        k, v = head("key", layers[-1]), head("value", layers[-1])
        held = {n.removeprefix("score_"): w for n, w in a.items() if n.startswith("score_")}

    def find(h, t):
        if not options:
            return np.concatenate([h for _, h in last[-1]]), np.zeros((1, S_LENGTHS[row]))
        out, weights = oracle.attention(
            head("query", h[None])[None], k[None], v[None],
            score=lambda q, k, h, _, s: oracle.SCORES[options.get("score", "scaled_dot")](
                q, k, h, t, s, **held
            ),
            normalize=oracle.NORMALIZERS[options.get("normalizer", "softmax")],
            cap=options.get("cap"),
        )  # fmt: skip
        assert out.shape[2] == heads
        return out.ravel(), weights[0, :, 0]

    logits, found = [], []
    for t in range(T_LENGTHS[row]):
        x = p["target_embed"]["token"]["embedding"][TARGET[row, t]]
        if spec.decoder == "bahdanau":
            context, weights = find(state[0][1], t)
            x = np.concatenate([x, context])
        for n in range(spec.layers):
            state[n] = by_hand.CELLS[spec.cell](p["decoder"][f"forward_{n}"], *state[n], x)
            x = state[n][1]
        if spec.decoder == "luong":
            context, weights = find(x, t)
        read = np.tanh(by_hand.affine(p["readout"], np.concatenate([context, x])))
        logits.append(by_hand.affine(p["head"], read))
        found.append(weights)
    return np.array(logits), np.array(found).swapaxes(0, 1)


ADDITIVE = {"heads": 1, "score": "additive"}


@pytest.mark.parametrize(
    ("options", "attention"),
    [
        ({}, None),
        ({"decoder": "luong", "cell": "lstm", "layers": 2, "bidirectional": False}, None),
        ({}, ADDITIVE),
        ({"cell": "lstm", "layers": 2}, {"heads": 2, "kv_heads": 1, "qkv_bias": True}),
        ({"cell": "rnn"}, {"heads": 2, "head_width": 4, "score": "static"}),
        ({"decoder": "luong"}, {"heads": 1, "score": "bilinear", "qk_norm": True}),
        (
            {"decoder": "luong", "layers": 2, "cell": "lstm"},
            {"heads": 3, "score": "linear", "normalizer": "softmax_zero", "cap": 0.5},
        ),
    ],
    ids=str,
)
def test_by_definition(options, attention):
    module = model(attention, **options)
    tree = by_hand.init(module, SOURCE, TARGET)
    capture = ("weights",) if attention else ("states",)
    valid = {"source_valid_BS": S_VALID, "decoder_valid_BT": T_VALID}
    run = jit(lambda tree: module.apply(tree, SOURCE, TARGET, **valid, capture=capture))
    logits, made = run(tree)
    for row, length in enumerate(T_LENGTHS):
        wanted, weights = by_definition(module, tree, attention, row)
        np.testing.assert_allclose(logits[row, :length], wanted, atol=2e-5)
        if attention:
            found = made["decoder"]["weights_BHTS"][row]
            np.testing.assert_allclose(found[:, :length, : S_LENGTHS[row]], weights, atol=2e-5)
            assert not np.any(found[:, :, S_LENGTHS[row] :])


@pytest.mark.parametrize(
    ("decoder", "score"), [*(("bahdanau", name) for name in SCORES), ("luong", "dot")]
)
def test_every_score_learns(decoder, score):
    """One step down the gradient of every parameter lowers the loss by as much as it says."""
    module = model({"heads": 2, "score": score}, decoder=decoder, bidirectional=False, cell="rnn")
    tree = by_hand.init(module, SOURCE, TARGET)

    @jit
    @jax.value_and_grad
    def run(tree):
        logits = module.apply(tree, SOURCE, TARGET, source_valid_BS=S_VALID)
        return jnp.mean(jnp.square(logits))

    loss, grads = run(tree)
    square = sum(np.sum(np.square(grad)) for grad in jax.tree.leaves(grads))
    lower, _ = run(jax.tree.map(lambda x, grad: x - 1e-3 / square * grad, tree, grads))
    np.testing.assert_allclose(loss - lower, 1e-3, rtol=0.05)
    nothing = {"key", "query"}
    unused = {"linear": {"key"}, "static": nothing, "uniform": nothing}.get(score, set())
    assert {path.split("/")[2] for path in by_hand.untouched(grads)} == unused


@pytest.mark.parametrize("attention", [None, ADDITIVE | {"qk_norm": True}], ids=str)
def test_gradients_reach_every_parameter(attention):
    module = model(attention, cell="lstm")
    tree = by_hand.init(module, SOURCE, TARGET)
    loss = lambda tree: jnp.sum(module.apply(tree, SOURCE, TARGET) ** 2)
    assert by_hand.untouched(jit(jax.grad(loss))(tree)) == set()


def test_what_stands_in_the_padding_changes_no_gradient():
    module = model(ADDITIVE, cell="rnn")
    tree = by_hand.init(module, SOURCE, TARGET)

    @jit
    @jax.grad
    def grad(tree, source, target):
        logits = module.apply(
            tree, source, target, source_valid_BS=S_VALID, decoder_valid_BT=T_VALID
        )
        return jnp.sum(jnp.sin(jnp.where(T_VALID[..., None], logits, 0)))

    other = [
        np.where(valid, tokens, (tokens + 1) % VOCAB)
        for tokens, valid in ((SOURCE, S_VALID), (TARGET, T_VALID))
    ]
    jax.tree.map(np.testing.assert_array_equal, grad(tree, SOURCE, TARGET), grad(tree, *other))


def test_what_is_captured_of_each_side():
    module = model({"heads": 2}, layers=2)
    tree = by_hand.init(module, SOURCE, TARGET)
    run = lambda: module.apply(tree, SOURCE, TARGET, capture=("states", "gates", "weights"))
    _, made = jax.eval_shape(run)
    assert {name: x.shape for name, x in made["encoder"].items()} == {
        f"{name}_NBTH": (2, 3, 6, 12) for name in ("states", "gate_r", "gate_z", "gate_n")
    }
    assert {name: x.shape for name, x in made["decoder"].items()} == {
        **{f"{name}_NBTH": (2, 3, 4, 6) for name in ("states", "gate_r", "gate_z", "gate_n")},
        "weights_BHTS": (3, 2, 4, 6),
    }


def test_gates_of_a_cell_that_attends_rebuild_its_states():
    module = model(ADDITIVE)
    tree = by_hand.init(module, SOURCE, TARGET)

    @jit
    def run():
        cache = module.apply(tree, SOURCE, method="init_cache")
        return cache, module.apply(tree, SOURCE, TARGET, capture=("states", "gates"))

    cache, (_, made) = run()
    h, made = cache.states[0][0], made["decoder"]
    for t in range(TARGET.shape[1]):
        z, n = (made[f"gate_{gate}_NBTH"][0, :, t] for gate in "zn")
        h = (1 - z) * n + z * h
        np.testing.assert_allclose(made["states_NBTH"][0, :, t], h, atol=1e-6)


@pytest.mark.parametrize("decoder", DECODERS)
def test_each_site_drops(decoder):
    module = model(ADDITIVE, decoder=decoder, layers=2, cell="rnn", bidirectional=False)
    tree = by_hand.init(module, SOURCE, TARGET)
    sites = ("embedding", "residual", "attention", "head")

    @jit
    def apply(rates, key):
        dropouts = Dropouts(rates, key)
        logits, made = module.apply(tree, SOURCE, TARGET, dropouts=dropouts, capture=("weights",))
        return logits, made["decoder"]["weights_BHTS"]

    def run(seed, **rates):
        return apply({site: rates.get(site, 0.0) for site in sites}, jax.random.key(seed))

    for site in sites:
        assert np.any(np.abs(run(0, **{site: 0.5})[0] - run(0)[0]) > 0.01)
    dropped = np.asarray(run(0, attention=0.5)[1]) == 0
    assert 0.3 < np.mean(dropped) < 0.7
    assert len(np.unique(dropped, axis=2)[0, 0]) > 1, "each step drops its own"


def test_bfloat16_computes_in_bfloat16_with_float32_parameters():
    module = model(ADDITIVE, cell="lstm", dtype="bfloat16")
    tree = by_hand.init(module, SOURCE, TARGET)
    assert {leaf.dtype for leaf in jax.tree.leaves(tree)} == {jnp.dtype(jnp.float32)}
    run = lambda module: jit(lambda: module.apply(tree, SOURCE, TARGET, capture=("states",)))()
    logits, made = run(module)
    assert (logits.dtype, made["decoder"]["states_NBTH"].dtype) == (jnp.float32, jnp.bfloat16)
    exact = run(model(ADDITIVE, cell="lstm"))[0]
    np.testing.assert_allclose(logits, exact, atol=0.05)


def test_through_the_door():
    part = {"family": "seq2seq", "vocab": VOCAB, "width": 4, "hidden": 4}
    part["attention"] = {"heads": 2, "score": "additive"}
    spec = model_spec({"model": part})
    assert isinstance(spec.build(), SeqToSeq)
    assert set(spec.example(2, 5)) == {"source_BS", "decoder_input_BT"}


def test_the_score_none_leaves_the_attention_out():
    module = model({"heads": 5, "score": "none"})
    tree = jax.eval_shape(module.init, jax.random.key(0), SOURCE, TARGET)["params"]
    plain = jax.eval_shape(model().init, jax.random.key(0), SOURCE, TARGET)["params"]
    assert tree == plain


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cell": "grru"}, "unknown cell 'grru'; did you mean 'gru'"),
        ({"decoder": "luon"}, "unknown decoder 'luon'; did you mean 'luong'"),
        ({"attention": {"heads": 1, "score": "aditive"}}, "unknown score 'aditive'; did"),
        ({"attention": {"heads": 1, "normalizer": "soft"}}, "unknown normalizer 'soft'"),
        ({"attention": {"heads": 1, "implementation": "flash"}}, "unknown implementation 'flash'"),
        ({"attention": {"heads": 4}}, "attention.heads=4 does not divide hidden=6"),
        ({"attention": {"heads": 3, "kv_heads": 2}}, "kv_heads=2 must divide"),
        ({"attention": {"heads": 1, "out_bias": True}}, "attention.out_bias: the decoder reads"),
        ({"attention": {"heads": 1, "share_qk": True}}, "attention.share_qk: queries are decoder"),
        ({"dropout": DropoutSpec(attention=0.1)}, "dropout.attention=0.1: nothing is dropped"),
        ({"dropout": DropoutSpec(feedforward=0.1)}, "embedding, residual, head"),
        ({"init": InitSpec(small_query=True)}, "init.small_query: this model has no"),
    ],
)
def test_a_bad_spec_is_named(options, message):
    with pytest.raises(UserError, match=message):
        model(**options)


@pytest.mark.parametrize(
    ("options", "given", "message"),
    [
        ({}, {"capture": ("weights",)}, "no intermediate 'weights' here"),
        ({}, {"source_valid_BS": T_VALID}, "valid_BS has shape"),
        ({}, {"decoder_valid_BT": T_VALID.astype(int)}, "valid_BT must be boolean"),
        ({"max_length": 5}, {}, "source_BS is 6 long, but max_length=5"),
        ({"max_length": None, "attention": {"heads": 1, "score": "static"}}, {}, "has no size"),
        ({"attention": {"heads": 1, "implementation": "fused", "score": "additive"}}, {}, "cannot"),
    ],
)
def test_bad_input_is_named(options, given, message):
    module = model(**options)
    with pytest.raises(UserError, match=message):
        jax.eval_shape(lambda: module.init(jax.random.key(0), SOURCE, TARGET, **given))
