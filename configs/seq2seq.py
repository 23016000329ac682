"""Recurrent encoder–decoders (N:M): the context is the last state, or that of an attention.

Cho et al. 2014 (the last state), Bahdanau et al. 2015 (additive, before each step), Luong et al.
2015 (bilinear, after it). The argument is the cell and the score; `none` is the last state:

  tfm describe --config=configs/seq2seq.py:gru,additive

The sizes are those of bentrevett's PyTorch tutorial on Multi30k, German to English: embeddings of
256, states of 512, dropout of 0.5.

  tfm train --config=configs/seq2seq.py:tiny --workdir=runs/seq2seq

is a complete run on generated data, English to French by a grammar (tasks/alignment.py). It takes
42 s of CPU time. Result: 1.000 of the validation sentences without a mistake (seed 0).
"""

import pathlib

from tfm.config.files import with_model
from tfm.config.names import UserError

RUN = f"{pathlib.Path(__file__).parent}/tasks/alignment.py:gru"


def get_config(argument="gru,additive"):
    tiny = argument == "tiny"
    cell, comma, score = ("gru,additive" if tiny else argument).partition(",")
    if not comma:
        raise UserError(f"seq2seq.py:{argument}: write CELL,SCORE, as seq2seq.py:gru,additive")
    model = {
        "family": "seq2seq",
        "cell": cell,
        "width": 64 if tiny else 256,
        "hidden": 64 if tiny else 512,
        "max_length": 128,
        "attention": {"heads": 1, "score": score},
        "decoder": "luong" if score == "bilinear" else "bahdanau",
        "dropout": dict.fromkeys(("embedding", "head"), 0.1 if tiny else 0.5),
    }
    return with_model(RUN, model)
