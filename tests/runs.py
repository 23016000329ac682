"""What a run's folder holds, as two runs are compared: the log without times, and the arrays."""

import json

import jax
import numpy as np

from tfm.train import loop, spec
from tfm.train.checkpoint import Checkpoints


def lines(workdir):
    text = (workdir / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in text]


def arrays(workdir):
    run = spec.of_folder(str(workdir))
    start, _, _ = loop.compiled(run)
    batch = loop.batch(spec.sources(run)["train"], run.seed, 0, run.data.batch)
    like = jax.eval_shape(start, batch, np.uint32(run.seed))
    state, wrong = Checkpoints(workdir / "checkpoints", run.train.keep).newest(like)
    assert not wrong
    return state


def assert_same(one, other):
    """Restored arrays bit for bit, the log but for times, the summary."""
    assert lines(one) == lines(other)
    assert (one / "summary.json").read_bytes() == (other / "summary.json").read_bytes()
    jax.tree.map(np.testing.assert_array_equal, arrays(one), arrays(other))
