"""Recurrent networks: a label for each token (N:N), one for all (N:1), or text from a vector (1:N).

Elman 1990 (rnn), Hochreiter & Schmidhuber 1997 (lstm), Cho et al. 2014 (gru). The argument is the
cell and the shape:

  tfm describe --config=configs/rnn.py:lstm,N:1

Two layers of 200, like the word language model in PyTorch's examples; tagging and classification
read in both directions.
"""

from ml_collections import ConfigDict

from tfm.config.names import UserError, pick

SHAPES = {
    "N:N": dict(classes=17, bidirectional=True),  # the universal parts of speech
    "N:1": dict(classes=2, bidirectional=True),  # positive or negative
    "1:N": dict(vector=200),
    "next": dict(shape="N:N", tied=True),  # a language model: the next token for each
}


def get_config(argument="lstm,next"):
    cell, comma, shape = argument.partition(",")
    if not comma:
        raise UserError(f"rnn.py:{argument}: write CELL,SHAPE, as rnn.py:lstm,N:1")
    return ConfigDict({
        "model": dict(
            family="recurrent",
            cell=cell,
            vocab=33278,
            width=200,
            hidden=200,
            layers=2,
            init={"embedding": "uniform(limit=0.1)"},
            dropout={"embedding": 0.2, "residual": 0.2, "head": 0.2},
            **{"shape": shape, **pick(SHAPES, shape, "shape")},
        )
    })  # fmt: skip
