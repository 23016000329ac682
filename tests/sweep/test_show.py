"""The display of a sweep, on a terminal that is not one."""

import io
import types

from rich.console import Console

from tfm.objectives.base import ACCURACY, LOSS
from tfm.sweep.launch import Progress
from tfm.sweep.show import Display, duration, leaders


def progress(variant, task, state, value=None, status="done", step=0, metric=ACCURACY):
    train = types.SimpleNamespace(steps=100)
    job = types.SimpleNamespace(
        variant=variant,
        task=task,
        name=f"{variant} · {task} · seed 0",
        run=types.SimpleNamespace(train=train),
        key=f"valid:loss.{metric.name}",
        metric=metric,
    )
    line = {"step": step, "loss": 0.25} if step else {}
    summary = (
        {"status": status, "valid": {metric.name: value}, "tests": {}} if state == "done" else None
    )
    error = "it broke" if state == "failed" else ""
    return Progress(job, state, line, summary, error)


JOBS = [
    progress("a", "copy", "done", 0.5),
    progress("a", "copy", "done", 0.7),
    progress("b", "copy", "done", 0.55),
    progress("lucky", "copy", "done", 0.99),
    progress("lucky", "copy", "done", 0.1, status="diverged"),
    progress("b", "sort", "done", None),
    progress("a", "sort", "running", step=50),
    progress("b", "sort", "failed"),
    progress("c", "sort", "waiting"),
]


def test_one_that_diverged_does_not_lead():
    assert leaders(JOBS) == {"copy": ("a", 0.6)}
    low = [progress(v, "copy", "done", x, metric=LOSS) for v, x in (("a", 0.5), ("b", 0.4))]
    assert leaders(low) == {"copy": ("b", 0.4)}


def test_the_live_table_says_what_is_going_on():
    display = Display("accuracy", quiet=False)
    display.console = Console(file=io.StringIO(), force_terminal=True, width=100)
    display.last = 0.0  # long ago
    with display:
        display.show(JOBS)
    text = display.console.file.getvalue()
    for part in ("6 done, 1 running, 1 failed, 1 waiting", "a · sort · seed 0", "50 of 100",
                 "0.2500", "0.6000", "b · sort · seed 0: it broke"):  # fmt: skip
        assert part in text, part


def test_durations():
    assert [duration(s) for s in (5, 300, 7200)] == ["5 s", "5 min", "2.0 h"]
