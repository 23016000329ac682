"""A bag of words: an MLP on the mean of the embeddings, blind to order.  Iyyer et al. 2015."""

from collections.abc import Callable
from typing import Any

from flax import linen as nn
from jax import Array
from jax import numpy as jnp
from jax.typing import DTypeLike

from tfm.layers.embed import TokenEmbedding
from tfm.layers.feedforward import ACTIVATIONS
from tfm.layers.initial import Initial
from tfm.models import parts
from tfm.models.checks import check_used, check_valid
from tfm.models.outputs import check_want, outputs
from tfm.models.spec import BagSpec
from tfm.names import pick
from tfm.ops.dropout import Dropouts, drop


class Bag(nn.Module):
    """Logits BV of classes."""

    vocab: int
    width: int
    classes: int
    hidden: tuple[int, ...] = ()
    activation: Callable[[Array], Array] = nn.relu
    initial: Initial = Initial()
    dtype: DTypeLike | None = None

    @nn.compact
    def __call__(
        self,
        tokens_BT: Array,
        *,
        valid_BT: Array | None = None,
        dropouts: Dropouts | None = None,
        want: tuple[str, ...] = (),
    ) -> Any:
        """`want` may name "states": the mean, and each hidden layer."""
        check_want(want, ("states",))
        embed = TokenEmbedding(
            self.vocab, self.width, initial=self.initial.embedding, dtype=self.dtype, name="embed"
        )
        x_BTD = drop(embed(tokens_BT), dropouts, "embedding")
        batch, length, _ = x_BTD.shape
        check_valid("valid_BT", valid_BT, {"B": batch, "T": length})
        if valid_BT is None:
            x_BD = jnp.mean(x_BTD, 1)
        else:
            count_B = jnp.maximum(jnp.sum(valid_BT, 1), 1).astype(x_BTD.dtype)
            x_BD = jnp.sum(x_BTD, 1, where=valid_BT[..., None]) / count_B[:, None]

        made = {"states_0_BD": x_BD}

        def dense(features: int, name: str) -> nn.Dense:
            return nn.Dense(features, kernel_init=self.initial.kernel, dtype=self.dtype, name=name)

        for n, width in enumerate(self.hidden):
            x_BD = self.activation(dense(width, f"hidden_{n}")(x_BD))
            made[f"states_{n + 1}_BD"] = x_BD
            x_BD = drop(x_BD, dropouts, "feedforward", f"hidden_{n}")
        logits_BV = dense(self.classes, "head")(drop(x_BD, dropouts, "head"))
        return outputs(logits_BV.astype(jnp.float32), made, want)


def make(what: BagSpec) -> Bag:
    check_used(what, ("embedding", "feedforward", "head"))
    return Bag(
        vocab=what.vocab,
        width=what.width,
        classes=what.classes,
        hidden=what.hidden,
        activation=pick(ACTIVATIONS, what.activation, "model.activation"),
        initial=parts.initial(what.initial),
        dtype=parts.dtype(what),
    )
