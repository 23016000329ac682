"""Fast forms agree with the plain ones, and their gradients with NumPy in float64."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from scipy.special import logsumexp
from scipy.stats import norm

from tests.test_configs import small
from tfm.ops import fast
from tfm.ops.fast import gelu, log_loss, softplus, standardize
from tfm.ops.loops import scan_time
from tfm.ops.normalizers import with_zero


def random(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def pull(fn, d_out, *args):
    out, back = jax.vjp(fn, *args)
    return out, back(d_out)


def wide(*arrays):
    return [np.asarray(x, np.float64) for x in arrays]


@pytest.mark.parametrize(("inner", "outer"), [(6, 20), (24, 2)])  # either is transposed
def test_a_product_over_all_tokens(inner, outer):
    x, w, d_y = random(3, 7, inner), random(inner, outer, seed=1), random(3, 7, outer, seed=2)
    y, (d_x, d_w) = pull(fast.flat_product, d_y, x, w)
    x, w, d_y = wide(x, w, d_y)
    np.testing.assert_allclose(y, x @ w, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(d_x, d_y @ w.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(d_w, np.einsum("btk,btf->kf", x, d_y), rtol=1e-5, atol=1e-5)


def test_sums():
    x = random(5, 6, 7)
    (exact,) = wide(x)
    np.testing.assert_allclose(fast.sum_last(x), exact.sum(-1, keepdims=True), atol=1e-5)
    np.testing.assert_allclose(fast.sum_rows(x), exact.sum((0, 1)), atol=1e-5)


@pytest.mark.parametrize(("fn", "plain"), [(fast.add_last, np.add), (fast.scale_last, np.multiply)])
def test_a_vector_for_all_tokens(fn, plain):
    x, b, d_y = random(3, 4, 5), random(5, seed=1), random(3, 4, 5, seed=2)
    y, (d_x, d_b) = pull(fn, d_y, x, b)
    x, b, d_y = wide(x, b, d_y)
    by_x, by_b = (d_y, d_y) if plain is np.add else (d_y * b, d_y * x)
    np.testing.assert_allclose(y, plain(x, b), rtol=1e-6)
    np.testing.assert_allclose(d_x, by_x, rtol=1e-6)
    np.testing.assert_allclose(d_b, by_b.sum((0, 1)), rtol=1e-5, atol=1e-6)


def test_the_first_of_equal_numbers_is_the_greatest():
    x = jnp.asarray([[1.0, 3.0, 3.0], [0.0, 0.0, 0.0], [-2.0, -5.0, -1.0]])
    assert fast.argmax_last(x).tolist() == np.argmax(x, -1).tolist() == [1, 0, 2]


@pytest.mark.parametrize("center", [True, False])
def test_a_norm_and_its_gradient(center):
    def by_hand(x):
        x = x - x.mean(-1, keepdims=True) if center else x
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-3)

    x, d_y = random(3, 4, 9), random(3, 4, 9, seed=1)
    y, (d_x,) = pull(lambda x: standardize(x, 1e-3, center), d_y, x)
    np.testing.assert_allclose(y, by_hand(wide(x)[0]), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(d_x, differences(by_hand, *wide(x, d_y)), rtol=1e-4, atol=1e-5)


def differences(fn, x, d_y, step=1e-6):
    """The gradient of Σ dy · fn(x), by central differences in float64."""
    found = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        moved = np.zeros_like(x)
        moved[place] = step
        found[place] = np.sum(d_y * (fn(x + moved) - fn(x - moved))) / (2 * step)
    return found


def test_gelu():
    x = jnp.linspace(-6, 6, 101)
    (exact,) = wide(x)
    slope = norm.cdf(exact) + exact * norm.pdf(exact)
    np.testing.assert_allclose(gelu(x), exact * norm.cdf(exact), atol=1e-6)
    np.testing.assert_allclose(jax.vmap(jax.grad(gelu))(x), slope, atol=1e-6)
    np.testing.assert_allclose(jax.jvp(gelu, (x,), (jnp.ones_like(x),))[1], slope, atol=1e-6)


def test_the_log_loss():
    logits, d = 50 * random(4, 5, 7), random(4, 5, seed=1)
    labels = jnp.asarray(np.random.default_rng(2).integers(0, 7, (4, 5)))
    loss, (d_logits, _) = pull(log_loss, d, logits, labels)
    x, d = wide(logits, d)
    p = np.exp(x - logsumexp(x, -1, keepdims=True))
    one_hot = np.eye(7)[np.asarray(labels)]
    expected = logsumexp(x, -1) - (x * one_hot).sum(-1)
    np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(d_logits, d[..., None] * (p - one_hot), rtol=1e-5, atol=1e-6)


def test_softplus():
    x, d = 30 * random(40), random(40, seed=1)  # beyond that float32 has only 0
    y, (d_x,) = pull(softplus, d, x)
    x, d = wide(x, d)
    np.testing.assert_allclose(y, np.logaddexp(0, x), rtol=1e-6)
    np.testing.assert_allclose(d_x, d / (1 + np.exp(-x)), rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_loop_over_time_has_the_gradients_of_a_scan(reverse):
    weights = {"h": random(3, 3), "x": random(2, 3, seed=1)}
    bias, start, xs = random(3, seed=2), random(4, 3, seed=3), random(5, 4, 2, seed=4)

    def step(dot, bias, h, x):
        h = jnp.tanh(dot("h", h) + dot("x", x) + bias[None])
        return h, h**2

    def ours(weights, bias, start, xs):
        last, ys = scan_time(step, weights, bias, start, xs, reverse)
        return jnp.sum(last * jnp.arange(3.0)[None]) + jnp.sum(ys * xs[..., :1])

    def plain(weights, bias, start, xs):
        def body(h, x):
            return step(lambda name, x: x @ weights[name], bias, h, x)

        last, ys = jax.lax.scan(body, start, xs, reverse=reverse)
        return jnp.sum(last * jnp.arange(3.0)[None]) + jnp.sum(ys * xs[..., :1])

    args = weights, bias, start, xs
    assert float(ours(*args)) == pytest.approx(float(plain(*args)), rel=1e-6)
    found, expected = (jax.grad(fn, (0, 1, 2, 3))(*args) for fn in (ours, plain))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, expected
    )


LABELS = jnp.asarray([[2, 0, 1], [3, 4, 0]])
SWITCHED = {
    "flat_product": (fast.flat_product, (2, 3, 5), (5, 4)),
    "sum_last": (fast.sum_last, (2, 3, 5)),
    "sum_rows": (fast.sum_rows, (2, 3, 5)),
    "add_last": (fast.add_last, (2, 3, 5), (5,)),
    "scale_last": (fast.scale_last, (2, 3, 5), (5,)),
    "gelu": (gelu, (2, 3, 5)),
    "softplus": (softplus, (2, 3, 5)),
    "standardize": (lambda x: standardize(x, 1e-3, True), (2, 3, 5)),
    "log_loss": (lambda x: log_loss(x, LABELS), (2, 3, 5)),
    "softmax": (lambda x: fast.exp_minus_total(lambda lse: lse, x), (2, 3, 5)),
    "softmax_zero": (lambda x: fast.exp_minus_total(with_zero, x), (2, 3, 5)),
}


@pytest.mark.parametrize("name", SWITCHED)
def test_switched_off_it_computes_the_same(name, monkeypatch):
    fn, *shapes = SWITCHED[name]
    args = [random(*shape, seed=n) for n, shape in enumerate(shapes)]
    d_out = random(*jax.eval_shape(fn, *args).shape, seed=7)
    on = pull(fn, d_out, *args)
    monkeypatch.setattr(fast, "FAST", False)
    off = pull(fn, d_out, *args)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), on, off)
    # Only the plain forms have JAX's own derivative, which forward mode needs.
    out, _ = jax.jvp(fn, args, [jnp.ones_like(x) for x in args])
    np.testing.assert_array_equal(out, off[0])


def test_argmax_switched_off(monkeypatch):
    x = jnp.asarray([[1.0, 3.0, 3.0], [0.0, 0.0, 0.0]])
    on = fast.argmax_last(x).tolist()
    monkeypatch.setattr(fast, "FAST", False)
    assert fast.argmax_last(x).tolist() == on


@pytest.mark.parametrize("where", ["gpt2:small", "rnn:lstm,N:N"])
def test_a_model_switched_off_has_the_same_gradients(where, monkeypatch):
    spec = small(where)
    module = spec.build()
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, spec.vocab, (3, 5)))
    params = jax.jit(module.init)(jax.random.key(0), tokens)

    def gradients():
        def loss(params):
            return jnp.mean(log_loss(module.apply(params, tokens), tokens))

        jax.clear_caches()  # `attend` is compiled
        return jax.jit(jax.grad(loss))(params)

    on = gradients()
    monkeypatch.setattr(fast, "FAST", False)
    off = gradients()
    jax.clear_caches()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), on, off)
