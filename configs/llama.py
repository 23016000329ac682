"""LLaMA: a decoder with RMSNorm, rotary positions and SwiGLU, and no biases.

Touvron et al. 2023, "LLaMA: Open and Efficient Foundation Language Models"; the Llama team 2024
for grouped queries and the larger base of `3-8b`; Karpathy's llama2.c for `260k`.

  tfm describe --config=configs/llama.py:7b

prints 6,738,415,616 parameters, like the published weights. Sizes: tiny, 260k, 7b, 13b, 30b, 3-8b.

  tfm train --config=configs/llama.py:tiny --workdir=runs/llama

is a complete run on generated data, stories (tasks/stories.py). It takes 25 s of CPU time. Result:
loss 1.021 in validation (seed 0), where 1.021 is the lowest possible, and accuracy 0.603, where
the most frequent word reaches 0.269.
"""

import pathlib

from ml_collections import ConfigDict

from tfm.config.files import with_model
from tfm.config.names import pick

FOLDER = pathlib.Path(__file__).parent
SIZES = {
    "tiny": dict(layers=2, width=64, heads=4, kv_heads=2, hidden=172, length=512),
    "260k": dict(layers=5, width=64, heads=8, kv_heads=4, hidden=172, vocab=512, length=512),
    "7b": dict(layers=32, width=4096, heads=32, hidden=11008, eps=1e-6),
    "13b": dict(layers=40, width=5120, heads=40, hidden=13824, eps=1e-6),
    "30b": dict(layers=60, width=6656, heads=52, hidden=17920, eps=1e-6),
    "3-8b": dict(
        layers=32, width=4096, heads=32, kv_heads=8, hidden=14336, vocab=128256, length=8192,
        base=500_000.0,
    ),
}  # fmt: skip


def get_config(size="7b"):
    s = pick(SIZES, size, "size")
    config = ConfigDict({
        "model": {
            "family": "decoder",
            "vocab": s.get("vocab", 32000),
            "width": s["width"],
            "layers": s["layers"],
            "max_length": s.get("length", 2048),
            "attention": {"heads": s["heads"], "kv_heads": s.get("kv_heads", s["heads"])},
            "feedforward": {"width": s["hidden"], "kind": "swiglu", "bias": False},
            "norm": {"kind": "rms", "eps": s.get("eps", 1e-5)},
            "position": {"scheme": f"rotary(base={s.get('base', 10_000.0)})"},
            "init": {"kernel": "normal(stddev=0.02)"},
            "tied": size in ("tiny", "260k"),
        }
    })  # fmt: skip
    if size == "tiny":
        return with_model(f"{FOLDER}/tasks/stories.py:next", config.model)
    return config
