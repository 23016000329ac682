"""Commands to actions, `jump twice` → `I_JUMP I_JUMP`: does a model combine what it knows?

Lake & Baroni 2018, "Generalization without Systematicity" (SCAN). The argument is the split and the
model, `gru` with additive attention or `transformer`:

  simple     a random fifth is the test
  length     the test has longer actions than training has
  add_jump   training has `jump` alone; the test combines it with other words

  tfm train --config=configs/text/scan.py:simple,gru --workdir=runs/scan

reads scan/* from the folder $TFM_DATA.
"""

from ml_collections import ConfigDict

from tfm.config.names import pick

FILES = {"simple": "simple", "length": "length", "add_jump": "addprim_jump"}
MODELS = {
    "gru": {
        "family": "seq2seq",
        "cell": "gru",
        "width": 64,
        "hidden": 128,
        "max_length": 64,
        "attention": {"heads": 1, "score": "additive"},
        "dropout": {"embedding": 0.1, "head": 0.1},
    },
    "transformer": {
        "family": "encoder_decoder",
        "width": 64,
        "layers": 2,
        "max_length": 64,
        "position": {"scheme": "relative"},
        "attention": {"heads": 4},
        "feedforward": {"width": 256},
        "dropout": {"residual": 0.1},
    },
}


def get_config(argument="simple,gru"):
    split, _, model = argument.partition(",")
    name = pick(FILES, split, "split")
    path = f"scan/{split}/tasks_{{}}_{name}.txt"
    dataset = f"scan(train={path.format('train')!r}, test={path.format('test')!r})"
    return ConfigDict({
        "objective": "seq2seq",
        "model": pick(MODELS, model or "gru", "model"),
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
