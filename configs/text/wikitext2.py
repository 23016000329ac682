"""Five objectives on one text: WikiText-2, two million words of Wikipedia.

Merity et al. 2017. The argument is the objective, each with the family of models it is for:

  next     the next word, by a decoder                          Radford et al. 2018
  prefix   the rest of a text whose first quarter is seen whole   Raffel et al. 2020
  masked   hidden words, by an encoder                          Devlin et al. 2019
  span     hidden spans, by an encoder and a decoder            Raffel et al. 2020
  ul2      a mixture of all of these                            Tay et al. 2023

  tfm train --config=configs/text/wikitext2.py:next --workdir=runs/wikitext2_next
  tfm eval runs/wikitext2_next --baselines

read wikitext2/*.txt from the folder $TFM_DATA. The words are those of the text, 33,278 of them, and
three special ids. A step of `next` takes 0.7 s on one core. Its perplexity on the validation text
is 169.6 after 2,000 steps and 132.6 after 4,000 of 6,000 (seed 0; the run is not finished). A
trigram model has 248.9, single words 965.0. The others were not run yet.
"""

from ml_collections import ConfigDict

from tfm.names import pick

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
    "prefix": ("prefix_lm(share=0.25)", DECODER, 1400),
    "masked": ("masked_lm", {**DECODER, "family": "encoder"}, 4000),
    "span": ("span_corruption", BOTH, 1200),
    "ul2": ("ul2", BOTH, 1000),
}


def get_config(what="next"):
    objective, model, steps = pick(RUNS, what, "objective")
    pieces = what in ("masked", "span")  # few tokens are predicted: with fewer ids it learns sooner
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
            "loss_chunk": 16 if what == "masked" else None,
        },
    })  # fmt: skip
