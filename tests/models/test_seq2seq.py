import by_hand
import jax
import numpy as np
import oracle
import pytest
from jax import numpy as jnp
from ml_collections import ConfigDict
from quick import jit

from tfm.models import build, seq2seq
from tfm.models.spec import AttentionSpec, DropoutSpec, InitialSpec, SeqToSeqSpec
from tfm.names import UserError
from tfm.ops.dropout import Dropouts
from tfm.ops.scores import SCORES

VOCAB, WIDTH, HIDDEN = 9, 5, 6
RNG = np.random.default_rng(1)
SOURCE, TARGET = RNG.integers(0, VOCAB, (3, 6)), RNG.integers(0, VOCAB, (3, 4))
S_LENGTHS, T_LENGTHS = (3, 6, 1), (4, 2, 3)
S_VALID = np.arange(6)[None] < np.array(S_LENGTHS)[:, None]
T_VALID = np.arange(4)[None] < np.array(T_LENGTHS)[:, None]


def model(attention=None, **options):
    what = {"vocab": VOCAB, "width": WIDTH, "hidden": HIDDEN, "max_length": 8, **options}
    return seq2seq.make(SeqToSeqSpec(attention=attention and AttentionSpec(**attention), **what))


def by_definition(module, tree, options, row):
    """Logits TV and weights HTS of one pair of sentences, one target token at a time."""
    p = by_hand.float64(tree["params"])
    x = p["source_embed"]["token"]["embedding"][SOURCE[row, : S_LENGTHS[row]]]
    layers, last = by_hand.stack(module.cell, p["encoder"], x)
    vectors = [
        np.concatenate(
            [part for c, h in ends for part in ((c, h) if module.cell == "lstm" else (h,))]
        )
        for ends in last
    ]
    state = by_hand.start(module.cell, p["start"], vectors)
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

    def look(h, t):
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

    logits, looked = [], []
    for t in range(T_LENGTHS[row]):
        x = p["target_embed"]["token"]["embedding"][TARGET[row, t]]
        if module.look == "before":
            context, weights = look(state[0][1], t)
            x = np.concatenate([x, context])
        for n in range(module.layers):
            state[n] = by_hand.CELLS[module.cell](p["decoder"][f"forward_{n}"], *state[n], x)
            x = state[n][1]
        if module.look == "after":
            context, weights = look(x, t)
        read = np.tanh(by_hand.affine(p["readout"], np.concatenate([context, x])))
        logits.append(by_hand.affine(p["head"], read))
        looked.append(weights)
    return np.array(logits), np.array(looked).swapaxes(0, 1)


ADDITIVE = {"heads": 1, "score": "additive"}


@pytest.mark.parametrize(
    ("options", "attention"),
    [
        ({}, None),
        ({"look": "after", "cell": "lstm", "layers": 2, "bidirectional": False}, None),
        ({}, ADDITIVE),
        ({"cell": "lstm", "layers": 2}, {"heads": 2, "kv_heads": 1, "qkv_bias": True}),
        ({"cell": "rnn"}, {"heads": 2, "head_width": 4, "score": "static"}),
        ({"look": "after"}, {"heads": 1, "score": "bilinear", "qk_norm": True}),
        (
            {"look": "after", "layers": 2, "cell": "lstm"},
            {"heads": 3, "score": "linear", "normalizer": "softmax_zero", "cap": 0.5},
        ),
    ],
    ids=str,
)
def test_by_definition(options, attention):
    module = model(attention, **options)
    tree = by_hand.init(module, SOURCE, TARGET)
    want = ("weights",) if attention else ("states",)
    valid = {"source_valid_BS": S_VALID, "target_valid_BT": T_VALID}
    run = jit(lambda tree: module.apply(tree, SOURCE, TARGET, **valid, want=want))
    logits, made = run(tree)
    for row, length in enumerate(T_LENGTHS):
        wanted, weights = by_definition(module, tree, attention, row)
        np.testing.assert_allclose(logits[row, :length], wanted, atol=2e-5)
        if attention:
            looked = made["decoder"]["weights_BHTS"][row]
            np.testing.assert_allclose(looked[:, :length, : S_LENGTHS[row]], weights, atol=2e-5)
            assert not np.any(looked[:, :, S_LENGTHS[row] :])


