import jax
import numpy as np
import pytest
from jax import numpy as jnp

from tfm.config.names import UserError
from tfm.layers.dims import Dims
from tfm.layers.embed import PositionSpec, PositionTable, TokenEmbedding
from tfm.ops.positions import POSITIONS, sinusoidal_table

X = jax.random.normal(jax.random.key(0), (2, 5, 8))
WAVES = sinusoidal_table(jnp.arange(5)[None], 8)


def apply(position, *args, max_length=None, **options):
    module = PositionTable(PositionSpec(**options), POSITIONS[position](), max_length)
    return module.init_with_output(jax.random.key(1), X, *args)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, X + WAVES),
        ({"amplitude": 0.5}, X + 0.5 * WAVES),
        ({"amplitude": 0.5, "learn_amplitude": True}, X + 0.5 * WAVES),
        ({"join": "multiply"}, X * WAVES),
    ],
    ids=str,
)
def test_sinusoids_join(options, wanted):
    np.testing.assert_allclose(apply("sinusoidal", **options)[0], wanted, atol=1e-6)


def test_concatenation_widens():
    out, _ = apply("sinusoidal", join="concatenate", width=4)
    np.testing.assert_array_equal(out[..., :8], X)
    waves = sinusoidal_table(jnp.arange(5)[None], 4)
    np.testing.assert_allclose(out[..., 8:], jnp.broadcast_to(waves, (2, 5, 4)), atol=1e-6)


def test_a_learned_table_and_its_amplitude_are_parameters():
    out, tree = apply("learned", max_length=9, learn_amplitude=True, amplitude=2.0)
    params = tree["params"]
    assert params["table_w_LD"].shape == (9, 8)
    np.testing.assert_allclose(out, X + 2 * params["table_w_LD"][None, :5], atol=1e-6)


def test_positions_may_restart():
    pos = jnp.array([[0, 1, 0, 1, 2]])
    out, _ = apply("sinusoidal", pos)
    np.testing.assert_allclose(out, X + sinusoidal_table(pos, 8), atol=1e-6)


@pytest.mark.parametrize("position", ["none", "rotary", "alibi", "relative"])
def test_schemes_without_a_table_leave_embeddings_alone(position):
    out, tree = apply(position)
    np.testing.assert_array_equal(out, X)
    assert not jax.tree.leaves(tree)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 4}, "5 long, but max_length=4"),
        ({}, r"L \(maximum query length\) has no size"),
        ({"max_length": 9, "join": "ad"}, "unknown join 'ad'; did you mean 'add'"),
        ({"max_length": 9, "join": "concatenate"}, "width=None with join='concatenate'"),
        ({"max_length": 9, "width": 4}, "width=4 with join='add'"),
    ],
)
def test_bad_input_is_named(options, message):
    with pytest.raises(UserError, match=message):
        apply("learned", **options)


TOKENS = np.array([[3, 0, 5], [5, 5, 1]])


def coded(coding, vocab=6, width=8):
    embed = TokenEmbedding(vocab, Dims(width, coding=coding))
    variables = embed.init(jax.random.key(0), TOKENS)
    return embed, variables


def test_one_hot_vectors_are_orthogonal():
    embed, variables = coded("one_hot")
    assert not jax.tree.leaves(variables)
    x = embed.apply(variables, TOKENS)
    np.testing.assert_array_equal(x, np.eye(6, 8)[TOKENS])
    np.testing.assert_array_equal(embed.apply(variables, x, method="logits"), np.eye(6)[TOKENS])
    with pytest.raises(UserError, match="width=5 must be at least vocab=6"):
        coded("one_hot", width=5)


def test_random_vectors_are_constants():
    embed, variables = coded("random")
    assert set(variables) == {"constants"}
    table = variables["constants"]["token"]
    assert table.shape == (6, 8)
    assert 0.005 < np.std(table) < 0.04  # normal(stddev=0.02)
    np.testing.assert_array_equal(embed.apply(variables, TOKENS), table[TOKENS])
    x = np.ones((1, 1, 8), np.float32)
    logits = embed.apply(variables, x, method="logits")
    np.testing.assert_allclose(logits[0, 0], np.sum(table, 1), rtol=1e-5)


def test_a_scalar_is_a_point_on_a_line():
    embed, variables = coded("scalar")
    line = variables["params"]["line"]
    x = embed.apply(variables, TOKENS)
    np.testing.assert_allclose(x[0, 0], line[0] * 3 / 6 + line[1], rtol=1e-6)
    with pytest.raises(UserError, match="'scalar' has no table that could be the head"):
        embed.apply(variables, x, method="logits")
