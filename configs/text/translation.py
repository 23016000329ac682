"""Translation: German to English (Multi30k) or Chinese to English (Tatoeba).

The argument is the model, and "zh" after a comma for Chinese:

  transformer   Vaswani et al. 2017, with the norm before each part
  gru, lstm     a GRU with additive attention, Bahdanau et al. 2015; an LSTM that hands over its
                last state alone, Sutskever et al. 2014
  prompt        a decoder that reads the sentence as its prompt, Radford et al. 2019
  both          one Transformer for both directions, told by a word before the sentence

  tfm train --config=configs/text/translation.py:transformer --workdir=runs/de_en

reads multi30k/* or tatoeba_zh_en/* from the folder $TFM_DATA. Ten epochs of 29,000 or 26,704 pairs;
sizes and epochs are those of bentrevett's PyTorch tutorial on Multi30k.
"""

from ml_collections import ConfigDict

from tfm.names import pick

SMALL = {
    "width": 256,
    "max_length": 256,
    "attention": {"heads": 8},
    "feedforward": {"width": 512},
    "dropout": {"embedding": 0.2, "residual": 0.2},
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
GERMAN = "parallel(train='multi30k/train', valid='multi30k/val', test='multi30k/test_2016_flickr', "
CHINESE = (
    "table(train='tatoeba_zh_en/train.tsv', valid='tatoeba_zh_en/val.tsv', "
    "test='tatoeba_zh_en/test.tsv', "
)
PAIRS = {  # to English, and from it
    "de": (GERMAN + "source='de', target='en')", GERMAN + "source='en', target='de')"),
    "zh": (CHINESE + "text=1, target=0)", CHINESE + "text=0, target=1)"),
}
TOLD = {"de": ("to English: ", "to German: "), "zh": ("to English: ", "to Chinese: ")}


def get_config(what="transformer"):
    model, _, language = what.partition(",")
    pairs = pick(PAIRS, language or "de", "language")
    dataset, told = pairs[0], TOLD[language or "de"]
    if model == "both":
        dataset = f"mixture(parts={pairs!r}, prefixes={told!r})"
    return ConfigDict({
        "objective": "prefix_lm" if model == "prompt" else "seq2seq",
        "model": pick(MODELS, model, "model"),
        "data": {
            "dataset": dataset,
            "tokenizer": "bpe(vocab=8000, lower=True)",
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
            "steps": 4600 if model == "both" else 2300,
            "label_smoothing": 0.1,
            "eval_every": 460,
            "log_every": 20,
        },
    })  # fmt: skip
