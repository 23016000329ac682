"""Synthetic tasks with a known best score, each with a small model that reaches it.

  tfm train --config=configs/tasks.py:reverse --workdir=runs/reverse

The argument is the task. The best is 1 for all. `tfm sweep experiments/tasks` ran each once, with
seed 0, on one core of an AMD EPYC. The share of examples without a mistake, of 500 (addition: 97
and 96); settings were chosen by the validation examples, the test examples chose nothing:

  task       model             steps   validation   test   seconds
  copy       encoder–decoder   1,000        1.000  1.000        23
  reverse    encoder–decoder   1,000        1.000  1.000        23
  sort       encoder           2,000        1.000  1.000        18
  induction  decoder           2,000        1.000  1.000        53
  recall     decoder           2,000        1.000  1.000        56
  addition   decoder           4,000        1.000  1.000        14
  dyck       GRU               3,000        1.000  1.000        46
  listops    GRU, both ways    7,000        1.000  0.998       229
  parity     GRU               1,000        1.000  1.000         8

A model that cannot, does not: reverse without positions 0.000, recall without attention 0.000.
"""

from ml_collections import ConfigDict

from tfm.names import pick

WIDE = {"initial": {"embedding": "normal(stddev=1.0)"}, "attention": {"heads": 2}}
SMALL = {"attention": {"heads": 4}}  # small embeddings: slower, but they find the rule
BOTH = {"family": "encoder_decoder", "position": {"scheme": "sinusoidal"}, "tied": False, **WIDE}
ENCODER = {"family": "encoder", "position": {"scheme": "sinusoidal"}, "heads": ("tag",), **WIDE}
FAST = {"family": "decoder", "position": {"scheme": "rotary"}, "tied": False, **WIDE}
SLOW = {"family": "decoder", "position": {"scheme": "rotary"}, **SMALL}
GRU = {"family": "recurrent", "cell": "gru", "hidden": 128}
CLASSIFIER = {**GRU, "shape": "N:1", "classes": 10, "bidirectional": True}
SETTINGS = {  # objective, task, ids, model, learning rate, batch, steps
    "copy": ("seq2seq", "copy(length=12, vocab=19)", 19, BOTH, 3e-3, 64, 1000),
    "reverse": ("seq2seq", "reverse(length=12, vocab=19)", 19, BOTH, 3e-3, 64, 1000),
    "sort": ("tag", "sort(length=12, vocab=19)", 19, ENCODER, 3e-3, 64, 2000),
    "induction": ("next_token", "induction(length=32, vocab=20)", 20, FAST, 3e-3, 64, 2000),
    "recall": ("next_token", "recall(length=32, pairs=4, vocab=64)", 64, FAST, 3e-3, 64, 2000),
    "addition": ("next_token", "addition(p=31, fraction=0.8)", 40, SLOW, 2e-3, 64, 4000),
    "dyck": ("next_token", "dyck(length=32, depth=4)", 11, GRU, 3e-3, 64, 3000),
    "listops": ("classify", "listops(length=10, min_length=4, depth=2, args=2)", 18, CLASSIFIER,
                3e-3, 256, 7000),
    "parity": ("tag", "parity(length=16, each=True)", 5, GRU, 3e-3, 64, 1000),
}  # fmt: skip


def get_config(name="reverse"):
    objective, task, vocab, model, rate, batch, steps = pick(SETTINGS, name, "task")
    transformer = {"layers": 2, "max_length": 64, "feedforward": {"width": 128}}
    tags = {"classes": vocab} if objective == "tag" else {}
    return ConfigDict({
        "objective": objective,
        "model": {
            **({} if model["family"] == "recurrent" else transformer),
            **model,
            **tags,
            "vocab": vocab,
            "width": 64,
        },
        "data": {
            "task": task,
            # addition has an end; nested lists have many forms
            "examples": {"addition": None, "listops": 200_000}.get(name, 100_000),
            "valid_examples": None if name == "addition" else 500,
            "batch": batch,
        },
        "optimizer": {
            "learning_rate": rate,
            "schedule": "cosine(warmup=100, final=0.0)",
            "weight_decay": None if model["family"] == "recurrent" else 0.1,
            "b2": 0.999 if name == "listops" else 0.98,
        },
        "train": {"steps": steps, "eval_every": 500, "log_every": 100},
    })  # fmt: skip
