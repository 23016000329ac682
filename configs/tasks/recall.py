"""Pairs of keys and values, then a key: what is its value?  Associative recall, Ba et al. 2016.

A decoder. Without attention (--config.model.attention.score=none) it cannot look up values and
reaches 0.000.

  tfm train --config=configs/tasks/recall.py --workdir=runs/recall

took 122 seconds on one core of a busy machine. Share of 500 examples without a mistake (seed 0):
1.000 in validation, 0.998 in test; the best possible is 1.
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
            "tied": False,
            "attention": {"heads": 2},
            "feedforward": {"width": 128},
            "init": {"embedding": "normal(stddev=1.0)"},
        },
        "data": {
            "dataset": "recall(length=32, pairs=4, vocab=64)",
            "examples": 100_000,
            "valid_examples": 500,
            "batch": 64,
        },
        "optimizer": {
            "learning_rate": 3e-3,
            "schedule": "cosine(warmup=100, final=0.0)",
            "weight_decay": 0.1,
            "b2": 0.98,
        },
        "train": {"steps": 2000, "eval_every": 500, "log_every": 100},
    })  # fmt: skip
