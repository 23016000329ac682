"""Sweeps whose folders hold damaged runs: named, left as they are, and the others are shown."""

import json
import pathlib
import shutil

import pytest

from tfm.cli.main import main
from tfm.report import results
from tfm.run.folder import Folder
from tfm.sweep import launch, plan
from tfm.sweep import study as studies
from tfm.train import loop

SMALL = pathlib.Path(__file__).parent.parent / "train" / "small.py"
STUDY = f'''"""Which seed is better?"""
from tfm.sweep.space import product, seeds
BASE = "{SMALL}:recurrent"
METRIC = "accuracy"
def sweep():
    return product({{"train.steps": [8]}}, seeds(3))
'''


class Silent:
    def line(self, line): ...

    def message(self, text): ...


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A study, and the folder of its finished sweep."""
    study, work = tmp_path_factory.mktemp("seeds"), tmp_path_factory.mktemp("done") / "work"
    (study / "study.py").write_text(STUDY)
    found = studies.load(str(study))
    jobs = plan.expand(found, [])
    for job in jobs:
        loop.train(job.run, str(work / job.id), Silent())
    Folder(work).write("sweep.json", launch.describe(found, jobs))
    return study, work, [job.id for job in jobs]


def sweep(study, work, *args):
    return main(["sweep", str(study), f"--workdir={work}", "--json", *args])


@pytest.mark.parametrize("content", [None, b"", b"{}", b"\xff", b"[]", b'{"id": 3'])
@pytest.mark.parametrize("name", ["summary.json", "profile.json", "config.json", "failure.json"])
def test_one_damaged_run_does_not_stop_a_sweep(name, content, done, tmp_path, capsys):
    study, source, (first, *_) = done
    work = tmp_path / "work"
    shutil.copytree(source, work, ignore=shutil.ignore_patterns("checkpoints", "tensorboard"))
    path = work / first / name
    path.unlink(missing_ok=True)
    path.mkdir() if content is None else path.write_bytes(content)
    before = sorted(work.joinpath(first).iterdir())
    assert sweep(study, work) == 1
    out, errors = capsys.readouterr()
    assert "Traceback" not in errors
    assert f"damaged: base · copy · seed 0: {path} " in errors
    assert "1 of 3 runs are damaged" in errors
    assert f"delete the folder {work / first} to run it again" in errors
    found = json.loads(out)
    assert [run["status"] for run in found["runs"]] == ["damaged", "done", "done"]
    assert [(cell["runs"], cell["damaged"]) for cell in found["table"]] == [(2, 1)]
    assert "(1 damaged)" in (work / "results.md").read_text()
    assert sorted(work.joinpath(first).iterdir()) == before
    assert content is None or path.read_bytes() == content


@pytest.mark.parametrize("finished", [True, False])
def test_an_edited_config_is_noticed(finished, done, tmp_path, capsys):
    study, source, (first, *_) = done
    work = tmp_path / "work"
    shutil.copytree(source, work)
    path = work / first / "config.json"
    tree = json.loads(path.read_text())
    tree["optimizer"]["learning_rate"] *= 2
    path.write_text(json.dumps(tree))
    if not finished:
        (work / first / "summary.json").unlink()
    assert results.read(str(work)).runs[0].status == "damaged"
    assert sweep(study, work) == 1
    assert f"seed 0: {path} was edited: its checksum differs" in capsys.readouterr().err


def test_a_summary_of_another_run_is_found(done, tmp_path):
    study, source, (first, second, _) = done
    work = tmp_path / "work"
    shutil.copytree(source, work, ignore=shutil.ignore_patterns("checkpoints", "tensorboard"))
    shutil.copy(work / second / "summary.json", work / first)
    assert sweep(study, work) == 1
    assert results.read(str(work)).runs[0].status == "damaged"
    shutil.rmtree(work / first)
    shutil.copytree(work / second, work / first)  # whole, and of another run
    assert sweep(study, work) == 1
    assert "config.json is of another run" in results.read(str(work)).runs[0].error


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"runs": [3]}'])
def test_a_damaged_list_of_runs_is_made_again(content, done, tmp_path, capsys):
    study, source, _ = done
    work = tmp_path / "work"
    shutil.copytree(source, work, ignore=shutil.ignore_patterns("checkpoints", "tensorboard"))
    (work / "sweep.json").write_bytes(content)
    with pytest.raises(results.UserError, match="sweep.json"):
        results.read(str(work))
    assert sweep(study, work) == 0
    assert len(results.read(str(work)).runs) == 3


def test_a_foreign_folder_is_left_alone(done, tmp_path, capsys):
    study, _, _ = done
    (tmp_path / "results.md").write_text("mine")
    assert sweep(study, tmp_path) == 2
    assert "holds results.md but no sweep.json" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["results.md"]
    assert sweep(study, f"{tmp_path}/a*") == 2
    assert "choose one without" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["results.md"]
