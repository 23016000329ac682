"""What every layer of a model is given: its width, its precision, how its weights start."""

import dataclasses
from typing import Any

from flax import linen as nn
from flax.linen.dtypes import promote_dtype
from jax import Array
from jax import numpy as jnp

from tfm.layers.init import Initializer, InitSpec, scaled

DTYPES = {name: jnp.dtype(name) for name in ("float32", "bfloat16", "float16")}


def keep_bias(x: Array, kernel: Array, bias: Array | None, *, dtype: Any) -> tuple[Any, ...]:
    """All but the bias in the type of the computation."""
    return *promote_dtype(x, kernel, dtype=dtype), bias


class Float32Bias:
    """A layer of Flax whose bias is added in float32, so that its gradient, a sum over all tokens,
    is summed in float32."""

    def __call__(self, x: Array) -> Array:
        y = super().__call__(x)  # type: ignore[misc]
        return y.astype(self.dtype) if self.use_bias else y  # type: ignore[attr-defined]


class Dense(Float32Bias, nn.Dense):
    promote_dtype: Any = keep_bias


class DenseGeneral(Float32Bias, nn.DenseGeneral):
    promote_dtype: Any = keep_bias


class Conv(Float32Bias, nn.Conv):
    promote_dtype: Any = keep_bias


@dataclasses.dataclass(frozen=True)
class Dims:
    width: int
    max_length: int | None = None  # of parameters with an entry for each position
    causal: bool = False  # a token must not see those after it
    depth: int = 1  # sums on the residual path
    init: InitSpec = InitSpec()
    dtype: Any = DTYPES["float32"]  # of the computation; parameters are float32

    @property
    def kernel_init(self) -> Initializer:
        return self.init.kernel.entry

    @property
    def residual_init(self) -> Initializer:
        """For the last kernel of a branch.  Radford et al. 2019, §2.3."""
        factor = self.depth**-0.5 if self.init.scale_by_depth else 1.0
        return self.kernel_init if factor == 1 else scaled(self.kernel_init, factor)

    def dense(self, features: int, **options: Any) -> Dense:
        """A dense layer; in a model it belongs to the module that calls this."""
        return Dense(features, **{"dtype": self.dtype, "kernel_init": self.kernel_init, **options})
