"""A classifier of any table of texts and classes. The argument is the file, .tsv, .csv or .jsonl.

  tfm train --config=configs/text/classifier.py:reviews.csv --workdir=runs/mine
  tfm classify runs/mine "a film to forget"

The file is in the working folder or in the folder $TFM_DATA. Columns with usual names are found
(TEXT and LABEL below); others are named after commas, `reviews.csv,body,stars`, or numbered from 0
on if there is no header line, `reviews.tsv,1,0`. A tenth of the rows, at most about 2 MB, is held
out for validation. Naive Bayes and the most frequent class are computed by

  tfm eval runs/mine --baselines
"""

from ml_collections import ConfigDict

from tfm.config.names import UserError
from tfm.data.files import find

TEXT = "text|sentence|content|review|comment|message|question|title|body|tweet|headline"
LABEL = "label|class|category|sentiment|intent|topic|target|stars|rating|y"
HELD_OUT = 2_000_000  # bytes at most
SMALL = 1_000_000  # bytes below which every word is kept


def get_config(argument="sst2/train.tsv"):
    file, *columns = argument.split(",")
    if len(columns) not in (0, 2):
        raise UserError(f"classifier.py:{argument}: write FILE, or FILE,TEXT_COLUMN,LABEL_COLUMN")
    text, label = (int(x) if x.isdecimal() else x for x in columns or (TEXT, LABEL))
    size = find("classifier.py", file, or_gz=True).stat().st_size
    valid = min(0.1, HELD_OUT / max(size, 1))
    return ConfigDict({
        "objective": "classify",
        "model": {
            "family": "convolution",
            "width": 128,
            "channels": (128,),
            "window": 3,
            "dropout": {"embedding": 0.3, "head": 0.5},
        },
        "data": {
            "dataset": f"table(train={file!r}, valid={valid:.2g}, text={text!r}, label={label!r})",
            "tokenizer": f"words(lower=True, min_count={1 if size < SMALL else 2})",
            "max_length": 256,
            "batch": 32,
            "buckets": 4,
        },
        "optimizer": {
            "learning_rate": 1e-3,
            "schedule": "cosine(warmup=50, final=0.0)",
            "weight_decay": 0.01,
        },
        "train": {"steps": 1000, "eval_every": 250, "log_every": 50},
    })  # fmt: skip
