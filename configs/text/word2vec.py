"""Word2Vec: vectors of words that stand near each other, from two matrices and nothing else.

Mikolov et al. 2013, "Efficient Estimation of Word Representations in Vector Space" and "Distributed
Representations of Words and Phrases". The argument is skip_gram or cbow, on WikiText-2:

  tfm train --config=configs/text/word2vec.py:skip_gram --workdir=runs/word2vec
  tfm eval runs/word2vec --words=word_similarity/wordsim353.tsv,word_similarity/simlex999.txt

read wikitext2/*.txt and word_similarity/* from the folder $TFM_DATA. Training takes 71 s of one
core. Spearman's correlation on WordSim-353 (296 pairs of known words), beside gensim 4.4 with the
same settings (width 100, window 5, 5 negatives, subsampling 1e-3, 5 epochs, rate 0.025 → 0.0001):

             seeds                   mean
  tfm        0.349                   0.349   (seed 0)
  gensim     0.311  0.327  0.340     0.326   (seeds 1, 2, 3)

SGD with word2vec.c's rate for each pair works in batches if no word moves too far at once: a
frequent word is in a thousand pairs of a batch, so the gradient of each vector is clipped. Adagrad
with a sum for each vector reached 0.176.
"""

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
