import jax
import numpy as np
import pytest
from jax import numpy as jnp

from tests.helpers import by_hand
from tests.helpers.quick import jit
from tfm.config.names import UserError
from tfm.layers.block import DropoutSpec
from tfm.layers.dims import Dropouts, InitSpec
from tfm.layers.recurrent import CELLS
from tfm.models.recurrent import Recurrent
from tfm.models.spec import RecurrentSpec, model_spec

VOCAB, WIDTH, HIDDEN, VECTOR = 11, 6, 5, 4
LENGTHS = (3, 7, 1)
TOKENS = np.random.default_rng(1).integers(0, VOCAB, (3, 7))
VALID = np.arange(7)[None] < np.array(LENGTHS)[:, None]
VECTORS = np.random.default_rng(2).normal(size=(3, VECTOR)).astype(np.float32)


def model(**options):
    return Recurrent(RecurrentSpec(vocab=VOCAB, **{"width": WIDTH, "hidden": HIDDEN} | options))


def inputs(module):
    return {"tokens_BT": TOKENS} | ({"vector_BD": VECTORS} if module.spec.vector else {})


def by_definition(module, tree, row):
    """Logits of one sentence, and the states of its layers."""
    spec, p = module.spec, by_hand.float64(tree["params"])
    length, begin = LENGTHS[row], None
    if spec.vector:
        vectors = [VECTORS[row]] * spec.layers
        begin = by_hand.start(spec.cell, p["start"], vectors)
    x = p["embed"]["token"]["embedding"][TOKENS[row, :length]]
    layers, last = by_hand.stack(spec.cell, p["recurrent"], x, begin)
    read = layers[-1]
    if spec.shape == "N:1":
        read = np.concatenate([h for _, h in last[-1]])
    if spec.tied:
        return read @ p["embed"]["token"]["embedding"].T, layers
    return by_hand.affine(p["head"], read), layers


@pytest.mark.parametrize(
    "options",
    [
        *({"cell": cell} for cell in CELLS),
        *({"cell": cell, "layers": 2, "bidirectional": True} for cell in CELLS),
        {"shape": "N:1", "classes": 3, "bidirectional": True, "layers": 2},
        {"shape": "N:1", "cell": "gru"},
        {"shape": "1:N", "vector": VECTOR, "layers": 2},
        {"shape": "1:N", "vector": VECTOR, "cell": "gru"},
        {"classes": 3, "cell": "rnn"},
        {"tied": True, "width": 2 * HIDDEN, "bidirectional": True},
    ],
    ids=str,
)
def test_by_definition(options):
    module = model(**options)
    tree = by_hand.init(module, **inputs(module))
    run = jit(
        lambda tree: module.apply(tree, **inputs(module), valid_BT=VALID, capture=("states",))
    )
    logits, made = run(tree)
    classes = options.get("classes", VOCAB)
    assert logits.shape == ((3, classes) if module.spec.shape == "N:1" else (3, 7, classes))
    for row, length in enumerate(LENGTHS):
        wanted, layers = by_definition(module, tree, row)
        own = logits[row] if module.spec.shape == "N:1" else logits[row, :length]
        np.testing.assert_allclose(own, wanted, atol=1e-5)
        for n, states in enumerate(layers):
            np.testing.assert_allclose(made["states_NBTH"][n, row, :length], states, atol=1e-5)


@pytest.mark.parametrize("shape", ["N:N", "N:1"])
def test_what_stands_in_the_padding_changes_no_gradient(shape):
    module = model(shape=shape, cell="rnn", bidirectional=True)
    tree = by_hand.init(module, TOKENS)

    @jit
    @jax.grad
    def grad(tree, tokens):
        logits = module.apply(tree, tokens, valid_BT=VALID)
        kept = logits if shape == "N:1" else jnp.where(VALID[..., None], logits, 0)
        return jnp.sum(jnp.sin(kept))

    other = np.where(VALID, TOKENS, (TOKENS + 1) % VOCAB)
    jax.tree.map(np.testing.assert_array_equal, grad(tree, TOKENS), grad(tree, other))


