"""The bag of words and the convolutional network."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from tests.helpers.by_hand import affine, float64, init, untouched
from tests.helpers.quick import jit
from tfm.config.names import UserError
from tfm.layers.block import DropoutSpec
from tfm.layers.dims import Dropouts
from tfm.models.baselines import Bag, Convolution
from tfm.models.spec import BagSpec, ConvolutionSpec, model_spec

VOCAB, WIDTH, CLASSES = 10, 4, 3
LENGTHS = (3, 7, 1, 6)
TOKENS = np.random.default_rng(1).integers(0, VOCAB, (4, 7))
VALID = np.arange(7)[None] < np.array(LENGTHS)[:, None]


def a_bag(**options):
    return Bag(BagSpec(vocab=VOCAB, width=WIDTH, classes=CLASSES, **options))


def a_cnn(channels=(5, 6), **options):
    return Convolution(
        ConvolutionSpec(vocab=VOCAB, width=WIDTH, classes=CLASSES, channels=channels, **options)
    )


def start(module):
    """Random parameters, and variances above 0."""
    tree = init(module, TOKENS)
    if "batch_stats" in tree:
        stats = {
            block: {"norm": {"mean": s["norm"]["mean"], "var": 0.5 + np.square(s["norm"]["var"])}}
            for block, s in tree["batch_stats"].items()
        }
        tree = {**tree, "batch_stats": stats}
    return tree


@pytest.mark.parametrize("hidden", [(), (5, 6)])
def test_bag_by_definition(hidden):
    module = a_bag(hidden=hidden, activation="tanh")
    tree = start(module)
    p = float64(tree["params"])
    logits = module.apply(tree, TOKENS, valid_BT=VALID)
    for row, length in enumerate(LENGTHS):
        x = p["embed"]["token"]["embedding"][TOKENS[row, :length]].mean(0)
        for n in range(len(hidden)):
            x = np.tanh(affine(p[f"hidden_{n}"], x))
        np.testing.assert_allclose(logits[row], affine(p["head"], x), atol=1e-5)
    whole = module.apply(tree, TOKENS[1:2])
    np.testing.assert_allclose(whole, logits[1:2], atol=1e-6)


def test_bag_of_two_sentences_by_definition():
    """Both means, their difference and their product. The third row has no second sentence."""
    module = a_bag()
    types = np.arange(7)[None] >= np.array([[2], [3], [1], [4]])
    tree = module.init(jax.random.key(0), TOKENS, types_BT=types)
    p = float64(tree["params"])
    logits = module.apply(tree, TOKENS, valid_BT=VALID, types_BT=types)
    for row, length in enumerate(LENGTHS):
        x = p["embed"]["token"]["embedding"][TOKENS[row, :length]]
        second = types[row, :length]
        u, v = (own.sum(0) / max(len(own), 1) for own in (x[~second], x[second]))
        found = np.concatenate([u, v, np.abs(u - v), u * v])
        np.testing.assert_allclose(logits[row], affine(p["head"], found), atol=1e-5)


def test_bag_is_blind_to_order():
    module = a_bag(hidden=(5,))
    tree = start(module)
    turned = module.apply(tree, TOKENS[:, ::-1])
    np.testing.assert_allclose(module.apply(tree, TOKENS), turned, atol=1e-6)


def cnn_by_definition(module, tree, train):
    """Row by row, in float64; the statistics are those of all real steps of all rows."""
    spec, p, stats = module.spec, float64(tree["params"]), float64(tree.get("batch_stats", {}))
    rows = [p["embed"]["token"]["embedding"][TOKENS[r, :n]] for r, n in enumerate(LENGTHS)]
    noted = {}
    for n, channels in enumerate(spec.channels):
        own, w = p[f"block_{n}"], spec.window
        kernel, left = own["convolution"]["kernel"], (w - 1) // 2
        for r, x in enumerate(rows):
            wide = np.pad(x, ((left, w - 1 - left), (0, 0)))
            rows[r] = np.array(
                [np.einsum("wd,wdc->c", wide[t : t + w], kernel) for t in range(len(x))]
            ) + own["convolution"].get("bias", np.zeros(channels))
        if spec.batch_norm:
            every = np.concatenate(rows)
            mean, var = stats[f"block_{n}"]["norm"]["mean"], stats[f"block_{n}"]["norm"]["var"]
            if train:
                noted[f"block_{n}"] = (
                    0.9 * mean + 0.1 * every.mean(0),
                    0.9 * var + 0.1 * every.var(0),
                )
                mean, var = every.mean(0), every.var(0)
            scale, bias = own["norm"]["scale"], own["norm"]["bias"]
            rows = [(x - mean) / np.sqrt(var + 1e-5) * scale + bias for x in rows]
        rows = [np.tanh(x) if spec.activation == "tanh" else np.maximum(x, 0) for x in rows]
        pools = range(0, 7, spec.pool)
        rows = [np.array([x[t : t + spec.pool].max(0) for t in pools if t < len(x)]) for x in rows]
    return np.array([affine(p["head"], x.max(0)) for x in rows]), noted


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"window": 4, "pool": 3},
        {"batch_norm": False, "activation": "tanh"},
        {"pool": 1, "channels": (5,)},
    ],
    ids=str,
)
def test_convolution_by_definition(options):
    module = a_cnn(**options)
    tree = start(module)
    wanted, _ = cnn_by_definition(module, tree, False)
    logits = jit(module.apply)(tree, TOKENS, valid_BT=VALID)
    np.testing.assert_allclose(logits, wanted, atol=2e-5)
    wanted, noted = cnn_by_definition(module, tree, True)
    train = jit(
        lambda: module.apply(tree, TOKENS, valid_BT=VALID, train=True, mutable=["batch_stats"])
    )
    logits, changed = train()
    np.testing.assert_allclose(logits, wanted, atol=2e-5)
    assert ("batch_stats" in tree) == module.spec.batch_norm
    for block, (mean, var) in noted.items():
        np.testing.assert_allclose(changed["batch_stats"][block]["norm"]["mean"], mean, atol=1e-5)
        np.testing.assert_allclose(changed["batch_stats"][block]["norm"]["var"], var, atol=1e-5)


@pytest.mark.parametrize("module", [a_bag(hidden=(5,)), a_cnn()], ids=["bag", "convolution"])
def test_padding_changes_nothing(module):
    tree = start(module)
    options = {"train": True, "mutable": ["batch_stats"]} if "batch_stats" in tree else {}

    def loss(params, tokens, valid):
        out = module.apply({**tree, "params": params}, tokens, valid_BT=valid, **options)
        return jnp.sum(jnp.sin(jax.tree.leaves(out)[0])), out

    run = jit(jax.grad(loss, has_aux=True))
    other = np.pad(np.where(VALID, TOKENS, 9), ((0, 0), (0, 2)), constant_values=8)
    same = lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5)
    one = run(tree["params"], TOKENS, VALID)
    jax.tree.map(same, one, run(tree["params"], other, np.pad(VALID, ((0, 0), (0, 2)))))
    assert untouched(one[0]) == set()


@pytest.mark.parametrize("module", [a_bag(), a_cnn()], ids=["bag", "convolution"])
def test_a_row_of_padding_says_what_the_head_says_of_nothing(module):
    tree = start(module)
    run = jit(lambda: module.apply(tree, TOKENS, valid_BT=VALID & (np.arange(4) > 0)[:, None]))
    np.testing.assert_allclose(run()[0], tree["params"]["head"]["bias"], atol=1e-6)


@pytest.mark.parametrize("module", [a_bag(hidden=(5,)), a_cnn()], ids=["bag", "convolution"])
def test_each_site_drops(module):
    tree = start(module)
    sites = ("embedding", "feedforward", "head")
    apply = jit(lambda rates, key: module.apply(tree, TOKENS, dropouts=Dropouts(rates, key)))

    def run(**rates):
        return apply({site: rates.get(site, 0.0) for site in sites}, jax.random.key(0))

    np.testing.assert_allclose(run(), jit(module.apply)(tree, TOKENS), atol=1e-6)
    for site in sites:
        assert np.any(np.abs(run(**{site: 0.5}) - run()) > 0.01)


def test_bfloat16_computes_in_bfloat16_with_float32_parameters():
    for make in (a_bag, a_cnn):
        tree = start(make())
        assert {leaf.dtype for leaf in jax.tree.leaves(tree)} == {jnp.dtype(jnp.float32)}
        logits = jit(make(dtype="bfloat16").apply)(tree, TOKENS, valid_BT=VALID)
        exact = jit(make().apply)(tree, TOKENS, valid_BT=VALID)
        assert logits.dtype == jnp.float32
        assert 0 < np.max(np.abs(logits - exact)) < 0.1


def test_through_the_door():
    common = {"vocab": VOCAB, "width": 4, "classes": 2}
    for part in ({"family": "bag"}, {"family": "convolution", "channels": (3,)}):
        spec = model_spec({"model": {**common, **part}})
        module = spec.build()
        assert set(spec.example(2, 5)) == {"tokens_BT"}
        assert type(module).__name__.lower() == part["family"]


def test_bad_input_is_named():
    with pytest.raises(UserError, match="unknown activation 'rel'; did you mean 'relu'"):
        a_bag(activation="rel")
    with pytest.raises(UserError, match="unknown activation 'geluu'; did you mean 'gelu'"):
        a_cnn(activation="geluu")
    with pytest.raises(UserError, match="dropout.residual=0.1: nothing is dropped there"):
        a_cnn(dropout=DropoutSpec(residual=0.1))
    with pytest.raises(UserError, match="valid_BT must be boolean"):
        a_cnn().init(jax.random.key(0), TOKENS, valid_BT=VALID.astype(int))
    with pytest.raises(UserError, match="valid_BT has shape"):
        a_bag().init(jax.random.key(0), TOKENS, valid_BT=VALID[:2])
