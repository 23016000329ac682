"""What a model is: frozen dataclasses, one value for each choice."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class AttentionSpec:
    """One attention layer. Names are looked up in the tables of `tfm.ops`."""

    heads: int
    head_width: int
    kv_heads: int | None = None
    score: str = "scaled_dot"
    normalizer: str = "softmax"
    cap: float | None = None
    mask: str = "everything"  # joined with what the batch says: padding, segments
    position: str = "none"
    max_length: int | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    share_qk: bool = False
    implementation: str = "auto"
