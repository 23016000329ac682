"""Does pre-training on two million words help? SST-2 and SICK with the encoder of wikitext2.py.

Devlin et al. 2019. The encoder first learns to predict hidden words. Two classifiers start from its
weights, and are compared with the same encoder from random weights. The argument is the task and
the start; all four use the word pieces of the pre-trained run:

  tfm train --config=configs/text/wikitext2.py:masked --workdir=runs/wikitext2_masked
  tfm train --config=configs/text/finetune.py:sst2,pretrained --workdir=runs/sst2_pretrained
  tfm train --config=configs/text/finetune.py:sst2,scratch --workdir=runs/sst2_scratch

All read the run in runs/wikitext2_masked; set PRETRAINED below to use another. A run
takes 100 s (SICK) or 200 s (SST-2) on one core. Accuracy at the end on dev or trial, seeds 0, 1, 2:

                      SST-2                    SICK
  pretrained          0.794  0.807  0.794      0.618  0.622  0.634
  scratch             0.794  0.795  0.795      0.624  0.650  0.628

Two million words on other subjects than films, and in other sentences than captions, do not help:
the means differ by 0.004 and −0.009. The most frequent answer reaches 0.509 and 0.564.
"""

import pathlib

from tfm.config.files import load
from tfm.config.names import UserError, pick

PRETRAINED = "runs/wikitext2_masked"
TASKS = {"sst2": "sst2.py:encoder", "sick": "sick.py:encoder"}
STEPS = {"sst2": 1200, "sick": 600}
STARTS = {"pretrained": PRETRAINED, "scratch": None}


def get_config(argument="sst2,pretrained"):
    task, comma, start = argument.partition(",")
    if not comma:
        raise UserError(f"finetune.py:{argument}: write TASK,START, as finetune.py:sst2,pretrained")
    folder = pathlib.Path(__file__).parent
    config = load(str(folder / pick(TASKS, task, "task"))).unlock()
    config.model = load(str(folder / "wikitext2.py:masked")).model
    config.data.tokenizer = f"of_run(path='{PRETRAINED}')"
    config.optimizer.learning_rate = 3e-4
    config.train.init_from = pick(STARTS, start, "start")
    config.train.steps = STEPS[task]
    return config
