"""A convolutional classifier: each window sees only its neighborhood.  Kim 2014."""

from typing import TYPE_CHECKING, Any

from flax import linen as nn
from jax import Array
from jax import numpy as jnp

from tfm.layers.convolution import ConvolutionBlock, blank
from tfm.layers.embed import TokenEmbedding
from tfm.models.common import check_capture, check_valid, known, outputs
from tfm.ops.dropout import Dropouts, drop

if TYPE_CHECKING:
    from tfm.models.spec import ConvolutionSpec


class Convolution(nn.Module):
    """Predicts a class for the whole input: logits (BV) of the maximum of each channel over
    time."""

    spec: "ConvolutionSpec"

    @nn.compact
    def __call__(
        self,
        tokens_BT: Array,
        *,
        valid_BT: Array | None = None,
        dropouts: Dropouts | None = None,
        train: bool = False,
        capture: tuple[str, ...] = (),
    ) -> Any:
        """Returns logits. With batch norm, `train` needs `mutable=["batch_stats"]`. `capture` may
        name "states": the output of each block, and the maximum of each channel."""
        check_capture(capture, "states")
        spec, dims = self.spec, self.spec.dims(self.spec.width)
        embed = TokenEmbedding(known(spec.vocab), dims, name="embed")
        x_BTD = drop(embed(tokens_BT), dropouts, "embedding")
        check_valid("valid_BT", valid_BT, {"B": x_BTD.shape[0], "T": x_BTD.shape[1]})
        states: dict[str, Array] = {}
        for n, channels in enumerate(spec.channels):
            block = ConvolutionBlock(
                channels,
                dims,
                spec.window,
                spec.pool,
                spec.batch_norm,
                spec.activation.entry,
                name=f"block_{n}",
            )
            within = None if dropouts is None else dropouts.within(n)
            x_BTD, valid_BT = block(x_BTD, valid_BT, train=train, dropouts=within)
            states[f"states_{n}_BTD"] = x_BTD
        x_BD = jnp.max(blank(x_BTD, valid_BT, -jnp.inf), 1)
        if valid_BT is not None:
            x_BD = jnp.where(jnp.any(valid_BT, 1)[:, None], x_BD, 0)
        states["pooled_BD"] = x_BD
        logits_BV = dims.dense(known(spec.classes), name="head")(drop(x_BD, dropouts, "head"))
        logits_BV = logits_BV.astype(jnp.float32)
        return outputs(logits_BV, capture, states if "states" in capture else {})
