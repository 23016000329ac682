"""Recurrent networks: a label for each token (N:N), one for all (N:1), or text from a vector (1:N).

Elman 1990 (rnn), Hochreiter & Schmidhuber 1997 (lstm), Cho et al. 2014 (gru). The argument is the
cell and the shape:

  tfm describe --config=configs/rnn.py:lstm,N:1

Two layers of 200, like the word language model in PyTorch's examples; tagging and classification
read in both directions. Each shape has generated data, which --config.data.dataset replaces.

  tfm train --config=configs/rnn.py:tiny --workdir=runs/rnn

is a complete run on generated data, stories (tasks/stories.py), an LSTM of width 64. It takes 16 s
of CPU time. Result: loss 1.226 in validation (seed 0), where 1.021 is the lowest possible, and
accuracy 0.521, where the most frequent word reaches 0.269.
"""

import pathlib

from tfm.config.files import with_model
from tfm.config.names import UserError, pick

FOLDER = pathlib.Path(__file__).parent
SHAPES = {  # settings of the model, and its data
    "N:N": (dict(bidirectional=True), "tasks/pronoun.py:encoder"),
    "N:1": (dict(bidirectional=True), "tasks/pronoun.py:classify"),
    "1:N": (dict(), "tasks/spell.py"),
    "next": (dict(shape="N:N", tied=True), "tasks/stories.py:next"),  # the next token for each
}


def get_config(argument="lstm,next"):
    tiny = argument == "tiny"
    cell, comma, shape = ("lstm,next" if tiny else argument).partition(",")
    if not comma:
        raise UserError(f"rnn.py:{argument}: write CELL,SHAPE, as rnn.py:lstm,N:1, or tiny")
    settings, run = pick(SHAPES, shape, "shape")
    width = 64 if tiny else 200
    model = {
        "family": "recurrent",
        "cell": cell,
        "width": width,
        "hidden": width,
        "layers": 1 if tiny else 2,
        "shape": shape,
        "init": {"embedding": "uniform(limit=0.1)"},
        "dropout": dict.fromkeys(("embedding", "residual", "head"), 0.0 if tiny else 0.2),
        **settings,
    }
    return with_model(f"{FOLDER}/{run}", model)
