"""Does one sentence follow from another, contradict it, or neither? SICK, SemEval-2014.

Marelli et al. 2014. The argument is the model, from random weights:

  tfm train --config=configs/text/sick.py:encoder --workdir=runs/sick_encoder

reads sick/SICK_*.txt from the folder $TFM_DATA. To the encoder, the types of their tokens tell the
two sentences apart; the others read one after the other. It takes a minute on two cores.
Accuracy on the trial set (500 pairs, seed 0): encoder 0.586 at the end, 0.608 at step 500; the most
frequent answer has 0.564. The others were not run yet.
"""

from ml_collections import ConfigDict

from tfm.names import pick

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
