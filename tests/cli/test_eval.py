"""`tfm eval`: other text is read with the run's own vocabulary, and edited data is noticed."""

import dataclasses
import json
import os
import random

import numpy as np
import pytest

from tests.helpers.runs import Silent
from tfm.cli import main as cli
from tfm.config.names import UserError
from tfm.interop.folder import import_folder
from tfm.run import evaluation
from tfm.run.evaluation import evaluate
from tfm.run.spec import read
from tfm.train import loop

WORDS = ("the cat sat on a mat ", "a dog ran to the cat ", "on the mat a cat ran ")


def text(seed, count=300):
    return "".join(random.Random(seed).choices(WORDS, k=count))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("eval")
    (folder / "a.txt").write_text(text(0))
    run = read(
        {
            "objective": "next_token",
            "model": {"family": "recurrent", "cell": "gru", "width": 16, "hidden": 16},
            "data": {"dataset": task(folder / "a.txt"), "valid_examples": 20},
            "optimizer": {"learning_rate": 0.02},
            "train": {"steps": 60, "save_every": 60},
        }
    )
    summary = loop.train(run, str(folder / "run"), Silent())
    return folder, summary


def task(path):
    return f"characters(path={str(path)!r}, length=16)"


def test_another_text_is_read_with_the_alphabet_of_the_run(trained):
    folder, summary = trained
    (folder / "b.txt").write_text(text(1).replace("dog", "cat").replace("g", ""))  # fewer letters
    found, _ = evaluate(str(folder / "run"), dataset=task(folder / "b.txt"), examples=20)
    assert abs(found["loss"] - summary["valid"]["loss"]) < 0.25  # as easy as the training text
    (folder / "c.txt").write_text(text(1) + "?" + text(2))
    with pytest.raises(
        UserError, match=r"c.txt holds 1 characters that the model does not know.*'\?'"
    ):
        evaluate(str(folder / "run"), dataset=task(folder / "c.txt"))


def test_an_edited_file_is_noticed(trained):
    folder, summary = trained
    whole = (folder / "a.txt").read_text()
    try:
        (folder / "a.txt").write_text(whole[:-1] + "t")
        with pytest.raises(UserError, match="was edited since the run began; --dataset="):
            evaluate(str(folder / "run"))
    finally:
        (folder / "a.txt").write_text(whole)
    found, _ = evaluate(str(folder / "run"), examples=20)
    assert found["loss"] == pytest.approx(summary["valid"]["loss"], rel=1e-12)


def test_truncated_rows_are_reported(trained, capsys, monkeypatch):
    note = "valid: 3 rows truncated to data.max_length=5; 9 tokens lost"
    opened = evaluation.open_dataset
    monkeypatch.setattr(
        evaluation, "open_dataset", lambda *args: dataclasses.replace(opened(*args), notes=(note,))
    )
    assert cli.main(["eval", str(trained[0] / "run"), "--examples=20"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["notes"] == [note]
    assert note in shown.err


def test_a_larger_vocabulary_is_refused(trained, capsys):
    folder, _ = trained
    argv = ["eval", str(folder / "run"), "--dataset=copy(vocab=5000)", "--examples=5"]
    assert cli.main(argv) == 2
    assert "the data need at least 5000" in capsys.readouterr().err


def test_the_output_is_json_whatever_the_numbers(trained, capsys, monkeypatch):
    folder, _ = trained
    assert cli.main(["eval", str(folder / "run"), "--examples=20"]) == 0
    json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    monkeypatch.setattr("tfm.cli.eval.evaluate", lambda *_, **__: ({"loss": np.nan}, []))
    assert cli.main(["eval", str(folder / "run")]) == 0
    assert json.loads(capsys.readouterr().out) == {"loss": None}


def test_a_file_that_is_edited_during_the_run_changes_nothing(tmp_path):
    """What is trained on is what was hashed when the run began."""
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(range(256)) * 8)
    spec = {
        "objective": "next_token",
        "model": {"family": "recurrent", "cell": "rnn", "width": 4, "hidden": 4},
        "data": {"dataset": f"bytes(path={str(path)!r}, length=8)", "valid_examples": 4},
        "train": {"steps": 8, "log_every": 1},
    }
    whole = loop.train(read(spec), str(tmp_path / "whole"), Silent())

    class Editing(Silent):
        def line(self, line):
            if line["step"] == 1:
                path.write_bytes(b"x")  # other content, and far shorter

    edited = loop.train(read(spec), str(tmp_path / "edited"), Editing())
    assert edited == whole


def test_an_imported_model_reads_text_with_its_own_tokenizer(tmp_path, monkeypatch):
    """A model of stories finds a story easy: far below the log₂ 512 = 9 bits of a blind guess."""
    if "TFM_DATA" not in os.environ:
        pytest.skip("TFM_DATA, the folder of real data, is not set")
    monkeypatch.setenv("TFM_CACHE", str(tmp_path / "cache"))
    source = os.path.join(os.environ["TFM_DATA"], "stories260K")
    import_folder(source, str(tmp_path / "run"))
    (tmp_path / "a.txt").write_text(
        "Once upon a time, there was a little girl named Lily. She loved to play outside.\n"
    )
    task = f"text(valid={str(tmp_path / 'a.txt')!r}, length=32)"
    found, _ = evaluate(str(tmp_path / "run"), dataset=task, objective="next_token")
    assert found["perplexity"] < 4


def test_any_evaluator_may_be_added(trained, capsys):
    folder, _ = trained
    argv = ["eval", str(folder / "run"), "--examples=20"]
    assert cli.main([*argv, "--evaluate=internals(rows=4)", "--evaluate=floors"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["internals(rows=4)"]["gradient_norm"] > 0
    assert 0 < found["floors"]["most frequent answer"]["accuracy"] < 1
    assert cli.main([*argv, "--evaluate=entities"]) == 2
    assert "entities needs tags that mark entities" in capsys.readouterr().err
    assert cli.main([*argv, "--evaluate=internal"]) == 2
    assert "did you mean 'internals'?" in capsys.readouterr().err
