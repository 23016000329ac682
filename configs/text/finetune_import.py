"""Fine-tunes an imported Hugging Face model. The argument is the folder of the import.

  tfm import path/to/bert --workdir=runs/bert
  tfm train --config=configs/text/finetune_import.py:runs/bert --workdir=runs/films
  tfm classify runs/films "a film to forget"

What it learns follows from the kind of model; `--config.data.dataset` replaces the data, which are
in the folder $TFM_DATA:

  BERT           the classes of a table: sst2/train.tsv and dev.tsv; the head for them is new
  GPT-2, LLaMA   to continue a text: wikitext2/train.txt and valid.txt
  T5, UL2        to write the target of a source: multi30k/train and val, German to English

Model and tokenizer are those of the import.
"""

from tfm.config.files import load
from tfm.config.names import UserError

DATA = {  # by the family of the model
    "encoder": {
        "dataset": "table(train='sst2/train.tsv', valid='sst2/dev.tsv', "
        "text='sentence|content', label='label')",
        "max_length": 64,
        "buckets": 4,
    },
    "decoder": {
        "dataset": "text(train='wikitext2/train.txt', valid='wikitext2/valid.txt', length=128)",
    },
    "encoder_decoder": {
        "dataset": "parallel(train='multi30k/train', valid='multi30k/val', source='de', "
        "target='en')",
        "max_length": 64,
        "max_target": 64,
        "buckets": 4,
    },
}


def get_config(folder=""):
    if not folder:
        raise UserError("write --config=configs/text/finetune_import.py:FOLDER, an imported run")
    config = load(f"{folder}/config.json").unlock()
    if config.model.family == "encoder":  # the objective adds its head, and the data its classes
        config.objective = "classify"
        config.model.outputs, config.model.classes = (), None
    config.data = {
        **DATA[config.model.family],
        "tokenizer": f"of_run(path={str(folder)!r})",
        "batch": 32,
    }
    config.optimizer = {
        "learning_rate": 5e-5,
        "schedule": "linear(warmup=50, final=0.0)",
        "weight_decay": 0.01,
    }
    config.train = {"init_from": folder, "steps": 500, "eval_every": 250, "log_every": 50}
    return config
