"""BERT: an encoder that predicts masked words and whether one sentence follows another.

Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers"; mini, small and medium
are from Turc et al. 2019, as are the layers of tiny, whose vocabulary is that of its data.

  tfm describe --config=configs/bert.py:base

prints 110,106,428 parameters: 109,482,240 up to the pooler, the rest in the two outputs. Sizes:
tiny, mini, small, medium, base, large.

  tfm train --config=configs/bert.py:tiny --workdir=runs/bert

is a complete run on generated data, pairs of sentences (tasks/stories.py). It takes 72 s of CPU
time. Result: accuracy 0.577 of hidden words and 0.870 of pairs in validation (seed 0), where
guessing reaches 0.5.
"""

import pathlib

from ml_collections import ConfigDict

from tfm.config.files import with_model
from tfm.config.names import pick

FOLDER = pathlib.Path(__file__).parent
SIZES = {
    "tiny": dict(layers=2, width=128, heads=2),
    "mini": dict(layers=4, width=256, heads=4),
    "small": dict(layers=4, width=512, heads=8),
    "medium": dict(layers=8, width=512, heads=8),
    "base": dict(layers=12, width=768, heads=12),
    "large": dict(layers=24, width=1024, heads=16),
}


def get_config(size="base"):
    s = pick(SIZES, size, "size")
    tiny = size == "tiny"
    stddev = 0.09 if tiny else 0.02  # about 1 / √width; pairs are learned sooner than with 0.02
    config = ConfigDict({
        "model": {
            "family": "encoder",
            "vocab": 30522,
            "width": s["width"],
            "layers": s["layers"],
            "max_length": 512,
            "types": 2,
            "outputs": ("masked_lm", "pair"),
            "classes": 2,
            "pooler": True,
            "attention": {"heads": s["heads"], "qkv_bias": True, "out_bias": True},
            "feedforward": {"width": 4 * s["width"], "kind": "gelu"},
            "norm": {"placement": "post", "eps": 1e-12, "embedding": True},
            "position": {"scheme": f"learned(stddev={stddev})"},
            "init": {
                "kernel": f"truncated_normal(stddev={stddev})",
                "embedding": f"truncated_normal(stddev={stddev})",
            },
            "dropout": {} if tiny else dict.fromkeys(("embedding", "attention", "residual"), 0.1),
        }
    })  # fmt: skip
    if tiny:
        return with_model(f"{FOLDER}/tasks/stories.py:bert", config.model)
    return config
