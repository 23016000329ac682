"""A diagonal state-space model: a linear recurrence, computed by a parallel scan."""

import math
from typing import Any

import jax
from flax import linen as nn
from jax import Array, lax
from jax import numpy as jnp
from jax.nn import initializers

from tfm.layers.context import Auxiliary, Cache, Context, Mixer, check_size
from tfm.layers.dims import Dims

RADIUS = 0.4, 0.99  # of the eigenvalues at initialization
PHASE = math.pi / 4  # greatest one at initialization


def _log_radius(key: Array, shape: tuple[int, ...], dtype: object = float) -> Array:
    """Samples log(−log r), with r² uniform between the squared radii.  Orvieto et al. 2023, lemma
    3.2."""
    low, high = (radius**2 for radius in RADIUS)
    return jnp.log(-0.5 * jnp.log(jax.random.uniform(key, shape, minval=low, maxval=high)))


def _log_phase(key: Array, shape: tuple[int, ...], dtype: object = float) -> Array:
    return jnp.log(PHASE * jax.random.uniform(key, shape, minval=1e-3, maxval=1.0))


class StateSpace(nn.Module):
    """h_t = Λ h_{t−1} + √(1 − |Λ|²) B x_t, y_t = Re(C h_t) + d ⊙ x_t, Λ diagonal and complex.

    The linear recurrent unit, Orvieto et al. 2023; S4D is close to it (Gu et al. 2022). Where a
    token may see both sides, a second recurrence runs backwards.
    """

    dims: Dims
    states: int = 64

    @nn.compact
    def __call__(
        self, x_BTD: Array, context: Context, cache: Cache = None
    ) -> tuple[Array, Cache, Auxiliary]:
        x = x_BTD.astype(jnp.float32)
        y_BTD, cache = self._direction("forward", x, context.valid_BT, cache, False)
        if not self.dims.causal:
            y_BTD += self._direction("backward", x, context.valid_BT, None, True)[0]
        skip_D = self.param("skip_D", initializers.normal(1.0), (self.dims.width,))
        y_BTD += skip_D[None, None] * x
        return y_BTD.astype(x_BTD.dtype), cache, Auxiliary()

    def _direction(
        self, name: str, x_BTD: Array, valid_BT: Array | None, state_BN: Cache, reverse: bool
    ) -> tuple[Array, Cache]:
        dims, states = self.dims, self.states

        def project(part: str, x: Array, features: int, init: Any) -> Array:
            options = {"use_bias": False, "kernel_init": init, "dtype": jnp.float32}
            return dims.dense(features, name=f"{name}_{part}", **options)(x)

        radius_N = jnp.exp(-jnp.exp(self.param(f"{name}_log_radius", _log_radius, (states,))))
        phase_N = jnp.exp(self.param(f"{name}_log_phase", _log_phase, (states,)))
        decay_N = radius_N * jnp.exp(1j * phase_N)
        u_BTN = lax.complex(
            project("in_real", x_BTD, states, dims.kernel_init),
            project("in_imaginary", x_BTD, states, dims.kernel_init),
        )
        u_BTN *= (jnp.sqrt(1 - radius_N**2) * math.sqrt(0.5))[None, None]
        decay_BTN = jnp.broadcast_to(decay_N[None, None], u_BTN.shape)
        if valid_BT is not None:  # padding does not change the state
            decay_BTN = jnp.where(valid_BT[..., None], decay_BTN, 1)
            u_BTN = jnp.where(valid_BT[..., None], u_BTN, 0)
        if state_BN is not None:
            u_BTN = u_BTN.at[:, 0].add(decay_BTN[:, 0] * state_BN)

        def join(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
            return a[0] * b[0], b[0] * a[1] + b[1]

        _, h_BTN = lax.associative_scan(join, (decay_BTN, u_BTN), reverse=reverse, axis=1)
        real = project("out_real", h_BTN.real, dims.width, dims.residual_init)
        imaginary = project("out_imaginary", h_BTN.imag, dims.width, dims.residual_init)
        y_BTD = (real - imaginary) * math.sqrt(0.5)
        return y_BTD, None if state_BN is None else h_BTN[:, -1]

    def init_cache(self, batch: int, length: int) -> Cache:
        """Returns the state, whose size does not depend on the length."""
        return jnp.zeros((batch, self.states), jnp.complex64)


def state_space(states: int = 64) -> Mixer:
    """Runs a diagonal linear recurrence.  Orvieto et al. 2023."""
    check_size("state_space: states", states)
    return Mixer(lambda spec, dims, position, **options: StateSpace(dims, states, **options))
