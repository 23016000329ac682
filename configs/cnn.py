"""A convolutional text classifier: convolution, batch norm, activation, pooling, dropout, twice.

Kim 2014, "Convolutional Neural Networks for Sentence Classification"; batch norm from Ioffe &
Szegedy 2015. A window of five sees two tokens on each side; two blocks with pooling see about a
dozen.

  tfm describe --config=configs/cnn.py
"""

from ml_collections import ConfigDict


def get_config():
    return ConfigDict({
        "model": {
            "family": "convolution",
            "vocab": 15000,
            "width": 128,
            "channels": (128, 128),
            "window": 5,
            "classes": 2,
            "dropout": {"embedding": 0.2, "feedforward": 0.2, "head": 0.5},
        }
    })  # fmt: skip
