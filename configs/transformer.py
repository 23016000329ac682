"""The Transformer of 2017: six layers on each side, post-norm, sinusoidal positions.

Vaswani et al. 2017, "Attention Is All You Need", table 3.

  tfm describe --config=configs/transformer.py:base

prints 63,045,632 parameters (the table says 65 million). Sizes: base, big, and for small
data small (3 layers) and tiny.
"""

from ml_collections import ConfigDict

from tfm.names import pick

SIZES = {  # layers, width, heads, hidden, dropout, vocabulary
    "tiny": (2, 64, 4, 128, 0.1, 1000),
    "small": (3, 256, 8, 512, 0.1, 10000),
    "base": (6, 512, 8, 2048, 0.1, 37000),
    "big": (6, 1024, 16, 4096, 0.3, 37000),
}


def get_config(size="base"):
    layers, width, heads, hidden, dropout, vocab = pick(SIZES, size, "size")
    return ConfigDict({
        "model": {
            "family": "encoder_decoder",
            "vocab": vocab,
            "width": width,
            "layers": layers,
            "max_length": 512,
            "scale_embedding": True,
            "attention": {"heads": heads},
            "feedforward": {"width": hidden, "kind": "relu"},
            "norm": {"place": "post"},
            "position": {"scheme": "sinusoidal"},
            "initial": {
                "kernel": "glorot_uniform",
                "embedding": f"normal(stddev={width**-0.5:.5f})",
            },
            "dropout": {"embedding": dropout, "residual": dropout},
        }
    })  # fmt: skip
