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


def allowed_tables(implementation):
    """Each table without the entries that `implementation` refuses on their own."""
    return {
        name: [entry for entry in table if allowed(Case(**{name: entry}), implementation)]
        for name, table in TABLES.items()
    }


def walk(cover):
    for implementation in IMPLEMENTATIONS:
        for case in cover(allowed_tables(implementation)):
            yield pytest.param(implementation, case, id=f"{implementation}-{case}")


def test_what_each_implementation_refuses():
    every = {n: list(t) for n, t in TABLES.items()}
    assert allowed_tables("reference") == allowed_tables("blockwise") == every
    fused = {"score": ["dot", "scaled_dot"], "normalizer": ["softmax"], "cap": [None],
             "value_width": [WIDTH]}  # fmt: skip
    assert allowed_tables("fused") == {n: fused.get(n, list(t)) for n, t in TABLES.items()}


def loss_of(case, values, implementation):
    """A function of the arguments that gives a number and the outputs; and its cotangent."""
    options = {"implementation": implementation, **IMPLEMENTATIONS[implementation]}
    shape = *values["q"].shape[:3], case.value_width
    cotangent = np.random.default_rng(2).normal(size=shape)

    def loss(values):
        out = by_tfm(case, values, **options)
        return jnp.sum(out.astype(jnp.float32) * cotangent.astype(np.float32)), out

    return loss, cotangent


@pytest.mark.parametrize(("implementation", "case"), list(walk(cover_pairs)))
def test_agrees_with_the_definition(implementation, case):
    values64 = numbers(case)
    values = {name: jnp.asarray(x, jnp.float32) for name, x in values64.items()}
    loss, cotangent = loss_of(case, values, implementation)
    (_, out), grads = jit(jax.value_and_grad(loss, has_aux=True))(values)
    np.testing.assert_allclose(out, by_oracle(case, values64), rtol=1e-4, atol=2e-5)

    # Gradients: along a random direction of each argument, by differences of the definition.
    for name, x in values64.items():
        along = np.random.default_rng(3).normal(size=x.shape)
        smooth = case
        if case.normalizer == "hard" and name != "v":  # its gradient is the softmax's
            smooth = dataclasses.replace(case, normalizer="softmax")
        ahead, behind = (
            np.sum(by_oracle(smooth, {**values64, name: x + step * along}) * cotangent)
            for step in (1e-5, -1e-5)
        )
        slope = float(np.sum(np.asarray(grads[name], np.float64) * along))
        scale = np.linalg.norm(grads[name]) * np.linalg.norm(along) + 1e-3
        assert abs(slope - (ahead - behind) / 2e-5) < 3e-5 * scale, name


@pytest.mark.parametrize(("implementation", "case"), list(walk(cover_entries)))
def test_compiled_is_eager_and_half_precision_is_near(implementation, case):
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
