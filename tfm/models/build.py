"""Config → spec → module: the only door. Below it nobody sees a config or looks up a name."""

from ml_collections import ConfigDict

from tfm.config import to_spec
from tfm.layers.attention import MultiHeadAttention
from tfm.models.spec import AttentionSpec
from tfm.names import UserError, pick, read
from tfm.ops.attend import IMPLEMENTATIONS
from tfm.ops.masks import MASKS, Mask
from tfm.ops.normalizers import NORMALIZERS
from tfm.ops.positions import POSITIONS
from tfm.ops.scores import SCORES


def attention(config: ConfigDict, key: str = "attention") -> tuple[MultiHeadAttention, Mask]:
    """An attention layer and its mask from the part of a config that stands under `key`."""
    spec = to_spec(AttentionSpec, config, f"{key}.")
    for name, at_least in (("heads", 1), ("head_width", 1), ("kv_heads", 1), ("max_length", 1)):
        value = getattr(spec, name)
        if value is not None and value < at_least:
            raise UserError(f"{key}.{name}={value} must be at least {at_least}")
    if spec.kv_heads is not None and spec.heads % spec.kv_heads:
        raise UserError(f"{key}.kv_heads={spec.kv_heads} must divide {key}.heads={spec.heads}")
    pick(IMPLEMENTATIONS, spec.implementation, f"{key}.implementation")
    module = MultiHeadAttention(
        heads=spec.heads,
        head_width=spec.head_width,
        kv_heads=spec.kv_heads,
        score=pick(SCORES, spec.score, f"{key}.score"),
        normalizer=pick(NORMALIZERS, spec.normalizer, f"{key}.normalizer"),
        cap=spec.cap,
        position=read(spec.position, POSITIONS, f"{key}.position"),
        max_length=spec.max_length,
        qkv_bias=spec.qkv_bias,
        out_bias=spec.out_bias,
        qk_norm=spec.qk_norm,
        share_qk=spec.share_qk,
        implementation=spec.implementation,
    )
    return module, read(spec.mask, MASKS, f"{key}.mask")
