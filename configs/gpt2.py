"""GPT-2: a decoder with learned positions, pre-norm and GELU.

Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".

  tfm describe --config=configs/gpt2.py:small

prints 124,439,808 parameters, like the published weights. Sizes: tiny, small, medium, large, xl.

  tfm train --config=configs/gpt2.py:tiny --workdir=runs/gpt2

is a complete run on generated data, stories (tasks/stories.py). It takes 56 s of CPU time. Result:
loss 1.022 in validation (seed 0), where 1.021 is the lowest possible, and accuracy 0.604, where
the most frequent word reaches 0.269.
"""

import pathlib

from ml_collections import ConfigDict

from tfm.config.files import with_model
from tfm.config.names import pick

FOLDER = pathlib.Path(__file__).parent
SIZES = {
    "tiny": dict(layers=2, width=128, heads=2),
    "small": dict(layers=12, width=768, heads=12),
    "medium": dict(layers=24, width=1024, heads=16),
    "large": dict(layers=36, width=1280, heads=20),
    "xl": dict(layers=48, width=1600, heads=25),
}


def get_config(size="small"):
    s = pick(SIZES, size, "size")
    config = ConfigDict({
        "model": {
            "family": "decoder",
            "vocab": 50257,
            "width": s["width"],
            "layers": s["layers"],
            "max_length": 1024,
            "attention": {"heads": s["heads"], "qkv_bias": True, "out_bias": True},
            "feedforward": {"width": 4 * s["width"], "kind": "gelu_tanh"},
            "position": {"scheme": "learned(stddev=0.01)"},
            "init": {"kernel": "normal(stddev=0.02)", "scale_by_depth": True},
            "dropout": {"embedding": 0.1, "attention": 0.1, "residual": 0.1},
        }
    })  # fmt: skip
    if size == "tiny":
        return with_model(f"{FOLDER}/tasks/stories.py:next", config.model)
    return config
