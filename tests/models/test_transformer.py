"""The three Transformer families, from their configs."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest
from flax import linen as nn
from jax import numpy as jnp

from tests.helpers.quick import jit
from tfm.config.names import UserError
from tfm.layers import stack
from tfm.layers.attention import attention as attention_mixer
from tfm.layers.block import FEEDFORWARDS, MIXERS
from tfm.layers.dims import Dropouts
from tfm.layers.norm import NORMS, Norm
from tfm.layers.stack import scanned, unrolled
from tfm.models.spec import model_spec
from tfm.ops.scores import SCORES

SMALL = {
    "vocab": 13,
    "width": 16,
    "layers": 2,
    "max_length": 12,
    "attention": {"heads": 4},
    "feedforward": {"width": 24},
}
TOKENS = jax.random.randint(jax.random.key(0), (2, 7), 0, 13)
SOURCE = jax.random.randint(jax.random.key(1), (2, 9), 0, 13)
DROPS = Dropouts(
    {"embedding": 0.1, "attention": 0.1, "residual": 0.1, "feedforward": 0.2}, jax.random.key(5)
)


def make(family, **changes):
    spec = model_spec({"model": {**SMALL, "family": family, **changes}})
    return spec.build(), spec


def init(module, *args):
    """Random weights, made without a compilation; none hides behind its zeros or ones."""
    shapes = jax.eval_shape(module.init, jax.random.key(0), *args)["params"]
    rng = np.random.default_rng(0)

    def weight(path, leaf):
        fan = np.prod(leaf.shape[-2:]) ** 0.5 if len(leaf.shape) > 1 else 4.0
        x = rng.normal(size=leaf.shape).astype(np.float32) / fan**0.5
        return jnp.asarray(x + ("scale" in jax.tree_util.keystr(path)))

    return jax.tree_util.tree_map_with_path(weight, shapes)


def call(module, params, *args, capture=(), method=None, **options):
    run = lambda params, args, options: module.apply(
        {"params": params}, *args, capture=capture, method=method, **options
    )
    return jit(run)(params, args, options)


@pytest.mark.parametrize(
    ("family", "dropouts", "others"),
    [
        ("encoder_decoder", None, [{"remat": "full"}, {"scan": False}]),
        pytest.param(
            *("decoder", DROPS, [{"remat": "dots"}, {"scan": False, "remat": "full"}]),
            marks=pytest.mark.ci,
        ),
    ],
)
def test_scanned_unrolled_and_rematerialised_layers_agree(family, dropouts, others):
    args = (SOURCE, TOKENS) if family == "encoder_decoder" else (TOKENS,)

    def run(params, **changes):
        module, _ = make(family, position={"scheme": "relative"}, **changes)
        apply = lambda params: module.apply({"params": params}, *args, dropouts=dropouts)
        return jit(jax.value_and_grad(lambda params: jnp.sum(jnp.sin(apply(params)))))(params)

    params = init(make(family, position={"scheme": "relative"})[0], *args)
    apart = unrolled(params)
    assert set(apart["decoder"]) == {"layer_0", "layer_1", "norm", "position_w_UH"}
    jax.tree.map(np.testing.assert_array_equal, scanned(apart), params)
    value, grads = run(params)
    for changes in others:
        separate = changes.get("scan") is False
        other_value, other_grads = run(apart if separate else params, **changes)
        np.testing.assert_allclose(other_value, value, rtol=1e-5)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5, rtol=1e-4),
            scanned(other_grads) if separate else other_grads,
            grads,
        )


def test_scanned_layers_are_the_same_one_by_one_in_the_scan(monkeypatch):
    """As outside of tests, where `stack.UNROLL` is 6, and as in them, where it is 1."""
    module, _ = make("decoder", position={"scheme": "relative"})
    params = init(module, TOKENS)
    found, programs = {}, {}
    for most in (1, 6):
        monkeypatch.setattr(stack, "UNROLL", most)
        fn = jax.value_and_grad(
            lambda p: jnp.sum(jnp.sin(module.apply({"params": p}, TOKENS, dropouts=DROPS)))
        )
        programs[most] = str(jax.make_jaxpr(fn)(params))
        found[most] = jit(fn)(params)
    assert "unroll=1" in programs[1]
    assert "unroll=1" not in programs[6]
    np.testing.assert_allclose(found[6][0], found[1][0], rtol=1e-6)
    same = lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5, rtol=1e-5)  # of up to 15
    jax.tree.map(same, found[6][1], found[1][1])


def test_an_unrolled_model_has_the_parameters_of_an_unrolled_tree():
    shapes = lambda module: jax.tree.map(
        jnp.shape, jax.eval_shape(module.init, jax.random.key(0), TOKENS)["params"]
    )
    one, other = (make("decoder", scan=scan)[0] for scan in (True, False))
    zeros = jax.tree.map(jnp.zeros, shapes(one), is_leaf=lambda x: isinstance(x, tuple))
    assert jax.tree.map(jnp.shape, unrolled(zeros)) == shapes(other)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("decoder", {"position": {"scheme": "relative"}, "remat": "full", "layers": 3}),
        ("encoder_decoder", {"position": {"scheme": "learned"}, "decoder_layers": 3}),
        ("encoder", {"norm": {"kind": "batch"}}),
    ],
)
def test_scanned_and_unrolled_layers_begin_and_train_alike(family, changes):
    args = (SOURCE, TOKENS) if family == "encoder_decoder" else (TOKENS,)

    def start(scan):
        module, _ = make(family, scan=scan, **changes)
        return module, jit(module.init)(jax.random.key(3), *args)

    (one, variables), (other, apart) = start(True), start(False)
    jax.tree.map(np.testing.assert_array_equal, scanned(apart), dict(variables))
    side = apart["params"]["encoder" if family == "encoder" else "decoder"]
    one_layer, next_layer = (side[f"layer_{n}"]["feedforward"] for n in (0, 1))
    assert not np.array_equal(one_layer["up"]["kernel"], next_layer["up"]["kernel"])
    if family != "decoder":
        return

    def losses(module, params):
        def loss(params):
            logits = jax.nn.log_softmax(module.apply({"params": params}, TOKENS))
            return -jnp.mean(jnp.take_along_axis(logits, TOKENS[..., None], -1))

        step, out = jit(jax.value_and_grad(loss)), []
        for _ in range(5):
            value, grads = step(params)
            params = jax.tree.map(lambda w, g: w - 0.5 * g, params, grads)
            out.append(float(value))
        return out

    before = losses(one, variables["params"])
    np.testing.assert_allclose(losses(other, apart["params"]), before, rtol=1e-5)
    assert before[-1] < 0.7 * before[0]


def test_causality_by_gradient():
    """Each token of the row has a vector of its own, whose gradient tells who looked at it."""
    module, _ = make("decoder", position={"scheme": "rotary"}, tied=False)
    tokens = jnp.arange(7)[None]
    params = init(module, tokens)

    def states(table):
        held = {**params, "embed": {"token": {"embedding": table}}}
        return module.apply({"params": held}, tokens)[0].sum(-1)

    jacobian = jit(jax.jacrev(states))(params["embed"]["token"]["embedding"])
    seen = np.abs(jacobian).sum(-1)[:, :7] > 1e-7
    np.testing.assert_array_equal(seen, np.tri(7, dtype=bool))


def test_a_prefix_sees_itself():
    module, _ = make("decoder", position={"scheme": "rotary"})
    params = init(module, TOKENS)
    prefix = jnp.array([3, 0])
    _, made = call(module, params, TOKENS, prefix_B=prefix, capture=("weights",))
    seen = np.asarray(made["weights_NBHTS"])[0, :, 0] > 0
    for row, length in enumerate((3, 0)):
        wanted = np.tri(7, dtype=bool)
        wanted[:, :length] = True
        np.testing.assert_array_equal(seen[row], wanted)


@pytest.mark.parametrize("scheme", ["sinusoidal", "learned", "rotary", "alibi", "relative"])
def test_padding_and_packing_change_nothing(scheme):
    module, _ = make("decoder", position={"scheme": scheme})
    params = init(module, TOKENS)
    apply = functools.partial(call, module, params)
    alone = apply(TOKENS)
    padded = jnp.concatenate([TOKENS, jnp.full((2, 3), 7)], axis=1)
    valid = jnp.broadcast_to(jnp.arange(10)[None] < 7, (2, 10))
    np.testing.assert_allclose(apply(padded, valid_BT=valid)[:, :7], alone, atol=2e-5)
    packed = jnp.concatenate([TOKENS[:1, :5], TOKENS[1:]], axis=1)
    pos = jnp.concatenate([jnp.arange(5), jnp.arange(7)])[None]
    segment = jnp.repeat(jnp.arange(2), np.array([5, 7]))[None]
    got = apply(packed, pos_BT=pos, segment_BT=segment)
    np.testing.assert_allclose(got[0, :5], alone[0, :5], atol=2e-5)
    np.testing.assert_allclose(got[0, 5:], alone[1], atol=2e-5)


@pytest.mark.parametrize("score", ["scaled_dot", "static"])
def test_packed_pairs(score):
    attention = {"heads": 4, "score": score}
    module, _ = make("encoder_decoder", position={"scheme": "sinusoidal"}, attention=attention)
    params = init(module, SOURCE, TOKENS)
    apply = functools.partial(call, module, params)
    alone = apply(SOURCE[:, :5], TOKENS[:, :4])
    pack = lambda x, n: x[:, :n].reshape(1, -1)
    at = lambda n: jnp.tile(jnp.arange(n), 2)[None]
    who = lambda n: jnp.repeat(jnp.arange(2), n)[None]
    got = apply(
        pack(SOURCE, 5), pack(TOKENS, 4), source_pos_BS=at(5), decoder_pos_BT=at(4),
        source_segment_BS=who(5), decoder_segment_BT=who(4),
    )  # fmt: skip
    np.testing.assert_allclose(got.reshape(2, 4, -1), alone, atol=2e-5)
    with pytest.raises(UserError, match="for both sides, or for neither"):
        apply(SOURCE, TOKENS, decoder_segment_BT=jnp.zeros((2, 7), int))


def test_encoding_alone():
    module, _ = make("encoder_decoder")
    params = init(module, SOURCE, TOKENS)
    valid = jnp.arange(9)[None] < jnp.array([[9], [5]])
    states, _ = call(module, params, SOURCE, valid_BS=valid, method="encode")
    _, made = call(module, params, SOURCE, TOKENS, source_valid_BS=valid, capture=("states",))
    np.testing.assert_allclose(states, made["encoder"]["final_BTD"], atol=1e-6)


def test_intermediates_by_name():
    module, _ = make("encoder_decoder", scan=False, decoder_layers=3)
    params = init(module, SOURCE, TOKENS)
    logits, made = call(module, params, SOURCE, TOKENS, capture=("states", "weights"))
    assert jax.tree.map(jnp.shape, made) == {
        "encoder": {
            "final_BTD": (2, 9, 16),
            "embedding_BTD": (2, 9, 16),
            "states_NBTD": (2, 2, 9, 16),
            "weights_NBHTS": (2, 2, 4, 9, 9),
        },
        "decoder": {
            "final_BTD": (2, 7, 16),
            "embedding_BTD": (2, 7, 16),
            "states_NBTD": (3, 2, 7, 16),
            "weights_NBHTS": (3, 2, 4, 7, 7),
            "cross_weights_NBHTS": (3, 2, 4, 7, 9),
        },
    }
    plain = call(module, params, SOURCE, TOKENS)
    np.testing.assert_allclose(logits, plain, atol=1e-5)
    scans, _ = make("encoder_decoder", decoder_layers=3)
    again = call(scans, scanned(params), SOURCE, TOKENS, capture=("states", "weights"))
    close = lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5)
    jax.tree.map(close, again, (logits, made))
    with pytest.raises(UserError, match="no intermediate 'weight' here; did you mean 'weights'"):
        call(module, params, SOURCE, TOKENS, capture=("weight",))
    with pytest.raises(UserError, match=r"capture='states' must be a tuple"):
        call(module, params, SOURCE, TOKENS, capture="states")


@pytest.mark.parametrize("score", [*SCORES, "none"])
def test_one_config_value_changes_the_score_in_every_family(score):
    for family, args in {
        "encoder": (TOKENS,),
        "decoder": (TOKENS,),
        "encoder_decoder": (SOURCE, TOKENS),
    }.items():
        module, _ = make(family, attention={"heads": 4, "score": score}, layers=1)
        tree = jax.eval_shape(module.init, jax.random.key(0), *args)["params"]
        names = {
            jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)
        }
        assert any("['attention']" in name for name in names) == (score != "none")
        if score != "none" and SCORES[score].params:
            count = 3 if family == "encoder_decoder" else 1
            assert sum("score_" in name for name in names) == count * len(SCORES[score].params)


def test_positions_concatenated_take_their_width_from_the_model():
    position = {"scheme": "learned", "join": "concatenate", "width": 6}
    module, _ = make("decoder", position=position, tied=False)
    tree = jax.eval_shape(module.init, jax.random.key(0), TOKENS)["params"]
    assert tree["embed"]["token"]["embedding"].shape == (13, 10)
    assert tree["decoder"]["table"]["table_w_LD"].shape == (12, 6)
    with pytest.raises(UserError, match="a tied head cannot be used with concatenated positions"):
        make("decoder", position=position)


def test_without_attention_there_is_nothing_of_it():
    """One value takes it out, whatever else the config says of it."""
    module, _ = make(
        "decoder",
        attention={"heads": 4, "score": "none"},
        position={"scheme": "relative"},
        dropout={"attention": 0.1},
    )
    tree = jax.eval_shape(module.init, jax.random.key(0), TOKENS)["params"]["decoder"]
    assert set(tree) == {"layers", "norm"}
    assert set(tree["layers"]) == {"feedforward", "feedforward_norm"}
    with pytest.raises(UserError, match="this model has no attention"):
        module.init(jax.random.key(0), TOKENS, capture=("weights",))


def mixing(causal=True, padding=True):
    """A mixer that declares what it cannot do; attention does its work."""
    return lambda: dataclasses.replace(attention_mixer(), causal=causal, padding=padding)


def test_what_a_mixer_cannot_do_is_refused(monkeypatch):
    monkeypatch.setitem(MIXERS, "both", mixing(causal=False))
    monkeypatch.setitem(MIXERS, "exact", mixing(padding=False))
    with pytest.raises(UserError, match="mixer='both' sees later tokens"):
        make("decoder", mixer="both")
    make("encoder", mixer="both")
    module, _ = make("encoder", mixer="exact")
    valid = jnp.ones((2, 7), bool)
    assert jax.eval_shape(module.init, jax.random.key(0), TOKENS)
    with pytest.raises(UserError, match="mixer='exact' is not safe with padding"):
        jax.eval_shape(lambda: module.init(jax.random.key(0), TOKENS, valid_BT=valid))


def test_a_norm_that_sees_later_tokens_is_refused_in_a_decoder(monkeypatch):
    monkeypatch.setitem(NORMS, "batch", Norm(lambda spec, dtype, name, x, *rest: x, causal=False))
    make("encoder", norm={"kind": "batch"})
    for family in ("decoder", "encoder_decoder"):
        with pytest.raises(UserError, match="norm.kind='batch' sees later tokens"):
            make(family, norm={"kind": "batch"})


class Loss(nn.Module):
    """A feed-forward that adds nothing and has a loss: the mean of its input's squares."""

    spec: Any
    dims: Any

    def __call__(self, x_BTD, dropouts=None):
        return jnp.zeros_like(x_BTD), {"square": jnp.mean(x_BTD**2)}


