"""A bag of words: an MLP on the mean of the embeddings, which ignores order.  Iyyer et al. 2015.

For two sentences it reads both means, their difference and their product.  Mou et al. 2016.
"""

from typing import TYPE_CHECKING, Any

from flax import linen as nn
from jax import Array
from jax import numpy as jnp

from tfm.layers.embed import TokenEmbedding
from tfm.models.common import check_capture, check_valid, known, outputs
from tfm.ops.dropout import Dropouts, drop

if TYPE_CHECKING:
    from tfm.models.spec import BagSpec


class Bag(nn.Module):
    """Predicts a class for the whole input: logits (BV)."""

    spec: "BagSpec"

    @nn.compact
    def __call__(
        self,
        tokens_BT: Array,
        *,
        valid_BT: Array | None = None,
        types_BT: Array | None = None,
        dropouts: Dropouts | None = None,
        train: bool = False,
        capture: tuple[str, ...] = (),
    ) -> Any:
        """Returns logits. `types_BT` is 0 and 1 for tokens of two sentences. `capture` may name
        "states": the input of the MLP, and each hidden layer."""
        check_capture(capture, "states")
        spec, dims = self.spec, self.spec.dims(self.spec.width)
        embed = TokenEmbedding(known(spec.vocab), dims, name="embed")
        x_BTD = drop(embed(tokens_BT), dropouts, "embedding")
        check_valid("valid_BT", valid_BT, {"B": x_BTD.shape[0], "T": x_BTD.shape[1]})
        if types_BT is None:
            x_BD = _mean(x_BTD, valid_BT)
        else:
            both_BT = jnp.ones(types_BT.shape, bool) if valid_BT is None else valid_BT
            u_BD, v_BD = (_mean(x_BTD, both_BT & (types_BT == n)) for n in (0, 1))
            x_BD = jnp.concatenate([u_BD, v_BD, jnp.abs(u_BD - v_BD), u_BD * v_BD], -1)
        states = {"states_0_BD": x_BD}
        for n, width in enumerate(spec.hidden):
            x_BD = spec.activation.entry(dims.dense(width, name=f"hidden_{n}")(x_BD))
            states[f"states_{n + 1}_BD"] = x_BD
            x_BD = drop(x_BD, dropouts, "feedforward", f"hidden_{n}")
        logits_BV = dims.dense(known(spec.classes), name="head")(drop(x_BD, dropouts, "head"))
        logits_BV = logits_BV.astype(jnp.float32)
        return outputs(logits_BV, capture, states if "states" in capture else {})


def _mean(x_BTD: Array, valid_BT: Array | None) -> Array:
    if valid_BT is None:
        return jnp.mean(x_BTD, 1)
    count_B = jnp.maximum(jnp.sum(valid_BT, 1), 1).astype(x_BTD.dtype)
    return jnp.sum(x_BTD, 1, where=valid_BT[..., None]) / count_B[:, None]
