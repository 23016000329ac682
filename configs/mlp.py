"""A bag of words: an MLP on the mean of the embeddings, which ignores order.

Iyyer et al. 2015, "Deep Unordered Composition Rivals Syntactic Methods for Text Classification".

  tfm describe --config=configs/mlp.py
"""

from ml_collections import ConfigDict


def get_config():
    return ConfigDict({
        "model": {
            "family": "bag",
            "vocab": 15000,
            "width": 128,
            "hidden": (128,),
            "classes": 2,
            "dropout": {"embedding": 0.2, "head": 0.5},
        }
    })  # fmt: skip
