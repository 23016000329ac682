"""Losses of one prediction, with gradients written by hand."""

import jax
from jax import Array
from jax import numpy as jnp

from tfm.ops.products import sum_last


@jax.custom_vjp
def log_loss(logits: Array, labels: Array) -> Array:
    """−log softmax(logits)[label], over the last axis.

    The gradient is softmax − one-hot, from the logits themselves: no probabilities are kept.
    """
    return _log_sum_exp(logits) - _picked(logits, labels)


def _forward(logits: Array, labels: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    lse = _log_sum_exp(logits)
    return lse - _picked(logits, labels), (logits, labels, lse)


def _backward(saved: tuple[Array, Array, Array], d_loss: Array) -> tuple[Array, None]:
    logits, labels, lse = saved
    p = jnp.exp(logits - lse[..., None])
    return d_loss[..., None] * (p - _one_hot(logits, labels)), None


log_loss.defvjp(_forward, _backward)


def _log_sum_exp(logits: Array) -> Array:
    most = jnp.max(logits, -1, keepdims=True)
    return (most + jnp.log(sum_last(jnp.exp(logits - most))))[..., 0]


def _picked(logits: Array, labels: Array) -> Array:
    return jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]


def _one_hot(logits: Array, labels: Array) -> Array:
    classes = jnp.arange(logits.shape[-1]).reshape((1,) * labels.ndim + (-1,))
    return (labels[..., None] == classes).astype(logits.dtype)


@jax.custom_vjp
def softplus(x: Array) -> Array:
    """log(1 + eˣ) = −log σ(−x). The gradient is σ(x), and only that is computed for it."""
    return jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))


def _softplus_forward(x: Array) -> tuple[Array, Array]:
    return softplus(x), x


def _softplus_backward(x: Array, d_y: Array) -> tuple[Array]:
    return (d_y * jax.nn.sigmoid(x),)


softplus.defvjp(_softplus_forward, _softplus_backward)
