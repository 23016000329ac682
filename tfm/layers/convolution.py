"""A block of a convolutional network. Padding is as the nothing beyond the end."""

from collections.abc import Callable

from flax import linen as nn
from jax import Array
from jax import numpy as jnp

from tfm.layers.dims import Dims
from tfm.ops.dropout import Dropouts, drop


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
        """What is left of x, T / pool long, and of `valid_BT`. In training the batch's own
        statistics are used, and noted in `batch_stats` for later."""
        x_BTF = nn.Conv(
            self.channels,
            (self.window,),
            use_bias=not self.batch_norm,  # which has its own
            kernel_init=self.dims.kernel_init,
            dtype=self.dims.dtype,
            name="convolution",
        )(blank(x_BTD, valid_BT, 0))
        if self.batch_norm:
            mask = None if valid_BT is None else valid_BT[..., None]
            norm = nn.BatchNorm(
                use_running_average=not train,
                momentum=0.9,
                dtype=self.dims.dtype,
                use_fast_variance=False,
                name="norm",
            )
            x_BTF = norm(x_BTF, mask=mask)
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
    """The greatest of each `size` steps; what is left over at the end counts as well."""
    rest = -x_BTD.shape[1] % size
    return nn.max_pool(x_BTD, (size,), (size,), ((0, rest),))
