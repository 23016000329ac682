"""A convolutional text classifier: convolution, batch norm, activation, pooling, dropout, twice.

Kim 2014, "Convolutional Neural Networks for Sentence Classification"; batch norm from Ioffe &
Szegedy 2015. A window of five sees two tokens on each side; two blocks with pooling see about a
dozen.

  tfm describe --config=configs/cnn.py:base

Sizes: tiny, base. Vocabulary and classes are those of the data.

  tfm train --config=configs/cnn.py:tiny --workdir=runs/cnn

is a complete run on generated data, the referent of a pronoun (tasks/pronoun.py). It takes 13 s of
CPU time. Result: accuracy 1.000 in validation (seed 0); the most frequent answer reaches 0.502.
"""

import pathlib

from tfm.config.files import with_model
from tfm.config.names import pick

RUN = f"{pathlib.Path(__file__).parent}/tasks/pronoun.py:classify"
SIZES = {"tiny": 32, "base": 128}  # widths


def get_config(size="base"):
    width = pick(SIZES, size, "size")
    model = {
        "family": "convolution",
        "width": width,
        "channels": (width, width),
        "window": 5,
        "dropout": {"embedding": 0.2, "feedforward": 0.2, "head": 0.5},
    }
    return with_model(RUN, model)
