"""Short stories about one subject, by a small grammar: text to try any language model on.

The argument is the objective; each has its model family:

  next   the next word, by a decoder
  bert   hidden words of two sentences, and whether the second follows the first, by an encoder
  span   hidden spans, by an encoder and a decoder
  ul2    a mixture of denoisers, by the same

  tfm train --config=configs/tasks/stories.py:next --workdir=runs/stories

The systems' size `tiny` trains on this data: gpt2.py, llama.py and rnn.py on `next`, bert.py on
`bert`, t5.py on `span`, ul2.py on `ul2`. Their docstrings have the results. The lowest possible
loss of `next` is 1.021 nats per word.
"""

from ml_collections import ConfigDict

from tfm.config.names import pick

SMALL = {
    "width": 64,
    "max_length": 64,
    "position": {"scheme": "sinusoidal"},
    "attention": {"heads": 4},
    "feedforward": {"width": 128},
}
BOTH = {**SMALL, "family": "encoder_decoder", "layers": 2}
RUNS = {
    "next": ("next_token", {**SMALL, "family": "decoder", "layers": 2}),
    "bert": ("bert", {**SMALL, "family": "encoder", "layers": 2}),
    "span": ("span_corruption(sentinels=8)", BOTH),
    "ul2": ("ul2(sentinels=16)", BOTH),
}


def get_config(argument="next"):
    objective, model = pick(RUNS, argument, "objective")
    steps, rate = (1500, 1e-3) if argument == "bert" else (1000, 3e-3)
    return ConfigDict({
        "objective": objective,
        "model": model,
        "data": {
            "dataset": f"stories(pairs={argument == 'bert'})",
            "examples": 20_000,
            "valid_examples": 500,
            "batch": 32,
        },
        "optimizer": {
            "learning_rate": rate,
            "schedule": "cosine(warmup=100, final=0.0)",
            "weight_decay": 0.01,
            "b2": 0.98,
        },
        "train": {"steps": steps, "eval_every": 500, "log_every": 100},
    })  # fmt: skip
