"""Is a sentence of a film review positive? SST-2, as in GLUE.

Socher et al. 2013; Wang et al. 2019. The argument is the model, from random weights:

  tfm train --config=configs/text/sst2.py:lstm --workdir=runs/sst2_lstm

reads sst2/train.tsv and dev.tsv from the folder $TFM_DATA. A run takes half a minute (bag) to
three minutes on one core. Final accuracy on dev (872 sentences), seeds 0, 1, 2:

  lstm      0.825  0.825  0.819
  bag       0.820  0.826  0.819
  cnn       0.815  0.812  0.815
  encoder   0.799  0.818  0.823

Naive Bayes reaches 0.806 (`tfm eval runs/sst2_lstm --baselines`).
"""

from ml_collections import ConfigDict

from tfm.config.names import pick

MODELS = {
    "encoder": {
        "family": "encoder",
        "width": 128,
        "layers": 2,
        "max_length": 64,
        "attention": {"heads": 4},
        "feedforward": {"width": 256},
        "position": {"scheme": "sinusoidal"},
        "dropout": {"embedding": 0.3, "residual": 0.2},
    },
    "lstm": {
        "family": "recurrent",
        "cell": "lstm",
        "width": 128,
        "hidden": 128,
        "bidirectional": True,
        "dropout": {"embedding": 0.3, "head": 0.5},
    },
    "cnn": {
        "family": "convolution",
        "width": 128,
        "channels": (128,),
        "window": 3,
        "dropout": {"embedding": 0.3, "head": 0.5},
    },
    "bag": {
        "family": "bag",
        "width": 128,
        "hidden": (64,),
        "dropout": {"embedding": 0.3, "head": 0.5},
    },
}


def get_config(model="lstm"):
    return ConfigDict({
        "objective": "classify",
        "model": pick(MODELS, model, "model"),
        "data": {
            "dataset": "table(train='sst2/train.tsv', valid='sst2/dev.tsv', "
            "text='sentence|content', label='label')",
            "tokenizer": "words(min_count=2)",
            "max_length": 64,
            "batch": 64,
            "buckets": 4,
        },
        "optimizer": {
            "learning_rate": 1e-3,
            "schedule": "cosine(warmup=100, final=0.0)",
            "weight_decay": 0.01,
        },
        "train": {"steps": 3000, "eval_every": 1000, "log_every": 100},
    })  # fmt: skip
