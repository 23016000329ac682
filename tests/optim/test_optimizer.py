"""Optimisers beside optax's own recipes; schedules beside their formulas."""

import dataclasses
import math

import jax
import numpy as np
import optax
import pytest
from jax import numpy as jnp

from tfm.config.names import UserError, read
from tfm.config.spec import differences, to_spec
from tfm.layers.attention import AttentionSpec
from tfm.layers.block import FeedForwardSpec
from tfm.layers.stack import scanned, unrolled
from tfm.models.spec import DecoderSpec
from tfm.optim import optimizer
from tfm.optim.optimizer import OPTIMIZERS, SCHEDULES, OptimizerSpec

MODEL = DecoderSpec(
    vocab=11,
    width=8,
    layers=3,
    max_length=8,
    tied=False,
    attention=AttentionSpec(heads=2, qkv_bias=True),
    feedforward=FeedForwardSpec(width=12),
)
STEPS = 5


def random(like, seed):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), like)


@pytest.fixture(scope="module")
def params():
    module, inputs = MODEL.build(), MODEL.example(1, 4)
    shapes = jax.eval_shape(lambda **x: module.init(jax.random.key(0), **x), **inputs)["params"]
    return random(shapes, 0)


def run(spec, params, steps=STEPS):
    numbers = {name: jnp.float32(x) for name, x in optimizer.numbers(spec).items()}

    @jax.jit
    def update(grads, *args):
        return optimizer.update(spec, numbers, grads, optax.tree.norm(grads), *args, steps)

    state = optimizer.init(spec, params)
    for step in range(steps):
        params, state = update(random(scanned(params), step + 1) if "layers" in params["decoder"]
                               else unrolled(random(scanned(params), step + 1)),
                               state, params, jnp.int32(step))  # fmt: skip
    return params


def theirs(tx, params):
    state = tx.init(params)
    for step in range(STEPS):
        updates, state = tx.update(random(params, step + 1), state, params)
        params = optax.apply_updates(params, updates)
    return params


def is_matrix(params):
    return jax.tree_util.tree_map_with_path(
        lambda path, _: path[-1].key in ("kernel", "embedding"), params
    )


@pytest.mark.parametrize(
    ("spec", "recipe"),
    [
        (
            OptimizerSpec(name="adamw", weight_decay=0.1, learning_rate=0.01),
            lambda p: optax.chain(
                optax.clip_by_global_norm(1.0),
                optax.adamw(0.01, weight_decay=0.1, mask=is_matrix(p)),
            ),
        ),
        (
            OptimizerSpec(name="sgd", momentum=0.9, clip=None, schedule="linear(final=0.5)"),
            lambda p: optax.sgd(optax.linear_schedule(1e-3, 5e-4, STEPS), momentum=0.9),
        ),
        (
            OptimizerSpec(name="adam", weight_decay=0.1, clip=None),
            lambda p: optax.chain(
                optax.masked(optax.add_decayed_weights(0.1), is_matrix(p)), optax.adam(1e-3)
            ),
        ),
        (
            OptimizerSpec(name="adam()", weight_decay=0.1, clip=None),  # the same
            lambda p: optax.chain(
                optax.masked(optax.add_decayed_weights(0.1), is_matrix(p)), optax.adam(1e-3)
            ),
        ),
        (
            OptimizerSpec(name="lion", b2=0.99, weight_decay=0.1, clip=None),
            lambda p: optax.lion(1e-3, b2=0.99, weight_decay=0.1, mask=is_matrix(p)),
        ),
        (
            OptimizerSpec(name="adafactor", clip=None),
            lambda p: optax.adafactor(1e-3),
        ),
    ],
)
def test_as_optax_does(spec, recipe, params):
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, run(spec, params), theirs(recipe(params), params))


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "adafactor"])
def test_scanned_and_unrolled_layers_move_alike(name, params):
    """But for Adafactor, which clips and scales by the size of a whole tensor."""
    spec = OptimizerSpec(name=name, weight_decay=0.1, schedule="cosine(warmup=2)")
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    jax.tree.map(close, run(spec, params), scanned(run(spec, unrolled(params))))