@pytest.mark.parametrize(
    ("look", "score"), [*(("before", name) for name in SCORES), ("after", "dot")]
)
def test_every_score_learns(look, score):
    """One step down the gradient of every parameter lowers the loss by as much as it says."""
    module = model({"heads": 2, "score": score}, look=look, bidirectional=False, cell="rnn")
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
    unused = {"linear": {"key"}, "static": {"key", "query"}}.get(score, set())
    assert {path.split("/")[2] for path in by_hand.untouched(grads)} == unused


@pytest.mark.parametrize("attention", [None, ADDITIVE | {"qk_norm": True}], ids=str)
def test_gradients_reach_every_parameter(attention):
    module = model(attention, cell="lstm")
    tree = by_hand.init(module, SOURCE, TARGET)
    loss = lambda tree: jnp.sum(module.apply(tree, SOURCE, TARGET) ** 2)
    assert by_hand.untouched(jit(jax.grad(loss))(tree)) == set()


@pytest.mark.parametrize("look", seq2seq.LOOKS)
@pytest.mark.parametrize("attention", [None, {"heads": 2, "score": "static"}], ids=str)
def test_step_by_step_is_all_at_once(attention, look):
    module = model(attention, look=look, cell="rnn", bidirectional=False, layers=2)
    tree = by_hand.init(module, SOURCE, TARGET)
    logits = jit(module.apply)(tree, SOURCE, TARGET, source_valid_BS=S_VALID)
    encode = jit(lambda: module.apply(tree, SOURCE, valid_BS=S_VALID, method="encode"))
    source, _ = encode()
    step = jit(
        lambda token_BT, state, pos_BT: module.apply(
            tree, token_BT, source, state=state, pos_BT=pos_BT, method="decode"
        )
    )
    state = source.start
    for t in range(TARGET.shape[1]):
        now, state, made = step(TARGET[:, t : t + 1], state, jnp.full((1, 1), t))
        np.testing.assert_allclose(now[:, 0], logits[:, t], atol=1e-5)
        assert made == {}


def test_what_stands_in_the_padding_changes_no_gradient():
    module = model(ADDITIVE, cell="rnn")
    tree = by_hand.init(module, SOURCE, TARGET)

    @jit
    @jax.grad
    def grad(tree, source, target):
        logits = module.apply(
            tree, source, target, source_valid_BS=S_VALID, target_valid_BT=T_VALID
        )
        return jnp.sum(jnp.sin(jnp.where(T_VALID[..., None], logits, 0)))

    other = [
        np.where(valid, tokens, (tokens + 1) % VOCAB)
        for tokens, valid in ((SOURCE, S_VALID), (TARGET, T_VALID))
    ]
    jax.tree.map(np.testing.assert_array_equal, grad(tree, SOURCE, TARGET), grad(tree, *other))


def test_what_is_wanted_of_each_side():
    module = model({"heads": 2}, layers=2)
    tree = by_hand.init(module, SOURCE, TARGET)
    run = lambda: module.apply(tree, SOURCE, TARGET, want=("states", "gates", "weights"))
    _, made = jax.eval_shape(run)
    assert {name: x.shape for name, x in made["encoder"].items()} == {
        f"{name}_NBTH": (2, 3, 6, 12) for name in ("states", "gate_r", "gate_z", "gate_n")
    }
    assert {name: x.shape for name, x in made["decoder"].items()} == {
        **{f"{name}_NBTH": (2, 3, 4, 6) for name in ("states", "gate_r", "gate_z", "gate_n")},
        "weights_BHTS": (3, 2, 4, 6),
    }


def test_gates_of_a_cell_that_looks_rebuild_its_states():
    module = model(ADDITIVE)
    tree = by_hand.init(module, SOURCE, TARGET)

    @jit
    def run():
        source, _ = module.apply(tree, SOURCE, method="encode")
        return source, module.apply(tree, TARGET, source, want=("states", "gates"), method="decode")

    source, (_, _, made) = run()
    h = source.start[0][0]
    for t in range(TARGET.shape[1]):
        z, n = (made[f"gate_{gate}_NBTH"][0, :, t] for gate in "zn")
        h = (1 - z) * n + z * h
        np.testing.assert_allclose(made["states_NBTH"][0, :, t], h, atol=1e-6)


