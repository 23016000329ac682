"""Recurrent encoder–decoders (N:M): the context is the last state, or that of an attention.

Cho et al. 2014 (the last state), Bahdanau et al. 2015 (additive, before each step), Luong et al.
2015 (bilinear, after it). The argument is the cell and the score; `none` is the last state:

  tfm describe --config=configs/seq2seq.py:gru,additive

The sizes are those of bentrevett's PyTorch tutorial on Multi30k, German to English: embeddings of
256, states of 512, dropout of 0.5.
"""

from ml_collections import ConfigDict

from tfm.config.names import UserError


def get_config(argument="gru,additive"):
    cell, comma, score = argument.partition(",")
    if not comma:
        raise UserError(f"seq2seq.py:{argument}: write CELL,SCORE, as seq2seq.py:gru,additive")
    return ConfigDict({
        "model": {
            "family": "seq2seq",
            "cell": cell,
            "vocab": 8000,
            "width": 256,
            "hidden": 512,
            "max_length": 128,
            "attention": {"heads": 1, "score": score},
            "decoder": "luong" if score == "bilinear" else "bahdanau",
            "dropout": {"embedding": 0.5, "head": 0.5},
        }
    })  # fmt: skip
