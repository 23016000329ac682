"""Time of a training step, beside plain Flax and PyTorch.

  tfm bench train [--config.KEY=VALUE …] [--json] [--picture=FILE.svg]

All take the same steps: the same model, batch, loss, gradient clipping and AdamW, in float32. They
are timed in turns, each in its own process, on all cores and on one (as the workers of a sweep). A
ratio is another's time over ours, so above 1 tfm is faster. `--picture` draws time against size
(PNG, SVG or PDF; needs the extra `bench`, as PyTorch does).
"""

import dataclasses
import json
import statistics
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

from rich.console import Console
from rich.progress import track

from tfm.bench import picture
from tfm.bench.cases import CASES, Case
from tfm.bench.turns import in_turns, ratios
from tfm.config import arguments
from tfm.config.files import from_command_line
from tfm.config.help import keys_text
from tfm.config.spec import Named, Spec, SpecError, choice, field, size, to_spec
from tfm.describe import model as describe
from tfm.models.spec import model_spec
from tfm.terminal import console, table

OURS = "tfm"
MAKERS = {
    OURS: "tfm.bench.cases:ours",
    "flax": "tfm.bench.plain_flax:make",
    "torch": "tfm.bench.plain_torch:eager",
    "torch.compile": "tfm.bench.plain_torch:compiled",
}
CORES: dict[str, int | None] = {"all": None, "one": 1}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainBench(Spec):
    """What to measure. Each case × cores is one row of the table."""

    cases: tuple[Named, ...] = choice(lambda: CASES, tuple(CASES))
    rivals: tuple[Named, ...] = choice(lambda: MAKERS, tuple(MAKERS)[1:])
    cores: tuple[Named, ...] = choice(lambda: CORES, tuple(CORES))
    rounds: int = field(7, least=2)
    seconds: float = field(0.5, above=0)  # of each contender's turn in a round
    repeat: int = size(1)  # start the processes anew so often: some differences stay for their life

    def check(self) -> None:
        for name in ("cases", "cores"):
            if not getattr(self, name):
                raise SpecError(name, "{key} must not be empty")
        if OURS in self.rivals:
            raise SpecError("rivals", f"{{key}}: {OURS!r} is measured in any case")
        if any(name.startswith("torch") for name in self.rivals) and find_spec("torch") is None:
            less = "; or leave it out: --config.rivals=\"('flax',)\""
            raise SpecError(
                "rivals", "{key}: PyTorch is not installed; " + picture.extra("torch") + less
            )


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the result."""

    case: str
    sizes: str  # layers/heads/width/length/batch/vocabulary
    cores: str
    gflop: float  # of one step, forward and backward
    ms: dict[str, float]  # of each, the median over rounds
    ratio: dict[str, tuple[float, float, float]]  # to ours: the median and the quartiles


def main(argv: Sequence[str]) -> None:
    if set(arguments.HELP) & set(argv):
        print(f"{__doc__}{keys_text(TrainBench, {})}", end="")
        return
    given = arguments.split(argv, options=("picture",), flags=("json",))
    spec = to_spec(TrainBench, from_command_line(given.config, TrainBench, {}))
    path = picture.check(given.options.get("picture"))
    cells = len(spec.cases) * len(spec.cores)
    rows = list(track(measure(spec), "compiling and timing", cells, console=Console(stderr=True)))
    if path is not None:
        picture.draw_steps([dataclasses.asdict(row) for row in rows], path)
    if "json" in given.flags:
        print(json.dumps([dataclasses.asdict(row) for row in rows], indent=1))
    else:
        console().print(_table(spec, rows))


def measure(spec: TrainBench) -> Iterator[Row]:
    for cores in spec.cores:
        for name in spec.cases:
            case: Case = name.entry
            contenders = {who: (MAKERS[who], case) for who in (OURS, *spec.rivals)}
            rounds = [
                one
                for _ in range(spec.repeat)
                for one in in_turns(contenders, cores.entry, spec.rounds, spec.seconds)
            ]
            ms = {who: 1e3 * statistics.median(one[who] for one in rounds) for who in contenders}
            yield Row(name, str(case), cores, gflop(case), ms, ratios(rounds, OURS))


def gflop(case: Case) -> float:
    """Of one step, as `tfm describe` counts them."""
    inputs = case.data.inputs
    return describe.flops(model_spec({"model": case.model}), inputs)[1].total / 1e9


def _table(spec: TrainBench, rows: Sequence[Row]) -> Any:
    out = table(
        *("case", "cores", ">GFLOP", f">{OURS}\nms"),
        *(f">{rival}\n×" for rival in spec.rivals),
        caption="×: its time over ours, the median over rounds, and the quartiles; above 1 tfm is "
        "faster.",
    )
    for row in rows:
        cells = [f"{middle:.2f} ({low:.2f}–{high:.2f})" for middle, low, high in row.ratio.values()]
        sizes = f"{row.case} {row.sizes}"
        out.add_row(sizes, row.cores, f"{row.gflop:.2f}", f"{row.ms[OURS]:.1f}", *cells)
    return out
