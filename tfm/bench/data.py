"""How fast batches are made, beside how fast a model reads them.

  tfm bench data [--config.KEY=VALUE …] [--json]

Each case is a small model with the sizes of a shipped config, on files of random text that are
written for it: windows of bytes (the decoder of configs/tasks), pairs in buckets (Transformer,
tiny), masked words (BERT, tiny), skip-grams (Word2Vec). Batches are made in one thread, as in
training; a model's steps take all cores. Both are timed in turns, over the same steps. The ratio is
the time of a step to that of its batch: above 1, the model need not wait.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.progress import track

from tfm.config import arguments
from tfm.config.files import from_command_line
from tfm.config.help import keys_text
from tfm.config.spec import Named, Spec, SpecError, choice, field, size, to_spec
from tfm.objectives.batches import Read, read_of, train_batch
from tfm.run.plan import plan_of
from tfm.run.spec import open_data, read
from tfm.runtime import keep_memory
from tfm.terminal import console, table
from tfm.train import structure

TRANSFORMER = {
    "family": "encoder_decoder",
    "width": 64,
    "layers": 2,
    "max_length": 512,
    "attention": {"heads": 4},
    "feedforward": {"width": 128, "kind": "relu"},
    "norm": {"placement": "post"},
    "position": {"scheme": "sinusoidal"},
}
DECODER = {
    "family": "decoder",
    "width": 64,
    "layers": 2,
    "max_length": 64,
    "attention": {"heads": 2},
    "feedforward": {"width": 128},
    "position": {"scheme": "rotary"},
}
BERT = {
    "family": "encoder",
    "width": 128,
    "layers": 2,
    "max_length": 512,
    "attention": {"heads": 2, "qkv_bias": True, "out_bias": True},
    "feedforward": {"width": 512},
    "norm": {"placement": "post", "embedding": True},
    "position": {"scheme": "learned"},
}
FILES = "train='train.en', valid='valid.en'"
CASES: dict[str, dict[str, Any]] = {
    "windows": {
        "objective": "next_token",
        "model": DECODER,
        "data": {"dataset": f"text({FILES}, length=64)", "tokenizer": "bytes", "batch": 64},
    },
    "pairs": {
        "objective": "seq2seq",
        "model": TRANSFORMER,
        "data": {
            "dataset": "parallel(train='train', valid='valid', source='en', target='fr')",
            "tokenizer": "words(vocab=1000)",
            "batch_tokens": 2048,
            "buckets": 6,
        },
    },
    "masked_lm": {
        "objective": "masked_lm",
        "model": BERT,
        "data": {
            "dataset": f"text({FILES}, length=64)",
            "tokenizer": "words(vocab=8000)",
            "batch": 16,
        },
    },
    "skip_gram": {
        "objective": "word2vec(negatives=5)",
        "model": {"family": "word2vec", "width": 100},
        "data": {
            "dataset": f"text({FILES}, length=64, stride=64)",
            "tokenizer": "words(vocab=20000)",
            "batch": 64,
        },
    },
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataBench(Spec):
    """What to measure. Each case is one row of the table."""

    cases: tuple[Named, ...] = choice(lambda: CASES, tuple(CASES))
    sentences: int = field(20_000, least=100)  # of the text that is written
    steps: int = size(32)  # that are timed in each turn
    rounds: int = field(5, least=2)

    def check(self) -> None:
        if not self.cases:
            raise SpecError("cases", "{key} must not be empty")


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the result. Rows and tokens are of the input side; padding does not count."""

    case: str
    rows_per_second: float
    tokens_per_second: float
    padding: float  # share of all that is read
    batch_ms: float
    step_ms: float
    ratio: tuple[float, float, float]  # of step to batch: the median and the quartiles


