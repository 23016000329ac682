"""Fine-tunes an imported Hugging Face model on SST-2. The argument is the folder of the import.

  tfm import path/to/bert --workdir=runs/bert
  tfm train --config=configs/text/finetune_import.py:runs/bert --workdir=runs/films
  tfm classify runs/films "a film to forget"

Reads sst2/train.tsv and dev.tsv from the folder $TFM_DATA; `--config.data.dataset` replaces them.
Model and tokenizer are those of the import; the head for the classes is new.
"""

from tfm.config.files import load
from tfm.config.names import UserError


def get_config(folder=""):
    if not folder:
        raise UserError("write --config=configs/text/finetune_import.py:FOLDER, an imported run")
    config = load(f"{folder}/config.json").unlock()
    if "outputs" in config.model:  # an encoder: the objective adds the head that it needs
        config.model.outputs = ()
    config.objective = "classify"
    config.data = {
        "dataset": "table(train='sst2/train.tsv', valid='sst2/dev.tsv', "
        "text='sentence|content', label='label')",
        "tokenizer": f"of_run(path='{folder}')",
        "max_length": 64,
        "batch": 32,
        "buckets": 4,
    }
    config.optimizer = {
        "learning_rate": 5e-5,
        "schedule": "linear(warmup=50, final=0.0)",
        "weight_decay": 0.01,
    }
    config.train = {"init_from": folder, "steps": 500, "eval_every": 250, "log_every": 50}
    return config
