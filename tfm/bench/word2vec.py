"""Counts words per second of skip-gram with negative samples, beside gensim.

Both train on the same text with the settings of configs/text/word2vec.py: width 100, window 5,
5 negatives, subsampling 1e-3, words that occur 5 times. They are timed in turns, each in its own
process, including the preparation of batches; words count before subsampling. gensim has one worker
per core. The ratio is our words per second over gensim's. Needs the extra `bench`.
"""

import dataclasses
import itertools
import os
import pathlib
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import jax
from jax import numpy as jnp

from tfm.bench.turns import CORES, Run, Speed, compare, library_config, not_installed, speed_table
from tfm.config.files import load
from tfm.config.spec import Named, Spec, SpecError, choice, field
from tfm.data.files import find
from tfm.data.plan.order import Prefetch
from tfm.objectives.batches import train_batch
from tfm.run.spec import open_data, plan_of, read
from tfm.runtime import keep_memory
from tfm.train.step import run_numbers, run_steps

OURS, THEIRS = "tfm", "gensim"
MAKERS = {OURS: "tfm.bench.word2vec:ours", THEIRS: "tfm.bench.word2vec:theirs"}
WINDOW, NEGATIVES, SUBSAMPLE, MIN_COUNT, WIDTH = 5, 5, 1e-3, 5, 100
LENGTH = 64  # of our rows, in tokens
PART = 4096  # words that count as one step in `in_turns`, about those of one of our batches


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bench(Spec):
    """Each number of cores is one row of the table."""

    train: str = "wikitext2/train.txt"  # a path, or a name in $TFM_DATA
    valid: str = "wikitext2/valid.txt"
    cores: tuple[Named, ...] = choice(lambda: CORES, tuple(CORES))
    rounds: int = field(5, least=2)
    seconds: float = field(4.0, above=0)  # of each turn in a round

    def check(self) -> None:
        if not self.cores:
            raise SpecError("cores", "{key} must not be empty")
        if find_spec("gensim") is None:
            raise SpecError("cores", f"{{key}}: {not_installed('gensim')}")


def ours(files: tuple[str, str]) -> Run:
    """Trains as `tfm train` does, including the batches."""
    keep_memory()
    tree = load(library_config("configs/text/word2vec.py")).to_dict()
    train, valid = files
    tree["objective"] = (
        f"word2vec(kind='skip_gram', window={WINDOW}, negatives={NEGATIVES}, subsample={SUBSAMPLE})"
    )
    tree["model"]["width"] = WIDTH
    tree["data"] |= {
        "dataset": f"text(train={train!r}, valid={valid!r}, length={LENGTH}, stride={LENGTH + 1})",
        "tokenizer": f"words(punctuation=False, min_count={MIN_COUNT})",
    }
    run, data = open_data(read(tree))
    plan, objective = plan_of(run, data["train"]), run.objective.entry
    init, train_step, _ = run_steps(run)
    numbers = run_numbers(run)

    def batch(step: int) -> Any:
        return train_batch(objective, data["train"], plan, run.seed, step)

    state, begin = init(batch(0), jnp.uint32(run.seed)), 0
    words = run.data.batch * data["train"].max_length

    def seconds(steps: int) -> float:
        nonlocal state, begin
        start = time.perf_counter()
        with Prefetch(batch, begin, begin + steps) as batches:
            for _ in range(steps):
                state = train_step(state, batches.next(), numbers)
            jax.block_until_ready(state)
        begin += steps
        return PART * (time.perf_counter() - start) / (steps * words)

    return seconds


def theirs(files: tuple[str, str]) -> Run:
    """Trains gensim's Word2Vec on the lines of the text."""
    from gensim.models import Word2Vec

    text = pathlib.Path(files[0]).read_text(encoding="utf-8")
    lines = itertools.cycle([line.split() for line in text.splitlines() if line.strip()])
    options = {"window": WINDOW, "negative": NEGATIVES, "sample": SUBSAMPLE, "min_count": MIN_COUNT}
    model = Word2Vec(vector_size=WIDTH, sg=1, workers=len(os.sched_getaffinity(0)), **options)
    model.build_vocab([line.split() for line in text.splitlines()])

    def seconds(parts: int) -> float:
        batch: list[list[str]] = []
        words = 0
        while words < parts * PART:
            batch.append(next(lines))
            words += len(batch[-1])
        start = time.perf_counter()
        model.train(batch, total_words=words, epochs=1, start_alpha=0.025, end_alpha=0.025)
        return PART * (time.perf_counter() - start) / words

    return seconds


def measure(spec: Bench) -> Iterator[Speed]:
    files = str(find("train", spec.train)), str(find("valid", spec.valid))
    makers = {who: (maker, files) for who, maker in MAKERS.items()}
    for cores in spec.cores:
        yield compare("skip-gram", makers, cores, spec.rounds, spec.seconds, PART)


def report(spec: Bench, rows: Sequence[Speed]) -> Any:
    return speed_table(rows, "words")