def test_without_padding_no_mask_is_needed():
    module = model(bidirectional=True, cell="rnn")
    tree = by_hand.init(module, TOKENS)
    all_valid = jit(module.apply)(tree, TOKENS, valid_BT=np.ones_like(VALID))
    np.testing.assert_allclose(jit(module.apply)(tree, TOKENS), all_valid, atol=1e-6)


def test_a_row_of_padding_ends_where_it_began():
    module = model(shape="N:1", bidirectional=True, cell="rnn")
    tree = by_hand.init(module, TOKENS)
    nothing = jit(module.apply)(tree, TOKENS, valid_BT=np.zeros_like(VALID))
    np.testing.assert_allclose(nothing, np.tile(tree["params"]["head"]["bias"], (3, 1)), atol=1e-6)


def test_one_direction_knows_nothing_of_what_comes():
    module = model(layers=2)
    tree = by_hand.init(module, TOKENS)
    changed = np.array(TOKENS)
    changed[:, 4] = (changed[:, 4] + 1) % VOCAB
    apply = jit(module.apply)
    same = apply(tree, TOKENS) == apply(tree, changed)
    assert np.all(same[:, :4])
    assert not np.any(np.all(same[:, 4:], -1))


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_states_can_be_rebuilt_from_gates(cell):
    module = model(cell=cell, layers=2, bidirectional=True)
    tree = by_hand.init(module, TOKENS)
    run = jit(module.apply, static_argnames="capture")
    _, made = run(tree, TOKENS, valid_BT=VALID, capture=("states", "gates"))
    made = {name: np.asarray(value) for name, value in made.items()}
    gates = {name[5]: value for name, value in made.items() if name.startswith("gate_")}
    assert set(gates) == set("ifgo" if cell == "lstm" else "rzn")
    for row, length in enumerate(LENGTHS):
        for half, order in ((slice(0, HIDDEN), 1), (slice(HIDDEN, None), -1)):
            c = h = np.zeros((2, HIDDEN))
            for t in range(length)[::order]:
                now = {gate: value[:, row, t, half] for gate, value in gates.items()}
                if cell == "lstm":
                    c = now["f"] * c + now["i"] * now["g"]
                    h = now["o"] * np.tanh(c)
                    np.testing.assert_allclose(made["cells_NBTH"][:, row, t, half], c, atol=1e-6)
                else:
                    h = (1 - now["z"]) * now["n"] + now["z"] * h
                np.testing.assert_allclose(made["states_NBTH"][:, row, t, half], h, atol=1e-6)


def test_nothing_is_returned_that_is_not_captured():
    module = model()
    tree = by_hand.init(module, TOKENS)
    made = lambda *names: jax.eval_shape(lambda: module.apply(tree, TOKENS, capture=names))
    assert made().shape == (3, 7, VOCAB)
    assert set(made("states")[1]) == {"states_NBTH"}
    gates = {"gate_i_NBTH", "gate_f_NBTH", "gate_g_NBTH", "gate_o_NBTH", "cells_NBTH"}
    assert set(made("gates")[1]) == gates


@pytest.mark.parametrize(
    "options",
    [
        {"cell": "lstm", "bidirectional": True},
        {"cell": "gru", "shape": "1:N", "vector": VECTOR, "layers": 2},
    ],
    ids=str,
)
def test_gradients_reach_every_parameter(options):
    module = model(**options)
    tree = by_hand.init(module, **inputs(module))
    loss = lambda tree: jnp.sum(module.apply(tree, **inputs(module), valid_BT=VALID) ** 2)
    assert by_hand.untouched(jit(jax.grad(loss))(tree)) == set()