@pytest.mark.parametrize("look", seq2seq.LOOKS)
def test_each_place_drops(look):
    module = model(ADDITIVE, look=look, layers=2, cell="rnn", bidirectional=False)
    tree = by_hand.init(module, SOURCE, TARGET)
    places = ("embedding", "residual", "attention", "head")

    @jit
    def apply(rates, key):
        dropouts = Dropouts(rates, key)
        logits, made = module.apply(tree, SOURCE, TARGET, dropouts=dropouts, want=("weights",))
        return logits, made["decoder"]["weights_BHTS"]

    def run(seed, **rates):
        return apply({place: rates.get(place, 0.0) for place in places}, jax.random.key(seed))

    for place in places:
        assert np.any(np.abs(run(0, **{place: 0.5})[0] - run(0)[0]) > 0.01)
    dropped = np.asarray(run(0, attention=0.5)[1]) == 0
    assert 0.3 < np.mean(dropped) < 0.7
    assert len(np.unique(dropped, axis=2)[0, 0]) > 1, "each step drops its own"


def test_bfloat16_computes_in_bfloat16_with_float32_parameters():
    module = model(ADDITIVE, cell="lstm", dtype="bfloat16")
    tree = by_hand.init(module, SOURCE, TARGET)
    assert {leaf.dtype for leaf in jax.tree.leaves(tree)} == {jnp.dtype(jnp.float32)}
    run = lambda module: jit(lambda: module.apply(tree, SOURCE, TARGET, want=("states",)))()
    logits, made = run(module)
    assert (logits.dtype, made["decoder"]["states_NBTH"].dtype) == (jnp.float32, jnp.bfloat16)
    exact = run(model(ADDITIVE, cell="lstm"))[0]
    np.testing.assert_allclose(logits, exact, atol=0.05)


def test_through_the_door():
    part = {"family": "seq2seq", "vocab": VOCAB, "width": 4, "hidden": 4}
    part["attention"] = {"heads": 2, "score": "additive"}
    what = build.spec(ConfigDict({"model": part}))
    assert isinstance(build.model(what), seq2seq.SeqToSeq)
    assert set(build.example(what, 2, 5)) == {"source_BS", "target_BT"}


def test_the_score_none_leaves_the_attention_out():
    assert model({"heads": 5, "score": "none"}).make_attention is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cell": "grru"}, "unknown model.cell 'grru'; did you mean 'gru'"),
        ({"look": "befor"}, "unknown model.look 'befor'; did you mean 'before'"),
        ({"attention": {"heads": 1, "score": "aditive"}}, "model.attention.score 'aditive'; did"),
        ({"attention": {"heads": 1, "normalizer": "soft"}}, "model.attention.normalizer 'soft'"),
        ({"attention": {"heads": 1, "implementation": "flash"}}, "model.attention.implementation"),
        ({"attention": {"heads": 4}}, "model.attention.heads=4 does not divide model.hidden=6"),
        ({"attention": {"heads": 3, "kv_heads": 2}}, "kv_heads=2 must divide"),
        ({"attention": {"heads": 1, "out_bias": True}}, "model.attention.out_bias"),
        ({"attention": {"heads": 1, "share_qk": True}}, "model.attention.share_qk"),
        ({"dropout": DropoutSpec(attention=0.1)}, "model.dropout.attention=0.1"),
        ({"dropout": DropoutSpec(feedforward=0.1)}, "embedding, residual, head"),
        ({"initial": InitialSpec(small_query=True)}, "does not attend"),
    ],
)
def test_a_bad_spec_is_named(options, message):
    with pytest.raises(UserError, match=message):
        model(**options)


@pytest.mark.parametrize(
    ("options", "given", "message"),
    [
        ({}, {"want": ("weights",)}, "nothing is called 'weights' here"),
        ({}, {"source_valid_BS": T_VALID}, "valid_BS has shape"),
        ({}, {"target_valid_BT": T_VALID.astype(int)}, "valid_BT must be boolean"),
        ({"max_length": 5}, {}, "source_BS is 6 long, but max_length=5"),
        ({"max_length": None, "attention": {"heads": 1, "score": "static"}}, {}, "has no size"),
        ({"attention": {"heads": 1, "implementation": "fused", "score": "additive"}}, {}, "cannot"),
    ],
)
def test_bad_input_is_named(options, given, message):
    module = model(**options)
    with pytest.raises(UserError, match=message):
        jax.eval_shape(lambda: module.init(jax.random.key(0), SOURCE, TARGET, **given))
