"""UL2: T5's encoder–decoder with SwiGLU, trained on a mixture of denoisers.

Tay et al. 2023, "UL2: Unifying Language Learning Paradigms".

  tfm describe --config=configs/ul2.py:20b

prints 19,459,613,696 parameters, the number in transformers. Sizes: tiny, base, 20b.
"""

import pathlib

from tfm.config.files import load
from tfm.config.names import pick

SIZES = {"tiny": "tiny", "base": "v1_1_base", "20b": "v1_1_xxl"}  # size → T5 that it is based on


def get_config(size="base"):
    start = pick(SIZES, size, "size")
    config = load(f"{pathlib.Path(__file__).with_name('t5.py')}:{start}").unlock()
    model = config.model
    model.feedforward.kind = "swiglu"
    model.tied, model.scale_head = True, False
    model.dropout = {}
    if size == "20b":
        model.layers = 32
        model.attention.heads, model.attention.head_width = 16, 256
        model.feedforward.width = 16384
    return config
