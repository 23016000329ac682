"""A language model of any text file: a small decoder, made for two cores. The argument is the file.

  tfm train --config=configs/text/lm.py:my.txt --workdir=runs/mine
  tfm generate runs/mine "Once upon" --temperature=0.8 --top_p=0.9

The file is UTF-8 text in any language (or .gz), in the working folder or in the folder $TFM_DATA.
Its end is held out for validation: a tenth, at most 200 kB. Below 1 MB the model reads characters,
otherwise 8,000 byte pairs that it learns from the file; --config.data.tokenizer chooses another
tokenizer, --config.train.steps a longer training.
"""

from ml_collections import ConfigDict

from tfm.data.files import find

SMALL = 1_000_000  # bytes below which characters are read
HELD_OUT = 200_000  # bytes at most


def get_config(file="tinyshakespeare/input.txt"):
    size = find("lm.py", file, or_gz=True).stat().st_size
    length = min(128, max(size // 8, 1))  # also of a few words, with four bytes a character
    valid = min(0.1, HELD_OUT / max(size, 1))
    return ConfigDict({
        "objective": "next_token",
        "model": {
            "family": "decoder",
            "width": 128,
            "layers": 4,
            "max_length": 512,
            "position": {"scheme": "rotary"},
            "attention": {"heads": 4},
            "feedforward": {"width": 512},
            "init": {"kernel": "normal(stddev=0.02)", "scale_by_depth": True},
            "dropout": {"embedding": 0.1, "residual": 0.1},
        },
        "data": {
            "dataset": f"text(train={file!r}, valid={valid:.2g}, length={length})",
            "tokenizer": "characters" if size < SMALL else "bpe(vocab=8000)",
            "batch": 16,
        },
        "optimizer": {
            "learning_rate": 2e-3,
            "schedule": "cosine(warmup=100, final=0.1)",
            "weight_decay": 0.1,
        },
        "train": {"steps": 1000, "eval_every": 250, "log_every": 50},
    })  # fmt: skip
