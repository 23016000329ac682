"""Learning-rate schedules: functions of (step, steps) that return a fraction of the peak."""

import dataclasses
from collections.abc import Callable

from jax import Array
from jax import numpy as jnp

from tfm.config.names import UserError

Schedule = Callable[[Array, int], Array]


@dataclasses.dataclass(frozen=True)
class _Ramp:
    """Rises linearly over `warmup` steps, then follows `after(progress)`."""

    warmup: int
    after: Callable[[Array], Array]

    def __call__(self, step: Array, steps: int) -> Array:
        up = (step + 1) / max(self.warmup, 1)
        progress = jnp.clip((step - self.warmup) / max(steps - self.warmup, 1), 0, 1)
        return jnp.where(step < self.warmup, up, self.after(progress))


def constant(warmup: int = 0) -> Schedule:
    """Stays constant after the warm-up."""
    _check("constant", warmup)
    return _Ramp(warmup, jnp.ones_like)


def cosine(warmup: int = 0, final: float = 0.1) -> Schedule:
    """Falls along half a cosine to `final`.  Loshchilov & Hutter 2017."""
    _check("cosine", warmup, final)
    return _Ramp(warmup, lambda t: final + (1 - final) * (1 + jnp.cos(jnp.pi * t)) / 2)


def linear(warmup: int = 0, final: float = 0.0) -> Schedule:
    """Falls linearly to `final`."""
    _check("linear", warmup, final)
    return _Ramp(warmup, lambda t: 1 - (1 - final) * t)


def wsd(warmup: int = 0, decay: float = 0.2, final: float = 0.0) -> Schedule:
    """Stays constant, then falls linearly over the last fraction `decay`.  Hu et al. 2024."""
    _check("wsd", warmup, final)
    if not 0 < decay <= 1:
        raise UserError(f"wsd: decay={decay} must be in (0, 1]")
    return _Ramp(warmup, lambda t: 1 - (1 - final) * jnp.maximum(t - (1 - decay), 0) / decay)


def noam(warmup: int = 4000) -> Schedule:
    """Rises linearly over `warmup` steps, then falls as 1/√step.  Vaswani et al. 2017, §5.3."""
    if warmup < 1:
        raise UserError(f"noam: warmup={warmup} must be at least 1")
    return _Noam(warmup)


@dataclasses.dataclass(frozen=True)
class _Noam:
    warmup: int

    def __call__(self, step: Array, steps: int) -> Array:
        t = step + 1
        return jnp.minimum(t / self.warmup, jnp.sqrt(self.warmup / t))


def _check(name: str, warmup: int, final: float = 0.0) -> None:
    if warmup < 0 or not 0 <= final <= 1:
        raise UserError(f"{name}: need warmup ≥ 0 and final in [0, 1], not {warmup} and {final}")


SCHEDULES = {
    "constant": constant,
    "cosine": cosine,
    "linear": linear,
    "wsd": wsd,
    "noam": noam,
}
