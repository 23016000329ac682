"""`tfm train` until its first step is done: a process that says where its time went.

  python -m tfm.bench.first_step BEGIN [arguments of tfm train]

BEGIN is what `time.monotonic()` gave when the process was started. The run is the real one; that it
opens its data and takes its first step is noted on the way, and JAX itself tells when it traces,
lowers and compiles, or loads what was compiled before. It ends after the first step, with JSON on
standard output: the seconds of each part. Parts that lie within another are counted once, so that
they add up to the whole.
"""

import itertools
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

Interval = tuple[float, float]

# In this order: what compiles within a trace counts as compiling, and so on.
PARTS = ("compile", "lower", "trace", "data", "check", "import")
EVENTS = {
    "/jax/core/compile/backend_compile_duration": "compile",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/jaxpr_trace_duration": "trace",
}


def shares(intervals: Mapping[str, Sequence[Interval]], whole: Interval) -> dict[str, float]:
    """The seconds of each part, "rest" included; they add up to the whole. Where two parts overlap,
    the time belongs to the one that comes first in the mapping."""
    cuts = {edge for own in intervals.values() for pair in own for edge in pair} | set(whole)
    edges = sorted(min(max(edge, whole[0]), whole[1]) for edge in cuts)
    found = dict.fromkeys([*intervals, "rest"], 0.0)
    for begin, end in itertools.pairwise(edges):
        middle = (begin + end) / 2
        owner = (name for name, own in intervals.items() if any(a < middle < b for a, b in own))
        found[next(owner, "rest")] += end - begin
    return found


class FirstStepDone(BaseException):
    """Ends the run; no handler for errors may stop it."""


def main(argv: Sequence[str]) -> None:
    begin = float(argv[0])
    intervals: dict[str, list[Interval]] = {part: [] for part in PARTS}
    from jax import monitoring

    from tfm.cli import train
    from tfm.train import loop

    intervals["import"].append((begin, time.monotonic()))

    def note(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event in EVENTS:
            now = time.monotonic()
            intervals[EVENTS[event]].append((now - duration_secs, now))

    monitoring.register_event_duration_secs_listener(note)

    def noted(part: str, fn: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            start = time.monotonic()
            try:
                return fn(*args, **options)
            finally:
                intervals[part].append((start, time.monotonic()))

        return call

    class Bar(train.Bar):
        def line(self, line: Mapping[str, Any]) -> None:
            raise FirstStepDone

    more = {
        "open_data": (loop, noted("data", loop.open_data)),
        "check_compiler": (train, noted("check", train.check_compiler)),
        "Bar": (train, Bar),
    }
    for name, (module, new) in more.items():
        setattr(module, name, new)
    try:
        train.main([*argv[1:], "--quiet", "--config.train.log_every=1"])
    except FirstStepDone:
        whole = begin, time.monotonic()
        print(json.dumps({"seconds": whole[1] - whole[0], "parts": shares(intervals, whole)}))
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
