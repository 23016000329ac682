"""Sweeps from the outside: kills, restarts, failures, full disks, two launchers at once."""

import contextlib
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

from tests.helpers.runs import assert_same
from tfm.cli import main as cli
from tfm.report.statistics import Interval
from tfm.run.folder import Folder

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
        [sys.executable, "-m", "tfm", "sweep", str(study), f"--workdir={workdir}",
         "--jobs=2", *args],
        env={**os.environ, "TFM_CACHE": str(pathlib.Path(study).parent / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def finish(process, code=0):
    out, errors = process.communicate(timeout=900)
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    return out, errors


def children(pid):
    """The processes that a process has started, but for multiprocessing's own."""
    found = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    workers = []
    for p in found:
        with contextlib.suppress(OSError):  # it has just ended
            if b"spawn_main" in pathlib.Path(f"/proc/{p}/cmdline").read_bytes():
                workers.append(int(p))
    return workers


def ended(workdir):
    return {path.parent.name for path in workdir.glob("*/summary.json")}


def grow(workdir, process):
    """Wait until some run writes to its log."""
    sizes = lambda: {path: path.stat().st_size for path in workdir.glob("*/metrics.jsonl")}
    before = sizes()
    while not any(size > before.get(path, 0) for path, size in sizes().items()):
        assert process.poll() is None, "it was over before it could be killed"
        time.sleep(0.01)


LAUNCHERS = int(os.environ.get("TFM_KILLS", "4")) // 2
SEED = int(os.environ.get("TFM_KILLS_SEED", "0"))  # of the moments
STEPS = int(os.environ.get("TFM_KILLS_STEPS", "200"))  # for each kill; a slow machine needs fewer


@pytest.mark.ci
def test_kills_change_nothing(tmp_path):
    """Twelve points. One launcher is asked to stop; others are killed after two workers of each."""
    study = write(tmp_path)
    long = ["--quiet", f"--config.train.steps={STEPS * LAUNCHERS}", "--config.train.eval_every=100",
            "--config.train.save_every=20"]  # fmt: skip
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(begin(study, whole, *long))
    assert len(ended(whole)) == 12
    rng = random.Random(SEED)
    workers_killed = 0
    for ending in [signal.SIGINT, *[signal.SIGKILL] * LAUNCHERS]:
        process = begin(study, killed, *long)
        for _ in range(2 if ending == signal.SIGKILL else 0):
            grow(killed, process)
            time.sleep(rng.uniform(0, 0.5))
            os.kill(rng.choice(children(process.pid)), signal.SIGKILL)
            workers_killed += 1
        grow(killed, process)
        time.sleep(rng.uniform(0, 0.5))
        workers = children(process.pid)
        process.send_signal(ending)
        begin_of_end = time.monotonic()
        _, errors = process.communicate(timeout=60)
        if ending == signal.SIGINT:
            assert process.returncode == 130, errors
            assert "the same command resumes it" in errors
            assert time.monotonic() - begin_of_end < 15  # it saves, and does not wait to be killed
        assert gone(workers)
    assert workers_killed == 2 * LAUNCHERS
    assert not ended(killed) >= ended(whole)
    finish(begin(study, killed, *long))
    assert ended(killed) == ended(whole)
    logs = "".join(path.read_text() for path in (killed / "workers").glob("*.log"))
    assert logs.count("going on from step") > LAUNCHERS
    for name in ended(whole):
        assert_same(killed / name, whole / name)


def gone(pids):
    """Whether processes have ended, within a while."""

    def alive(pid):
        try:
            return "State:\tZ" not in pathlib.Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return False

    for _ in range(100):
        if not any(map(alive, pids)):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.ci
def test_a_sweep_is_extended_and_kept(tmp_path):
    study, work = write(tmp_path, STUDY.replace("seeds(3)", "seeds(2)")), tmp_path / "work"
    out, _ = finish(begin(study, work))
    assert "scaled_dot" in out
    assert "8 runs in" in out
    before = {name: (work / name / "summary.json").stat().st_mtime_ns for name in ended(work)}
    write(tmp_path)
    out, _ = finish(begin(study, work, "--json"))
    assert before == {n: (work / n / "summary.json").stat().st_mtime_ns for n in before}
    found = json.loads(out)
    assert len(found["runs"]) == 12
    rows = list(csv.DictReader((work / "runs.csv").read_text().splitlines()))
    assert {row["id"] for row in rows} == ended(work)
    mine = [row for row in rows if row["variant"] == rows[0]["variant"]]
    values = [float(row["accuracy"]) for row in mine]
    summaries = [json.loads((work / row["id"] / "summary.json").read_text()) for row in mine]
    assert values == [summary["valid"]["accuracy"] for summary in summaries]
    (cell,) = (c for c in found["table"] if c["variant"] == rows[0]["variant"])
    assert cell["mean"] == pytest.approx(np.mean(values))
    half = 4.302652729911275 * np.std(values, ddof=1) / 3**0.5
    bounds = max(np.mean(values) - half, 0), min(np.mean(values) + half, 1)
    assert (cell["low"], cell["high"]) == pytest.approx(bounds)
    shown = str(Interval(cell["mean"], *bounds))
    assert f"| {rows[0]['variant']} | {shown} |" in (work / "results.md").read_text()
    # The library's code has changed: nothing is reused without a word, and nothing is lost.
    profile = json.loads((work / rows[0]["id"] / "profile.json").read_text())
    profile["profiles"][0]["made_by"]["tfm"] = "another"
    Folder(work / rows[0]["id"]).write("profile.json", profile)
    _, errors = finish(begin(study, work), 2)
    assert "1 of 12 runs" in errors
    assert "--stale=again" in errors
    out, _ = finish(begin(study, work, "--stale=keep"))
    assert "(1 stale)" in out
    assert "(1 stale)" in (work / "results.md").read_text()
    (work / rows[0]["id"] / "summary.json").unlink()  # half done: not to be finished by this code
    finish(begin(study, work, "--stale=keep", "--quiet"))
    assert len(ended(work)) == 12
    assert not (work / "stale" / f"{rows[0]['id']}.0" / "summary.json").exists()
    Folder(work / rows[1]["id"]).write("profile.json", profile)
    finish(begin(study, work, "--stale=again", "--quiet"))
    assert ended(work / "stale") == {f"{rows[1]['id']}.0"}
    assert len(ended(work)) == 12


def test_failures_are_tried_again_and_then_reported(tmp_path):
    """A data set that never fails, one that fails twice, one that always does."""
    text = f'''"""What fails?"""
import multiprocessing
import pathlib
from tfm.data.dataset import Source
from tfm.data.synthetic import copy
BASE = "{SMALL}:decoder"
HERE = pathlib.Path(__file__).parent
class Flaky(Source):
    def __init__(self, times):
        self.times = times
    def open(self, split, count, seed):
        if split == "train" and multiprocessing.parent_process():  # in a worker
            tries = HERE / f"tries{{self.times}}"
            tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
            if len(tries.read_text()) <= self.times:
                raise RuntimeError(f"try {{len(tries.read_text())}} went wrong")
        return copy(length=4, vocab=8).open(split, count, seed)
def flaky(times: int = 0):
    return Flaky(times)
DATASETS = {{"flaky": flaky}}
def sweep():
    return [{{"data.dataset": f"flaky(times={{times}})"}} for times in (0, 2, 99)]
'''
    study, work = write(tmp_path, text), tmp_path / "work"
    out, errors = finish(begin(study, work), 1)
    assert len(ended(work)) == 2
    where = f"{study / 'study.py'}, line 16"
    assert f"failed: base · flaky(times=99) · seed 3: {where}: RuntimeError: try 3 went" in errors
    assert "1 of 3 runs failed" in errors
    assert "— (1 failed)" in out
    assert (study / "tries2").read_text() == "xxx"
    assert "Traceback" in "".join(p.read_text() for p in (work / "workers").glob("*.log"))


@pytest.mark.ci
def test_workers_that_cannot_start_are_reported(tmp_path):
    """That is not the fault of a job, so none is tried again and again."""
    study, broken = write(tmp_path), tmp_path / "broken"
    broken.mkdir()
    # A worker differs from its launcher in how multiprocessing starts it.
    (broken / "sitecustomize.py").write_text(
        "import os, sys\nif 'from multiprocessing.spawn' in ' '.join(sys.orig_argv):\n"
        "    os._exit(3)\n"
    )
    process = subprocess.run(
        [sys.executable, "-m", "tfm", "sweep", str(study), f"--workdir={tmp_path / 'work'}"],
        env={**os.environ, "PYTHONPATH": str(broken)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 2
    assert "workers cannot start: its process ended with code 3" in process.stderr
    assert "Traceback" not in process.stderr


def test_a_dry_run_prints_the_cost_and_runs_nothing(tmp_path, capsys, own_tables):
    study, work = write(tmp_path), tmp_path / "work"
    argv = ["sweep", str(study), f"--workdir={work}", "--jobs=2", "--dry-run"]
    assert cli.main(argv) == 0
    out = capsys.readouterr().out
    assert "12 runs, 12 to do" in out
    assert "about" in out
    assert not work.exists()
    assert cli.main([*argv, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["runs"]) == 12
    assert found["seconds"] > 0
    assert {run["parameters"] for run in found["runs"]} == {640, 648}


@pytest.mark.ci
def test_two_launchers_do_not_meet(tmp_path):
    study, work = write(tmp_path), tmp_path / "work"
    first = begin(study, work, "--config.train.steps=2000", "--quiet")
    while not (work / "sweep.json").exists():
        time.sleep(0.1)
        assert first.poll() is None
    _, errors = finish(begin(study, work, "--quiet"), 2)
    assert "in use by another process" in errors
    workers = children(first.pid)
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=60)
    assert first.returncode == 130
    assert gone(workers)


@pytest.mark.ci
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
        ([], "the following arguments are required: STUDY"),
        (["nowhere"], "no study nowhere/study.py"),
        (
            ["{study}", "--dry-run", "--retries=x"],
            "--retries: 'x' is not a whole number of at least 0",
        ),
        (["{study}", "--dry-run", "--quiet"], "a dry run only prints"),
        (["{study}", "--jobs=0"], "--jobs: '0' is not a whole number of at least 1"),
        (["{study}", "--dryrun"], "did you mean '--dry-run'?"),
        (["{study}", "--config=configs/gpt2.py"], "a study names its own configs"),
        (["{study}", "--config.train.step=3"], "did you mean 'train.steps'?"),
        (["{study}", "--stale=keeep"], "unknown --stale 'keeep'; did you mean 'keep'?"),
    ],
)
def test_mistakes_are_named(args, message, tmp_path, capsys, monkeypatch, own_tables):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["sweep", *(arg.format(study=write(tmp_path)) for arg in args)]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
