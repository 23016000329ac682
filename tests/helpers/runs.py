"""What a run's folder holds, as two runs are compared: the log without times, and the arrays."""

import json

import jax
import numpy as np

from tfm.run.checkpoint import Checkpoints
from tfm.train.loop import TIMES


class Silent:
    """Watches a run, and keeps what it is told."""

    def __init__(self):
        self.messages = []
        self.lines = []

    def line(self, line):
        self.lines.append(line)

    def message(self, text):
        self.messages.append(text)


def lines(workdir):
    text = (workdir / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in text]


def arrays(workdir):
    checkpoints = Checkpoints(workdir, read_only=True)
    items, damaged = checkpoints.newest({"variables": None, "training": None})
    assert not damaged
    return items


def assert_same(one, other):
    """Restored arrays bit for bit, the log but for times, the summary."""
    assert lines(one) == lines(other)
    assert (one / "summary.json").read_bytes() == (other / "summary.json").read_bytes()
    jax.tree.map(np.testing.assert_array_equal, arrays(one), arrays(other))