def main(argv: Sequence[str]) -> None:
    if set(arguments.HELP) & set(argv):
        print(f"{__doc__}{keys_text(DataBench, {})}", end="")
        return
    given = arguments.split(argv, flags=("json",))
    spec = to_spec(DataBench, from_command_line(given.config, DataBench, {}))
    cells = len(spec.cases)
    rows = list(track(measure(spec), "compiling and timing", cells, console=Console(stderr=True)))
    if "json" in given.flags:
        print(json.dumps([dataclasses.asdict(row) for row in rows], indent=1))
        return
    out = table(
        *(
            "case",
            ">rows/s",
            ">tokens/s",
            ">padding",
            ">batch\nms",
            ">step\nms",
            ">step / batch\n×",
        ),
        caption="×: the time of a model's step over that of its batch, the median over rounds, and "
        "the quartiles.",
    )
    for row in rows:
        middle, low, high = row.ratio
        speeds = f"{row.rows_per_second:,.0f}", f"{row.tokens_per_second:,.0f}"
        times = f"{row.batch_ms:.2f}", f"{row.step_ms:.2f}"
        ratio = f"{middle:.1f} ({low:.1f}–{high:.1f})"
        out.add_row(row.case, *speeds, f"{row.padding:.1%}", *times, ratio)
    console().print(out)


def measure(spec: DataBench) -> Iterator[Row]:
    keep_memory()
    with tempfile.TemporaryDirectory() as folder, _environment(TFM_DATA=folder, TFM_CACHE=folder):
        write_text(pathlib.Path(folder), spec.sentences)
        for name in spec.cases:
            yield _row(name, spec)


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def write_text(folder: pathlib.Path, sentences: int, words: int = 30_000) -> None:
    """Two files of sentences of about 13 words, as many in each; words by Zipf's law."""
    rng = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlu"))
    known = ["".join(rng.choice(letters, n)) for n in rng.integers(2, 9, words)]
    share = 1 / np.arange(1, words + 1)
    for split, count in {"train": sentences, "valid": 100}.items():
        lengths = np.clip(rng.lognormal(2.5, 0.4, count).round(), 1, 60).astype(int)
        for side in ("en", "fr"):
            lines = []
            for length in np.maximum(1, lengths + rng.integers(-2, 3, count)).tolist():
                chosen = rng.choice(words, length, p=share / share.sum())
                lines.append(" ".join(known[i] for i in chosen))
            (folder / f"{split}.{side}").write_text("\n".join(lines) + "\n")


def _row(name: Named, spec: DataBench) -> Row:
    steps = {"steps": 10**6}
    run, data = open_data(read({**CASES[name], "train": steps}))
    plan, train, objective = plan_of(run, data["train"]), data["train"], run.objective.entry

    def make() -> list[Any]:
        return [train_batch(objective, train, plan, run.seed, step) for step in range(spec.steps)]

    batches = make()
    init, train_step, _ = structure.compiled(run)
    numbers = structure.numbers_of(run)
    state = init(batches[0], np.uint32(0))

    def take() -> None:
        nonlocal state
        for batch in batches:
            state = train_step(state, batch, numbers)
        jax.block_until_ready(state)

    take()  # compiles every shape
    batch_seconds, step_seconds = [], []
    for _ in range(spec.rounds):
        batch_seconds.append(_seconds(make) / spec.steps)
        step_seconds.append(_seconds(take) / spec.steps)
    ratios = [step / batch for step, batch in zip(step_seconds, batch_seconds, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    total = Read(*np.sum([read_of(batch) for batch in batches], 0).tolist())
    rows = sum(len(plan.draw(step).rows) for step in range(spec.steps)) / spec.steps
    batch = statistics.median(batch_seconds)
    return Row(
        case=name,
        rows_per_second=rows / batch,
        tokens_per_second=(total.tokens - total.padding) / spec.steps / batch,
        padding=total.padding / total.tokens,
        batch_ms=1e3 * batch,
        step_ms=1e3 * statistics.median(step_seconds),
        ratio=(middle, low, high),
    )


def _seconds(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
