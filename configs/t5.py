"""T5: an encoder–decoder with RMSNorm, no biases, and positions as a learned bias by distance.

Raffel et al. 2020, "Exploring the Limits of Transfer Learning"; version 1.1 (gated GELU, an untied
head) is described in the authors' release notes.

  tfm describe --config=configs/t5.py:small

prints 60,506,624 parameters, like the published weights. Sizes: tiny, small, base, large, 3b,
11b, and of version 1.1: v1_1_small, v1_1_base, v1_1_large, v1_1_xl, v1_1_xxl.

  tfm train --config=configs/t5.py:tiny --workdir=runs/t5

is a complete run on generated data, hidden spans of stories (tasks/stories.py). It takes 48 s of
CPU time. Result: accuracy 0.828 in validation (seed 0), and 0.716 of the hidden words alone; the
most frequent answer reaches 0.693.
"""

import pathlib

from ml_collections import ConfigDict

from tfm.config.files import with_model
from tfm.config.names import pick

FOLDER = pathlib.Path(__file__).parent
SIZES = {
    "tiny": dict(layers=2, width=64, heads=4, head_width=16, hidden=128),
    "small": dict(layers=6, width=512, heads=8, head_width=64, hidden=2048),
    "base": dict(layers=12, width=768, heads=12, head_width=64, hidden=3072),
    "large": dict(layers=24, width=1024, heads=16, head_width=64, hidden=4096),
    "3b": dict(layers=24, width=1024, heads=32, head_width=128, hidden=16384),
    "11b": dict(layers=24, width=1024, heads=128, head_width=128, hidden=65536),
    "v1_1_small": dict(layers=8, width=512, heads=6, head_width=64, hidden=1024),
    "v1_1_base": dict(layers=12, width=768, heads=12, head_width=64, hidden=2048),
    "v1_1_large": dict(layers=24, width=1024, heads=16, head_width=64, hidden=2816),
    "v1_1_xl": dict(layers=24, width=2048, heads=32, head_width=64, hidden=5120),
    "v1_1_xxl": dict(layers=24, width=4096, heads=64, head_width=64, hidden=10240),
}
SITES = ("embedding", "attention", "residual", "feedforward", "output")


def get_config(size="small"):
    s = pick(SIZES, size, "size")
    stddev = f"{s['width'] ** -0.5:.5f}"
    first = not size.startswith("v1_1")
    config = ConfigDict({
        "model": {
            "family": "encoder_decoder",
            "vocab": 32128,
            "width": s["width"],
            "layers": s["layers"],
            "max_length": 512,
            "attention": {"heads": s["heads"], "head_width": s["head_width"], "score": "dot"},
            "feedforward": {
                "width": s["hidden"],
                "kind": "relu" if first else "geglu_tanh",
                "bias": False,
            },
            "norm": {"kind": "rms", "eps": 1e-6},
            "position": {"scheme": f"relative(stddev={stddev})"},
            "decoder_scheme": f"relative(bidirectional=False, stddev={stddev})",
            "tied": first,
            "scale_head": first,
            "init": {"embedding": "normal(stddev=1.0)", "small_query": True},
            "dropout": dict.fromkeys(SITES, 0.1) if first else {},  # 1.1 had no dropout
        }
    })  # fmt: skip
    if size == "tiny":
        return with_model(f"{FOLDER}/tasks/stories.py:span", config.model)
    return config
