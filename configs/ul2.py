"""UL2: T5's encoder–decoder with SwiGLU, trained on a mixture of denoisers.

Tay et al. 2023, "UL2: Unifying Language Learning Paradigms".

  tfm describe --config=configs/ul2.py:20b

prints 19,459,613,696 parameters, the number in transformers. Sizes: tiny, base, 20b.

  tfm train --config=configs/ul2.py:tiny --workdir=runs/ul2

is a complete run on generated data, hidden spans of stories (tasks/stories.py). It takes 45 s of
CPU time. Result: accuracy 0.730 in validation (seed 0), and 0.647 of the hidden words alone; the
most frequent answer reaches 0.352.
"""

import pathlib

from tfm.config.files import load, with_model
from tfm.config.names import pick

FOLDER = pathlib.Path(__file__).parent
SIZES = {"tiny": "tiny", "base": "v1_1_base", "20b": "v1_1_xxl"}  # size → T5 that it is based on


def get_config(size="base"):
    start = pick(SIZES, size, "size")
    config = load(f"{FOLDER}/t5.py:{start}").unlock()
    model = config.model
    model.feedforward.kind = "swiglu"
    model.tied, model.scale_head = True, False
    model.dropout = {}
    if size == "20b":
        model.layers = 32
        model.attention.heads, model.attention.head_width = 16, 256
        model.feedforward.width = 16384
    if size == "tiny":
        return with_model(f"{FOLDER}/tasks/stories.py:ul2", model)
    return config
