"""Decoder-only models: every token sees what came before.  GPT-2, LLaMA; prefix LMs."""

from collections.abc import Callable
from typing import Any

from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike

from tfm.layers.embed import TokenEmbedding, float32_product
from tfm.layers.initial import Initial
from tfm.layers.stack import Stack
from tfm.models import parts
from tfm.models.outputs import check_want, outputs, visible
from tfm.models.spec import DecoderSpec
from tfm.names import read
from tfm.ops import masks
from tfm.ops.dropout import Dropouts
from tfm.ops.masks import MASKS, Mask


class Decoder(nn.Module):
    """Logits BTV of the next token."""

    embed: Callable[..., TokenEmbedding]
    stack: Callable[..., Stack]
    mask: Mask
    tied: bool = True
    initial: Initial = Initial()
    dtype: DTypeLike | None = None

    @nn.compact
    def __call__(
        self,
        tokens_BT: Array,
        *,
        valid_BT: Array | None = None,
        pos_BT: Array | None = None,
        segment_BT: Array | None = None,
        prefix_B: Array | None = None,
        dropouts: Dropouts | None = None,
        want: tuple[str, ...] = (),
    ) -> Any:
        """The first `prefix_B` positions see one another; `want` may name "states", "weights"."""
        check_want(want, ("states", "weights"))
        mask = self.mask if prefix_B is None else self.mask | masks.prefix(prefix_B)
        embed = self.embed(name="embed")
        x_BTD, made = self.stack(name="decoder")(
            embed(tokens_BT),
            mask=visible(mask, valid_BT, segment_BT),
            pos_BT=pos_BT,
            dropouts=dropouts,
            want=want,
        )
        if self.tied:
            return outputs(embed.logits(x_BTD), made, want)
        head = nn.Dense(
            embed.vocab,
            use_bias=False,
            dtype=self.dtype,
            kernel_init=self.initial.kernel,
            dot_general=float32_product,
            name="head",
        )
        return outputs(head(x_BTD), made, want)


def make(what: DecoderSpec) -> Decoder:
    parts.check_places(what)
    return Decoder(
        embed=parts.embed(what),
        stack=parts.stack(what, what.layers, what.position.scheme, "model.position.scheme"),
        mask=read(what.mask, MASKS, "model.mask"),
        tied=what.tied,
        initial=parts.initial(what.initial),
        dtype=parts.dtype(what),
    )
