"""A run that takes a second or two: `small.py:decoder`, `small.py:recurrent`."""

from ml_collections import ConfigDict

MODELS = {
    "decoder": {
        "family": "decoder",
        "width": 8,
        "layers": 1,
        "max_length": 16,
        "attention": {"heads": 2},
        "feedforward": {"width": 8},
        "position": {"scheme": "learned"},
        "dropout": {"residual": 0.1},
    },
    "recurrent": {"family": "recurrent", "cell": "gru", "width": 8, "hidden": 8},
}


def get_config(model="decoder"):
    return ConfigDict({
        "seed": 3,
        "objective": "next_token",
        "model": MODELS[model],
        "data": {"dataset": "copy(length=4, vocab=8)", "examples": 200, "valid_examples": 50,
                 "batch": 16, "eval_batch": 25, "tests": ("copy(length=6, vocab=8)",)},
        "optimizer": {"learning_rate": 1e-2, "weight_decay": 0.1, "schedule": "cosine(warmup=2)"},
        "train": {"steps": 40, "log_every": 4, "eval_every": 10, "save_every": 5, "ema": 0.9},
    })  # fmt: skip
