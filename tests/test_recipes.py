"""Runs the README's recipes on small inputs, as a user types them."""

import json

import pytest

from tests.helpers import huggingface
from tfm.cli.main import main

TASK = "table(train='{0}/films.tsv', valid='{0}/films.tsv', text='sentence', label='label')"


@pytest.fixture
def films(tmp_path):
    lines = ["sentence\tlabel", *(f"{'a' if n % 2 else 'b'} a b\t{n % 2}" for n in range(16))]
    (tmp_path / "films.tsv").write_text("\n".join(lines) + "\n")
    return TASK.format(tmp_path)


def test_import_fine_tune_and_classify(films, tmp_path, capsys):
    source = huggingface.write(tmp_path / "bert", "bert_masked_lm")
    assert main(["import", source, f"--workdir={tmp_path}/run"]) == 0
    argv = [
        "train",
        f"--config=configs/text/finetune_import.py:{tmp_path}/run",
        f"--config.data.dataset={films}",
        "--config.data.buckets=None",
        "--config.data.max_length=8",
        "--config.data.batch=8",
        "--config.optimizer.schedule=constant",
        "--config.optimizer.learning_rate=0.01",
        "--config.train.steps=30",
        "--config.train.eval_every=30",
        f"--workdir={tmp_path}/films",
        "--quiet",
    ]
    assert main(argv) == 0
    capsys.readouterr()
    assert main(["classify", f"{tmp_path}/films", "b a b", "--json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert answer["class"] == "0"
    assert sum(answer["classes"].values()) == pytest.approx(1)
