"""Where the time to the first step goes: parts that add up to the whole."""

import json
import sys
import time

import pytest

from tfm.bench import start
from tfm.bench.first_step import shares
from tfm.bench.turns import library_config, ratios, whole_process
from tfm.config.names import UserError


def test_parts_add_up_and_nothing_counts_twice():
    # "trace" has another trace and a compilation in it, and reaches beyond the end.
    intervals = {"compile": [(4.0, 5.0)], "trace": [(3.0, 6.0), (3.5, 4.5), (9.0, 12.0)]}
    found = shares(intervals, (1.0, 10.0))
    assert found == {"compile": 1.0, "trace": 3.0, "rest": 5.0}
    assert sum(found.values()) == 9.0


def test_a_step_takes_what_lines_say_that_compile_nothing():
    seconds = [9.0, 2.0, 2.2, 1.0]
    lines = [{"step": n, "split": "train", "seconds": s} for n, s in enumerate(seconds)]
    log = "\n".join(map(json.dumps, [*lines, {"step": 3, "split": "valid", "loss": 1.0}]))
    assert start.step_seconds(log, 10) == pytest.approx(0.21)


def test_one_round_is_its_own_median():
    assert ratios([{"a": 2.0, "b": 3.0}], "a") == {"b": (1.5, 1.5, 1.5)}


def test_a_process_that_fails_is_named():
    with pytest.raises(UserError, match=r"a thing could not be timed: .*on purpose"):
        whole_process("a thing", [sys.executable, "-c", "raise ValueError('on purpose')"])


@pytest.mark.slow
def test_the_first_step_of_a_real_run_is_split(tmp_path):
    command = [sys.executable, "-m", "tfm.bench.first_step", str(time.monotonic()),
               f"--config={library_config('configs/tasks/reverse.py')}",
               f"--workdir={tmp_path / 'run'}"]  # fmt: skip
    seconds, printed = whole_process("tfm train", command, TFM_CACHE=str(tmp_path / "cache"))
    found = json.loads(printed)
    assert found["seconds"] <= seconds
    assert sum(found["parts"].values()) == pytest.approx(found["seconds"])
    assert all(found["parts"][part] > 0 for part in ("import", "data", "trace", "compile"))
    assert not (tmp_path / "run" / "summary.json").exists()
    assert list((tmp_path / "cache").iterdir())


@pytest.mark.slow
def test_a_sweep_of_tiny_runs_is_measured():
    found = start.measure_sweep(start.StartBench(runs=2, steps=10, width=8))
    assert 0 < found.in_steps < found.whole
    assert 0 < found.overhead_share < 1
    assert found.worker_start > 0