@pytest.mark.parametrize("scan", [True, False])
def test_losses_of_all_layers_are_summed(monkeypatch, scan):
    monkeypatch.setitem(FEEDFORWARDS, "loss", Loss)
    changes = {"feedforward": {"width": 8, "kind": "loss"}, "norm": {"kind": "none"}}
    module, _ = make("decoder", **changes, scan=scan)
    params = init(module, TOKENS)
    _, made = call(module, params, TOKENS, capture=("losses", "states"))
    wanted = sum(np.mean(np.square(states)) for states in made["states_NBTD"])
    assert set(made["losses"]) == {"feedforward_square"}
    np.testing.assert_allclose(made["losses"]["feedforward_square"], wanted, rtol=1e-5)
    both, _ = make("encoder_decoder", **changes, scan=scan)
    made = jax.eval_shape(
        lambda: both.init_with_output(jax.random.key(0), SOURCE, TOKENS, capture=("losses",))
    )[0][1]
    assert set(made["losses"]) == {f"{side}_feedforward_square" for side in ("encoder", "decoder")}


def test_missing_layers_are_noticed():
    with pytest.raises(UserError, match=r"layers are missing: .* only \[0, 2\]"):
        scanned({"layer_0": {"w": np.zeros(2)}, "layer_2": {"w": np.zeros(2)}})


