"""Encoder-only models: every token sees both sides.  BERT, Devlin et al. 2019."""

from typing import TYPE_CHECKING, Any, Unpack

import jax
from flax import linen as nn
from jax import Array
from jax import numpy as jnp
from jax.nn import initializers

from tfm.config.names import UserError
from tfm.layers.block import ACTIVATIONS, GATED
from tfm.layers.context import Context
from tfm.layers.dims import drop
from tfm.layers.embed import TokenEmbedding
from tfm.layers.norm import normalize
from tfm.layers.stack import Stack
from tfm.models.common import CallOptions, captured, check_packable, known, outputs, visible
from tfm.ops.fast import add_last

if TYPE_CHECKING:
    from tfm.models.spec import EncoderSpec


class Encoder(nn.Module):
    """Returns the logits of its output; a dict of several outputs; without outputs, the states."""

    spec: "EncoderSpec"

    @nn.compact
    def __call__(
        self,
        tokens_BT: Array,
        *,
        valid_BT: Array | None = None,
        types_BT: Array | None = None,
        pos_BT: Array | None = None,
        segment_BT: Array | None = None,
        head: bool = True,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Returns logits; with `head=False` the hidden states of masked_lm, which must be the only
        output. `capture` may name "states", "weights", "details" and "pooled"."""
        if segment_BT is not None:
            check_packable(self.spec)
        capture = captured(options, "states", "weights", "details", "pooled")
        spec, dims = self.spec, self.spec.embed_dims
        if not head and spec.outputs != ("masked_lm",):
            raise UserError(f"head=False: model.outputs={spec.outputs} must be ('masked_lm',)")
        embed = self._embed()
        mask = visible(spec.mask.entry, valid_BT, segment_BT)
        context = Context(mask, valid_BT, pos_BT, **options)
        stack = Stack(spec, spec.layers, spec.position.scheme.entry, causal=False, name="encoder")
        x_BTD, _, (losses, intermediates) = stack(embed(tokens_BT, types_BT), context)
        first_BD = x_BTD[:, 0]
        if spec.pooler:
            first_BD = jnp.tanh(dims.dense(spec.width, name="pooler")(first_BD))
        if "pooled" in capture:
            intermediates = {**intermediates, "pooled_BD": first_BD}
        logits: dict[str, Array] = {}
        for name in spec.outputs:
            if name == "masked_lm":
                kind = GATED.get(spec.feedforward.kind, spec.feedforward.kind)
                activation = ACTIVATIONS.get(kind, ACTIVATIONS["gelu"])
                hidden_BTD = activation(dims.dense(spec.width, name="masked_lm")(x_BTD))
                hidden_BTD = normalize(spec.norm, dims.dtype, "masked_lm_norm", hidden_BTD, context)
                if not head:
                    return outputs(hidden_BTD, capture, intermediates, losses)
                logits[name] = self._masked_lm(embed, hidden_BTD)
            else:
                features = x_BTD if name == "tag" else first_BD
                if name != "pair":  # Devlin et al. use dropout before fine-tuned heads only
                    features = drop(features, context.dropouts, "head", name)
                logits[name] = dims.dense(spec.classes or 0, name=str(name))(features)
        logits = jax.tree.map(lambda x: x.astype(jnp.float32), logits)
        out: Any = logits or x_BTD
        if len(logits) == 1:
            (out,) = logits.values()
        return outputs(out, capture, intermediates, losses)

    @nn.compact
    def logits(self, x_BTD: Array) -> Array:
        """Projects final hidden states to logits."""
        return self._masked_lm(self._embed(), x_BTD)

    def _embed(self) -> TokenEmbedding:
        spec = self.spec
        return TokenEmbedding(
            known(spec.vocab), spec.embed_dims, spec.types, spec.scale_embedding, name="embed"
        )

    def _masked_lm(self, embed: TokenEmbedding, x_BTD: Array) -> Array:
        bias_V = self.param("masked_lm_bias", initializers.zeros, (known(self.spec.vocab),))
        return add_last(embed.logits(x_BTD), bias_V)
