"""Runs the README's recipes on small inputs, as a user types them."""

import json

import pytest

from tests.helpers import huggingface
from tfm.cli.main import main
from tfm.config.files import load
from tfm.config.names import UserError
from tfm.config.spec import replaced
from tfm.run.spec import RunSpec, open_data, read

TASK = "table(train='{0}/films.tsv', valid='{0}/films.tsv', text='sentence', label='label')"


@pytest.fixture
def films(tmp_path):
    lines = ["sentence\tlabel", *(f"{'a' if n % 2 else 'b'} a b\t{n % 2}" for n in range(16))]
    (tmp_path / "films.tsv").write_text("\n".join(lines) + "\n")
    return TASK.format(tmp_path)


def test_import_fine_tune_and_classify(films, tmp_path, capsys):
    """The import was moved, and is a classifier of three other classes: its head is left out."""
    source = huggingface.write(tmp_path / "bert", "bert_classify")
    assert main(["import", source, f"--workdir={tmp_path}/before"]) == 0
    (tmp_path / "before").rename(tmp_path / "run")
    own = replaced(RunSpec, load(f"{tmp_path}/run/config.json").to_dict(), {"data.dataset": films})
    with pytest.raises(UserError, match="model.classes=3: the data need exactly 2"):
        open_data(read(own))
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
    start = json.loads((tmp_path / "films/init.json").read_text())
    assert start["skipped"] == start["new"] == ["classify/bias", "classify/kernel"]
    capsys.readouterr()
    assert main(["classify", f"{tmp_path}/films", "b a b", "--json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert answer["class"] == "0"
    assert set(answer["classes"]) == {"0", "1"}
    assert sum(answer["classes"].values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("name", "objective", "dataset"),
    [
        ("gpt2", "next_token", "text(train='{0}/films.tsv', valid='{0}/films.tsv', length=4)"),
        ("t5", "seq2seq", "table(train='{0}/films.tsv', valid='{0}/films.tsv', text='sentence', "
         "target='sentence')"),
    ],
)  # fmt: skip
def test_the_recipe_follows_the_kind_of_model(name, objective, dataset, films, tmp_path):
    source = huggingface.write(tmp_path / name, name)
    assert main(["import", source, f"--workdir={tmp_path}/run"]) == 0
    tree = load(f"configs/text/finetune_import.py:{tmp_path}/run").to_dict()
    changes = {"data.dataset": dataset.format(tmp_path), "data.buckets": None}
    run, data = open_data(read(replaced(RunSpec, tree, changes)))
    assert str(run.objective) == objective
    assert data["train"].vocab <= run.model.vocab == 23
