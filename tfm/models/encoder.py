"""Encoder-only models: every token sees both sides.  BERT, Devlin et al. 2019."""

from collections.abc import Callable
from typing import Any

import jax
from flax import linen as nn
from flax.linen import initializers
from jax import Array
from jax import numpy as jnp
from jax.typing import DTypeLike

from tfm.layers.embed import TokenEmbedding
from tfm.layers.feedforward import ACTIVATIONS, KINDS
from tfm.layers.initial import Initial
from tfm.layers.norm import Norm
from tfm.layers.stack import Stack
from tfm.models import parts
from tfm.models.outputs import check_want, outputs, visible
from tfm.models.spec import EncoderSpec
from tfm.names import UserError, pick, read
from tfm.ops.dropout import Dropouts, drop
from tfm.ops.masks import MASKS, Mask

HEADS = {
    "masked_lm": "the vocabulary, for each token",
    "tag": "classes, for each token",
    "classify": "classes, for the whole",
    "pair": "classes, for two sentences told apart by their types",
}


class Encoder(nn.Module):
    """Logits of its head; with several heads a dict of them by name; with none, the states."""

    embed: Callable[..., TokenEmbedding]
    stack: Callable[..., Stack]
    norm: Norm
    mask: Mask
    heads: tuple[str, ...] = ()
    classes: int | None = None
    pooler: bool = False
    activation: Callable[[Array], Array] = ACTIVATIONS["gelu"]
    initial: Initial = Initial()
    dtype: DTypeLike | None = None

    @nn.compact
    def __call__(
        self,
        tokens_BT: Array,
        *,
        valid_BT: Array | None = None,
        types_BT: Array | None = None,
        pos_BT: Array | None = None,
        segment_BT: Array | None = None,
        dropouts: Dropouts | None = None,
        want: tuple[str, ...] = (),
    ) -> Any:
        """`want` may name "states", "weights" and "pooled"."""
        check_want(want, ("states", "weights", "pooled"))
        embed = self.embed(name="embed")
        x_BTD, made = self.stack(name="encoder")(
            embed(tokens_BT, types_BT),
            mask=visible(self.mask, valid_BT, segment_BT),
            pos_BT=pos_BT,
            dropouts=dropouts,
            want=want,
        )

        def dense(features: int, name: str) -> nn.Dense:
            init = self.initial.kernel
            return nn.Dense(features, kernel_init=init, dtype=self.dtype, name=name)

        first_BD = x_BTD[:, 0]
        if self.pooler:
            first_BD = jnp.tanh(dense(x_BTD.shape[-1], "pooler")(first_BD))
        if "pooled" in want:
            made["pooled_BD"] = first_BD
        logits: dict[str, Array] = {}
        for head in self.heads:
            if head == "masked_lm":
                hidden_BTD = self.activation(dense(x_BTD.shape[-1], "masked_lm")(x_BTD))
                hidden_BTD = self.norm("masked_lm_norm")(hidden_BTD)
                bias_V = self.param("masked_lm_bias", initializers.zeros, (embed.vocab,))
                logits[head] = embed.logits(hidden_BTD) + bias_V[None, None]
            else:
                seen = x_BTD if head == "tag" else first_BD
                if head != "pair":  # Devlin et al. drop before the heads that are fine-tuned
                    seen = drop(seen, dropouts, "head", head)
                logits[head] = dense(self.classes or 0, head)(seen)
        logits = jax.tree.map(lambda x: x.astype(jnp.float32), logits)
        if not logits:
            return outputs(x_BTD, made, want)
        return outputs(logits[self.heads[0]] if len(logits) == 1 else logits, made, want)


def make(what: EncoderSpec) -> Encoder:
    if len(set(what.heads)) < len(what.heads):
        raise UserError(f"model.heads={what.heads}: each head once")
    for head in what.heads:
        pick(HEADS, head, "model.heads entry")
        if head != "masked_lm" and what.classes is None:
            raise UserError(f"model.classes is missing: how many for the head {head!r}?")
    classifies = any(head != "masked_lm" for head in what.heads)
    if what.classes is not None and not classifies:
        raise UserError(
            f"model.classes={what.classes}: no head in model.heads={what.heads} has any"
        )
    fine_tuned = {"classify", "tag"} & set(what.heads)
    parts.check_places(what, *(["head"] if fine_tuned else []))
    activation = KINDS.get(what.feedforward.kind, "gelu")
    return Encoder(
        embed=parts.embed(what, what.types),
        stack=parts.stack(what, what.layers, what.position.scheme, "model.position.scheme"),
        norm=parts.norm(what),
        mask=read(what.mask, MASKS, "model.mask"),
        heads=what.heads,
        classes=what.classes,
        pooler=what.pooler,
        activation=ACTIVATIONS[activation],
        initial=parts.initial(what.initial),
        dtype=parts.dtype(what),
    )
