"""Means over seeds with intervals, and differences from a baseline, paired by seed."""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

from tfm.evaluate.metric import HIGH, NEITHER, Metric

LEVEL = 0.95
FEWEST = 5  # seeds that a verdict needs
SPREAD = 1e-6  # of differences, relative to the largest, up to which they count as equal


@dataclasses.dataclass(frozen=True)
class Interval:
    """A mean with Student's interval, which needs at least two values."""

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
    """Returns the mean and its interval, cut at the bounds of the values.  Student 1908."""
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
    """A variant minus the baseline on one task, paired by seed."""

    difference: float | None
    low: float | None
    high: float | None
    pairs: int  # seeds that both have
    p: float | None  # of the paired test, not corrected
    p_holm: float | None  # corrected for all comparisons of the study
    verdict: str


def compare(
    pairs: Mapping[tuple[str, str], tuple[Sequence[float], str]], metric: Metric
) -> dict[tuple[str, str], Comparison]:
    """Compares variants with the baseline, given differences by seed and a reason for no verdict.

    Student's paired test, corrected by Holm 1979 over all comparisons without such a reason ("").
    Equal differences have no spread: they have neither an interval nor, unless all are 0, a test.
    """
    reasons = {name: reason or _untested(values) for name, (values, reason) in pairs.items()}
    tested = {name: _p(values) for name, (values, _) in pairs.items() if not reasons[name]}
    corrected = holm(tested)
    out = {}
    for name, (differences, _) in pairs.items():
        mean = interval(differences)
        if _are_equal(differences):
            mean = Interval(mean.mean)
        if name not in tested:
            verdict = f"no verdict: {reasons[name]}"
        elif corrected[name] >= 1 - LEVEL or not mean.mean:
            verdict = "no difference shown"
        else:
            verdict = _verdict(mean.mean, metric)
        p = tested.get(name), corrected.get(name)
        out[name] = Comparison(mean.mean, mean.low, mean.high, len(differences), *p, verdict)
    return out


def _verdict(difference: float, metric: Metric) -> str:
    if metric.better == NEITHER:
        return "higher" if difference > 0 else "lower"
    return "better" if (difference > 0) == (metric.better == HIGH) else "worse"


def _are_equal(differences: Sequence[float]) -> bool:
    """Returns True for differences that are not zero, and equal up to rounding."""
    largest = max(map(abs, differences), default=0.0)
    return largest > 0 and max(differences) - min(differences) <= SPREAD * largest


def _untested(differences: Sequence[float]) -> str:
    """Returns why differences cannot be tested, or ""."""
    count = len(differences)
    if count < FEWEST:
        return f"fewer than {FEWEST} seeds"
    equal = f"the same difference in {count} of {count} seeds, so there is no spread to test"
    return equal if _are_equal(differences) else ""


def _p(differences: Sequence[float]) -> float:
    """Returns the p-value of Student's test that the mean is zero; 1 if all differences are."""
    if not any(differences):
        return 1.0
    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def holm(p: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    """Returns corrected p-values: the k-th smallest of m times m − k + 1.  Holm 1979."""
    order = sorted(p, key=lambda name: p[name])
    scaled = [min(1.0, p[name] * (len(order) - k)) for k, name in enumerate(order)]
    return dict(zip(order, np.maximum.accumulate(scaled).tolist() if scaled else [], strict=True))
