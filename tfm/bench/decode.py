"""Tokens per second, beside transformers on PyTorch with the same weights.

  tfm bench decode [--config.KEY=VALUE …] [--json]

Both write `new` tokens from one token, with a cache and without an end: greedily for one row and
for many, and by beam search. They are timed in turns, each in its own process. The ratio is our
tokens per second over theirs. "last/first" is the time of our last quarter of the tokens over that
of the first, in one bucket: 1 is a cost per token that does not grow. The folder is one of Hugging
Face's; needs the extra `parity`.
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
import numpy as np
from jax import numpy as jnp
from rich.console import Console
from rich.progress import track

from tfm.bench.cases import Run
from tfm.bench.train import CORES
from tfm.bench.turns import in_turns, ratios
from tfm.config import arguments
from tfm.config.files import from_command_line
from tfm.config.help import keys_text
from tfm.config.names import UserError
from tfm.config.spec import Named, Spec, SpecError, choice, field, size, to_spec
from tfm.decode import loop
from tfm.decode.sample import Filters
from tfm.decode.spec import DecodeSpec
from tfm.decode.writer import Prompt, Writer
from tfm.interop.convert import from_huggingface
from tfm.interop.folder import DTYPES, read_tensors, weight_files
from tfm.runtime import keep_memory
from tfm.terminal import console, table

OURS, THEIRS = "tfm", "transformers"
FIRST = 1  # the token that is written from


@dataclasses.dataclass(frozen=True)
class Case:
    """How much is written at a time."""

    batch: int
    beams: int
    folder: str = ""
    new: int = 0


CASES = {"batch 1": Case(1, 1), "batch 32": Case(32, 1), "beam 4": Case(1, 4)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodeBench(Spec):
    """What to measure. Each case × cores is one row of the table."""

    folder: str = "stories260K"  # as given, or in $TFM_DATA
    cases: tuple[Named, ...] = choice(lambda: CASES, tuple(CASES))
    cores: tuple[Named, ...] = choice(lambda: CORES, ("all",))
    new: int = field(256, least=8)  # tokens
    rounds: int = field(5, least=2)
    seconds: float = field(2.0, above=0)  # of each contender's turn in a round
    repeat: int = size(1)  # start the processes anew so often

    def check(self) -> None:
        for name in ("cases", "cores"):
            if not getattr(self, name):
                raise SpecError(name, "{key} must not be empty")
        if find_spec("transformers") is None or find_spec("torch") is None:
            raise SpecError(
                "cases", "{key}: transformers is not installed: pip install 'tfm[parity]'"
            )


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the result."""

    case: str
    cores: str
    tokens_per_second: dict[str, float]  # the median over rounds
    ratio: tuple[float, float, float]  # ours over theirs: the median and the quartiles
    last_over_first: float | None  # time of the last quarter of the tokens over the first


