"""Encoder–decoder models: read one sequence, write another.  Vaswani et al. 2017; T5, UL2."""

from typing import TYPE_CHECKING, Any

from flax import linen as nn
from jax import Array
from jax import numpy as jnp

from tfm.config.names import UserError
from tfm.layers.context import Auxiliary, Context
from tfm.layers.embed import TokenEmbedding, head
from tfm.layers.stack import Stack
from tfm.models.common import (
    Cache,
    check_cacheable,
    check_capture,
    check_packed,
    known,
    last_of,
    outputs,
    slots,
    visible,
)
from tfm.ops import masks
from tfm.ops.dropout import Dropouts

if TYPE_CHECKING:
    from tfm.models.spec import EncoderDecoderSpec


class EncoderDecoder(nn.Module):
    """Logits BTV of the next target token. One embedding serves both sides, or each has its own."""

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
        dropouts: Dropouts | None = None,
        train: bool = False,
        head: bool = True,
        capture: tuple[str, ...] = (),
    ) -> Any:
        """`capture` may name "states", "weights" and "details"; each side's are under "encoder",
        "decoder". With `head=False` the last states are given instead of the logits."""
        check_packed(self.spec, source_segment_BS)
        check_capture(capture, "states", "weights", "details")
        if (decoder_segment_BT is None) != (source_segment_BS is None):
            raise UserError("segments of packed rows are given for both sides, or for neither")
        source_BSD, read = self.encode(
            source_BS,
            valid_BS=source_valid_BS,
            pos_BS=source_pos_BS,
            segment_BS=source_segment_BS,
            dropouts=dropouts,
            train=train,
            capture=capture,
        )
        context = Context(
            visible(self.spec.decoder_mask.entry, decoder_valid_BT, decoder_segment_BT),
            valid_BT=decoder_valid_BT,
            pos_BT=decoder_pos_BT,
            source_BSD=source_BSD,
            source_mask=visible(
                masks.everything(), source_valid_BS, decoder_segment_BT, source_segment_BS
            ),
            source_pos_BS=source_pos_BS,
            dropouts=None if dropouts is None else dropouts.within("decoder"),
            train=train,
            capture=capture,
        )
        x_BTD, _, written = self.decoder(self.decoder_embed(decoder_input_BT), context)
        sides = {"encoder": read, "decoder": written}
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
        dropouts: Dropouts | None = None,
        train: bool = False,
        capture: tuple[str, ...] = (),
    ) -> tuple[Array, Auxiliary]:
        context = Context(
            visible(self.spec.mask.entry, valid_BS, segment_BS),
            valid_BT=valid_BS,
            pos_BT=pos_BS,
            dropouts=None if dropouts is None else dropouts.within("encoder"),
            train=train,
            capture=capture,
        )
        x_BSD, _, auxiliary = self.encoder(self.embed(source_BS), context)
        return x_BSD, auxiliary

    def logits(self, x_BTD: Array) -> Array:
        """Of the states that the model gives with head=False."""
        if self.spec.scale_head:
            x_BTD = x_BTD * jnp.asarray(x_BTD.shape[-1] ** -0.5, x_BTD.dtype)
        return self.decoder_embed.logits(x_BTD) if self.spec.tied else self.head(x_BTD)

    def init_cache(
        self, source_BS: Array, length: int, *, source_valid_BS: Array | None = None
    ) -> Cache:
        """A cache for `length` target tokens. The source is encoded, and projected once."""
        spec = self.spec
        scheme = spec.decoder_scheme or spec.position.scheme
        check_cacheable(spec, spec.decoder_mask, scheme, length)
        source_BSD, _ = self.encode(source_BS, valid_BS=source_valid_BS)
        source = self.decoder.keys_values(source_BSD, None)
        kept = slots(spec, spec.decoder_mask.entry, length)
        layers = self._decoder(parent=None).init_cache(source_BS.shape[0], kept, source)
        count_B = jnp.zeros(source_BS.shape[0], jnp.int32)
        return Cache(layers, count_B, source_valid_BS, length=length, rolling=kept < length)

    def decode(
        self, tokens_BT: Array, cache: Cache, *, valid_BT: Array | None = None, last: bool = False
    ) -> tuple[Array, Cache]:
        """Logits of tokens that follow those in the cache, and the cache with them in it. With
        `last`, those of each row's last token alone (B1V)."""
        source_mask = visible(masks.everything(), cache.source_valid_BS)
        mask = self.spec.decoder_mask.entry
        context = cache.context(mask, tokens_BT, valid_BT, source_mask=source_mask)
        x_BTD, layers, _ = self.decoder(self.decoder_embed(tokens_BT), context, cache.layers)
        x_BTD = last_of(x_BTD, valid_BT) if last else x_BTD
        count_B = cache.after(tokens_BT, valid_BT)
        logits_BTV = cache.guard(self.logits(x_BTD), count_B)
        return logits_BTV, cache.replace(layers=layers, count_B=count_B)
