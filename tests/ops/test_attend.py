"""Every entry of every table, and every pair of entries, against the definition."""

import dataclasses

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from tests.helpers.cases import (
    TABLES,
    WIDTH,
    Case,
    allowed,
    by_oracle,
    by_tfm,
    cover_entries,
    cover_pairs,
    numbers,
)
from tests.helpers.quick import jit

JUMPS = ("hard", "topk")  # rounding may change which logits are the greatest

IMPLEMENTATIONS = {"reference": {}, "blockwise": {"edge": 4}, "fused": {}}
FUSED = TABLES | {"score": ["dot", "scaled_dot"], "normalizer": ["softmax"], "cap": [None],
                  "value_width": [WIDTH]}  # fmt: skip


def walk(cover):
    """Yields implementations and a case for them; those that share a case share its definition."""
    for names, tables in ((("reference", "blockwise"), TABLES), (("fused",), FUSED)):
        for case in cover(tables):
            yield pytest.param(names, case, id=f"{'-'.join(names)}-{case}")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_what_each_implementation_refuses(implementation):
    tables = FUSED if implementation == "fused" else TABLES
    for name, table in TABLES.items():
        accepted = [entry for entry in table if allowed(Case(**{name: entry}), implementation)]
        assert accepted == list(tables[name])


def loss_of(case, values, implementation):
    """A function of the arguments that gives a number and the outputs; and its cotangent."""
    options = {"implementation": implementation, **IMPLEMENTATIONS[implementation]}
    shape = *values["q"].shape[:3], case.value_width
    cotangent = np.random.default_rng(2).normal(size=shape)

    def loss(values):
        out = by_tfm(case, values, **options)
        return jnp.sum(out.astype(jnp.float32) * cotangent.astype(np.float32)), out

    return loss, cotangent


def agree_with_the_definition(implementations, case):
    """Compares values, and gradients along a random direction of each argument, which come from
    differences of the definition."""
    values64 = numbers(case)
    values = {name: jnp.asarray(x, jnp.float32) for name, x in values64.items()}
    outputs, slopes = by_oracle(case, values64), {}
    for implementation in implementations:
        loss, cotangent = loss_of(case, values, implementation)
        (_, out), grads = jit(jax.value_and_grad(loss, has_aux=True))(values)
        np.testing.assert_allclose(out, outputs, rtol=1e-4, atol=2e-5)
        for name, x in values64.items():
            along = np.random.default_rng(3).normal(size=x.shape)
            if name not in slopes:
                smooth = case
                if case.normalizer == "hard" and name != "v":  # its gradient is the softmax's
                    smooth = dataclasses.replace(case, normalizer="softmax")
                ahead, behind = (
                    np.sum(by_oracle(smooth, {**values64, name: x + step * along}) * cotangent)
                    for step in (1e-5, -1e-5)
                )
                slopes[name] = (ahead - behind) / 2e-5
            slope = float(np.sum(np.asarray(grads[name], np.float64) * along))
            scale = np.linalg.norm(grads[name]) * np.linalg.norm(along) + 1e-3
            assert abs(slope - slopes[name]) < 3e-5 * scale, name


@pytest.mark.parametrize(("implementations", "case"), list(walk(cover_entries)))
def test_every_entry_agrees_with_the_definition(implementations, case):
    agree_with_the_definition(implementations, case)


@pytest.mark.ci
@pytest.mark.parametrize(("implementations", "case"), list(walk(cover_pairs)))
def test_every_pair_agrees_with_the_definition(implementations, case):
    agree_with_the_definition(implementations, case)


@pytest.mark.ci
@pytest.mark.parametrize(("implementations", "case"), list(walk(cover_entries)))
def test_compiled_is_eager_and_half_precision_is_near(implementations, case):
    for implementation in implementations:
        compiled_is_eager_and_half_precision_is_near(implementation, case)


def compiled_is_eager_and_half_precision_is_near(implementation, case):
    """Compiled with the compiler's own settings; every entry at least once."""
    values64 = numbers(case)
    values = {name: jnp.asarray(x, jnp.float32) for name, x in values64.items()}
    loss, _ = loss_of(case, values, implementation)
    training = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (_, out), _ = training(values)
    with jax.disable_jit():
        _, eager = loss(values)
    np.testing.assert_allclose(eager, out, rtol=1e-5, atol=1e-6)

    if case.normalizer in JUMPS:
        return

    half = {name: x.astype(jnp.bfloat16) for name, x in values.items()}
    rounded = {name: x.astype(jnp.float32) for name, x in half.items()}
    (_, out_half), grads_half = jit(jax.value_and_grad(loss, has_aux=True))(half)
    _, grads_exact = training(rounded)
    assert out_half.dtype == jnp.bfloat16
    wanted = by_oracle(case, {name: np.asarray(x, np.float64) for name, x in half.items()})
    error = np.abs(np.asarray(out_half, np.float64) - wanted)
    assert error.max() < 2**-6 * max(1.0, np.abs(wanted).max())
    for name, grad in grads_exact.items():
        assert grads_half[name].dtype == jnp.bfloat16
        assert_within_bfloat16(grads_half[name], grad)


def assert_within_bfloat16(half, exact):
    """In norm, within eight units of bfloat16's last place, 2⁻⁸."""
    error = np.asarray(half, np.float64) - np.asarray(exact, np.float64)
    assert np.linalg.norm(error) <= 8 * 2**-8 * np.linalg.norm(exact)
