"""Encoder–decoder models: from a source to a target sequence.  Vaswani et al. 2017; T5, UL2."""

from typing import TYPE_CHECKING, Any, Unpack

from flax import linen as nn
from jax import Array
from jax import numpy as jnp

from tfm.config.names import UserError
from tfm.layers.context import Auxiliary, Context
from tfm.layers.embed import TokenEmbedding, head
from tfm.layers.stack import Stack
from tfm.models.common import (
    CallOptions,
    TransformerCache,
    captured,
    check_cacheable,
    check_packable,
    known,
    outputs,
    slots,
    visible,
    within,
)
from tfm.ops import masks

if TYPE_CHECKING:
    from tfm.models.spec import EncoderDecoderSpec


class EncoderDecoder(nn.Module):
    """Predicts the next target token: logits (BTV). Both sides share an embedding, or have two."""

    spec: "EncoderDecoderSpec"

    def setup(self) -> None:
        spec = self.spec
        vocab = spec.decoder_vocab or known(spec.vocab)
        self.embed = TokenEmbedding(known(spec.vocab), spec.embed_dims, scale=spec.scale_embedding)
        self.decoder_embed = self.embed
        if not spec.share_embedding:
            self.decoder_embed = TokenEmbedding(vocab, spec.embed_dims, scale=spec.scale_embedding)
        self.encoder = Stack(spec, spec.layers, spec.position.scheme.entry, causal=False)
        self.decoder = self._decoder()
        if not spec.tied:
            self.head = head(vocab, spec.embed_dims)

    def _decoder(self, **options: Any) -> Stack:
        spec = self.spec
        layers = spec.decoder_layers or spec.layers
        scheme = spec.decoder_scheme or spec.position.scheme
        cross = spec.cross or spec.attention
        return Stack(spec, layers, scheme.entry, causal=True, cross=cross, **options)

    def __call__(
        self,
        source_BS: Array,
        decoder_input_BT: Array,
        *,
        source_valid_BS: Array | None = None,
        decoder_valid_BT: Array | None = None,
        source_pos_BS: Array | None = None,
        decoder_pos_BT: Array | None = None,
        source_segment_BS: Array | None = None,
        decoder_segment_BT: Array | None = None,
        head: bool = True,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Returns logits, or with `head=False` the final hidden states. `capture` may name
        "states", "weights" and "details"; intermediates are grouped under "encoder" and
        "decoder"."""
        if source_segment_BS is not None:
            check_packable(self.spec)
        capture = captured(options, "states", "weights", "details")
        if (decoder_segment_BT is None) != (source_segment_BS is None):
            raise UserError("give segments of packed rows for both sides, or for neither")
        source_BSD, encoded = self.encode(
            source_BS,
            valid_BS=source_valid_BS,
            pos_BS=source_pos_BS,
            segment_BS=source_segment_BS,
            **options,
        )
        context = Context(
            visible(self.spec.decoder_mask.entry, decoder_valid_BT, decoder_segment_BT),
            decoder_valid_BT,
            decoder_pos_BT,
            source_BSD=source_BSD,
            source_mask=visible(
                masks.everything(), source_valid_BS, decoder_segment_BT, source_segment_BS
            ),
            source_pos_BS=source_pos_BS,
            **within(options, "decoder"),
        )
        x_BTD, _, decoded = self.decoder(self.decoder_embed(decoder_input_BT), context)
        sides = {"encoder": encoded, "decoder": decoded}
        losses = {f"{k}_{n}": x for k, side in sides.items() for n, x in side.losses.items()}
        intermediates = {name: dict(side.intermediates) for name, side in sides.items()}
        return outputs(self.logits(x_BTD) if head else x_BTD, capture, intermediates, losses)

    def encode(
        self,
        source_BS: Array,
        *,
        valid_BS: Array | None = None,
        pos_BS: Array | None = None,
        segment_BS: Array | None = None,
        **options: Unpack[CallOptions],
    ) -> tuple[Array, Auxiliary]:
        """Returns the states of the source (BSD)."""
        mask = visible(self.spec.mask.entry, valid_BS, segment_BS)
        context = Context(mask, valid_BS, pos_BS, **within(options, "encoder"))
        x_BSD, _, auxiliary = self.encoder(self.embed(source_BS), context)
        return x_BSD, auxiliary

    def logits(self, x_BTD: Array) -> Array:
        """Projects final hidden states to logits."""
        if self.spec.scale_head:
            x_BTD = x_BTD * jnp.asarray(x_BTD.shape[-1] ** -0.5, x_BTD.dtype)
        return self.decoder_embed.logits(x_BTD) if self.spec.tied else self.head(x_BTD)

    def init_cache(
        self, source_BS: Array, length: int, *, source_valid_BS: Array | None = None
    ) -> TransformerCache:
        """Returns a cache for `length` target tokens. Encodes the source and projects it once."""
        spec = self.spec
        scheme = spec.decoder_scheme or spec.position.scheme
        check_cacheable(spec, spec.decoder_mask, scheme, length)
        source_BSD, _ = self.encode(source_BS, valid_BS=source_valid_BS)
        source = self.decoder.keys_values(source_BSD, None)
        kept = slots(spec, spec.decoder_mask.entry, length)
        layers = self._decoder(parent=None).init_cache(source_BS.shape[0], kept, source)
        count_B = jnp.zeros(source_BS.shape[0], jnp.int32)
        return TransformerCache(
            layers, count_B, source_valid_BS, length=length, rolling=kept < length
        )

    def decode(
        self,
        tokens_BT: Array,
        cache: TransformerCache,
        *,
        valid_BT: Array | None = None,
        last: bool = False,
    ) -> tuple[Array, TransformerCache]:
        """Returns logits of tokens that follow those in the cache, and the extended cache. With
        `last`, only logits of each row's last token (B1V)."""
        source_mask = visible(masks.everything(), cache.source_valid_BS)
        mask, x_BTD = self.spec.decoder_mask.entry, self.decoder_embed(tokens_BT)
        return cache.decoded(self, x_BTD, mask, valid_BT, last, source_mask=source_mask)
