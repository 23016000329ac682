"""Activations whose gradients are cheaper by hand."""

import jax
from jax import Array, lax
from jax import numpy as jnp


@jax.custom_jvp
def gelu(x: Array) -> Array:
    """x · Φ(x), with Φ the normal distribution.  Hendrycks & Gimpel 2016.

    By erf, as in PyTorch: erfc, which `jax.nn.gelu` uses, takes three times as long on a CPU.
    """
    return x * _cdf(x)


@gelu.defjvp
def _gelu_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    cdf = _cdf(x)
    density = jnp.exp(-0.5 * jnp.square(x)) * (2 * jnp.pi) ** -0.5
    return x * cdf, dx * (cdf + x * density)


def _cdf(x: Array) -> Array:
    return 0.5 * (1 + lax.erf(x * 0.5**0.5))
