"""Config → spec → module: the only door. Below it nobody sees a config or looks up a name."""

import jax
from jax import numpy as jnp
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
    pick(IMPLEMENTATIONS, spec.implementation, f"{key}.implementation")
    mask = read(spec.mask, MASKS, f"{key}.mask")
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
    try:  # what cannot be shows in its shapes, before anything is compiled
        x_BTD = jax.ShapeDtypeStruct((1, spec.max_length or 2, spec.head_width), jnp.float32)
        jax.eval_shape(lambda x: module.init(jax.random.key(0), x, mask=mask), x_BTD)
    except UserError as e:
        raise UserError(f"{key}: {e}") from e
    return module, mask
