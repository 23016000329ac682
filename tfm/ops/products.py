"""Products and sums in the form in which XLA is fast on a CPU; elsewhere the plain ones."""

from typing import Any

import jax
from jax import Array, lax
from jax import numpy as jnp


def flat_product(
    x: Array, kernel_KF: Array, precision: Any = None, preferred_element_type: Any = None
) -> Array:
    """x @ kernel, over the last axis of x, with all tokens on one axis.

    The gradient of a kernel sums over all tokens. Over one axis that is a plain matrix product;
    over two, batch and length, XLA on CPU takes longer.
    """
    x_NK = x.reshape(-1, x.shape[-1])
    if _on_cpu(x, kernel_KF) and precision is None:
        y_NF = _product(x_NK, kernel_KF)
    else:
        y_NF = jnp.dot(
            x_NK, kernel_KF, precision=precision, preferred_element_type=preferred_element_type
        )
    return y_NF.reshape(*x.shape[:-1], -1)


@jax.custom_vjp
def _product(x_NK: Array, w_KF: Array) -> Array:
    """x @ w, with `weight_gradient`."""
    return x_NK @ w_KF


def _product_forward(x_NK: Array, w_KF: Array) -> tuple[Array, tuple[Array, Array]]:
    return x_NK @ w_KF, (x_NK, w_KF)


def _product_backward(saved: tuple[Array, Array], d_y_NF: Array) -> tuple[Array, Array]:
    x_NK, w_KF = saved
    return d_y_NF @ w_KF.T, weight_gradient(x_NK, d_y_NF)


_product.defvjp(_product_forward, _product_backward)


def weight_gradient(x_NK: Array, d_y_NF: Array) -> Array:
    """xᵀ dy, the gradient of w in y = x @ w.

    The narrower factor is transposed before the product and not within it, which takes up to twice
    as long on a CPU: rows that lie apart by a power of two meet in the same lines of the cache.
    """
    if not _on_cpu(x_NK, d_y_NF):
        return x_NK.T @ d_y_NF
    # The second barrier keeps a transpose that follows (of a tied table, say) out of the product.
    if x_NK.shape[1] <= d_y_NF.shape[1]:
        return lax.optimization_barrier(lax.optimization_barrier(x_NK.T) @ d_y_NF)
    return lax.optimization_barrier(lax.optimization_barrier(d_y_NF.T) @ x_NK).T


def _on_cpu(*arrays: Array) -> bool:
    return jax.default_backend() == "cpu" and all(x.dtype == jnp.float32 for x in arrays)


@jax.jit  # by this name `inspect.flops` knows that it is a sum
def sum_last(x: Array) -> Array:
    """Σ over the last axis, which is kept as 1.

    XLA on CPU adds up the numbers of a row one by one, but multiplies it with ones by vectors.
    """
    if not _on_cpu(x):
        return jnp.sum(x, -1, keepdims=True)
    ones = jnp.ones((x.shape[-1], 1), x.dtype)
    return flat_product(x, ones, precision=lax.Precision.HIGHEST)


@jax.jit
def sum_rows(x: Array) -> Array:
    """Σ over all axes but the last, as a product with ones on CPU: XLA adds up column by column."""
    x_NF = x.reshape(-1, x.shape[-1])
    if not _on_cpu(x):
        return jnp.sum(x_NF, 0)
    ones = jnp.ones((1, len(x_NF)), x.dtype)
    return jnp.dot(ones, x_NF, precision=lax.Precision.HIGHEST)[0]


@jax.custom_vjp
def add_last(x: Array, bias_F: Array) -> Array:
    """x + bias, along the last axis."""
    return x + bias_F.reshape((1,) * (x.ndim - 1) + (-1,))


def _add_forward(x: Array, bias_F: Array) -> tuple[Array, None]:
    return add_last(x, bias_F), None


def _add_backward(_: None, d_y: Array) -> tuple[Array, Array]:
    return d_y, sum_rows(d_y)


add_last.defvjp(_add_forward, _add_backward)


@jax.custom_vjp
def scale_last(x: Array, scale_F: Array) -> Array:
    """x ⊙ scale, along the last axis."""
    return x * scale_F.reshape((1,) * (x.ndim - 1) + (-1,))


def _scale_forward(x: Array, scale_F: Array) -> tuple[Array, tuple[Array, Array]]:
    return scale_last(x, scale_F), (x, scale_F)


def _scale_backward(saved: tuple[Array, Array], d_y: Array) -> tuple[Array, Array]:
    x, scale_F = saved
    return scale_last(d_y, scale_F), sum_rows(d_y * x)


scale_last.defvjp(_scale_forward, _scale_backward)


def argmax_last(x: Array) -> Array:
    """The place of the greatest number along the last axis, the first if there are several.

    By two simple reductions, each of which XLA on CPU makes by vectors; its arg max is not.
    """
    place = jnp.arange(x.shape[-1]).reshape((1,) * (x.ndim - 1) + (-1,))
    return jnp.min(jnp.where(x == jnp.max(x, -1, keepdims=True), place, x.shape[-1]), -1)
