"""Word2Vec: vectors of words that stand near each other, from two matrices and nothing else."""

from ml_collections import ConfigDict

from tfm.names import pick

ROWS, LENGTH = 64, 65  # of a batch, and words of each
RATE = 0.025  # for each pair, as in word2vec.c
CLIP = 20.0  # of the gradient of a word's vector, summed over a batch
PAIRS = {"skip_gram": 264, "cbow": 45}  # in a row, about, of words that are left


def get_config(kind="skip_gram"):
    pairs = ROWS * pick(PAIRS, kind, "kind")  # the loss is their mean; word2vec.c has no mean
    return ConfigDict({
        "objective": f"word2vec(kind={kind!r}, window=5, negatives=5, subsample=1e-3)",
        "model": {"family": "word2vec", "kind": kind, "width": 100, "average": kind == "cbow"},
        "data": {
            "dataset": "text(train='wikitext2/train.txt', valid='wikitext2/valid.txt', "
            f"length={LENGTH - 1}, stride={LENGTH})",
            "tokenizer": "words(punctuation=False, min_count=5)",
            "batch": ROWS,
        },
        "optimizer": {
            "name": "sgd",
            "learning_rate": RATE * pairs,
            "schedule": "linear(final=0.004)",
            "clip": None,
            "clip_rows": CLIP / pairs,
        },
        "train": {"steps": 2466, "log_every": 100},  # five epochs
    })  # fmt: skip
