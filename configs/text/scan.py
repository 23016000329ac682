"""Commands to actions, `jump twice` → `I_JUMP I_JUMP`: does a model combine what it knows?

Lake & Baroni 2018, "Generalization without Systematicity" (SCAN). A GRU with additive attention;
the argument is the split:

  simple     a random fifth is the test
  length     the test has longer actions than training has
  add_jump   training has `jump` alone; the test combines it with other words

  tfm train --config=configs/text/scan.py:simple --workdir=runs/scan

reads scan/* from the folder $TFM_DATA and takes three to four minutes of one core. Share of
commands whose actions are all right (seed 0):

             a tenth of the training file   test
  simple     1.000                          1.000
  length     1.000                          0.445
  add_jump   1.000                          0.001
"""

from ml_collections import ConfigDict

from tfm.config.names import pick

FILES = {"simple": "simple", "length": "length", "add_jump": "addprim_jump"}


def get_config(split="simple"):
    name = pick(FILES, split, "split")
    path = f"scan/{split}/tasks_{{}}_{name}.txt"
    dataset = f"scan(train={path.format('train')!r}, test={path.format('test')!r})"
    return ConfigDict({
        "objective": "seq2seq",
        "model": {
            "family": "seq2seq",
            "cell": "gru",
            "width": 64,
            "hidden": 128,
            "max_length": 64,
            "attention": {"heads": 1, "score": "additive"},
            "dropout": {"embedding": 0.1, "head": 0.1},
        },
        "data": {
            "dataset": dataset,
            "tests": (dataset,),
            "tokenizer": "words(punctuation=False)",
            "batch": 64,
            "buckets": 4,
        },
        "optimizer": {"learning_rate": 2e-3, "schedule": "cosine(warmup=100, final=0.0)"},
        "train": {"steps": 3000, "eval_every": 1000, "log_every": 100},
    })  # fmt: skip
