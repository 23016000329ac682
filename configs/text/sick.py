"""Does one sentence follow from another, contradict it, or neither? SICK, SemEval-2014.

Marelli et al. 2014. The argument is the model, from random weights:

  tfm train --config=configs/text/sick.py:encoder --workdir=runs/sick_encoder

reads sick/SICK_*.txt from the folder $TFM_DATA. The encoder and the bag, which compares the means
of both sentences, distinguish them by token types; the LSTM reads one after the other. A run takes
ten seconds (bag) to a minute and a half on one core. Final accuracy for the seeds 0, 1, 2:

            trial, 500 pairs        test, 4,927 pairs
  bag       0.722  0.722  0.720     0.710  0.708  0.705
  encoder   0.586  0.604  0.588     0.606  0.612  0.609
  lstm      0.618  0.588  0.604     0.600  0.594  0.592

The most frequent answer reaches 0.564 and 0.567, naive Bayes 0.541 on the test set.
"""

from ml_collections import ConfigDict

from tfm.config.names import pick

MODELS = {
    "encoder": {
        "family": "encoder",
        "width": 128,
        "layers": 2,
        "max_length": 80,
        "attention": {"heads": 4},
        "feedforward": {"width": 256},
        "position": {"scheme": "sinusoidal"},
        "dropout": {"embedding": 0.2, "residual": 0.2},
    },
    "lstm": {
        "family": "recurrent",
        "cell": "lstm",
        "width": 128,
        "hidden": 128,
        "bidirectional": True,
        "dropout": {"embedding": 0.3, "head": 0.5},
    },
    "bag": {
        "family": "bag",
        "width": 128,
        "hidden": (64,),
        "dropout": {"embedding": 0.3, "head": 0.5},
    },
}
COLUMNS = "text='sentence_A', text2='sentence_B', label='entailment_judgment'"


def get_config(model="encoder"):
    return ConfigDict({
        "objective": "pair" if model in ("encoder", "bag") else "classify",
        "model": pick(MODELS, model, "model"),
        "data": {
            "dataset": "table(train='sick/SICK_train.txt', valid='sick/SICK_trial.txt', "
            f"test='sick/SICK_test_annotated.txt', {COLUMNS})",
            "tokenizer": "words(lower=True)",
            "max_length": 80,
            "batch": 32,
            "buckets": 4,
        },
        "optimizer": {
            "learning_rate": 1e-3,
            "schedule": "cosine(warmup=100, final=0.0)",
            "weight_decay": 0.01,
        },
        "train": {"steps": 1500, "eval_every": 250, "log_every": 50},
    })  # fmt: skip
