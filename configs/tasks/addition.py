"""Addition modulo 31, learned from four fifths of all pairs.  Power et al. 2022.

A decoder. Small initial embeddings make it slower, but it finds the rule. Of all 961 pairs, 97 are
for validation and 96 for testing.

  tfm train --config=configs/tasks/addition.py --workdir=runs/addition

took 36 seconds on one core of a busy machine. Share of 97 examples without a mistake (seed 0):
1.000 in validation, 1.000 in test; the best possible is 1.
"""

from ml_collections import ConfigDict


def get_config():
    return ConfigDict({
        "objective": "next_token",
        "model": {
            "family": "decoder",
            "width": 64,
            "layers": 2,
            "max_length": 64,
            "position": {"scheme": "rotary"},
            "attention": {"heads": 4},
            "feedforward": {"width": 128},
        },
        "data": {
            "dataset": "addition(p=31, fraction=0.8)",
            "batch": 64,
        },
        "optimizer": {
            "learning_rate": 2e-3,
            "schedule": "cosine(warmup=100, final=0.0)",
            "weight_decay": 0.1,
            "b2": 0.98,
        },
        "train": {"steps": 4000, "eval_every": 500, "log_every": 100},
    })  # fmt: skip