def test_longer_than_trained_on():
    """Only a table with a row for each position has an end."""
    long = jnp.tile(TOKENS, (1, 3))
    for scheme in ("sinusoidal", "rotary", "alibi", "relative", "none"):
        module, _ = make("decoder", position={"scheme": scheme})
        assert jax.eval_shape(module.init, jax.random.key(0), long)
    module, _ = make("decoder", position={"scheme": "learned"})
    with pytest.raises(UserError, match="21 long, but max_length=12"):
        jax.eval_shape(module.init, jax.random.key(0), long)


def test_logits_of_half_precision_states_are_not_rounded():
    for tied in (True, False):
        module, _ = make("decoder", dtype="bfloat16", tied=tied, vocab=200)
        logits = call(module, init(module, TOKENS), TOKENS)
        assert np.any(logits != logits.astype(jnp.bfloat16).astype(jnp.float32))


@pytest.mark.parametrize("site", ["embedding", "output"])
def test_a_stack_drops_at_both_ends(site):
    module, _ = make("decoder", layers=1)
    params = init(module, TOKENS)
    at = lambda rate, key: Dropouts({site: jnp.float32(rate)}, jax.random.key(key))
    off = call(module, params, TOKENS)
    np.testing.assert_allclose(call(module, params, TOKENS, dropouts=at(0.0, 0)), off, atol=1e-5)
    assert np.any(np.abs(call(module, params, TOKENS, dropouts=at(0.5, 0)) - off) > 1e-3)


