"""Folders that others have changed: damaged files, torn logs, folders moved away, foreign ones."""

import dataclasses
import itertools
import json
import pathlib
import re
import shutil

import numpy as np
import pytest

import tfm
from tests.helpers.runs import assert_same
from tfm.cli import main as cli
from tfm.config import files as config
from tfm.config.names import UserError
from tfm.disk import checksum
from tfm.report import ls
from tfm.run import spec
from tfm.run.checkpoint import Checkpoints
from tfm.run.folder import FORMAT, Damaged, Folder
from tfm.train import loop

SMALL = pathlib.Path(__file__).parent / "small.py"


class Silent:
    def __init__(self):
        self.messages = []

    def line(self, line): ...

    def message(self, text):
        self.messages.append(text)


@pytest.fixture(scope="module")
def run():
    argv = [f"--config={SMALL}:recurrent", "--config.train.steps=20", "--config.train.keep=9"]
    return spec.read(config.from_command_line(argv, spec.RunSpec))


@pytest.fixture(scope="module")
def whole(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    loop.train(run, str(folder), Silent())
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    """A copy of a finished run."""
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


def status(folder):
    (found,) = ls.runs(str(folder))
    return found.status, found.reason


DAMAGE = {
    "half": lambda text: text[: len(text) // 2],
    "empty": lambda text: b"",
    "no JSON": lambda text: b"nonsense",
    "no names": lambda text: b"[1]",
    "null": lambda text: b"null",
    "no keys": lambda text: b"{}",
    "nan": lambda text: b"NaN",
    "deep": lambda text: b"[" * 100_000,
    "no text": lambda text: b"\xff" + text,
    "folder": None,
}
FILES = ("config.json", "summary.json", "profile.json")


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named_and_left(name, kind, run, folder):
    path = folder / name
    before = path.read_bytes()
    path.unlink()
    path.mkdir() if DAMAGE[kind] is None else path.write_bytes(DAMAGE[kind](before))
    found, reason = status(folder)
    assert found == "damaged"
    assert str(path) in reason
    if path.is_file():
        before = path.read_bytes()
    with pytest.raises(UserError, match=name):
        loop.train(run, str(folder), Silent())
    assert path.is_dir() or path.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("config.json", {"id": 3}, "holds 3 where a str belongs .id."),
        ("config.json", {"id": "f" * 16}, "summary.json is of another run"),
        ("config.json", {"train": None}, "holds None where a dict belongs .train."),
        ("config.json", {"objective": ...}, "has no 'objective'"),
        ("summary.json", {"id": "f" * 16}, "summary.json is of another run .f*."),
        ("summary.json", {"status": "finished"}, "where one of 'diverged', 'done' belongs"),
        ("summary.json", {"status": ["done"]}, r"holds \['done'\] where a str belongs .status."),
        ("summary.json", {"steps": True}, "holds True where a int belongs"),
        ("summary.json", {"steps": 30}, "metrics.jsonl does not end with step 30"),
        ("summary.json", {"valid": None}, "has no result: 'valid' is null"),
        ("summary.json", {"valid": {}}, "has no 'loss'"),
        (
            "summary.json",
            {"valid": {"loss": "low"}},
            r"holds 'low' where a float \| int \| None belongs .loss.",
        ),
        ("summary.json", {"tests": {"copy": 3}}, "holds 3 where a dict belongs"),
        ("summary.json", {"flops": ...}, "has no 'flops'"),
        ("profile.json", {"profiles": []}, "holds an empty list"),
        ("profile.json", {"profiles": [3]}, "holds 3 where a dict belongs"),
        ("profile.json", {"profiles": [{}]}, "has no 'entries'"),
        ("profile.json", {"profiles": [{"entries": {}}]}, "has no 'made_by'"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named(name, change, message, folder):
    tree = json.loads((folder / name).read_text()) | change
    kept = {key: value for key, value in tree.items() if value is not ...}
    Folder(folder).write(name, kept)
    with pytest.raises(Damaged, match=message):
        Folder(folder).summary()
    assert status(folder)[0] == "damaged"


EDITS = {  # of each file, a value that could as well be right
    "config.json": ("optimizer", "learning_rate"),
    "summary.json": ("valid", "accuracy"),
    "profile.json": ("profiles", 0, "cores"),
}


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize("finished", [True, False])
def test_an_edited_value_is_noticed(name, finished, run, folder, capsys):
    """By `tfm ls`, `tfm train` and `tfm eval`; `tests/sweep/test_damage.py` has the table."""
    if not finished and name == "summary.json":
        return
    tree = json.loads((folder / name).read_text())
    *path, last = EDITS[name]
    at = tree
    for key in path:
        at = at[key]
    at[last] *= 2
    (folder / name).write_text(json.dumps(tree))
    if not finished:
        (folder / "summary.json").unlink()
    assert status(folder) == ("damaged", f"{folder / name} was edited: its checksum differs")
    with pytest.raises(UserError, match=f"{name} was edited.*; delete the folder"):
        loop.train(run, str(folder), Silent())
    if name == "config.json":
        for argv in (["eval", folder], ["describe", f"--config={folder}/config.json"]):
            assert cli.main([str(arg) for arg in argv]) == 2
            assert f"{folder}/config.json was edited" in capsys.readouterr().err


def test_an_edited_copy_is_a_config_of_its_own(folder, tmp_path):
    tree = json.loads((folder / "config.json").read_text())
    del tree["checksum"]
    tree["optimizer"]["learning_rate"] = 0.5
    (tmp_path / "mine.json").write_text(json.dumps(tree))
    assert config.load(str(tmp_path / "mine.json")).optimizer.learning_rate == 0.5


def set_format(folder, number, **changes):
    """Writes config.json as a version with another format would have."""
    tree = json.loads((folder / "config.json").read_text()) | {"format": number} | changes
    tree = {key: value for key, value in tree.items() if value is not None}
    tree["checksum"] = checksum(tree)
    (folder / "config.json").write_text(json.dumps(tree))


def test_folders_of_an_older_format_open(run, folder):
    tree = json.loads((folder / "config.json").read_text())
    assert tree["format"] == FORMAT
    dropout = tree["model"]["dropout"]
    dropout["teacher"] = dropout.pop("scheduled_sampling")
    set_format(folder, None, model=tree["model"])
    assert status(folder)[0] == "done"
    assert loop.train(run, str(folder), Silent()) == Folder(folder).read("summary.json")
    assert tfm.load(str(folder)).run.train.steps == 20


def test_an_older_run_that_cannot_be_read_is_refused_with_its_command(folder, monkeypatch):
    profile = json.loads((folder / "profile.json").read_text())
    profile["starts"][0]["command"] = ["/bin/tfm", "train", "--config=a b.py", "--workdir=x"]
    Folder(folder).write("profile.json", profile)
    set_format(folder, None, objective="forgotten")
    with pytest.raises(UserError, match="objective.*'forgotten'.*tfm train '--config=a b.py'"):
        tfm.load(str(folder))


@pytest.mark.parametrize("number", [FORMAT + 1, -1, "1", 1.0])
def test_an_unknown_format_is_refused(number, run, folder):
    set_format(folder, number)
    message = f"config.json has the format {number!r}.*reads formats up to {FORMAT}: install"
    found, reason = status(folder)
    assert found == "damaged"
    assert re.search(message, reason)
    for call in (lambda: tfm.load(str(folder)), lambda: loop.train(run, str(folder), Silent())):
        with pytest.raises(UserError, match=message):
            call()


@pytest.mark.parametrize("name", ["config.json", "profile.json", "metrics.jsonl"])
def test_a_finished_run_has_all_its_files(name, folder):
    (folder / name).unlink()
    found, reason = status(folder)
    assert found == "damaged"
    assert name in reason


def test_a_run_that_has_begun_knows_by_which_code(run, folder):
    for name in ("profile.json", "summary.json"):
        (folder / name).unlink()
    with pytest.raises(UserError, match="profile.json is missing; delete the folder"):
        loop.train(run, str(folder), Silent())


def edit_log(folder, change):
    path = folder / "metrics.jsonl"
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))


LOGS = {  # what happens to the lines of a log → the checkpoint that still fits
    "torn": (lambda lines: [*lines[:-1], lines[-1][:30]], 15),
    "without its last line": (lambda lines: lines[:-1], 15),
    "without its evaluation at 10": (
        lambda lines: [x for x in lines if b'"step": 10,' not in x],
        5,
    ),
    "damaged in the middle": (lambda lines: [*lines[:3], b"nonsense\n", *lines[4:]], 10),
    "another digit": (lambda lines: [*lines[:3], lines[3].replace(b"1", b"2"), *lines[4:]], 10),
    "no text": (lambda lines: [*lines[:4], b"\xff" + lines[4], *lines[5:]], 15),
    "cut off": (lambda lines: lines[:2], 5),
    "longer": (lambda lines: [*lines, lines[-1][:30]], 20),
}


@pytest.mark.parametrize("kind", LOGS)
def test_the_log_of_a_finished_run_is_as_it_was_at_its_end(kind, folder):
    edit_log(folder, LOGS[kind][0])
    found, reason = status(folder)
    assert found == "damaged"
    assert f"{folder / 'metrics.jsonl'} " in reason


@pytest.mark.parametrize("kind", LOGS)
def test_a_run_goes_on_from_where_its_log_is_whole(kind, run, whole, folder):
    """A log is part of the result: the summary has its evaluations."""
    change, step = LOGS[kind]
    edit_log(folder, change)
    (folder / "summary.json").unlink()
    watcher = Silent()
    loop.train(run, str(folder), watcher)
    assert f"going on from step {step}" in watcher.messages
    assert_same(folder, whole)


@pytest.mark.parametrize("kind", ["missing", "empty", "folder"])
def test_a_run_without_its_log_is_not_finished(kind, run, folder):
    log = folder / "metrics.jsonl"
    log.unlink()
    {"missing": bool, "empty": log.write_text, "folder": lambda _: log.mkdir()}[kind]("")
    (folder / "summary.json").unlink()
    with pytest.raises(UserError, match="metrics.jsonl"):
        loop.train(run, str(folder), Silent())
    assert not (folder / "summary.json").exists()
    assert len(list((folder / "checkpoints").iterdir())) == 4


def test_only_a_torn_last_line_is_dropped(tmp_path):
    lines = [json.dumps({"step": n, "split": "train", "seconds": 1.0}) + "\n" for n in range(1, 5)]
    log = tmp_path / "metrics.jsonl"
    for text, count in [("", 0), ("".join(lines), 4), ("".join(lines)[:-1], 4)]:
        log.write_text(text)
        assert len(Folder(tmp_path).read_log()) == count
    log.write_text("".join(lines)[:-9])
    assert [line["step"] for line in Folder(tmp_path).read_log()] == [1, 2, 3]
    for bad in ("", "nonsense", "3", '{"step": 2}', lines[1][:20], lines[1].replace("2", '"2"')):
        log.write_text("".join([lines[0], bad.strip() + "\n", *lines[2:]]))
        with pytest.raises(Damaged, match=r"metrics.jsonl is damaged: line 2 "):
            Folder(tmp_path).read_log()


@pytest.mark.parametrize("reused", [False, True])
@pytest.mark.parametrize("moved", [False, True])
def test_a_folder_that_is_taken_away_is_not_written_to(moved, reused, run, tmp_path):
    """Another run may have it by now."""
    where = tmp_path / "run"
    # The save at step 10 is the first, and is over when the next step begins.
    run = dataclasses.replace(run, train=dataclasses.replace(run.train, save_every=10))

    class Thief(Silent):
        def line(self, line):
            if line["step"] == 12:
                where.rename(tmp_path / "moved") if moved else shutil.rmtree(where)
                if reused:
                    where.mkdir()
                    (where / "lock").write_text("")
                    (where / "summary.json").write_text("another's")

    with pytest.raises(UserError, match="was removed or moved while this process wrote to it"):
        loop.train(run, str(where), Thief())
    assert where.exists() == reused
    if reused:
        assert sorted(path.name for path in where.iterdir()) == ["lock", "summary.json"]
        assert (where / "summary.json").read_text() == "another's"
    assert not (tmp_path / "moved" / "summary.json").exists()


@pytest.mark.parametrize("name", ["metrics.jsonl", "notes.txt", "summary.json", "checkpoints/5/x"])
def test_a_foreign_folder_is_left_alone(name, run, tmp_path):
    (tmp_path / "run" / name).parent.mkdir(parents=True)
    (tmp_path / "run" / name).write_text("mine")
    first = pathlib.PurePath(name).parts[0]
    with pytest.raises(UserError, match=f"holds {first} but no config.json"):
        loop.train(run, str(tmp_path / "run"), Silent())
    assert [path.name for path in (tmp_path / "run").iterdir()] == [first]
    assert (tmp_path / "run" / name).read_text() == "mine"


def test_an_imported_model_is_not_trained_in_place(run, tmp_path):
    tree = {"model": {"family": "encoder"}, "objective": "masked_lm", "data": {"dataset": "none"}}
    (tmp_path / "config.json").write_text(json.dumps({**tree, "train": {"steps": 1}}))
    with pytest.raises(UserError, match="holds an imported model"):
        loop.train(run, str(tmp_path), Silent())


def test_an_older_import_is_refused_with_the_command(run, tmp_path):
    (tmp_path / "config.json").write_text('{"model": {"family": "encoder"}}')
    assert "tfm import HF_FOLDER" in status(tmp_path)[1]
    with pytest.raises(UserError, match="an older version imported it; run tfm import"):
        loop.train(run, str(tmp_path), Silent())


@pytest.mark.parametrize("sign", "*?[]\\")
def test_paths_that_are_read_as_patterns_are_refused(sign, run, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"cannot be read from such a path; choose one without"):
        loop.train(run, str(tmp_path / f"a{sign}b" / "run"), Silent())
    assert not list(tmp_path.iterdir())
    (tmp_path / f"a{sign}b").mkdir()
    monkeypatch.chdir(tmp_path / f"a{sign}b")
    with pytest.raises(UserError, match="choose one without"):
        loop.train(run, "run", Silent())
    assert not list((tmp_path / f"a{sign}b").iterdir())


def test_the_first_checkpoint_is_read_back(tmp_path, monkeypatch):
    """Here Orbax reads something else than was saved."""
    count = itertools.count()
    monkeypatch.setattr("tfm.run.checkpoint.checksum", lambda _: next(count))
    checkpoints = Checkpoints(tmp_path)
    items = {"variables": {"params": {"w": np.ones(3, np.float32)}}}
    with pytest.raises(UserError, match="what was saved cannot be read back: checkpoint 1 is dam"):
        checkpoints.save(1, items)
    checkpoints.close()
