"""Words per second of skip-gram with negative samples, beside gensim with the same settings.

  tfm bench word2vec [--config.KEY=VALUE …] [--json]

Both train on the same text, with the settings of configs/text/word2vec.py: width 100, window 5,
5 negatives, subsampling 1e-3, words that occur 5 times. They are timed in turns, each in its own
process, with the making of batches; words count before subsampling. gensim has as many workers as
there are cores. The ratio is our words per second over gensim's. Needs the extra `bench`.
"""

import dataclasses
import json
import os
import pathlib
import statistics
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import jax
from jax import numpy as jnp
from rich.console import Console
from rich.progress import track

from tfm.bench import picture
from tfm.bench.cases import Run
from tfm.bench.train import CORES
from tfm.bench.turns import in_turns, library_config, ratios
from tfm.config import arguments
from tfm.config.files import from_command_line, load
from tfm.config.help import keys_text
from tfm.config.spec import Named, Spec, SpecError, choice, field, to_spec
from tfm.data.files import find
from tfm.data.plan.order import Prefetch
from tfm.objectives.batches import train_batch
from tfm.run.plan import plan_of
from tfm.run.spec import open_data, read
from tfm.runtime import keep_memory
from tfm.terminal import console, table
from tfm.train import structure

OURS, THEIRS = "tfm", "gensim"
WINDOW, NEGATIVES, SUBSAMPLE, MIN_COUNT, WIDTH = 5, 5, 1e-3, 5, 100  # of both
LENGTH = 64  # of our rows
PART = 4096  # words whose time is asked for, about those of one of our batches


@dataclasses.dataclass(frozen=True, kw_only=True)
class Word2VecBench(Spec):
    """What to measure. Each number of cores is one row of the table."""

    train: str = "wikitext2/train.txt"  # as given, or in $TFM_DATA
    valid: str = "wikitext2/valid.txt"
    cores: tuple[Named, ...] = choice(lambda: CORES, tuple(CORES))
    rounds: int = field(5, least=2)
    seconds: float = field(4.0, above=0)  # of each contender's turn in a round

    def check(self) -> None:
        if not self.cores:
            raise SpecError("cores", "{key} must not be empty")
        if find_spec("gensim") is None:
            raise SpecError("cores", "{key}: gensim is not installed; " + picture.extra("gensim"))


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the result."""

    cores: str
    words_per_second: dict[str, float]  # the median over rounds
    ratio: tuple[float, float, float]  # ours over theirs: the median and the quartiles


def ours(files: tuple[str, str]) -> Run:
    """The steps of `tfm train`, with their batches."""
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
    init, train_step, _ = structure.compiled(run)
    numbers = structure.numbers_of(run)

    def batch(step: int) -> Any:
        return train_batch(objective, data["train"], plan, run.seed, step)

    state, begin = init(batch(0), jnp.uint32(run.seed)), 0
    words = run.data.batch * data["train"].max_length

    def seconds_per_word(steps: int) -> float:
        nonlocal state, begin
        start = time.perf_counter()
        with Prefetch(batch, begin, begin + steps) as batches:
            for _ in range(steps):
                state = train_step(state, batches.next(), numbers)
            jax.block_until_ready(state)
        begin += steps
        return (time.perf_counter() - start) / (steps * words)

    return _in_parts(seconds_per_word)


def theirs(files: tuple[str, str]) -> Run:
    """gensim's Word2Vec, on lines of the text."""
    from gensim.models import Word2Vec

    lines = [
        line.split()
        for line in pathlib.Path(files[0]).read_text(encoding="utf-8").splitlines()
        if line.strip()
    ]
    model = Word2Vec(
        vector_size=WIDTH,
        window=WINDOW,
        negative=NEGATIVES,
        sample=SUBSAMPLE,
        min_count=MIN_COUNT,
        sg=1,
        workers=len(os.sched_getaffinity(0)),
    )
    model.build_vocab(lines)
    place = 0

    def seconds_per_word(parts: int) -> float:
        nonlocal place
        some: list[list[str]] = []
        words = 0
        while words < parts * PART:
            some.append(lines[place % len(lines)])
            words += len(some[-1])
            place += 1
        start = time.perf_counter()
        model.train(some, total_words=words, epochs=1, start_alpha=0.025, end_alpha=0.025)
        return (time.perf_counter() - start) / words

    return _in_parts(seconds_per_word)


def _in_parts(seconds_per_word: Run) -> Run:
    """`in_turns` asks for the seconds of a part."""
    return lambda count: PART * seconds_per_word(count)


def main(argv: Sequence[str]) -> None:
    if set(arguments.HELP) & set(argv):
        print(f"{__doc__}{keys_text(Word2VecBench, {})}", end="")
        return
    given = arguments.split(argv, flags=("json",))
    spec = to_spec(Word2VecBench, from_command_line(given.config, Word2VecBench, {}))
    found = measure(spec)
    rows = list(track(found, "compiling and timing", len(spec.cores), console=Console(stderr=True)))
    if "json" in given.flags:
        print(json.dumps([dataclasses.asdict(row) for row in rows], indent=1))
        return
    out = table(
        *("cores", f">{OURS}\nwords/s", f">{THEIRS}\nwords/s", ">×"),
        caption="×: our words per second over gensim's, the median over rounds, and the quartiles.",
    )
    for row in rows:
        middle, low, high = row.ratio
        speeds = [f"{row.words_per_second[who]:,.0f}" for who in (OURS, THEIRS)]
        out.add_row(row.cores, *speeds, f"{middle:.2f} ({low:.2f}–{high:.2f})")
    console().print(out)


def measure(spec: Word2VecBench) -> Iterator[Row]:
    files = str(find("train", spec.train)), str(find("valid", spec.valid))
    makers = {OURS: "tfm.bench.word2vec:ours", THEIRS: "tfm.bench.word2vec:theirs"}
    for cores in spec.cores:
        contenders = {who: (make, files) for who, make in makers.items()}
        rounds = list(in_turns(contenders, cores.entry, spec.rounds, spec.seconds))
        speed = {who: PART / statistics.median(one[who] for one in rounds) for who in makers}
        yield Row(str(cores), speed, ratios(rounds, OURS)[THEIRS])
