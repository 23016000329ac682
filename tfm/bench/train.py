"""Times a training step beside plain Flax and PyTorch.

All take the same steps: the same model, batch, loss, gradient clipping and AdamW, in float32. They
are timed in turns, each in its own process, on all cores and on one, as in a sweep's workers. A
ratio is another implementation's time over ours: above 1, tfm is faster. PyTorch needs the extra
`bench`.
"""

import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

from tfm.bench.cases import CASES, Case
from tfm.bench.turns import CORES, Ratio, in_turns, not_installed, ratio_text, ratios
from tfm.config.spec import Named, Spec, SpecError, choice, field, size
from tfm.describe.flops import flops
from tfm.models.spec import model_spec
from tfm.terminal import table

OURS = "tfm"
MAKERS = {
    OURS: "tfm.bench.cases:ours",
    "flax": "tfm.bench.plain_flax:make",
    "torch": "tfm.bench.plain_torch:eager",
    "torch.compile": "tfm.bench.plain_torch:compiled",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bench(Spec):
    """Each case × cores is one row of the table."""

    cases: tuple[Named, ...] = choice(lambda: CASES, tuple(CASES))
    rivals: tuple[Named, ...] = choice(lambda: MAKERS, tuple(MAKERS)[1:])
    cores: tuple[Named, ...] = choice(lambda: CORES, tuple(CORES))
    rounds: int = field(7, least=2)
    seconds: float = field(0.5, above=0)  # of each turn in a round
    repeat: int = size(1)  # restarts of the processes: some differences last as long as a process

    def check(self) -> None:
        for name in ("cases", "cores"):
            if not getattr(self, name):
                raise SpecError(name, "{key} must not be empty")
        if OURS in self.rivals:
            raise SpecError("rivals", f"{{key}}: {OURS!r} is measured in any case")
        if any(name.startswith("torch") for name in self.rivals) and find_spec("torch") is None:
            text = f"{not_installed('torch')}; or leave it out: --config.rivals=\"('flax',)\""
            raise SpecError("rivals", f"{{key}}: {text}")


@dataclasses.dataclass(frozen=True)
class Row:
    case: str
    sizes: str  # layers/heads/width/length/batch/vocabulary
    cores: str
    gflop: float  # of one step, forward and backward
    ms: dict[str, float]  # the median over rounds
    ratio: dict[str, Ratio]  # to ours


def measure(spec: Bench) -> Iterator[Row]:
    for cores in spec.cores:
        for name in spec.cases:
            case: Case = name.entry
            makers = {who: (MAKERS[who], case) for who in (OURS, *spec.rivals)}
            rounds = [
                times
                for _ in range(spec.repeat)
                for times in in_turns(makers, cores.entry, spec.rounds, spec.seconds)
            ]
            ms = {who: 1e3 * statistics.median(times[who] for times in rounds) for who in makers}
            yield Row(name, str(case), cores, gflop(case), ms, ratios(rounds, OURS))


def gflop(case: Case) -> float:
    """Returns the GFLOP of one step, as `tfm describe` counts them."""
    return flops(model_spec({"model": case.model}), case.data.inputs)[1].total / 1e9


def report(spec: Bench, rows: Sequence[Row]) -> Any:
    out = table(
        *("case", "cores", ">GFLOP", f">{OURS}\nms"),
        *(f">{rival}\n×" for rival in spec.rivals),
        caption="×: its time over ours, the median over rounds, and the quartiles; above 1 tfm is "
        "faster.",
    )
    for row in rows:
        cells = [ratio_text(ratio) for ratio in row.ratio.values()]
        sizes = f"{row.case} {row.sizes}"
        out.add_row(sizes, row.cores, f"{row.gflop:.2f}", f"{row.ms[OURS]:.1f}", *cells)
    return out
