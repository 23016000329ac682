"""`tfm ls`: runs in every state, imported models, and folders that are no runs or are damaged."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest

from tests.helpers.runs import Silent
from tfm.cli.main import main
from tfm.config import files as config
from tfm.report import ls
from tfm.run import spec
from tfm.run.folder import Folder
from tfm.train import loop

SMALL = pathlib.Path(__file__).parent.parent / "train" / "small.py"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A real run, from which the others are made."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    argv = [f"--config={SMALL}:recurrent", "--config.train.steps=20"]
    run = spec.read(config.from_command_line(argv, spec.RunSpec))
    return folder, loop.train(run, str(folder), Silent())


@pytest.fixture
def folder(trained, tmp_path):
    source, _ = trained
    skip = shutil.ignore_patterns("checkpoints", "tensorboard")
    names = ["done", "sweep/half", "sweep/broken", "sweep/gone", "sweep/diverged", "bad/log"]
    for name in names:
        shutil.copytree(source, tmp_path / name, ignore=skip)
    (tmp_path / "sweep" / "sweep.json").write_text("{}")
    (tmp_path / "sweep" / "workers").mkdir()
    (tmp_path / "sweep" / "never").mkdir()
    (tmp_path / "sweep" / "never" / "failure.json").write_text('{"error": "no data"}')
    half = tmp_path / "sweep" / "half"
    lines = (half / "metrics.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["step"] <= 12]
    (half / "metrics.jsonl").write_text("".join(kept) + '{"step": 13, "spl')  # killed here
    (half / "summary.json").unlink()
    for name in ("broken", "gone"):
        (tmp_path / "sweep" / name / "summary.json").unlink()
    (tmp_path / "sweep" / "gone" / "metrics.jsonl").unlink()
    (tmp_path / "sweep" / "broken" / "failure.json").write_text('{"error": "it broke"}')
    diverged = json.loads((tmp_path / "done" / "summary.json").read_text())
    diverged |= {"status": "diverged", "best": None, "valid": None}
    Folder(tmp_path / "sweep" / "diverged").write("summary.json", diverged)
    (tmp_path / "bad" / "log" / "summary.json").unlink()
    (tmp_path / "bad" / "log" / "metrics.jsonl").write_text('{"step": 3}\n')
    odd = {"model": {}, "id": "x", "objective": "tag", "train": {}, "data": 3}
    foreign = {"half_json": '{"model": ', "list": "[1]", "other": '{"model_type": "gpt2"}',
               "odd": json.dumps(odd)}  # fmt: skip
    for name, text in foreign.items():
        (tmp_path / "bad" / name).mkdir()
        (tmp_path / "bad" / name / "config.json").write_text(text)
    (tmp_path / "imported").mkdir()
    imported = {"model": {"family": "encoder"}, "objective": "masked_lm",
                "data": {"dataset": "none"}, "train": {"steps": 1}}  # fmt: skip
    (tmp_path / "imported" / "config.json").write_text(json.dumps(imported))
    (tmp_path / "pictures" / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / ".hidden").mkdir()
    return tmp_path


def test_every_state_is_shown(folder, trained):
    _, summary = trained
    found = {run.name: run for run in ls.runs(str(folder))}
    assert {name: run.status for name, run in found.items()} == {
        "done": "done", "sweep/half": "unfinished", "sweep/broken": "failed",
        "sweep/gone": "unfinished", "sweep/never": "failed", "sweep/diverged": "diverged",
        "imported": "imported", "pictures": "?", "bad/log": "damaged", "bad/half_json": "damaged",
        "bad/list": "damaged", "bad/other": "damaged", "bad/odd": "damaged",
    }  # fmt: skip
    done = found["done"]
    assert (done.family, done.objective) == ("recurrent", "next_token")
    assert done.dataset == "copy(length=4, vocab=8)"
    assert (done.step, done.steps, done.best) == (20, 20, summary["best"])
    half = found["sweep/half"]
    assert (half.step, half.steps, half.best["step"]) == (12, 20, 10)
    assert (found["sweep/gone"].step, found["sweep/gone"].best) == (0, None)
    reasons = {name: run.reason for name, run in found.items() if run.reason}
    assert reasons["sweep/broken"] == "it broke"
    assert reasons["sweep/never"] == "no data"
    assert reasons["pictures"] == "no run: it has no config.json"
    assert "config.json is not JSON" in reasons["bad/half_json"]
    assert "config.json holds [1] where a dict belongs" in reasons["bad/list"]
    assert "config.json has no 'model'" in reasons["bad/other"]
    assert "metrics.jsonl is damaged: line 1 has no 'split'" in reasons["bad/log"]
    assert "config.json holds 3 where a dict belongs (data)" in reasons["bad/odd"]


def test_a_run_that_is_written_to_is_running(folder):
    with Folder(folder / "sweep" / "half").lock():
        assert {run.name: run.status for run in ls.runs(str(folder))}["sweep/half"] == "running"
    (run,) = ls.runs(str(folder / "sweep" / "half"))  # a run itself
    assert (run.name, run.status) == ("half", "unfinished")


def test_the_command_prints_a_table_or_json(folder, capsys, monkeypatch):
    assert main(["ls", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    (done,) = (line for line in lines if line.startswith("done "))
    assert "recurrent · next_token · copy(length=4, vocab=8)" in done
    assert "20 of 20" in done
    assert main(["ls", "--json", str(folder)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {run["name"] for run in found} == {run.name for run in ls.runs(str(folder))}
    monkeypatch.chdir(folder)
    assert main(["ls"]) == 2
    assert "no folder runs" in capsys.readouterr().err
    (folder / "runs").mkdir()
    assert main(["ls"]) == 0
    assert "no runs in runs" in capsys.readouterr().out
    assert main(["ls", "a", "b"]) == 2
    assert "unexpected argument 'b'" in capsys.readouterr().err


WRONG = (None, True, 3, -1.5, "text", [], [3], {}, {"loss": [3]}, 10**400, "\ud800\x1b[2J")


@pytest.mark.parametrize("name", ["config.json", "summary.json", "profile.json", "metrics.jsonl"])
def test_values_of_any_type_break_no_table(name, trained, tmp_path, capsys):
    """Each value of a file, at any depth, is replaced by one of another type."""
    source, _ = trained
    text = (source / name).read_text()
    tree = json.loads(text.splitlines()[-1] if name == "metrics.jsonl" else text)
    tree.pop("checksum", None)
    places = [(key,) for key in tree]
    places += [(key, inner) for key in tree if isinstance(tree[key], dict) for inner in tree[key]]
    shutil.copytree(source, tmp_path / "good", ignore=shutil.ignore_patterns("checkpoints"))
    for number, (first, *rest) in enumerate(places):
        for wrong in WRONG:
            changed = json.loads(json.dumps(tree))
            if rest:
                changed[first][rest[0]] = wrong
            else:
                changed[first] = wrong
            bad = tmp_path / f"bad{number}_{WRONG.index(wrong)}"
            bad.mkdir()
            for other in ("config.json", "summary.json", "profile.json", "metrics.jsonl"):
                if other != name:
                    (bad / other).hardlink_to(source / other)
            (bad / name).write_text(json.dumps(changed) + "\n")
    assert main(["ls", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["ls", str(tmp_path), "--json"]) == 0
    listed = {run["name"]: run for run in json.loads(capsys.readouterr().out)}
    assert len(listed) == len(places) * len(WRONG) + 1
    assert listed["good"]["status"] == "done"
    reasons = [run["reason"] for run in listed.values() if run["status"] == "?"]
    assert not reasons  # each is damaged, and the file is named, or is as good as before


def test_folders_within_folders_are_listed_to_a_depth(trained, tmp_path, capsys):
    shutil.copytree(trained[0], tmp_path / "good")
    deep = tmp_path / "a"
    deep.mkdir()
    inner = os.open(deep, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("a", dir_fd=inner)
        inner, outer = os.open("a", os.O_RDONLY, dir_fd=inner), inner
        os.close(outer)
    os.close(inner)
    assert main(["ls", str(tmp_path), "--json"]) == 0
    listed = {run["name"]: run["status"] for run in json.loads(capsys.readouterr().out)}
    assert listed == {"good": "done", "a": "?"}
    subprocess.run(["rm", "-r", str(deep)], check=True)


@pytest.mark.parametrize("mode", [0, 0o444, 0o111])
def test_a_folder_that_may_not_be_read_hides_no_other(mode, trained):
    with tempfile.TemporaryDirectory() as root:  # which others than its owner can reach
        os.chmod(root, 0o755)
        for name in ("good", "locked"):
            shutil.copytree(trained[0], pathlib.Path(root) / name)
        os.chmod(pathlib.Path(root) / "locked", mode)
        user = os.geteuid()
        try:
            if not user:
                os.seteuid(65534)  # root may read everything
            listed = {run.name: run.status for run in ls.runs(root)}
        finally:
            os.seteuid(user)
        os.chmod(pathlib.Path(root) / "locked", 0o755)
    assert listed == {"good": "done", "locked": "damaged" if mode == 0o444 else "?"}
