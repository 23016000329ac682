"""Synthetic tasks with a known best score, each with a small model to begin from.

  tfm train --config=configs/tasks.py:reverse --workdir=runs/reverse

The argument is the task, and after a comma the family where there is a choice.
"""

from ml_collections import ConfigDict

from tfm.names import pick

DECODER = {"family": "decoder", "tied": False, "position": {"scheme": "rotary"}}
ENCODER = {"family": "encoder", "position": {"scheme": "sinusoidal"}}
BOTH = {"family": "encoder_decoder", "tied": False, "position": {"scheme": "sinusoidal"}}
SETTINGS = {  # objective, task, vocabulary, model, steps
    "copy": ("seq2seq", "copy(length=12, vocab=19)", 19, BOTH, 1000),
    "reverse": ("seq2seq", "reverse(length=12, vocab=19)", 19, BOTH, 1000),
    "sort": ("tag", "sort(length=12, vocab=19)", 19, ENCODER, 1000),
    "induction": ("next_token", "induction(length=32, vocab=20)", 20, DECODER, 2000),
    "recall": ("next_token", "recall(length=32, pairs=4, vocab=64)", 64, DECODER, 2000),
    "addition": ("next_token", "addition(p=31, fraction=0.8)", 40, DECODER, 4000),
    "dyck": ("next_token", "dyck(length=32)", 20, DECODER, 1500),
    "listops": ("next_token", "listops(length=32)", 30, DECODER, 4000),
    "parity": ("next_token", "parity(length=16, each=True)", 8, DECODER, 3000),
}


def get_config(name="reverse"):
    objective, task, vocab, model, steps = pick(SETTINGS, name, "task")
    tags = {"heads": (objective,), "classes": vocab} if model is ENCODER else {}
    return ConfigDict({
        "objective": objective,
        "model": {
            **model,
            **tags,
            "vocab": vocab,
            "width": 64,
            "layers": 2,
            "max_length": 64,
            "attention": {"heads": 2},
            "feedforward": {"width": 128},
            "initial": {"embedding": "normal(stddev=1.0)"},
        },
        "data": {
            "task": task,
            "examples": None if name == "addition" else 20000,
            "valid_examples": None if name == "addition" else 500,
            "batch": 64,
        },
        "optimizer": {
            "learning_rate": 3e-3,
            "schedule": "cosine(warmup=100, final=0.1)",
            "weight_decay": 0.1,
            "b2": 0.98,
        },
        "train": {"steps": steps, "eval_every": 500, "log_every": 100},
    })  # fmt: skip
