"""A bag of words: an MLP on the mean of the embeddings, blind to order.  Iyyer et al. 2015."""

from typing import Any

from flax import linen as nn
from jax import Array
from jax import numpy as jnp

from tfm.layers.embed import TokenEmbedding
from tfm.models.common import check_capture, check_valid, known, outputs
from tfm.models.spec import BagSpec
from tfm.ops.dropout import Dropouts, drop


class Bag(nn.Module):
    """Logits BV of classes."""

    spec: BagSpec

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
        """`capture` may name "states": the mean, and each hidden layer."""
        check_capture(capture, "states")
        spec, dims = self.spec, self.spec.dims(self.spec.width)
        embed = TokenEmbedding(known(spec.vocab), dims, name="embed")
        x_BTD = drop(embed(tokens_BT), dropouts, "embedding")
        check_valid("valid_BT", valid_BT, {"B": x_BTD.shape[0], "T": x_BTD.shape[1]})
        if valid_BT is None:
            x_BD = jnp.mean(x_BTD, 1)
        else:
            count_B = jnp.maximum(jnp.sum(valid_BT, 1), 1).astype(x_BTD.dtype)
            x_BD = jnp.sum(x_BTD, 1, where=valid_BT[..., None]) / count_B[:, None]
        states = {"states_0_BD": x_BD}
        for n, width in enumerate(spec.hidden):
            x_BD = spec.activation.entry(dims.dense(width, name=f"hidden_{n}")(x_BD))
            states[f"states_{n + 1}_BD"] = x_BD
            x_BD = drop(x_BD, dropouts, "feedforward", f"hidden_{n}")
        logits_BV = dims.dense(known(spec.classes), name="head")(drop(x_BD, dropouts, "head"))
        logits_BV = logits_BV.astype(jnp.float32)
        return outputs(logits_BV, capture, states if "states" in capture else {})
