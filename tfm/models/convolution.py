"""A convolutional classifier: each window sees only its neighbourhood.  Kim 2014."""

from collections.abc import Callable
from typing import Any

from flax import linen as nn
from jax import Array
from jax import numpy as jnp
from jax.typing import DTypeLike

from tfm.layers.convolution import ConvolutionBlock, blank
from tfm.layers.embed import TokenEmbedding
from tfm.layers.feedforward import ACTIVATIONS
from tfm.layers.initial import Initial
from tfm.models import parts
from tfm.models.checks import check_used, check_valid
from tfm.models.outputs import check_want, outputs
from tfm.models.spec import ConvolutionSpec
from tfm.names import pick
from tfm.ops.dropout import Dropouts, drop


class Convolution(nn.Module):
    """Logits BV of classes, from the greatest of each channel over time."""

    vocab: int
    width: int
    channels: tuple[int, ...]
    classes: int
    window: int = 3
    pool: int = 2
    batch_norm: bool = True
    activation: Callable[[Array], Array] = nn.relu
    initial: Initial = Initial()
    dtype: DTypeLike | None = None

    @nn.compact
    def __call__(
        self,
        tokens_BT: Array,
        *,
        valid_BT: Array | None = None,
        train: bool = False,
        dropouts: Dropouts | None = None,
        want: tuple[str, ...] = (),
    ) -> Any:
        """With batch norm, `train` needs `mutable=["batch_stats"]`. `want` may name "states": what
        each block gives, and the greatest of each channel."""
        check_want(want, ("states",))
        embed = TokenEmbedding(
            self.vocab, self.width, initial=self.initial.embedding, dtype=self.dtype, name="embed"
        )
        x_BTD = drop(embed(tokens_BT), dropouts, "embedding")
        batch, length, _ = x_BTD.shape
        check_valid("valid_BT", valid_BT, {"B": batch, "T": length})
        made: dict[str, Array] = {}
        for n, channels in enumerate(self.channels):
            block = ConvolutionBlock(
                channels,
                self.window,
                self.pool,
                self.batch_norm,
                self.activation,
                self.initial,
                self.dtype,
                name=f"block_{n}",
            )
            within = None if dropouts is None else dropouts.within(n)
            x_BTD, valid_BT = block(x_BTD, valid_BT, train=train, dropouts=within)
            made[f"states_{n}_BTD"] = x_BTD
        x_BD = jnp.max(blank(x_BTD, valid_BT, -jnp.inf), 1)
        if valid_BT is not None:
            x_BD = jnp.where(jnp.any(valid_BT, 1)[:, None], x_BD, 0)
        made["pooled_BD"] = x_BD
        init = self.initial.kernel
        head = nn.Dense(self.classes, kernel_init=init, dtype=self.dtype, name="head")
        logits_BV = head(drop(x_BD, dropouts, "head")).astype(jnp.float32)
        return outputs(logits_BV, made, want)


def make(what: ConvolutionSpec) -> Convolution:
    check_used(what, ("embedding", "feedforward", "head"))
    return Convolution(
        vocab=what.vocab,
        width=what.width,
        channels=what.channels,
        classes=what.classes,
        window=what.window,
        pool=what.pool,
        batch_norm=what.batch_norm,
        activation=pick(ACTIVATIONS, what.activation, "model.activation"),
        initial=parts.initial(what.initial),
        dtype=parts.dtype(what),
    )
