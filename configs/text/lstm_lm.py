"""The LSTM of PyTorch's word language model example, on WikiText-2.

github.com/pytorch/examples, word_language_model. With the argument `tied` the head is
the embedding, with `untied` it is not.  Inan et al. 2017; Press & Wolf 2017.

  tfm train --config=configs/text/lstm_lm.py:untied --workdir=runs/lstm_lm
  tfm eval runs/lstm_lm --split=test

read wikitext2/*.txt from the folder $TFM_DATA: 2,088,628 training tokens, including ends of lines.
The text is cut into 20 streams. A step reads 35 tokens of each, and the LSTM continues from the
state of the previous step (train.carry), without a gradient into it. Six epochs have 2,983 steps
each.

It took 138 minutes on one core of a busy machine. Perplexity, untied, seed 0: 148.3 in validation
(236.0, 187.2, 164.1, 157.4 and 150.8 after the first five epochs), and 135.9 on the test text. A
user of the example reports test perplexities of 142.1 untied and 130.3 tied for its six epochs
(pytorch/examples, issue 415). `tied` was not run. Differences: the example divides its learning
rate by 4 after an epoch without a lower validation loss, ours stays at 20. Its LSTM has two biases
per gate, which together move twice as fast as our single one; its weights start uniform in ±0.07,
ours in ±0.1, and orthogonal between states. Its tied head has a bias, ours has none. In evaluation
it carries the state through ten streams; we evaluate windows of 2,000 tokens from zero states.
"""

from ml_collections import ConfigDict

from tfm.config.names import pick

HEADS = {"untied": False, "tied": True}


def get_config(head="untied"):
    return ConfigDict({
        "objective": "next_token",
        "model": {
            "family": "recurrent",
            "cell": "lstm",
            "layers": 2,
            "width": 200,
            "hidden": 200,
            "tied": pick(HEADS, head, "head"),
            "dropout": {"embedding": 0.2, "residual": 0.2, "head": 0.2},
            "init": {"embedding": "uniform(limit=0.1)", "kernel": "uniform(limit=0.1)"},
        },
        "data": {
            "dataset": "text(train='wikitext2/train.txt', valid='wikitext2/valid.txt', "
            "test='wikitext2/test.txt', length=35, stride=35, eos=True, eval_length=2000)",
            "tokenizer": "words(punctuation=False)",
            "batch": 20,
            "eval_batch": 10,
        },
        "optimizer": {"name": "sgd", "learning_rate": 20.0, "clip": 0.25},
        "train": {
            "steps": 6 * 2983,
            "carry": True,
            "loss_chunk": 35,  # in evaluation, where windows are long
            "log_every": 200,
            "eval_every": 2983,
        },
    })  # fmt: skip
