"""The Transformer of 2017: six layers on each side, post-norm, sinusoidal positions.

Vaswani et al. 2017, "Attention Is All You Need", table 3.

  tfm describe --config=configs/transformer.py:base

prints 63,045,632 parameters (the table says 65 million). Sizes: base, big, and for small
data, small (3 layers) and tiny.

  tfm train --config=configs/transformer.py:tiny --workdir=runs/transformer

is a complete run on generated data, English to French by a grammar (tasks/alignment.py). It takes
57 s of CPU time. Result: 1.000 of the validation sentences without a mistake (seed 0).
"""

import pathlib

from ml_collections import ConfigDict

from tfm.config.files import with_model
from tfm.config.names import pick

FOLDER = pathlib.Path(__file__).parent
SIZES = {
    "tiny": dict(layers=2, width=64, heads=4, hidden=128, dropout=0.1, vocab=1000),
    "small": dict(layers=3, width=256, heads=8, hidden=512, dropout=0.1, vocab=10000),
    "base": dict(layers=6, width=512, heads=8, hidden=2048, dropout=0.1, vocab=37000),
    "big": dict(layers=6, width=1024, heads=16, hidden=4096, dropout=0.3, vocab=37000),
}


def get_config(size="base"):
    s = pick(SIZES, size, "size")
    config = ConfigDict({
        "model": {
            "family": "encoder_decoder",
            "vocab": s["vocab"],
            "width": s["width"],
            "layers": s["layers"],
            "max_length": 512,
            "scale_embedding": True,
            "attention": {"heads": s["heads"]},
            "feedforward": {"width": s["hidden"], "kind": "relu"},
            "norm": {"placement": "post"},
            "position": {"scheme": "sinusoidal"},
            "init": {
                "kernel": "glorot_uniform",
                "embedding": f"normal(stddev={s['width'] ** -0.5:.5f})",
            },
            "dropout": {"embedding": s["dropout"], "residual": s["dropout"]},
        }
    })  # fmt: skip
    if size == "tiny":
        return with_model(f"{FOLDER}/tasks/alignment.py:transformer", config.model)
    return config
