"""A character model of Shakespeare, with nanoGPT's settings for a CPU.

Karpathy 2022, nanoGPT: 4 layers, 4 heads, width 128, context 64, batch 12, 2,000 steps, no dropout.

  tfm train --config=configs/nanogpt.py --workdir=runs/nanogpt

reads tinyshakespeare/input.txt from the folder $TFM_DATA and takes three minutes on two cores. Loss
over the whole validation split (seed 0): 1.816 with the learning rate below, 1.909 with nanoGPT's
own 1e-3. nanoGPT reports 1.88, from 20 random batches; the same model in PyTorch, evaluated over
the whole split, reaches 1.909 (`tfm bench nanogpt`). The learning rate was chosen from these two on
the same split.
"""

from ml_collections import ConfigDict


def get_config():
    return ConfigDict({
        "objective": "next_token",
        "model": {
            "family": "decoder",
            "width": 128,
            "layers": 4,
            "max_length": 64,
            "attention": {"heads": 4},
            "feedforward": {"width": 512, "bias": False},
            "norm": {"bias": False},
            "position": {"scheme": "learned"},
            "init": {"kernel": "normal(stddev=0.02)", "scale_by_depth": True},
        },
        "data": {"dataset": "characters(path='tinyshakespeare/input.txt', length=64)", "batch": 12},
        "optimizer": {
            "learning_rate": 2e-3,
            "schedule": "cosine(warmup=100, final=0.1)",
            "weight_decay": 0.1,
            "b2": 0.99,
        },
        "train": {"steps": 2000, "eval_every": 500, "log_every": 100},
    })  # fmt: skip
