"""Runs the README's recipes on small inputs, as a user types them."""

import json
import pathlib
import shlex

import pytest

from tests.helpers import huggingface
from tests.helpers.tiers import first_tier
from tfm.cli.main import main
from tfm.config.files import load
from tfm.config.names import UserError
from tfm.config.spec import replaced
from tfm.run.spec import RunSpec, open_data, read

CONFIGS = pathlib.Path(__file__).parent.parent / "configs"
QUICK = ["--config.data.batch=2", "--config.train.steps=2", "--config.train.eval_every=2",
         "--config.optimizer.schedule=constant", "--workdir=runs/my run"]  # fmt: skip
SMALL = ["--config.model.width=8", "--config.model.layers=1", "--config.model.attention.heads=1"]
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


def next_command(capsys, *argv):
    """Trains, and returns the last line: the command to try next, as the shell reads it."""
    assert main(["train", *argv, *QUICK]) == 0
    line = capsys.readouterr().err.splitlines()[-1]
    name, command = line.split(": tfm ")
    assert name == "try next"
    return shlex.split(command)


TEXTS = {
    "a few words": "An old pond.\n\n\nA frog jumps\n",
    "one long line": "the cat's mat and the dog's log " * 40,
    "German": "Über den Wolken muß die Freiheit grenzenlos sein.\n" * 9,
    "Chinese": "床前明月光，疑是地上霜。举头望明月，低头思故乡。\n" * 9,
    "empty lines": "\n" * 20,
}


@pytest.mark.parametrize("name", first_tier(TEXTS, ["a few words", "Chinese"]))
def test_a_language_model_of_any_text(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("my.txt").write_text(TEXTS[name])
    verb, run, *words = next_command(capsys, f"--config={CONFIGS}/text/lm.py:my.txt", *SMALL)
    assert run == "runs/my run"
    if name == "empty lines":
        assert [verb, *words] == ["eval", "--baselines"]
        return
    assert verb == "generate"
    assert main([verb, run, *words, "--max_new=3"]) == 0
    assert capsys.readouterr().out.startswith(words[0])


def test_a_large_text_is_read_as_byte_pairs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("my.txt").write_bytes(b"word\n" * 2_000_000)
    data = load(f"{CONFIGS}/text/lm.py:my.txt").data
    assert data.tokenizer == "bpe(vocab=8000)"
    assert "valid=0.02," in data.dataset  # at most 200 kB


TABLES = {
    "films.csv": 'review,n,sentiment\n"a {1} film, {0}",{0},{2}\n',
    "films.tsv,1,0": "{2}\ta {1} film {0}\n",
    "films.jsonl,was,art": '{{"was": "ein {1} Film {0}", "art": "{2}"}}\n',
}


@pytest.mark.parametrize("argument", first_tier(TABLES, ["films.csv"]))
def test_a_classifier_of_any_table(argument, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    first, *rest = TABLES[argument].splitlines(keepends=True)
    kinds = [("good", "yes"), ("bad", "no")]
    rows = [(rest or [first])[0].format(n, *kinds[n % 2]) for n in range(40)]
    pathlib.Path(argument.partition(",")[0]).write_text("".join([first] * len(rest) + rows))
    config = f"--config={CONFIGS}/text/classifier.py:{argument}"
    small = ["--config.model.width=8", "--config.model.channels=8", "--config.data.buckets=None"]
    verb, run, text = next_command(capsys, config, *small)
    assert verb == "classify"
    assert main([verb, run, text]) == 0
    assert capsys.readouterr().out.split()[0] in ("yes", "no")


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


@pytest.mark.ci
def test_entities_of_bio_files(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("mine").mkdir()
    for split in ("train", "valid", "test"):
        sentence = "Ada B-PER\nLovelace I-PER\nwrote O\nto O\nParis B-LOC\n. O\n\n"
        pathlib.Path(f"mine/{split}.txt").write_text(sentence * 4)
    config = [f"--config={CONFIGS}/text/ner.py:mine", "--config.model.width=8"]
    small = ["--config.model.hidden=8", "--config.data.buckets=None"]
    verb, run, text = next_command(capsys, *config, *small)
    assert verb == "tag"
    assert main([verb, run, text]) == 0
    words, tags, _ = zip(
        *(x.split() for x in capsys.readouterr().out.splitlines()[:6]), strict=True
    )
    assert " ".join(words) == "Ada Lovelace wrote to Paris ."
    assert set(tags) <= {"B-PER", "I-PER", "B-LOC", "O"}
