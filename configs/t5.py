"""T5: an encoder–decoder with RMSNorm, no biases, and positions as a learned bias by distance.

Raffel et al. 2020, "Exploring the Limits of Transfer Learning"; version 1.1 (gated GELU, a head of
its own) is described in the authors' release notes.

  tfm describe --config=configs/t5.py:small

prints 60,506,624 parameters, as the published weights have. Sizes: tiny, small, base, large, 3b,
11b, and of version 1.1: v1_1_small, v1_1_base, v1_1_large, v1_1_xl, v1_1_xxl.
"""

from ml_collections import ConfigDict

from tfm.names import pick

SIZES = {  # layers, width, heads, head width, hidden
    "tiny": (2, 64, 4, 16, 128),
    "small": (6, 512, 8, 64, 2048),
    "base": (12, 768, 12, 64, 3072),
    "large": (24, 1024, 16, 64, 4096),
    "3b": (24, 1024, 32, 128, 16384),
    "11b": (24, 1024, 128, 128, 65536),
    "v1_1_small": (8, 512, 6, 64, 1024),
    "v1_1_base": (12, 768, 12, 64, 2048),
    "v1_1_large": (24, 1024, 16, 64, 2816),
    "v1_1_xl": (24, 2048, 32, 64, 5120),
    "v1_1_xxl": (24, 4096, 64, 64, 10240),
}
PLACES = ("embedding", "attention", "residual", "feedforward", "output")


def get_config(size="small"):
    layers, width, heads, head_width, hidden = pick(SIZES, size, "size")
    first = not size.startswith("v1_1")
    return ConfigDict({
        "model": {
            "family": "encoder_decoder",
            "vocab": 32128,
            "width": width,
            "layers": layers,
            "max_length": 512,
            "attention": {"heads": heads, "head_width": head_width, "score": "dot"},
            "feedforward": {
                "width": hidden,
                "kind": "relu" if first else "geglu_tanh",
                "bias": False,
            },
            "norm": {"kind": "rms", "eps": 1e-6},
            "position": {"scheme": f"relative(stddev={width**-0.5:.5f})"},
            "decoder_scheme": f"relative(bidirectional=False, stddev={width**-0.5:.5f})",
            "tied": first,
            "scale_head": first,
            "initial": {"embedding": "normal(stddev=1.0)", "small_query": True},
            "dropout": dict.fromkeys(PLACES, 0.1) if first else {},  # 1.1 was trained without
        }
    })  # fmt: skip
