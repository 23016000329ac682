"""BERT: an encoder that fills in masked words and tells whether two sentences follow each other.

Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers"; the small sizes are
from Turc et al. 2019.

  tfm describe --config=configs/bert.py:base

prints 110,106,428 parameters: 109,482,240 up to the pooler, the rest in the two heads. Sizes:
tiny, mini, small, medium, base, large.
"""

from ml_collections import ConfigDict

from tfm.names import pick

SIZES = {  # layers, width, heads
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}


def get_config(size="base"):
    layers, width, heads = pick(SIZES, size, "size")
    return ConfigDict({
        "model": {
            "family": "encoder",
            "vocab": 30522,
            "width": width,
            "layers": layers,
            "max_length": 512,
            "types": 2,
            "heads": ("masked_lm", "pair"),
            "classes": 2,
            "pooler": True,
            "attention": {"heads": heads, "qkv_bias": True, "out_bias": True},
            "feedforward": {"width": 4 * width, "kind": "gelu"},
            "norm": {"place": "post", "eps": 1e-12, "embedding": True},
            "position": {"scheme": "learned(stddev=0.02)"},
            "initial": {
                "kernel": "truncated_normal(stddev=0.02)",
                "embedding": "truncated_normal(stddev=0.02)",
            },
            "dropout": {"embedding": 0.1, "attention": 0.1, "residual": 0.1},
        }
    })  # fmt: skip
