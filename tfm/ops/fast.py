"""Products, sums and derivatives in the form that XLA compiles best for a CPU.

`tfm bench train` measured what they gain together: on a CPU, a training step of a Transformer takes
1.19 to 1.92 times as long in plain Flax. Where the gain of one function was measured, its docstring
states it; the others state what they avoid.

With `FAST = False` every function is the plain JAX expression with JAX's own derivative. Numbers
then differ by rounding only. The derivatives below support reverse mode and forward-over-reverse
mode; a plain `jax.jvp` through a model needs `FAST = False`.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import Array, lax
from jax import numpy as jnp

FAST = True  # set it before anything is traced
LOWEST = -1e30  # least maximum of a row, finite, so that no arithmetic on it gives NaN


def _for_cpu(*arrays: Array) -> bool:
    on_cpu = FAST and jax.default_backend() == "cpu"
    return on_cpu and all(x.dtype == jnp.float32 for x in arrays)


def custom(
    forward: Callable[..., Any], backward: Callable[..., Any], static: tuple[int, ...] = ()
) -> Callable[..., Any]:
    """Returns a function with its own derivative: `forward` returns the output and what `backward`
    needs."""
    fn = jax.custom_vjp(lambda *args: forward(*args)[0], nondiff_argnums=static)
    fn.defvjp(forward, backward)
    return fn


def flat_product(
    x: Array, kernel_KF: Array, precision: Any = None, preferred_element_type: Any = None
) -> Array:
    """Computes x @ kernel over the last axis of x, with all tokens on one axis.

    The gradient of the kernel is then a plain matrix product. Over two axes, batch and length, XLA
    takes longer on a CPU.
    """
    x_NK = x.reshape(-1, x.shape[-1])
    if _for_cpu(x, kernel_KF) and precision is None:
        y_NF = _product(x_NK, kernel_KF)
    else:
        y_NF = jnp.dot(
            x_NK, kernel_KF, precision=precision, preferred_element_type=preferred_element_type
        )
    return y_NF.reshape(*x.shape[:-1], -1)


_product = custom(
    lambda x_NK, w_KF: (x_NK @ w_KF, (x_NK, w_KF)),
    lambda saved, d_y_NF: (d_y_NF @ saved[1].T, weight_gradient(saved[0], d_y_NF)),
)


def weight_gradient(x_NK: Array, d_y_NF: Array) -> Array:
    """Computes xᵀ dy, the gradient of w in y = x @ w.

    Transposes the narrower factor before the product. Transposing within it takes up to twice as
    long on a CPU: rows a power of two apart compete for the same cache lines.
    """
    if not _for_cpu(x_NK, d_y_NF):
        return x_NK.T @ d_y_NF
    # The outer barrier keeps a later transpose (of a tied table, say) out of the product.
    if x_NK.shape[1] <= d_y_NF.shape[1]:
        return lax.optimization_barrier(lax.optimization_barrier(x_NK.T) @ d_y_NF)
    return lax.optimization_barrier(lax.optimization_barrier(d_y_NF.T) @ x_NK).T


def sum_last(x: Array) -> Array:
    """Sums over the last axis and keeps it, with size 1.

    On a CPU, XLA adds the numbers of a row one by one, but vectorizes a product with ones.
    """
    return product_with_ones(x) if _for_cpu(x) else jnp.sum(x, -1, keepdims=True)


def sum_rows(x: Array) -> Array:
    """Sums over all axes but the last; on a CPU as a product with ones, like `sum_last`."""
    x_NF = x.reshape(-1, x.shape[-1])
    return ones_product(x_NF) if _for_cpu(x) else jnp.sum(x_NF, 0)


@jax.jit  # `describe.flops` recognizes sums by these two names
def product_with_ones(x: Array) -> Array:
    ones = jnp.ones((x.shape[-1], 1), x.dtype)
    return flat_product(x, ones, precision=lax.Precision.HIGHEST)


@jax.jit
def ones_product(x_NF: Array) -> Array:
    ones = jnp.ones((1, len(x_NF)), x_NF.dtype)
    return jnp.dot(ones, x_NF, precision=lax.Precision.HIGHEST)[0]


def add_last(x: Array, bias_F: Array) -> Array:
    """Computes x + bias along the last axis; the gradient of the bias is a `sum_rows`."""
    return _add_last(x, bias_F) if FAST else x + _along_last(x, bias_F)


_add_last = custom(
    lambda x, bias_F: (x + _along_last(x, bias_F), None), lambda _, d_y: (d_y, sum_rows(d_y))
)


def scale_last(x: Array, scale_F: Array) -> Array:
    """Computes x ⊙ scale along the last axis; the gradient of the scale is a `sum_rows`."""
    return _scale_last(x, scale_F) if FAST else x * _along_last(x, scale_F)


_scale_last: Callable[..., Array] = custom(
    lambda x, scale_F: (x * _along_last(x, scale_F), (x, scale_F)),
    lambda saved, d_y: (_scale_last(d_y, saved[1]), sum_rows(d_y * saved[0])),
)


def _along_last(x: Array, vector_F: Array) -> Array:
    return vector_F.reshape((1,) * (x.ndim - 1) + (-1,))


def argmax_last(x: Array) -> Array:
    """Returns the index of the greatest number along the last axis, the first one among equals.

    Two simple reductions, which XLA vectorizes on a CPU; it does not vectorize `argmax`.
    """
    if not FAST:
        return jnp.argmax(x, -1)
    index = _along_last(x, jnp.arange(x.shape[-1]))
    return jnp.min(jnp.where(x == jnp.max(x, -1, keepdims=True), index, x.shape[-1]), -1)


def gelu(x: Array) -> Array:
    """Computes x · Φ(x), with Φ the normal distribution.  Hendrycks & Gimpel 2016.

    Uses erf, like PyTorch. `jax.nn.gelu` uses erfc, which takes three times as long on a CPU.
    """
    return _gelu(x) if FAST else jax.nn.gelu(x, approximate=False)


@jax.custom_jvp
def _gelu(x: Array) -> Array:
    return x * _cdf(x)


@_gelu.defjvp
def _gelu_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    cdf = _cdf(x)
    density = jnp.exp(-0.5 * jnp.square(x)) * (2 * jnp.pi) ** -0.5
    return x * cdf, dx * (cdf + x * density)


def _cdf(x: Array) -> Array:
    return 0.5 * (1 + lax.erf(x * 0.5**0.5))


def softplus(x: Array) -> Array:
    """Computes log(1 + eˣ) = −log σ(−x); its backward pass computes σ(x) and nothing else."""
    return _softplus(x) if FAST else jnp.logaddexp(x, 0.0)


_softplus = custom(
    lambda x: (jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x))), x),
    lambda x, d_y: (d_y * jax.nn.sigmoid(x),),
)


def standardize(x: Array, eps: float, center: bool) -> Array:
    """Computes (x − mean) / √(mean (x − mean)² + ε) over the last axis; the mean is 0 without
    `center`. Saves the output and one factor per row for the backward pass."""
    return _standardize(x, eps, center) if FAST else _standardize_forward(x, eps, center)[0]


def _standardize_forward(x: Array, eps: float, center: bool) -> tuple[Array, tuple[Array, Array]]:
    width = x.shape[-1]
    if center:
        x = x - sum_last(x) / width
    factor = lax.rsqrt(sum_last(jnp.square(x)) / width + eps)
    y = x * factor
    return y, (y, factor)


def _standardize_backward(
    eps: float, center: bool, saved: tuple[Array, Array], dy: Array
) -> tuple[Array]:
    y, factor = saved
    dx = dy - y * (sum_last(dy * y) / y.shape[-1])
    if center:
        dx = dx - sum_last(dy) / y.shape[-1]
    return (dx * factor,)


_standardize = custom(_standardize_forward, _standardize_backward, static=(1, 2))


def log_loss(logits: Array, labels: Array) -> Array:
    """Computes −log softmax(logits)[label] over the last axis.

    The gradient, softmax − one-hot, is computed from the logits, so no probabilities are saved.
    """
    if FAST:
        return _log_loss(logits, labels)
    return jax.nn.logsumexp(logits, -1) - _picked(logits, labels)


def _log_loss_forward(logits: Array, labels: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    most = jnp.max(logits, -1, keepdims=True)
    lse = (most + jnp.log(sum_last(jnp.exp(logits - most))))[..., 0]
    return lse - _picked(logits, labels), (logits, labels, lse)


def _log_loss_backward(saved: tuple[Array, Array, Array], d_loss: Array) -> tuple[Array, None]:
    logits, labels, lse = saved
    p = jnp.exp(logits - lse[..., None])
    one_hot = labels[..., None] == _along_last(logits, jnp.arange(logits.shape[-1]))
    return d_loss[..., None] * (p - one_hot.astype(logits.dtype)), None


_log_loss = custom(_log_loss_forward, _log_loss_backward)


def _picked(logits: Array, labels: Array) -> Array:
    return jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]


def exp_minus_total(total: Callable[[Array], Array], logits: Array) -> Array:
    """Computes exp(logits − total(lse)), where lse is the log-sum-exp of a row (the last axis).

    Takes one exponential per logit, and none in the backward pass.
    """
    if FAST:
        return _exp_minus_total(total, logits)
    most = lax.stop_gradient(jnp.max(logits, -1, keepdims=True, initial=LOWEST))
    lse = most + jnp.log(_or_one(jnp.sum(jnp.exp(logits - most), -1, keepdims=True)))
    return jnp.exp(logits - total(lse))


def _exp_minus_total_forward(
    total: Callable[[Array], Array], logits: Array
) -> tuple[Array, tuple[Array, Array]]:
    most = jnp.max(logits, axis=-1, keepdims=True, initial=LOWEST)
    exps = jnp.exp(logits - most)
    lse = most + jnp.log(_or_one(sum_last(exps)))
    weights = exps * jnp.exp(most - total(lse))
    return weights, (weights, lse)


def _exp_minus_total_backward(
    total: Callable[[Array], Array], saved: tuple[Array, Array], d_weights: Array
) -> tuple[Array]:
    """With w = exp(s − f(lse)): ds = w (dw − softmax/w · f′(lse) · Σ w dw)."""
    weights, lse = saved
    f, slope = jax.vjp(total, lse)
    share = jnp.exp(jnp.where(lse > LOWEST, f - lse, 0.0))
    (moved,) = slope(sum_last(weights * d_weights))
    return (weights * (d_weights - share * moved),)


_exp_minus_total = custom(_exp_minus_total_forward, _exp_minus_total_backward, static=(0,))


def _or_one(sums: Array) -> Array:
    return jnp.where(sums > 0, sums, 1.0)
