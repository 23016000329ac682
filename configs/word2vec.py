"""Word2Vec: vectors of words that stand near each other, from two matrices and nothing else.

Mikolov et al. 2013, "Efficient Estimation of Word Representations in Vector Space" and "Distributed
Representations of Words and Phrases". The argument is skip_gram or cbow:

  tfm describe --config=configs/word2vec.py:cbow

prints 19,966,800 parameters: 33,278 words (WikiText-2's) in each of two matrices of width 300. A
context is the sum of its vectors; --config.model.average=True takes their mean, as word2vec.c does.
"""

from ml_collections import ConfigDict


def get_config(kind="skip_gram"):
    return ConfigDict({"model": {"family": "word2vec", "kind": kind, "vocab": 33278, "width": 300}})
