"""GPT-2: a decoder with learned positions, pre-norm and GELU.

Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".

  tfm describe --config=configs/gpt2.py:small

prints 124,439,808 parameters, as the published weights have. Sizes: tiny, small, medium, large, xl.
"""

from ml_collections import ConfigDict

from tfm.names import pick

SIZES = {  # layers, width, heads
    "tiny": (2, 128, 2),
    "small": (12, 768, 12),
    "medium": (24, 1024, 16),
    "large": (36, 1280, 20),
    "xl": (48, 1600, 25),
}


def get_config(size="small"):
    layers, width, heads = pick(SIZES, size, "size")
    return ConfigDict({
        "model": {
            "family": "decoder",
            "vocab": 50257,
            "width": width,
            "layers": layers,
            "max_length": 1024,
            "attention": {"heads": heads, "qkv_bias": True, "out_bias": True},
            "feedforward": {"width": 4 * width, "kind": "gelu_tanh"},
            "position": {"scheme": "learned(stddev=0.01)"},
            "initial": {"kernel": "normal(stddev=0.02)", "by_depth": True},
            "dropout": {"embedding": 0.1, "attention": 0.1, "residual": 0.1},
        }
    })  # fmt: skip
