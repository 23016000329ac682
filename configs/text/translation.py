"""Translation: German to English (Multi30k) or Chinese to English (Tatoeba).

The argument is the model, and "zh" after a comma for Chinese:

  transformer   Vaswani et al. 2017, with the norm before each part
  gru, lstm     a GRU with additive attention, Bahdanau et al. 2015; an LSTM whose decoder reads the
                last state only, Sutskever et al. 2014
  prompt        a prefix LM, whose prompt is the source sentence, Radford et al. 2019
  both          one Transformer for both directions, chosen by a word before the sentence

  tfm train --config=configs/text/translation.py:transformer --workdir=runs/de_en
  tfm eval runs/de_en --split=test --generate --beams=5 --lower

read multi30k/* or tatoeba_zh_en/* from the folder $TFM_DATA. The sizes are those of bentrevett's
PyTorch tutorial on Multi30k. BLEU on the test set (2016 for Multi30k), one seed, by sacrebleu
(nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:2.6.0), and minutes of one core of an AMD EPYC:

                        BLEU, 5 beams   epochs   minutes
  transformer   de→en   38.7            10       42        greedily 37.6
  transformer   zh→en   30.1            14       34
  both          de→en   36.6             5       49        5 epochs of each direction
                en→de   34.1
  prompt        de→en   29.6             6       46

The tutorial has 36.5 for its Transformer, with another tokenization. gru and lstm were not trained.
"""

from ml_collections import ConfigDict

from tfm.config.names import pick

SMALL = {
    "width": 256,
    "max_length": 256,
    "attention": {"heads": 8},
    "feedforward": {"width": 512},
}
TRANSFORMER = {
    **SMALL,
    "family": "encoder_decoder",
    "layers": 3,
    "position": {"scheme": "sinusoidal"},
    "scale_embedding": True,
    "init": {"kernel": "glorot_uniform", "embedding": "normal(stddev=0.0625)"},
}
RECURRENT = {
    "family": "seq2seq",
    "width": 256,
    "hidden": 512,
    "max_length": 256,
    "dropout": {"embedding": 0.5, "head": 0.5},
}
MODELS = {
    "transformer": TRANSFORMER,
    "gru": {**RECURRENT, "cell": "gru", "attention": {"heads": 1, "score": "additive"}},
    "lstm": {**RECURRENT, "cell": "lstm", "attention": {"heads": 1, "score": "none"}},
    "prompt": {**SMALL, "family": "decoder", "layers": 6, "position": {"scheme": "rotary"}},
    "both": TRANSFORMER,
}
MULTI30K = (
    "parallel(train='multi30k/train', valid='multi30k/val', test='multi30k/test_2016_flickr', "
)
TATOEBA = (
    "table(train='tatoeba_zh_en/train.tsv', valid='tatoeba_zh_en/val.tsv', "
    "test='tatoeba_zh_en/test.tsv', "
)
LANGUAGES = {  # data to and from English, words for the direction, and settings
    "de": {
        "pairs": (MULTI30K + "source='de', target='en')", MULTI30K + "source='en', target='de')"),
        "prefixes": ("to English: ", "to German: "),
        "tokenizer": "bpe(vocab=8000, lower=True)",
        "dropout": 0.2,
        "steps": 2300,  # ten epochs
    },
    "zh": {
        "pairs": (TATOEBA + "text=1, target=0)", TATOEBA + "text=0, target=1)"),
        "prefixes": ("to English: ", "to Chinese: "),
        "tokenizer": "bpe(vocab=6000, lower=True, split_han=True)",
        "dropout": 0.3,
        "steps": 3000,  # fourteen epochs of short sentences
    },
}


def get_config(argument="transformer"):
    name, _, language = argument.partition(",")
    of = pick(LANGUAGES, language or "de", "language")
    dropout = {"embedding": of["dropout"], "residual": of["dropout"]}
    steps = 1400 if name == "prompt" else of["steps"]  # its steps take twice as long
    dataset = of["pairs"][0]
    if name == "both":
        dataset = f"mixture(parts={of['pairs']!r}, prefixes={of['prefixes']!r})"
    return ConfigDict({
        "objective": "prefix_lm" if name == "prompt" else "seq2seq",
        "model": {"dropout": dropout, **pick(MODELS, name, "model")},
        "data": {
            "dataset": dataset,
            "tokenizer": of["tokenizer"],
            "max_length": 80,
            "max_target": 80,
            "batch": 128,
            "buckets": 6,
        },
        "optimizer": {
            "learning_rate": 1e-3,
            "schedule": "cosine(warmup=400, final=0.0)",
            "b2": 0.98,
            "weight_decay": 0.01,
        },
        "train": {
            "steps": steps,
            "label_smoothing": 0.1,
            "eval_every": steps // 5,
            "log_every": 20,
        },
    })  # fmt: skip
