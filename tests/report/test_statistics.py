"""Intervals, paired differences and Holm's correction, beside SciPy and worked examples."""

import numpy as np
import pytest
from scipy import stats

from tfm.evaluate.metric import HIGH, LOW, NEITHER, Metric
from tfm.report.statistics import compare, holm, interval

ACCURACY, LOSS = Metric("accuracy", HIGH, most=1.0), Metric("loss", LOW)


def test_an_interval_is_students_and_stays_within_bounds():
    values = [0.2, 0.5, 0.9, 0.99]
    found = interval(values)
    low, high = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert (found.low, found.high) == pytest.approx((low, high))
    assert high > 1
    bounded = interval(values, 0.0, 1.0)
    assert (bounded.low, bounded.high) == pytest.approx((low, 1.0))
    assert str(bounded) == f"0.647 [{low:.3f}, 1.000]"
    assert str(interval([0.5, 0.6, 0.7], 0, 1)) == "0.600 ± 0.248"
    assert str(interval([0.25])) == "0.250"
    assert str(interval([])) == "—"


def test_holm_as_worked_by_hand():
    """Holm 1979: the least p of m is multiplied by m, the next by m − 1, …; never decreasing."""
    names = [("t", v) for v in "abcd"]
    p = dict(zip(names, [0.01, 0.04, 0.03, 0.005], strict=True))
    assert holm(p) == pytest.approx(dict(zip(names, [0.03, 0.06, 0.06, 0.02], strict=True)))
    assert holm({names[0]: 0.6, names[1]: 0.9})[names[0]] == 1.0
    assert holm({}) == {}


def test_pairs_find_what_overlapping_intervals_hide():
    """Two means with wide intervals, and a small difference that every seed shows."""
    rng = np.random.default_rng(0)
    seeds = rng.normal(0.12, 0.03, 6)
    better = seeds + 0.0055 + rng.normal(0, 0.001, 6)
    differences = (better - seeds).tolist()
    one, other = interval(seeds.tolist()), interval(better.tolist())
    assert one.high > other.low  # they overlap
    pairs = {("copy", "new"): (differences, ""), ("sort", "new"): ([0.0] * 6, "")}
    found = compare(pairs, ACCURACY)
    comparison = found["copy", "new"]
    assert comparison.verdict == "better"
    assert comparison.p == pytest.approx(stats.ttest_rel(better, seeds).pvalue)
    assert comparison.p_holm == pytest.approx(2 * comparison.p)
    low, high = stats.t.interval(0.95, 5, np.mean(differences), stats.sem(differences))
    assert (comparison.low, comparison.high) == pytest.approx((low, high))
    assert found["sort", "new"].verdict == "no difference shown"
    assert compare(pairs, Metric("loss", LOW))["copy", "new"].verdict == "worse"


def test_there_is_no_verdict_without_enough_seeds():
    pairs = {("a", "x"): ([0.1, 0.2, 0.1, 0.2], ""), ("b", "x"): ([0.1] * 5, "1 of 6 seeds …")}
    found = compare(pairs, LOSS)
    assert found["a", "x"].verdict == "no verdict: fewer than 5 seeds"
    assert found["b", "x"].verdict == "no verdict: 1 of 6 seeds …"
    assert found["a", "x"].p is None


@pytest.mark.parametrize("values", [[0.25] * 5, [0.1 + 0.2, *[0.3] * 5], [-1e-9, *[-1e-9] * 5]])
def test_a_difference_without_spread(values):
    """Also up to rounding, where Student's test would give a p-value of 1e-79."""
    found = compare({("a", "x"): (values, ""), ("b", "x"): ([1.0, 2, 3, 4, 6], "")}, ACCURACY)
    count = len(values)
    reason = f"the same difference in {count} of {count} seeds, so there is no spread to test"
    assert found["a", "x"].verdict == f"no verdict: {reason}"
    assert found["a", "x"].difference == pytest.approx(values[0])
    assert [found["a", "x"].p, found["a", "x"].p_holm, found["a", "x"].low] == [None] * 3
    assert found["b", "x"].p_holm == found["b", "x"].p  # the only one that is tested
    assert compare({("a", "x"): ([0.0] * 5, "")}, ACCURACY)["a", "x"].p == 1


def test_a_metric_without_a_direction_is_higher_or_lower():
    up = [0.25, 0.26, 0.27, 0.28, 0.29]
    pairs = {("a", "x"): (up, ""), ("b", "x"): ([-x for x in up], "")}
    verdicts = [found.verdict for found in compare(pairs, Metric("entropy", NEITHER)).values()]
    assert verdicts == ["higher", "lower"]


def test_holm_keeps_its_promise():
    """Of studies in which nothing differs, at most 5 % find any difference."""
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(400):
        pairs = {("t", str(v)): (rng.normal(0, 1, 5).tolist(), "") for v in range(6)}
        found = compare(pairs, ACCURACY).values()
        wrong += any(one.verdict in ("better", "worse") for one in found)
    assert wrong <= stats.binom.ppf(0.999, 400, 0.05)
