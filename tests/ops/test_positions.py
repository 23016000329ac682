import numpy as np
import pytest
from jax import numpy as jnp

from tests.helpers import oracle
from tfm.config.names import UserError
from tfm.ops.positions import (
    JOINS,
    alibi_slopes,
    learned_table,
    relative,
    relative_bucket,
    rotary,
    sinusoidal_table,
)


def test_alibi_slopes():
    """§3 of the paper for 8 heads; for 6, what the authors' published function gives."""
    assert alibi_slopes(8) == [2.0**-n for n in range(1, 9)]
    assert alibi_slopes(6) == [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3]
    assert alibi_slopes(1) == [2.0**-8]


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "longest"), [(32, 128), (8, 20)])
def test_relative_buckets(bidirectional, buckets, longest):
    ahead = np.arange(-300, 301)
    ours = relative_bucket(jnp.asarray(ahead), buckets, longest, bidirectional)
    theirs = [oracle.t5_bucket(int(a), buckets, longest, bidirectional) for a in ahead]
    np.testing.assert_array_equal(ours, theirs)


def test_sinusoids_by_the_formula():
    positions = [0, 1, 2, 17, 300]
    ours = sinusoidal_table(jnp.asarray([positions]), 10)[0]
    np.testing.assert_allclose(ours, [oracle.sinusoid(p, 10) for p in positions], atol=3e-5)


def test_learned_table_is_a_lookup():
    w = jnp.arange(12.0).reshape(4, 3)
    np.testing.assert_array_equal(learned_table(jnp.array([[2, 0]]), 3, w_LD=w), w[None, [2, 0]])


def rotated(x, p, **options):
    return np.asarray(rotary(**options).rotate(jnp.asarray(x)[None, None, None], jnp.array([[p]])))[
        0, 0, 0
    ]


class TestRotary:
    x = np.random.default_rng(0).normal(size=12)

    def test_by_complex_numbers(self):
        np.testing.assert_allclose(rotated(self.x, 5), oracle.rotary(self.x, 5), atol=1e-6)
        np.testing.assert_allclose(
            rotated(self.x, 5, base=500.0), oracle.rotary(self.x, 5, base=500.0), atol=1e-6
        )

    def test_part_of_the_features_passes_through(self):
        half = rotated(self.x, 5, fraction=0.5)
        np.testing.assert_allclose(half[:6], oracle.rotary(self.x[:6], 5), atol=1e-6)
        np.testing.assert_array_equal(half[6:], self.x[6:].astype(np.float32))

    def test_linear_scaling_divides_positions(self):
        out = rotated(self.x, 8, scaling="linear", factor=4.0)
        np.testing.assert_allclose(out, oracle.rotary(self.x, 2), atol=1e-6)

    def test_ntk_scaling_stretches_the_slowest_wave_by_the_factor(self):
        """And leaves the fastest as it is: that is what the exponent n / (n − 2) is for."""
        factor, p = 4.0, 40
        out = rotated(self.x, p, scaling="ntk", factor=factor)
        plain, slow = oracle.rotary(self.x, p), oracle.rotary(self.x, p / factor)
        np.testing.assert_allclose(out[[0, 6]], plain[[0, 6]], atol=1e-5)
        np.testing.assert_allclose(out[[5, 11]], slow[[5, 11]], atol=1e-5)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"scaling": "yarn"}, "'ntk' or 'llama3'"),
            ({"factor": 2.0}, "does nothing"),
            ({"fraction": 0.0}, "0 < fraction"),
        ],
    )
    def test_impossible_options_are_refused(self, options, message):
        with pytest.raises(UserError, match=message):
            rotary(**options)

    def test_odd_widths_are_refused(self):
        with pytest.raises(UserError, match="head width 5"):
            rotated(self.x[:5], 1)


def test_other_impossible_options_are_refused():
    with pytest.raises(UserError, match="even width, not 5"):
        sinusoidal_table(jnp.array([[0]]), 5)
    with pytest.raises(UserError, match="buckets=2"):
        relative(buckets=2)


def test_joins():
    x, table = jnp.full((2, 3, 4), 2.0), jnp.full((1, 3, 4), 5.0)
    assert np.all(JOINS["add"](x, table) == 7)
    assert np.all(JOINS["multiply"](x, table) == 10)
    joined = JOINS["concatenate"](x, table[..., :2])
    np.testing.assert_array_equal(joined[1, 2], [2, 2, 2, 2, 5, 5])