def test_muon_turns_matrices_orthogonal(params):
    """All singular values of a first move are about alike, for each layer on its own."""
    spec = OptimizerSpec(name="muon", learning_rate=1.0, clip=None)
    moved = jax.tree.map(jnp.subtract, run(spec, params, 1), params)["decoder"]["layers"]
    for layer in range(3):
        up = np.asarray(moved["feedforward"]["up"]["kernel"])[layer]
        out = np.asarray(moved["attention"]["out"]["kernel"])[layer].reshape(8, 8)
        for matrix in (up, out):
            values = np.linalg.svd(matrix, compute_uv=False) / (0.2 * math.sqrt(max(matrix.shape)))
            assert 0.5 < values.min() <= values.max() < 1.3


def test_names_decide_what_decays(params):
    spec = OptimizerSpec(name="sgd", weight_decay=1.0, learning_rate=0.5, clip=None)
    numbers = {name: jnp.float32(x) for name, x in optimizer.numbers(spec).items()}
    zeros = jax.tree.map(jnp.zeros_like, params)
    state = optimizer.init(spec, params)
    moved, _ = optimizer.update(
        spec, numbers, zeros, jnp.float32(0), state, params, jnp.int32(0), 1
    )

    def check(path, old, new):
        halved = path[-1].key in ("kernel", "embedding")
        np.testing.assert_allclose(new, old / 2 if halved else old, rtol=1e-6)

    jax.tree_util.tree_map_with_path(check, params, moved)


def test_the_vectors_of_a_table_are_clipped_one_by_one(params):
    """One step of SGD: each row of the embedding by hand, all else moves by its gradient."""
    spec = OptimizerSpec(name="sgd", learning_rate=0.5, clip=None, clip_rows=2.5)
    moved = run(spec, params, 1)

    def check(path, old, new, grad):
        wanted = np.array(grad)
        if path[-1].key == "embedding":
            norms = [math.sqrt(sum(x * x for x in row)) for row in wanted.tolist()]
            assert min(norms) < 2.5 < max(norms)
            wanted = np.stack([g * min(1, 2.5 / n) for g, n in zip(wanted, norms, strict=True)])
        np.testing.assert_allclose(new, old - 0.5 * wanted, rtol=1e-5, atol=1e-6)

    jax.tree_util.tree_map_with_path(check, params, moved, random(params, 1))
    optimizer.check_params(spec, params)
    with pytest.raises(UserError, match="clip_rows=2.5: this model trains no embedding"):
        optimizer.check_params(dataclasses.replace(spec, frozen="embed/.*"), params)


@pytest.mark.parametrize(
    ("text", "formula"),
    [
        ("constant(warmup=4)", lambda t: min((t + 1) / 4, 1)),
        ("linear(final=0.2)", lambda t: 1 - 0.8 * t / 20),
        ("cosine(final=0.1)", lambda t: 0.1 + 0.45 * (1 + math.cos(math.pi * t / 20))),
        ("noam(warmup=5)", lambda t: math.sqrt(5) * min((t + 1) ** -0.5, (t + 1) * 5**-1.5)),
        ("wsd(decay=0.5)", lambda t: 1 if t <= 10 else (20 - t) / 10),
        ("cosine(warmup=10, final=0)",
         lambda t: (t + 1) / 10 if t < 10 else (1 + math.cos(math.pi * (t - 10) / 10)) / 2),
    ],
)  # fmt: skip
def test_schedules(text, formula):
    share = read(text, SCHEDULES, "schedule")
    for step in range(20):
        assert float(share(jnp.int32(step), 20)) == pytest.approx(formula(step), abs=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "adamm"}, "unknown optimizer.name 'adamm'; did you mean 'adam"),
        ({"schedule": "cosin"}, "unknown optimizer.schedule 'cosin'; did you mean 'cosine'"),
        ({"schedule": "wsd(decay=2)"}, "decay=2 must be in"),
        ({"learning_rate": 0.0}, "optimizer.learning_rate=0.0 must be above 0"),
        ({"learning_rate": 1e-60}, "optimizer.learning_rate=1e-60 is 0 in float32: the least is"),
        ({"eps": 1e-50}, "optimizer.eps=1e-50 is 0 in float32"),
        ({"b2": 1.0}, r"optimizer.b2=1.0 must be in \[0, 1\)"),
        ({"momentum": 0.9}, "only 'sgd' has momentum, not 'adamw'"),
        ({"weight_decay": -1.0}, "at least 0"),
        ({"decay_mask": "("}, "is no regular expression"),
    ],
)
def test_what_cannot_be_is_named(changes, message):
    with pytest.raises(UserError, match=message):
        to_spec(OptimizerSpec, changes, "optimizer.")


