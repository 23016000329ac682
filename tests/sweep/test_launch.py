"""Sweeps from the outside: kills, restarts, failures, full disks, two launchers at once."""

import csv
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from runs import assert_same

SMALL = pathlib.Path(__file__).parent.parent / "train" / "small.py"
STUDY = f'''"""Which rate is better?"""
from tfm.sweep.space import product, seeds
BASE = "{SMALL}:decoder"
METRIC = "accuracy"
def sweep():
    return product({{"model.attention.score": ["scaled_dot", "additive"]}},
                   {{"optimizer.learning_rate": [1e-2, 1e-3]}}, seeds(3))
'''


def write(tmp_path, text=STUDY, name="rates"):
    folder = tmp_path / "experiments" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.py").write_text(text)
    return folder


def begin(study, workdir, *args):
    return subprocess.Popen(
        [sys.executable, "-m", "tfm.cli", "sweep", str(study), f"--workdir={workdir}",
         "--jobs=2", *args],
        env={**os.environ, "TFM_CACHE": str(pathlib.Path(study).parent / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def finish(process, code=0):
    out, errors = process.communicate(timeout=600)
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    return out, errors


def children(pid):
    """The processes that a process has started, but for multiprocessing's own."""
    found = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [
        int(p) for p in found if b"spawn_main" in pathlib.Path(f"/proc/{p}/cmdline").read_bytes()
    ]


def ended(workdir):
    return {path.parent.name for path in workdir.glob("*/summary.json")}


@pytest.mark.slow
def test_kills_change_nothing(tmp_path):
    """Twelve points; eight workers and four launchers are killed, and one is asked to stop."""
    study, long = write(tmp_path), "--config.train.steps=300"
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(begin(study, whole, long, "--quiet"))
    assert len(ended(whole)) == 12
    rng = random.Random(0)
    endings = [signal.SIGKILL] * 4 + [signal.SIGINT]
    kills = 0
    for ending in endings:
        process = begin(study, killed, long, "--quiet")
        for _ in range(2):
            time.sleep(rng.uniform(1.5, 5.0))
            if process.poll() is None and (workers := children(process.pid)):
                os.kill(rng.choice(workers), signal.SIGKILL)
                kills += 1
        time.sleep(rng.uniform(0.5, 4.0))
        assert process.poll() is None, "it was over before it could be killed"
        process.send_signal(ending)
        _, errors = process.communicate(timeout=60)
        if ending == signal.SIGINT:
            assert process.returncode == 130, errors
            assert "the same command goes on" in errors
    assert kills >= 8
    finish(begin(study, killed, long, "--quiet"))
    assert ended(killed) == ended(whole)
    for name in ended(whole):
        assert_same(killed / name, whole / name)


@pytest.mark.slow
def test_a_sweep_is_extended_kept_and_told(tmp_path):
    study, work = write(tmp_path, STUDY.replace("seeds(3)", "seeds(2)")), tmp_path / "work"
    out, _ = finish(begin(study, work))
    assert "scaled_dot" in out
    assert "8 runs in" in out
    before = {name: (work / name / "summary.json").stat().st_mtime_ns for name in ended(work)}
    write(tmp_path)
    out, _ = finish(begin(study, work, "--json"))
    assert before == {n: (work / n / "summary.json").stat().st_mtime_ns for n in before}
    told = json.loads(out)
    assert len(told["runs"]) == 12
    rows = list(csv.DictReader((work / "runs.csv").open()))
    assert {row["id"] for row in rows} == ended(work)
    mine = [row for row in rows if row["variant"] == rows[0]["variant"]]
    values = [float(row["accuracy"]) for row in mine]
    summaries = [json.loads((work / row["id"] / "summary.json").read_text()) for row in mine]
    assert values == [summary["valid"]["accuracy"] for summary in summaries]
    (cell,) = (c for c in told["table"] if c["variant"] == rows[0]["variant"])
    assert cell["mean"] == pytest.approx(np.mean(values))
    assert cell["half"] == pytest.approx(4.302652729911275 * np.std(values, ddof=1) / 3**0.5)
    assert f"{cell['mean']:.3f} ± {cell['half']:.3f}" in (work / "results.md").read_text()
    # The library's code has changed: nothing is reused without a word, and nothing is lost.
    held = json.loads((work / rows[0]["id"] / "profile.json").read_text())
    held["profiles"][0]["made_by"]["tfm"] = "another"
    (work / rows[0]["id"] / "profile.json").write_text(json.dumps(held))
    _, errors = finish(begin(study, work), 2)
    assert "1 of 12 runs" in errors
    assert "--stale=again" in errors
    out, _ = finish(begin(study, work, "--stale=keep"))
    assert "1 runs are stale" in out
    finish(begin(study, work, "--stale=again", "--quiet"))
    assert len(ended(work)) == 12
    assert len(ended(work / "stale")) == 1


@pytest.mark.slow
def test_failures_are_tried_again_and_then_told(tmp_path):
    """A task that fails twice in one variant, one that always fails, one that cannot be."""
    text = f'''"""What fails?"""
import pathlib
from tfm.data.synthetic import copy
from tfm.data.batch import Task
BASE = "{SMALL}:decoder"
TASK = "data.seed"
HERE = pathlib.Path(__file__).parent
def flaky(times: int = 0):
    task = copy(length=4, vocab=8)
    def make(rng, count, split):
        if count > 1 and split == "train":
            tries = HERE / f"tries{{times}}"
            tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
            if len(tries.read_text()) <= times:
                raise RuntimeError(f"try {{len(tries.read_text())}} went wrong")
        return task.make(rng, count, split)
    return Task(make, task.best)
TASKS = {{"flaky": flaky}}
def sweep():
    return [{{"data.task": f"flaky(times={{times}})"}} for times in (0, 2, 99)]
'''
    study, work = write(tmp_path, text.replace('TASK = "data.seed"\n', "")), tmp_path / "work"
    out, errors = finish(begin(study, work), 1)
    assert len(ended(work)) == 2
    assert "failed: base · flaky(times=99) · seed 3: RuntimeError: try 3 went wrong" in errors
    assert "1 of 3 runs failed" in errors
    assert "(1 unfinished)" in out
    assert (study / "tries2").read_text() == "xxx"
    assert "Traceback" in "".join(p.read_text() for p in (work / "workers").glob("*.log"))


@pytest.mark.slow
def test_two_launchers_do_not_meet(tmp_path):
    study, work = write(tmp_path), tmp_path / "work"
    first = begin(study, work, "--config.train.steps=2000", "--quiet")
    while not (work / "sweep.json").exists():
        time.sleep(0.1)
        assert first.poll() is None
    _, errors = finish(begin(study, work, "--quiet"), 2)
    assert "in use by another process" in errors
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=60)
    assert first.returncode == 130
    assert not children_left(work)


def children_left(work):
    time.sleep(0.5)
    found = subprocess.run(["pgrep", "-f", str(work)], capture_output=True, text=True)
    return found.stdout.split()


@pytest.mark.slow
def test_a_full_disk_loses_nothing(tmp_path, small_disk):
    text = STUDY.replace("seeds(3)", "seeds(1)").replace("[1e-2, 1e-3]", "[1e-2]")
    study, work, long = write(tmp_path, text), small_disk / "work", "--config.train.steps=150"
    all_kept = "--config.train.keep=1000"
    _, errors = finish(begin(study, work, "--quiet", long, all_kept), 2)
    assert "No space left on device; what was saved is kept: make room" in errors
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    finish(begin(study, work, "--quiet", long, all_kept))
    finish(begin(study, tmp_path / "whole", "--quiet", long))
    for name in ended(tmp_path / "whole"):
        assert_same(work / name, tmp_path / "whole" / name)


def test_a_folder_that_cannot_be_written(tmp_path, small_disk):
    study = write(tmp_path)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    _, errors = finish(begin(study, small_disk / "work", "--quiet"), 2)
    assert "cannot make the folder" in errors
    assert "Read-only file system" in errors


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "1 study(s) wanted, 0 given"),
        (["nowhere"], "no study nowhere/study.py"),
        (["{study}", "--jobs=0"], "write --jobs=N, a whole number of at least 1"),
        (["{study}", "--dryrun"], "did you mean '--dry-run'?"),
        (["{study}", "--config=configs/gpt2.py"], "a study names its own configs"),
        (["{study}", "--config.train.step=3"], "did you mean 'train.steps'?"),
        (["{study}", "--stale=keeep"], "unknown --stale 'keeep'; did you mean 'keep'?"),
    ],
)
def test_mistakes_are_named(args, message, tmp_path):
    study = write(tmp_path)
    result = subprocess.run(
        [sys.executable, "-m", "tfm.cli", "sweep", *(arg.format(study=study) for arg in args)],
        capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "runs").exists()
