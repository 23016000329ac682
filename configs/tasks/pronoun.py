"""The animal did not cross the street because it was too tired: what is "it"? A later word decides.

After Levesque et al. 2012 (Winograd). The model predicts the noun at "it", or at the last word,
which decides. The argument is the model:

  encoder              sees both sides, and answers at "it"
  left_to_right        the same with a causal mask, which hides the answer at "it"
  left_to_right,last   the same, but answers at the last word
  classify             sees both sides, and tells whether it is the first noun or the second

  tfm train --config=configs/tasks/pronoun.py:encoder --workdir=runs/pronoun
  tfm explain runs/pronoun "the animal did not cross the street because it was too tired"

A run takes a minute on one core. Accuracy on 500 validation sentences (seed 0), with four heads in
each layer: encoder 1.000, left_to_right 0.474, left_to_right,last 1.000. The encoder with one head,
which this config has, reaches 1.000. In 84 % of 300 test sentences, the head of layer 1 attends
from "it" most to the right noun, with a mean weight of 0.82 (the best of two and of four heads: 77
% and 63 %). The page names such a head when "it" and the noun are pinned.
"""

from ml_collections import ConfigDict

from tfm.config.names import pick

VISIBLE = {"encoder": "everything", "left_to_right": "causal"}


def get_config(argument="encoder"):
    model, _, at = argument.partition(",")
    classify = model == "classify"
    return ConfigDict({
        "objective": "classify" if classify else "tag",
        "model": {
            "family": "encoder",
            "width": 64,
            "layers": 2,
            "max_length": 32,
            "mask": "everything" if classify else pick(VISIBLE, model, "model"),
            "position": {"scheme": "sinusoidal"},
            "attention": {"heads": 1},
            "feedforward": {"width": 128},
            "init": {"embedding": "normal(stddev=1.0)"},
        },
        "data": {
            "dataset": "pronoun" if classify else f"pronoun(at={(at or 'it')!r})",
            "examples": 20_000,
            "valid_examples": 500,
            "batch": 64,
        },
        "optimizer": {
            "learning_rate": 3e-3,
            "schedule": "cosine(warmup=100, final=0.0)",
            "weight_decay": 0.01,
            "b2": 0.98,
        },
        "train": {"steps": 1000, "eval_every": 500, "log_every": 100},
    })  # fmt: skip
