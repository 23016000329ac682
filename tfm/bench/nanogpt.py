"""Trains nanoGPT's small Shakespeare model from start to end, beside the same in PyTorch.

Both are whole processes, run in turns: start-up, training, saving, and the loss over the whole
validation text in windows side by side, which is the same number in both. PyTorch is eager, as
nanoGPT is with `--compile=False` (`tfm/bench/torch_nanogpt.py`; needs the extra `bench`). tfm reads
`configs/nanogpt.py`, with nanoGPT's learning rate and weight decay. The text is
tinyshakespeare/input.txt in the folder $TFM_DATA.
"""

import dataclasses
import json
import os
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

from tfm.bench.turns import library_config, not_installed, ratio_text, ratios, whole_process
from tfm.config.files import from_command_line
from tfm.config.names import UserError
from tfm.config.spec import Spec, field, rate, size
from tfm.run.spec import RunSpec, read
from tfm.terminal import table

CONFIG = "configs/nanogpt.py"
TEXT = "tinyshakespeare/input.txt"
SCRIPT = pathlib.Path(__file__).with_name("torch_nanogpt.py")
OURS, THEIRS = "tfm", "torch"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bench(Spec):
    """The run; everything else is in the config."""

    steps: int = size(2000)
    learning_rate: float = field(1e-3, above=0)
    warmup: int = size(100)  # of `steps`, at most all of them
    final: float = rate(0.1)  # the share of the learning rate at the end
    rounds: int = size(2)
    seed: int = field(0, least=0)  # of the first round; later rounds count up


@dataclasses.dataclass(frozen=True)
class Row:
    """One round: seconds, losses and parameters of both."""

    seconds: dict[str, float]
    loss: dict[str, float]
    parameters: dict[str, int]


def measure(spec: Bench) -> Iterator[Row]:
    text = _text()
    if find_spec("torch") is None:
        raise UserError(f"bench nanogpt: {not_installed('torch')}")
    for seed in range(spec.seed, spec.seed + spec.rounds):
        with tempfile.TemporaryDirectory() as folder:
            train = [sys.executable, "-P", "-m", "tfm", "train", "--quiet"]
            command = [*train, f"--workdir={folder}/run", *_config(spec, seed)]
            our_seconds, printed = whole_process(OURS, command)
            our = json.loads(printed)
            file = pathlib.Path(folder, "settings.json")
            paths = {"text": str(text), "workdir": folder}
            file.write_text(json.dumps({**settings(spec, seed), **paths}))
            command = [sys.executable, "-P", str(SCRIPT), str(file)]
            their_seconds, printed = whole_process(THEIRS, command)
            their = json.loads(printed)
        yield Row(
            seconds={OURS: our_seconds, THEIRS: their_seconds},
            loss={OURS: our["valid"]["loss"], THEIRS: their["loss"]},
            parameters={OURS: our["parameters"], THEIRS: their["parameters"]},
        )


def _text() -> pathlib.Path:
    folder = os.environ.get("TFM_DATA")
    if folder is None:
        raise UserError(f"bench nanogpt: set TFM_DATA to the folder that holds {TEXT}")
    path = pathlib.Path(folder, TEXT)
    if not path.is_file():
        raise UserError(f"bench nanogpt: no file {path} (TFM_DATA={folder})")
    return path.resolve()


def _config(spec: Bench, seed: int) -> list[str]:
    """Returns the config and its changes: like PyTorch's model, it is evaluated at the end."""
    changes = {
        "seed": seed,
        "train.steps": spec.steps,
        "train.eval_every": None,
        "optimizer.learning_rate": spec.learning_rate,
        "optimizer.schedule": f"cosine(warmup={min(spec.warmup, spec.steps)}, final={spec.final})",
        "optimizer.decay_mask": "kernel|embedding|table_w_LD",  # all matrices
    }
    config = f"--config={library_config(CONFIG)}"
    return [config, *(f"--config.{key}={value}" for key, value in changes.items())]


def settings(spec: Bench, seed: int) -> dict[str, Any]:
    """Returns the settings of the same run for the script in PyTorch."""
    run = read(from_command_line(_config(spec, seed), RunSpec))
    model: Any = run.model
    source = run.data.dataset.entry
    optimizer = ("learning_rate", "weight_decay", "clip", "b1", "b2")
    return {
        **{name: getattr(model, name) for name in ("width", "layers")},
        **{name: getattr(run.optimizer, name) for name in optimizer},
        "heads": model.attention.heads,
        "length": source.length,
        "valid": source.valid,
        "batch": run.data.batch,
        "eval_batch": run.data.eval_batch,
        "steps": run.train.steps,
        "log_every": run.train.log_every,
        "warmup": min(spec.warmup, spec.steps),
        "final": spec.final,
        "seed": seed,
    }


def report(spec: Bench, rows: Sequence[Row]) -> Any:
    ratio = ratio_text(ratios([row.seconds for row in rows], OURS)[THEIRS])
    out = table(
        *("", ">seconds", ">loss", ">parameters"),
        title=f"{spec.steps} steps, from the start of the process to its end",
        caption=f"medians of {len(rows)} rounds; torch's time is {ratio} × ours. The loss is over "
        "the whole validation text.",
    )
    for who in (OURS, THEIRS):
        seconds = statistics.median(row.seconds[who] for row in rows)
        loss = statistics.median(row.loss[who] for row in rows)
        out.add_row(who, f"{seconds:.1f}", f"{loss:.4f}", f"{rows[0].parameters[who]:,}")
    return out
