"""Encoder–decoder models: read one sequence, write another.  Vaswani et al. 2017; T5, UL2."""

from collections.abc import Callable
from typing import Any

from flax import linen as nn
from jax import Array
from jax import numpy as jnp
from jax.typing import DTypeLike

from tfm.layers.block import Made
from tfm.layers.embed import TokenEmbedding, float32_product
from tfm.layers.initial import Initial
from tfm.layers.stack import Stack
from tfm.models import parts
from tfm.models.outputs import check_want, outputs, visible
from tfm.models.spec import EncoderDecoderSpec
from tfm.names import UserError, read
from tfm.ops import masks
from tfm.ops.dropout import Dropouts
from tfm.ops.masks import MASKS, Mask


class EncoderDecoder(nn.Module):
    """Logits BTV of the next target token. The embedding serves both sides."""

    make_embed: Callable[..., TokenEmbedding]
    make_encoder: Callable[..., Stack]
    make_decoder: Callable[..., Stack]
    encoder_mask: Mask
    decoder_mask: Mask
    tied: bool = True
    scale_head: bool = False
    initial: Initial = Initial()
    dtype: DTypeLike | None = None

    def setup(self):
        self.embed = self.make_embed()
        self.encoder = self.make_encoder()
        self.decoder = self.make_decoder()
        if not self.tied:
            self.head = nn.Dense(
                self.embed.vocab,
                use_bias=False,
                dtype=self.dtype,
                kernel_init=self.initial.kernel,
                dot_general=float32_product,
            )

    def __call__(
        self,
        source_BS: Array,
        target_BT: Array,
        *,
        source_valid_BS: Array | None = None,
        target_valid_BT: Array | None = None,
        source_pos_BS: Array | None = None,
        target_pos_BT: Array | None = None,
        source_segment_BS: Array | None = None,
        target_segment_BT: Array | None = None,
        dropouts: Dropouts | None = None,
        want: tuple[str, ...] = (),
    ) -> Any:
        """`want` may name "states" and "weights"; each side's are under "encoder", "decoder"."""
        check_want(want, ("states", "weights"))
        source_BSD, read = self.encode(
            source_BS,
            valid_BS=source_valid_BS,
            pos_BS=source_pos_BS,
            segment_BS=source_segment_BS,
            dropouts=dropouts,
            want=want,
        )
        logits, written = self.decode(
            target_BT,
            source_BSD,
            source_valid_BS=source_valid_BS,
            source_pos_BS=source_pos_BS,
            source_segment_BS=source_segment_BS,
            valid_BT=target_valid_BT,
            pos_BT=target_pos_BT,
            segment_BT=target_segment_BT,
            dropouts=dropouts,
            want=want,
        )
        return outputs(logits, {"encoder": read, "decoder": written}, want)

    def encode(
        self,
        source_BS: Array,
        *,
        valid_BS: Array | None = None,
        pos_BS: Array | None = None,
        segment_BS: Array | None = None,
        dropouts: Dropouts | None = None,
        want: tuple[str, ...] = (),
    ) -> tuple[Array, Made]:
        return self.encoder(
            self.embed(source_BS),
            mask=visible(self.encoder_mask, valid_BS, segment_BS),
            pos_BT=pos_BS,
            dropouts=None if dropouts is None else dropouts.within("encoder"),
            want=want,
        )

    def decode(
        self,
        target_BT: Array,
        source_BSD: Array,
        *,
        source_valid_BS: Array | None = None,
        source_pos_BS: Array | None = None,
        source_segment_BS: Array | None = None,
        valid_BT: Array | None = None,
        pos_BT: Array | None = None,
        segment_BT: Array | None = None,
        dropouts: Dropouts | None = None,
        want: tuple[str, ...] = (),
    ) -> tuple[Array, Made]:
        if (segment_BT is None) != (source_segment_BS is None):
            raise UserError("segments of packed rows are given for source and target, or neither")
        x_BTD, made = self.decoder(
            self.embed(target_BT),
            mask=visible(self.decoder_mask, valid_BT, segment_BT),
            pos_BT=pos_BT,
            source_BSD=source_BSD,
            source_pos_BS=source_pos_BS,
            source_mask=visible(masks.everything(), source_valid_BS, segment_BT, source_segment_BS),
            dropouts=None if dropouts is None else dropouts.within("decoder"),
            want=want,
        )
        if self.scale_head:
            x_BTD = x_BTD * jnp.asarray(x_BTD.shape[-1] ** -0.5, x_BTD.dtype)
        if self.tied:
            return self.embed.logits(x_BTD), made
        return self.head(x_BTD), made


def make(what: EncoderDecoderSpec) -> EncoderDecoder:
    scheme, key = what.position.scheme, "model.position.scheme"
    other, other_key = (
        (scheme, key)
        if what.decoder_scheme is None
        else (what.decoder_scheme, "model.decoder_scheme")
    )
    parts.check_places(what)
    cross = what.attention if what.cross is None else what.cross
    return EncoderDecoder(
        make_embed=parts.embed(what),
        make_encoder=parts.stack(what, what.layers, scheme, key),
        make_decoder=parts.stack(what, what.decoder_layers or what.layers, other, other_key, cross),
        encoder_mask=read(what.mask, MASKS, "model.mask"),
        decoder_mask=read(what.decoder_mask, MASKS, "model.decoder_mask"),
        tied=what.tied,
        scale_head=what.scale_head,
        initial=parts.initial(what.initial),
        dtype=parts.dtype(what),
    )
