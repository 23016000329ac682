"""Tokens are drawn as often as their probabilities say, with each filter."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from scipy.stats import chisquare

from tests.helpers.quick import jit
from tests.helpers.tiers import first_tier
from tfm.config.spec import SpecError, to_spec
from tfm.decode.sample import Filters, choose, nucleus, penalised, probabilities
from tfm.decode.spec import DecodeSpec

LOGITS = np.random.default_rng(0).normal(0, 2, 12).astype(np.float32)
FILTERS = {
    "none": {},
    "temperature": dict(temperature=0.5),
    "hot": dict(temperature=2.0),
    "top_k": dict(top_k=4),
    "top_p": dict(top_p=0.8),
    "min_p": dict(min_p=0.05),
    "all": dict(temperature=1.5, top_k=8, top_p=0.9, min_p=0.03),
}


def by_sorting(logits, temperature=1.0, top_k=None, top_p=None, min_p=None):
    """The definitions, in float64."""
    x = logits.astype(np.float64) / temperature
    order = np.argsort(-x)
    keep = np.ones(len(x), bool)
    if top_k is not None:
        keep[order[top_k:]] = False
    p = np.where(keep, np.exp(x - x.max()), 0)
    p /= p.sum()
    if top_p is not None:
        before = np.cumsum(p[order]) - p[order]
        keep[order[before >= top_p]] = False
    if min_p is not None:
        keep &= p >= min_p * p.max()
    p = np.where(keep, p, 0)
    return p / p.sum()


def spec_of(options):
    return DecodeSpec(**{"temperature": 1.0, **options})


@pytest.mark.parametrize("name", first_tier(FILTERS, FILTERS.keys() - {"top_k"}))
def test_frequencies_are_the_probabilities(name):
    spec, draws = spec_of(FILTERS[name]), 20_000
    filters = Filters.of(spec)
    logits_BV = jnp.tile(jnp.asarray(LOGITS)[None], (draws, 1))
    key_B = jax.random.split(jax.random.key(1), draws)
    drawn = jit(lambda key_B: choose(key_B, logits_BV, filters))(key_B)
    counts = np.bincount(np.asarray(drawn), minlength=len(LOGITS))
    wanted = by_sorting(LOGITS, **FILTERS[name])
    there = wanted > 0
    assert chisquare(counts[there], wanted[there] * draws).pvalue > 1e-3
    assert counts[~there].sum() == 0
    p_BV = probabilities(logits_BV[:1], filters)
    np.testing.assert_allclose(p_BV[0], wanted, atol=1e-6)


@pytest.mark.parametrize("count", [1, 3, 11, 12])
def test_a_bucket_of_candidates_draws_as_exactly_so_many_do(count):
    """The draws of `count` sorted logits, or of all in their order."""
    logits_BV = jnp.tile(jnp.asarray(LOGITS)[None], (200, 1))
    key_B = jax.random.split(jax.random.key(2), 200)
    filters = Filters.of(spec_of({"top_k": count}), len(LOGITS))
    order = np.argsort(-LOGITS)[:count] if count < len(LOGITS) else np.arange(count)
    draw = jax.vmap(lambda key: jax.random.categorical(key, jnp.asarray(LOGITS[order])))
    found = choose(key_B, logits_BV, filters)
    np.testing.assert_array_equal(found, order[np.asarray(draw(key_B))])


def test_temperature_by_hand():
    """exp(3), exp(1), exp(−3), normalised, at three temperatures."""
    logits = jnp.array([[3.0, 1.0, -3.0]])
    for temperature, wanted in {
        1.0: (0.8789, 0.1189, 0.0022),
        0.5: (0.9820, 0.0180, 0.0000),
        2.0: (0.7054, 0.2595, 0.0351),
    }.items():
        found = probabilities(logits, Filters(jnp.float32(temperature)))
        np.testing.assert_allclose(found[0], wanted, atol=5e-5)


def test_the_nucleus_is_the_smallest_set():
    rng = np.random.default_rng(1)
    p_BV = rng.dirichlet(np.full(300, 0.1), 5).astype(np.float32)
    for top_p in (0.01, 0.3, 0.9, 0.999):
        least_B1 = np.asarray(nucleus(jnp.asarray(p_BV), jnp.float32(top_p)))
        for p_V, least in zip(p_BV.astype(np.float64), least_B1[:, 0], strict=True):
            kept = np.sort(p_V[p_V >= least])
            assert kept.sum() >= top_p - 1e-5
            assert kept[1:].sum() < top_p + 1e-5
    # Tokens that are as likely as the last one stay.
    found = nucleus(jnp.full((1, 4), 0.25), jnp.float32(0.3))
    assert found[0, 0] == 0.25


def test_a_nucleus_of_1_keeps_all():
    """Also what is so unlikely that a sum of float32 reaches 1 without it."""
    logits_BV = jnp.asarray(4 * np.random.default_rng(0).normal(size=(4, 2000)), jnp.float32)
    of = [Filters.of(DecodeSpec(temperature=1.0, top_p=p)) for p in (1.0, None)]
    one, other = (np.asarray(probabilities(logits_BV, filters)) for filters in of)
    assert np.all(one > 0)
    np.testing.assert_array_equal(one, other)


def test_the_penalty_by_hand():
    logits, seen = jnp.array([[2.0, -2.0, 3.0]]), jnp.array([[True, True, False]])
    found = penalised(logits, seen, jnp.float32(2.0))
    np.testing.assert_array_equal(found[0], [1.0, -4.0, 3.0])


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"top_k": 5}, "top_k=5: nothing is drawn at temperature=0"),
        ({"beams": 4, "temperature": 1.0}, "beams=4: beam search draws nothing"),
        ({"n_best": 2}, "n_best=2: there are at most as many sequences"),
        ({"length_penalty": 2.0}, "length_penalty: it is for beam search"),
        ({"top_p": 1.5, "temperature": 1.0}, "top_p"),
        ({"beams": 0}, "beams"),
        ({"stoping": "full"}, "stopping"),
        ({"beams": 2, "stopping": "ful"}, "did you mean 'full'"),
    ],
)
def test_settings_that_cannot_be(tree, message):
    with pytest.raises((SpecError, ValueError), match=message):
        to_spec(DecodeSpec, tree)
