"""Word2Vec: word vectors from two matrices, learned by predicting nearby words.

Mikolov et al. 2013, "Efficient Estimation of Word Representations in Vector Space" and "Distributed
Representations of Words and Phrases". The argument is skip_gram or cbow, on WikiText-2:

  tfm train --config=configs/text/word2vec.py:skip_gram --workdir=runs/word2vec
  tfm eval runs/word2vec --words=word_similarity/wordsim353.tsv,word_similarity/simlex999.txt

read wikitext2/*.txt and word_similarity/* from the folder $TFM_DATA. Training takes 68 s of one
core, including start and compilation. Spearman's correlation on WordSim-353 (296 pairs of known
words) for three seeds, next to gensim 4.4 with the same settings (width 100, window 5, 5 negatives,
subsampling 1e-3, minimum count 5, 5 epochs, rate 0.025 → 0.0001):

            seeds                  mean    SimLex-999   words per second of one core
  tfm       0.349  0.360  0.348    0.352   0.195        151,000
  gensim    0.311  0.327  0.340    0.326   0.194        255,000

These speeds are per second of CPU time on a busy machine. `tfm bench word2vec`, on two
cores of an AMD EPYC: 258,000 words per second, and gensim 587,000 with two workers (0.43 times as
fast, quartiles 0.41–0.44). cbow was not run.

The per-pair SGD rate of word2vec.c works in batches if the gradient of each vector is clipped: a
frequent word occurs in very many pairs of a batch. Without clipping it diverges. Adagrad with one
sum for each vector reached 0.176.
"""

from ml_collections import ConfigDict

from tfm.config.names import pick

ROWS, LENGTH = 64, 65  # rows of a batch, words of a row
RATE = 0.025  # per pair, as in word2vec.c
CLIP = 20.0  # bound of the gradient of a word vector, summed over a batch
PAIRS = {"skip_gram": 264, "cbow": 45}  # about, in a row after subsampling


def get_config(kind="skip_gram"):
    pairs = ROWS * pick(PAIRS, kind, "kind")  # the loss is a mean over pairs, in word2vec.c a sum
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