def test_each_site_drops():
    module = model(layers=2, cell="rnn")
    tree = by_hand.init(module, TOKENS)
    sites = ("embedding", "residual", "head")

    @jit
    def apply(rates, key):
        return module.apply(tree, TOKENS, dropouts=Dropouts(rates, key))

    def run(seed, **rates):
        return apply({site: rates.get(site, 0.0) for site in sites}, jax.random.key(seed))

    plain = jit(module.apply)(tree, TOKENS)
    np.testing.assert_allclose(run(0), plain, atol=1e-6)
    for site in sites:
        np.testing.assert_array_equal(run(0, **{site: 0.5}), run(0, **{site: 0.5}))
        assert np.any(np.abs(run(0, **{site: 0.5}) - plain) > 0.01)
        assert np.any(run(0, **{site: 0.5}) != run(1, **{site: 0.5}))


@pytest.mark.parametrize("cell", CELLS)
def test_bfloat16_computes_in_bfloat16_with_float32_parameters(cell):
    module = model(cell=cell, dtype="bfloat16", shape="1:N", vector=VECTOR)
    tree = by_hand.init(module, **inputs(module))
    assert {leaf.dtype for leaf in jax.tree.leaves(tree)} == {jnp.dtype(jnp.float32)}
    run = lambda module: jit(lambda: module.apply(tree, **inputs(module), capture=("states",)))()
    logits, made = run(module)
    assert (logits.dtype, made["states_NBTH"].dtype) == (jnp.float32, jnp.bfloat16)
    exact = run(model(cell=cell, shape="1:N", vector=VECTOR))[0]
    np.testing.assert_allclose(logits, exact, atol=0.05)


def test_through_the_door():
    for options in ({"shape": "1:N", "vector": 3}, {"shape": "N:1", "bidirectional": True}):
        part = {"family": "recurrent", "vocab": VOCAB, "width": 4, "hidden": 4, **options}
        spec = model_spec({"model": part})
        assert isinstance(spec.build(), Recurrent)
        assert ("vector_BD" in spec.example(2, 5)) == (spec.shape == "1:N")
    with pytest.raises(UserError, match="model.vector is missing, and there is no data set"):
        model(shape="1:N").spec.build()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cell": "lstmm"}, "unknown cell 'lstmm'; did you mean 'lstm'"),
        ({"shape": "N:M"}, "unknown shape 'N:M'; did you mean"),
        ({"tied": True}, "width=6 equals the states' width, 5"),
        ({"tied": True, "hidden": 6, "bidirectional": True}, "the states' width, 12"),
        ({"tied": True, "hidden": 6, "classes": 3}, r"classes is None \(not 3\)"),
        ({"vector": 3, "shape": "N:N"}, "vector=3: shape='N:N' has no vector"),
        (
            {"shape": "1:N", "vector": 3, "bidirectional": True},
            "bidirectional: .1:N. cannot read backward",
        ),
        ({"dropout": DropoutSpec(attention=0.1)}, "dropout.attention=0.1: nothing is dropped"),
        (
            {"init": InitSpec(scale_by_depth=True)},
            "init.scale_by_depth: this model has no residual",
        ),
        ({"init": InitSpec(small_query=True)}, "init.small_query: this model has no attention"),
        ({"dtype": "float8"}, "unknown dtype 'float8'"),
    ],
)
def test_a_bad_spec_is_named(options, message):
    with pytest.raises(UserError, match=message):
        model(**options)


@pytest.mark.parametrize(
    ("options", "given", "message"),
    [
        ({}, {"vector_BD": VECTORS}, "other models take none"),
        ({"shape": "1:N", "vector": VECTOR}, {}, "other models take none"),
        ({"shape": "1:N", "vector": VECTOR}, {"vector_BD": VECTORS[:, :3]}, "vector_BD has shape"),
        ({}, {"valid_BT": VALID[:, :4]}, "valid_BT has shape"),
        ({}, {"valid_BT": VALID.astype(int)}, "valid_BT must be boolean"),
        ({}, {"capture": ("gate",)}, "did you mean 'gates'"),
        ({"cell": "rnn"}, {"capture": ("gates",)}, "no intermediate 'gates' here"),
    ],
)
def test_bad_input_is_named(options, given, message):
    with pytest.raises(UserError, match=message):
        model(**options).init(jax.random.key(0), TOKENS, **given)
