"""A bag of words: an MLP on the mean of the embeddings, which ignores order.

Iyyer et al. 2015, "Deep Unordered Composition Rivals Syntactic Methods for Text Classification".

  tfm describe --config=configs/mlp.py:base

Sizes: tiny, base. Vocabulary and classes are those of the data.

  tfm train --config=configs/mlp.py:tiny --workdir=runs/mlp

is a complete run on generated data, the referent of a pronoun (tasks/pronoun.py). It takes 7 s of
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
        "family": "bag",
        "width": width,
        "hidden": (width,),
        "dropout": {"embedding": 0.2, "head": 0.5},
    }
    return with_model(RUN, model)