def test_frozen_parameters_have_no_state_and_factors_scale(params):
    """One step of SGD by hand; the state of Adam has the moving parameters and no others."""
    pattern = r"embed/.*|decoder/layers/attention/.*"
    spec = OptimizerSpec(
        name="sgd", learning_rate=0.1, clip=None, frozen=pattern,
        factor_paths=("head/.*", ".*/bias"), factors=(0.5, 0.0),
    )  # fmt: skip
    moving, frozen = optimizer.split(spec, params)
    assert set(frozen) == {"embed", "decoder"}
    whole = optimizer.merge(moving, frozen)
    assert jax.tree.structure(whole) == jax.tree.structure(params)
    grads = random(moving, 1)
    numbers = {k: jnp.asarray(x, jnp.float32) for k, x in optimizer.numbers(spec).items()}
    moved, _ = optimizer.update(
        spec, numbers, grads, jnp.float32(1), optimizer.init(spec, params), moving, jnp.int32(0), 5
    )
    for path, was in jax.tree_util.tree_leaves_with_path(moving):
        names = [part.key for part in path]
        rate = 0.05 if names[0] == "head" else 0.0 if names[-1] == "bias" else 0.1
        now, grad = _at(moved, names), _at(grads, names)
        np.testing.assert_allclose(now, was - rate * grad, rtol=1e-6, atol=1e-7)
    adam = optimizer.init(dataclasses.replace(spec, name="adam"), params)
    assert jax.tree.structure(adam.mu) == jax.tree.structure(moving)


def _at(tree, names):
    for name in names:
        tree = tree[name]
    return tree


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"frozen": "nothing"}, "optimizer.frozen='nothing' is the path of no parameter"),
        ({"frozen": ".*"}, "is the path of every parameter"),
    ],
)
def test_frozen_paths_that_cannot_be(params, changes, message):
    with pytest.raises(UserError, match=message):
        optimizer.init(OptimizerSpec(**changes), params)


def test_factors_that_cannot_be(params):
    with pytest.raises(UserError, match="factors has 1 numbers, but factor_paths=.* has 0"):
        OptimizerSpec(factors=(0.5,))
    with pytest.raises(UserError, match="factor_paths='\\(' is no regular expression"):
        OptimizerSpec(factor_paths=("(",), factors=(1.0,))
    spec = OptimizerSpec(factor_paths=("embed/.*", "x"), factors=(1.0, 1.0))
    with pytest.raises(UserError, match="'x' is the path of no trained parameter"):
        optimizer.check_params(spec, params)


def test_an_optimizer_has_options(monkeypatch, params):
    def mine(spec: OptimizerSpec, power: float = 2.0, centered: bool = False):
        return optax.scale_by_rms(spec.b2, initial_scale=power)

    monkeypatch.setitem(OPTIMIZERS, "mine", mine)
    for text, power in (("mine(power=3.0)", 3.0), ("mine", 2.0)):
        spec = OptimizerSpec(name=text, clip=None, learning_rate=0.1)
        recipe = optax.chain(optax.scale_by_rms(0.999, initial_scale=power), optax.scale(-0.1))
        close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        jax.tree.map(close, run(spec, params), theirs(recipe, params))
    same = OptimizerSpec(name="mine(centered=False, power=3.0)")
    assert differences(same) == {"name": "mine(power=3.0)"}
    with pytest.raises(UserError, match="name 'mine' has no option 'powr'; did you mean 'power'"):
        OptimizerSpec(name="mine(powr=3.0)")
    with pytest.raises(UserError, match="name 'adamw' has no option 'b3'; it takes none"):
        OptimizerSpec(name="adamw(b3=0.5)")


def test_muon_turns_a_kernel_outside_of_layers():
    spec = OptimizerSpec(name="muon", clip=None)
    params = random({"kernel": np.zeros((6, 4))}, 0)
    one, norm = {"learning_rate": jnp.float32(1)}, optax.tree.norm(params)
    state = optimizer.init(spec, params)
    new, _ = optimizer.update(spec, one, params, norm, state, params, jnp.int32(0), STEPS)
    move = np.asarray(params["kernel"] - new["kernel"]) / (0.2 * math.sqrt(6))
    values = np.linalg.svd(move, compute_uv=False)
    assert 0.5 < values.min() <= values.max() < 1.3
