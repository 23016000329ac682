"""Convolutions over time. Padding tokens act like zero padding."""

from collections.abc import Callable

from flax import linen as nn
from jax import Array
from jax import numpy as jnp

from tfm.layers.context import Auxiliary, Cache, Context, Mixer, check_size
from tfm.layers.dims import Conv, Dims, Dropouts, drop
from tfm.layers.norm import NormSpec, batch


class ConvolutionBlock(nn.Module):
    """Convolution, batch norm (Ioffe & Szegedy 2015), activation, max-pooling, dropout."""

    channels: int
    dims: Dims
    window: int = 3
    pool: int = 2
    batch_norm: bool = True
    activation: Callable[[Array], Array] = nn.relu

    @nn.compact
    def __call__(
        self,
        x_BTD: Array,
        valid_BT: Array | None = None,
        *,
        train: bool = False,
        dropouts: Dropouts | None = None,
    ) -> tuple[Array, Array | None]:
        """Returns x and `valid_BT`, both T / pool long. In training, batch norm uses the statistics
        of the batch and updates `batch_stats`."""
        x_BTF = Conv(
            self.channels,
            (self.window,),
            use_bias=not self.batch_norm,  # batch norm has one
            kernel_init=self.dims.kernel_init,
            dtype=self.dims.dtype,
            name="convolution",
        )(blank(x_BTD, valid_BT, 0))
        if self.batch_norm:
            x_BTF = batch(NormSpec(), self.dims.dtype, "norm", x_BTF, valid_BT, train)
        x_BTF = blank(self.activation(x_BTF), valid_BT, -jnp.inf)
        if self.pool > 1:
            x_BTF = _pool(x_BTF, self.pool)
            if valid_BT is not None:
                valid_BT = _pool(valid_BT[..., None].astype(jnp.float32), self.pool)[..., 0] > 0
        x_BTF = blank(x_BTF, valid_BT, 0)
        return drop(x_BTF, dropouts, "feedforward"), valid_BT


def blank(x_BTD: Array, valid_BT: Array | None, value: float) -> Array:
    return x_BTD if valid_BT is None else jnp.where(valid_BT[..., None], x_BTD, value)


def _pool(x_BTD: Array, size: int) -> Array:
    """Max-pools each `size` steps, including an incomplete last group."""
    rest = -x_BTD.shape[1] % size
    return nn.max_pool(x_BTD, (size,), (size,), ((0, rest),))


class ConvolutionMixer(nn.Module):
    """A convolution over time, causal or centered on each token."""

    dims: Dims
    window: int
    depthwise: bool

    @nn.compact
    def __call__(
        self, x_BTD: Array, context: Context, cache: Cache = None
    ) -> tuple[Array, Cache, Auxiliary]:
        x_BTD = blank(x_BTD, context.valid_BT, 0)
        before = self.window - 1 if self.dims.causal else (self.window - 1) // 2
        after = self.window - 1 - before
        if cache is None:
            x_BTD = jnp.pad(x_BTD, [(0, 0), (before, after), (0, 0)])
        else:
            x_BTD = jnp.concatenate([cache, x_BTD], 1)
        convolution = Conv(
            self.dims.width,
            (self.window,),
            padding="VALID",
            feature_group_count=self.dims.width if self.depthwise else 1,
            kernel_init=self.dims.residual_init,
            dtype=self.dims.dtype,
            name="convolution",
        )
        if cache is not None:
            cache = self._last(x_BTD, context.valid_BT)
        return convolution(x_BTD), cache, Auxiliary()

    def _last(self, x_BTD: Array, valid_BT: Array | None) -> Array:
        """Returns the last tokens of each example, without padding."""
        size = self.window - 1
        if valid_BT is None:
            return x_BTD[:, x_BTD.shape[1] - size :]
        place_BT = jnp.sum(valid_BT, 1)[:, None] + jnp.arange(size)[None]
        return jnp.take_along_axis(x_BTD, place_BT[..., None], 1)

    def init_cache(self, batch: int, length: int) -> Cache:
        return jnp.zeros((batch, self.window - 1, self.dims.width), self.dims.dtype)


def convolution(window: int = 3, depthwise: bool = False) -> Mixer:
    """Computes y_t = f(x_{t−1}, x_t, x_{t+1}), or from the last `window` tokens if causal."""
    check_size("convolution: window", window)
    return Mixer(
        lambda spec, dims, position, **options: ConvolutionMixer(dims, window, depthwise, **options)
    )
