"""Means over seeds with intervals, and differences to a baseline, paired by seed."""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

LEVEL = 0.95
FEWEST = 5  # seeds for a verdict


@dataclasses.dataclass(frozen=True)
class Metric:
    """Which values of a number are better, and which it can have."""

    better: str  # high or low
    least: float = 0.0
    most: float = math.inf


METRICS = {
    "loss": Metric("low"),
    "perplexity": Metric("low", 1.0),
    "bits_per_byte": Metric("low"),
    "accuracy": Metric("high", 0.0, 1.0),
    "exact": Metric("high", 0.0, 1.0),
}


@dataclasses.dataclass(frozen=True)
class Interval:
    """A mean and Student's interval for it; without one if there are fewer than two values."""

    mean: float | None = None
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.mean is None:
            return "—"
        if self.low is None or self.high is None:
            return f"{self.mean:.3f}"
        half = self.high - self.mean
        if math.isclose(half, self.mean - self.low, abs_tol=5e-4):
            return f"{self.mean:.3f} ± {half:.3f}"
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def interval(values: Sequence[float], least: float = -math.inf, most: float = math.inf) -> Interval:
    """The mean of values that cannot be below `least` nor above `most`.  Student 1908.

    The interval ends at these bounds: the true mean is within them.
    """
    if not values:
        return Interval()
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean)
    error = statistics.stdev(values) / math.sqrt(len(values))
    half = float(stats.t.ppf((1 + LEVEL) / 2, len(values) - 1)) * error
    return Interval(mean, max(mean - half, least), min(mean + half, most))


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A variant minus the baseline on one task, seed by seed."""

    difference: float | None
    low: float | None
    high: float | None
    pairs: int  # seeds that both have
    p: float | None  # of the paired test, as if there were no other comparison
    p_holm: float | None  # corrected for all comparisons of the study
    verdict: str


def compare(
    pairs: Mapping[tuple[str, str], tuple[Sequence[float], str]], metric: Metric
) -> dict[tuple[str, str], Comparison]:
    """For each comparison of a study, from its differences by seed and a reason why there can be no
    verdict, or "".

    Student's paired test, corrected by Holm 1979 over all comparisons that can have a verdict.
    """
    tested = {
        name: _p(differences)
        for name, (differences, reason) in pairs.items()
        if not reason and len(differences) >= FEWEST
    }
    corrected = holm(tested)
    out = {}
    for name, (differences, reason) in pairs.items():
        found = interval(differences)
        if name not in tested:
            verdict = f"no verdict: {reason or f'fewer than {FEWEST} seeds'}"
        elif corrected[name] >= 1 - LEVEL or not found.mean:
            verdict = "no difference shown"
        else:
            verdict = "better" if (found.mean > 0) == (metric.better == "high") else "worse"
        out[name] = Comparison(
            found.mean,
            found.low,
            found.high,
            len(differences),
            tested.get(name),
            corrected.get(name),
            verdict,
        )
    return out


def _p(differences: Sequence[float]) -> float:
    """Of Student's test that the mean is zero."""
    if len(set(differences)) == 1:  # without spread: surely zero, or surely not
        return 1.0 if differences[0] == 0 else 0.0
    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def holm(p: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    """Corrected p-values: the k-th least of m is multiplied by m − k + 1.  Holm 1979."""
    order = sorted(p, key=lambda name: p[name])
    scaled = [min(1.0, p[name] * (len(order) - k)) for k, name in enumerate(order)]
    return dict(zip(order, np.maximum.accumulate(scaled).tolist() if scaled else [], strict=True))
