"""nanoGPT's small model of Shakespeare, trained from start to end, beside the same in PyTorch.

  tfm bench nanogpt [--config.KEY=VALUE …] [--json]

Both are whole processes, run one after the other in turns: start-up, training, saving, and the loss
over the whole validation text in windows side by side, which is the same number in both. PyTorch is
eager, as nanoGPT is with `--compile=False` (`tfm/bench/torch_nanogpt.py`; needs the extra `bench`).
tfm reads `configs/nanogpt.py`, with nanoGPT's own learning rate and weight decay. The text is
tinyshakespeare/input.txt in the folder $TFM_DATA.
"""

import dataclasses
import json
import os
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from rich.console import Console
from rich.progress import track

from tfm.bench import picture
from tfm.bench.turns import library_config, ratios, whole_process
from tfm.config import arguments
from tfm.config import files as config
from tfm.config.help import keys_text
from tfm.config.names import UserError
from tfm.config.spec import Spec, field, rate, size, to_spec
from tfm.run.spec import RunSpec, read
from tfm.terminal import console, table

CONFIG = "configs/nanogpt.py"
TEXT = "tinyshakespeare/input.txt"
SCRIPT = pathlib.Path(__file__).with_name("torch_nanogpt.py")
OURS, THEIRS = "tfm", "torch"


@dataclasses.dataclass(frozen=True, kw_only=True)
class NanoGPTBench(Spec):
    """What to run. The rest is in the config."""

    steps: int = size(2000)
    learning_rate: float = field(1e-3, above=0)
    warmup: int = size(100)  # of `steps`; no more than these
    final: float = rate(0.1)  # the share of the learning rate at the end
    rounds: int = size(2)
    seed: int = field(0, least=0)  # of the first round, then one more each


@dataclasses.dataclass(frozen=True)
class Found:
    """Seconds and losses of each round; `ratio` is PyTorch's time over ours."""

    steps: int
    parameters: dict[str, int]
    seconds: dict[str, list[float]]
    losses: dict[str, list[float]]
    ratio: tuple[float, float, float]  # the median and the quartiles


def main(argv: Sequence[str]) -> None:
    if set(arguments.HELP) & set(argv):
        print(f"{__doc__}{keys_text(NanoGPTBench, {})}", end="")
        return
    given = arguments.split(argv, flags=("json",))
    spec = to_spec(NanoGPTBench, config.from_command_line(given.config, NanoGPTBench, {}))
    found = measure(spec)
    if "json" in given.flags:
        print(json.dumps(dataclasses.asdict(found), indent=1))
    else:
        _print(found)


def measure(spec: NanoGPTBench) -> Found:
    text = _text()
    if find_spec("torch") is None:
        raise UserError("bench nanogpt: PyTorch is not installed; " + picture.extra("torch"))
    rounds: list[dict[str, float]] = []
    losses: dict[str, list[float]] = {OURS: [], THEIRS: []}
    parameters = {}
    turns = [(number, who) for number in range(spec.rounds) for who in (OURS, THEIRS)]
    with tempfile.TemporaryDirectory() as folder:
        for number, who in track(turns, "training", console=Console(stderr=True)):
            own = pathlib.Path(folder, f"{who}{number}")
            own.mkdir()
            seed = spec.seed + number
            command = _ours(spec, seed, own) if who == OURS else _theirs(spec, seed, own, text)
            seconds, printed = whole_process(who, command)
            said = json.loads(printed)
            rounds += [{}] if who == OURS else []
            rounds[-1][who] = seconds
            losses[who].append(said["valid"]["loss"] if who == OURS else said["loss"])
            parameters[who] = said["parameters"]
    seconds_of = {who: [one[who] for one in rounds] for who in losses}
    return Found(spec.steps, parameters, seconds_of, losses, ratios(rounds, OURS)[THEIRS])


def _text() -> pathlib.Path:
    folder = os.environ.get("TFM_DATA")
    if folder is None:
        raise UserError(f"bench nanogpt: set TFM_DATA to the folder that holds {TEXT}")
    path = pathlib.Path(folder, TEXT)
    if not path.is_file():
        raise UserError(f"bench nanogpt: no file {path} (TFM_DATA={folder})")
    return path.resolve()


def _ours(spec: NanoGPTBench, seed: int, workdir: pathlib.Path) -> list[str]:
    return [sys.executable, "-m", "tfm.cli", "train", "--quiet", f"--workdir={workdir}",
            *_arguments(spec, seed)]  # fmt: skip


def _arguments(spec: NanoGPTBench, seed: int) -> list[str]:
    """The config, and what of it is changed: it is evaluated at the end, as PyTorch's model is."""
    schedule = f"cosine(warmup={min(spec.warmup, spec.steps)}, final={spec.final})"
    changes = {
        "seed": seed,
        "train.steps": spec.steps,
        "train.eval_every": None,
        "optimizer.learning_rate": spec.learning_rate,
        "optimizer.schedule": schedule,
        "optimizer.decay_mask": "kernel|embedding|table_w_LD",  # all matrices
    }
    return [
        f"--config={library_config(CONFIG)}",
        *(f"--config.{k}={v}" for k, v in changes.items()),
    ]


def settings(spec: NanoGPTBench, seed: int) -> dict[str, Any]:
    """What the script in PyTorch is told: the same run."""
    run = read(config.from_command_line(_arguments(spec, seed), RunSpec))
    model: Any = run.model
    opt, source = run.optimizer, run.data.dataset.entry
    return {
        **{name: getattr(model, name) for name in ("width", "layers")},
        **{name: getattr(opt, name) for name in ("learning_rate", "weight_decay", "clip")},
        **{name: getattr(opt, name) for name in ("b1", "b2")},
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


def _theirs(spec: NanoGPTBench, seed: int, workdir: pathlib.Path, text: pathlib.Path) -> list[str]:
    file = workdir / "settings.json"
    more = {"text": str(text), "workdir": str(workdir)}
    file.write_text(json.dumps({**settings(spec, seed), **more}))
    return [sys.executable, "-P", str(SCRIPT), str(file)]


def _print(found: Found) -> None:
    middle, low, high = found.ratio
    out = table(
        *("", ">seconds", ">loss", ">parameters"),
        title=f"{found.steps} steps, from the start of the process to its end",
        caption=f"medians of {len(found.seconds[OURS])} rounds; torch's time is {middle:.2f} × "
        f"ours ({low:.2f}–{high:.2f}). The loss is over the whole validation text.",
    )
    for who, seconds in found.seconds.items():
        numbers = statistics.median(seconds), statistics.median(found.losses[who])
        out.add_row(who, f"{numbers[0]:.1f}", f"{numbers[1]:.4f}", f"{found.parameters[who]:,}")
    console().print(out)
