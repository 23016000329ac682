"""After SIGKILL at any moment, or a full disk, a run ends as if nothing had happened."""

import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

from tests.helpers.runs import arrays, assert_same

pytestmark = pytest.mark.ci

HERE = pathlib.Path(__file__).parent
KILLS = int(os.environ.get("TFM_KILLS", "4"))  # of each run
SEED = int(os.environ.get("TFM_KILLS_SEED", "0"))  # of the moments
STEPS = int(os.environ.get("TFM_KILLS_STEPS", "150"))  # for each kill; a slow machine needs fewer


def begin(model, workdir, cache, steps, *more):
    argv = [f"--config={HERE / 'small.py'}:{model}", f"--workdir={workdir}", "--quiet",
            f"--config.train.steps={steps}", "--config.train.eval_every=50",
            "--config.train.save_every=10", *more]  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-m", "tfm", "train", *argv],
        env={**os.environ, "TFM_CACHE": str(cache)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process, code=0):
    _, errors = process.communicate(timeout=900)
    assert process.returncode == code, errors
    return errors


@pytest.mark.parametrize("model", ["decoder", "recurrent"])
def test_kills_change_nothing(model, tmp_path):
    steps, whole, killed = STEPS * KILLS, tmp_path / "whole", tmp_path / "killed"
    finish(begin(model, whole, tmp_path / "cache", steps))
    rng, log, start = random.Random(SEED), killed / "metrics.jsonl", 0.0
    for number in range(KILLS):
        begun = time.monotonic()
        process = begin(model, killed, tmp_path / "cache", steps)
        if number % 2:  # while it starts: it imports, compiles, restores
            time.sleep(rng.uniform(0, start))
        else:
            before = log.stat().st_mtime_ns if log.exists() else 0
            while process.poll() is None and (not log.exists() or log.stat().st_mtime_ns == before):
                time.sleep(0.01)  # until it is under way
            start = time.monotonic() - begun
            time.sleep(rng.uniform(0, 0.25))
        assert process.poll() is None, "it was over before it could be killed"
        process.send_signal(signal.SIGKILL)
        process.communicate()
    finish(begin(model, killed, tmp_path / "cache", steps))
    assert_same(killed, whole)


def test_sigterm_saves_first(tmp_path):
    steps, workdir = 100_000, tmp_path / "run"
    process = begin("decoder", workdir, tmp_path / "cache", steps)
    while not (workdir / "metrics.jsonl").exists() or not (workdir / "metrics.jsonl").read_text():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    saved = int(errors.split("saved at step ")[1].split()[0])
    assert int(arrays(workdir)["training"]["step"]) == saved


def test_a_full_disk_loses_nothing(tmp_path, small_disk):
    workdir, cache, all_kept = small_disk / "run", tmp_path / "cache", "--config.train.keep=1000"
    errors = finish(begin("decoder", workdir, cache, 300, all_kept), 2)
    told = f"tfm: cannot write to {workdir}: No space left on device; what was saved is kept"
    # TensorStore may add lines of its own.
    assert any(line.startswith(told) for line in errors.splitlines()), errors
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    finish(begin("decoder", workdir, cache, 300, all_kept))
    finish(begin("decoder", tmp_path / "whole", cache, 300))
    assert_same(workdir, tmp_path / "whole")


def test_a_disk_that_cannot_be_written_is_told(tmp_path, small_disk):
    (small_disk / "run").mkdir()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    errors = finish(begin("decoder", small_disk / "run", tmp_path / "cache", 10), 2)
    assert "Read-only file system" in errors
    assert "Traceback" not in errors