def ours(case: Case) -> Run:
    """What `tfm generate` does, from ids to ids."""
    keep_memory()
    writer, prompts = _writer(case), [Prompt([FIRST])] * case.batch
    settings = DecodeSpec(max_new=case.new, beams=case.beams)

    def run(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            found = writer.write(prompts, settings, case.batch)
        assert all(len(ones[0].tokens) == case.new for ones in found)
        return (time.perf_counter() - start) / count

    return run


def theirs(case: Case) -> Run:
    """`generate` of transformers, with its cache."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(case.folder).eval()
    model.generation_config.eos_token_id = None
    prompt = torch.full((case.batch, 1), FIRST)
    options = {"max_new_tokens": case.new, "do_sample": False, "pad_token_id": 0}

    def run(count: int) -> float:
        start = time.perf_counter()
        with torch.inference_mode():
            for _ in range(count):
                out = model.generate(
                    prompt,
                    attention_mask=torch.ones_like(prompt),
                    num_beams=case.beams,
                    use_cache=True,
                    **options,
                )
        assert out.shape == (case.batch, case.new + 1)
        return (time.perf_counter() - start) / count

    return run


def _writer(case: Case) -> Writer:
    folder = pathlib.Path(case.folder)
    config = json.loads((folder / "config.json").read_text())
    tensors = read_tensors(weight_files(folder))
    spec, params = from_huggingface(config, tensors, DTYPES["float32"])
    return Writer.of(spec, {"params": params})


def growth(case: Case) -> float:
    """The time of the last quarter of the tokens over that of the first, the median of nine."""
    writer, settings = _writer(case), DecodeSpec(max_new=case.new)
    start, lengths = writer.start([Prompt([FIRST])] * case.batch, case.batch, case.new, True)
    filters, ends = Filters.of(settings), jnp.zeros(0, jnp.int32)
    key_B = jax.random.split(jax.random.key(0), case.batch)
    model = writer.module, writer.variables
    found = []
    for _ in range(10):
        state = loop.begin.all_cores(
            *model, start, ends, filters, key_B, length=lengths[-1], new=case.new
        )
        quarters = []
        for until in np.linspace(1, case.new, 5).round().astype(np.int32)[1:]:
            jax.block_until_ready(state)
            begun = time.perf_counter()
            state = loop.advance.all_cores(*model, state, ends, filters, until=jnp.int32(until))
            jax.block_until_ready(state)
            quarters.append(time.perf_counter() - begun)
        found.append(quarters[-1] / quarters[0])
    return statistics.median(found[1:])  # the first one compiles


def main(argv: Sequence[str]) -> None:
    if set(arguments.HELP) & set(argv):
        print(f"{__doc__}{keys_text(DecodeBench, {})}", end="")
        return
    given = arguments.split(argv, flags=("json",))
    spec = to_spec(DecodeBench, from_command_line(given.config, DecodeBench, {}))
    cells = len(spec.cases) * len(spec.cores)
    rows = list(track(measure(spec), "compiling and timing", cells, console=Console(stderr=True)))
    if "json" in given.flags:
        print(json.dumps([dataclasses.asdict(row) for row in rows], indent=1))
    else:
        console().print(_table(rows))


def measure(spec: DecodeBench) -> Iterator[Row]:
    folder = _folder(spec.folder)
    for cores in spec.cores:
        for name in spec.cases:
            case = dataclasses.replace(name.entry, folder=folder, new=spec.new)
            makers = {OURS: "tfm.bench.decode:ours", THEIRS: "tfm.bench.decode:theirs"}
            contenders = {who: (make, case) for who, make in makers.items()}
            rounds = [
                one
                for _ in range(spec.repeat)
                for one in in_turns(contenders, cores.entry, spec.rounds, spec.seconds)
            ]
            many = case.batch * case.new
            speed = {who: many / statistics.median(one[who] for one in rounds) for who in makers}
            flat = growth(case) if case.beams == 1 and cores == "all" else None
            yield Row(str(name), str(cores), speed, ratios(rounds, OURS)[THEIRS], flat)


def _folder(name: str) -> str:
    for folder in (pathlib.Path(name), pathlib.Path(os.environ.get("TFM_DATA", ""), name)):
        if (folder / "config.json").is_file():
            return str(folder)
    raise UserError(f"--config.folder={name}: no such folder of Hugging Face here or in $TFM_DATA")


def _table(rows: Sequence[Row]) -> Any:
    out = table(
        *("case", "cores", f">{OURS}\ntokens/s", f">{THEIRS}\ntokens/s", ">×", ">last/first"),
        caption="×: our tokens per second over theirs, the median over rounds, and the quartiles.",
    )
    for row in rows:
        middle, low, high = row.ratio
        flat = "" if row.last_over_first is None else f"{row.last_over_first:.2f}"
        speeds = [f"{row.tokens_per_second[who]:,.0f}" for who in (OURS, THEIRS)]
        out.add_row(row.case, row.cores, *speeds, f"{middle:.1f} ({low:.1f}–{high:.1f})", flat)
    return out