def test_position_parameters_are_shared_or_not():
    shapes = lambda share: jax.eval_shape(
        make("decoder", position={"scheme": "relative", "share": share})[0].init,
        jax.random.key(0),
        TOKENS,
    )["params"]["decoder"]
    assert shapes(True)["position_w_UH"].shape == (32, 4)
    assert shapes(False)["layers"]["attention"]["position_w_UH"].shape == (2, 32, 4)


def test_bfloat16_computes_in_bfloat16_with_float32_parameters():
    module, _ = make("decoder", dtype="bfloat16", position={"scheme": "learned"})
    params = init(module, TOKENS)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    logits, made = call(module, params, TOKENS, capture=("states",))
    assert (logits.dtype, made["states_NBTD"].dtype) == (jnp.float32, jnp.bfloat16)
    exact = call(make("decoder", position={"scheme": "learned"})[0], params, TOKENS)
    assert np.linalg.norm(logits - exact) < 0.03 * np.linalg.norm(exact)


def test_where_weights_begin():
    def std(tree, *path):
        for name in path:
            tree = tree[name]
        return float(np.std(tree))

    begin = {"kernel": "normal(stddev=0.02)", "embedding": "normal(stddev=0.5)",
             "scale_by_depth": True}  # fmt: skip
    wide = {"width": 64, "attention": {"heads": 4}, "feedforward": {"width": 256}, "layers": 8}
    module, _ = make("decoder", **wide, init=begin)
    params = jit(module.init)(jax.random.key(0), TOKENS)["params"]
    layers = params["decoder"]["layers"]
    assert std(params, "embed", "token", "embedding") == pytest.approx(0.5, rel=0.1)
    assert std(layers, "feedforward", "up", "kernel") == pytest.approx(0.02, rel=0.05)
    assert std(layers, "feedforward", "down", "kernel") == pytest.approx(0.02 / 4, rel=0.05)
    assert std(layers, "attention", "out", "kernel") == pytest.approx(0.02 / 4, rel=0.05)
    module, _ = make("decoder", **wide, init={"small_query": True})
    layers = jit(module.init)(jax.random.key(0), TOKENS)["params"]["decoder"]["layers"]
    assert std(layers, "attention", "query", "kernel") == pytest.approx(64**-0.5 / 4, rel=0.05)
    assert std(layers, "attention", "key", "kernel") == pytest.approx(64**-0.5, rel=0.05)
    each = np.asarray(layers["attention"]["key"]["kernel"])
    assert not np.any(each[0] == each[1])  # layers begin apart


def test_bad_calls_are_named():
    module, _ = make("encoder")
    params = init(module, TOKENS)
    with pytest.raises(UserError, match="tokens_BT must have 2 axes"):
        call(module, params, TOKENS[0])
    with pytest.raises(UserError, match="tokens_BT must be whole numbers"):
        call(module, params, TOKENS * 1.0)
    with pytest.raises(UserError, match="types in the model, which has types=0"):
        call(module, params, TOKENS, types_BT=TOKENS)
