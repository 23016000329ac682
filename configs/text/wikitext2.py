"""Five objectives on one text: WikiText-2, two million words of Wikipedia.

Merity et al. 2017. The argument is the objective; each has its model family:

  next     the next word, by a decoder                            Radford et al. 2018
  prefix   the rest of a text after its first quarter             Raffel et al. 2020
  masked   hidden tokens, by an encoder                           Devlin et al. 2019
  span     hidden spans, by an encoder and a decoder              Raffel et al. 2020
  ul2      a mixture of these                                     Tay et al. 2023

  tfm train --config=configs/text/wikitext2.py:next --workdir=runs/wikitext2_next
  tfm eval runs/wikitext2_next --baselines

read wikitext2/*.txt from the folder $TFM_DATA. The vocabulary has the 33,278 words of the text; for
masked and span, 8,000 word pieces. The table has the final validation perplexity (seed 0) of hidden
tokens without sentinels, that of a unigram and a trigram model (Kneser–Ney, which sees the true
text before each token) on the same targets, and minutes on one core of a busy machine:

            model    unigram   trigram   minutes
  next      184.4    965.0     248.9     20
  prefix    233.2    966.5     248.4     11
  masked     51.9    684.1      82.5     35
  span      353.2    653.8      73.4      7
  ul2       725.8    973.5     249.8     11
"""

from ml_collections import ConfigDict

from tfm.config.names import pick

SMALL = {
    "width": 192,
    "max_length": 128,
    "attention": {"heads": 4},
    "feedforward": {"width": 768},
    "dropout": {"embedding": 0.1, "residual": 0.1},
    "init": {"kernel": "normal(stddev=0.02)", "scale_by_depth": True},
}
DECODER = {**SMALL, "family": "decoder", "layers": 3, "position": {"scheme": "rotary"}}
BOTH = {
    **SMALL,
    "family": "encoder_decoder",
    "layers": 2,
    "decoder_layers": 2,
    "position": {"scheme": "relative"},
}
RUNS = {
    "next": ("next_token", DECODER, 1800),
    "prefix": ("prefix_lm(share=0.25)", DECODER, 1200),
    "masked": ("masked_lm", {**DECODER, "family": "encoder"}, 4000),
    "span": ("span_corruption", BOTH, 1200),
    "ul2": ("ul2", BOTH, 1000),
}


def get_config(argument="next"):
    objective, model, steps = pick(RUNS, argument, "objective")
    # Few tokens are predicted, so a small vocabulary learns faster.
    pieces = argument in ("masked", "span")
    return ConfigDict({
        "objective": objective,
        "model": model,
        "data": {
            "dataset": "text(train='wikitext2/train.txt', valid='wikitext2/valid.txt', "
            "test='wikitext2/test.txt', length=64, stride=64, eos=True)",
            "tokenizer": "bpe(vocab=8000, lower=True)" if pieces else "words(punctuation=False)",
            "batch": 32 if pieces else 16,
        },
        "optimizer": {
            "learning_rate": 1.5e-3,
            "schedule": "cosine(warmup=200, final=0.0)",
            "weight_decay": 0.01,
        },
        "train": {
            "steps": steps,
            "eval_every": 1000,
            "log_every": 100,
            "loss_chunk": 16 if argument == "masked" else None,
        },
    })  # fmt: skip
