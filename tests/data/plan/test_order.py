import itertools
import tracemalloc

import numpy as np
import pytest
from scipy import stats

from tfm.data.draws import Draws, hashed, key_of, permuted
from tfm.data.plan.order import Epochs

COUNTS = [*range(1, 201), *(2**k + d for k in (8, 10, 13, 16) for d in (-1, 0, 1)), 997, 7919]


def test_a_permutation_is_a_bijection():
    for count in COUNTS:
        order = permuted(count, key_of(0, count), np.arange(count))
        np.testing.assert_array_equal(np.sort(order), np.arange(count))


def test_keys_choose_the_permutation():
    orders = {tuple(permuted(50, key_of(seed, "x"), np.arange(50))) for seed in range(100)}
    assert len(orders) == 100
    assert tuple(range(50)) not in orders
    keys = np.array([key_of(0, i) for i in range(50)], np.uint64)  # one for each index
    each = [permuted(50, int(key), np.array([i]))[0] for i, key in enumerate(keys)]
    np.testing.assert_array_equal(permuted(50, keys, np.arange(50)), each)


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_all_permutations_are_as_likely(count):
    """χ² over the count! permutations that there are."""
    keys = np.array([key_of(seed, "fair") for seed in range(20_000)], np.uint64)
    orders = np.stack([permuted(count, keys, np.full(len(keys), i)) for i in range(count)], 1)
    codes = np.ravel_multi_index(tuple(orders.T), (count,) * count)
    known = [
        np.ravel_multi_index(p, (count,) * count) for p in itertools.permutations(range(count))
    ]
    found = [np.sum(codes == code) for code in known]
    assert sum(found) == len(keys)
    assert stats.chisquare(found).pvalue > 0.001


@pytest.mark.parametrize("count", [60, 2000])
def test_the_shuffle_is_fair(count):
    """Each row is as likely in each place: χ² of 60 places × 60 parts of the rows."""
    orders = np.array(
        [permuted(count, key_of(seed, "fair"), np.arange(60)) for seed in range(2000)]
    )
    orders = orders * 60 // count
    found = np.array([np.bincount(orders[:, place], minlength=60) for place in range(60)])
    wanted = 2000 / 60
    chi2 = np.sum((found - wanted) ** 2 / wanted)
    assert abs(chi2 - 59**2) < 4 * np.sqrt(2 * 59**2)
    if count == 60:
        pairs = np.mean(orders[:, 1:] - orders[:, :-1] == 1)  # neighbours stay so by chance only
        assert abs(pairs - 1 / 60) < 0.002


def test_a_million_is_shuffled():
    order = permuted(1_000_000, 3, np.arange(1_000_000))
    assert np.all(np.bincount(order) == 1)
    assert abs(np.corrcoef(order, np.arange(1_000_000))[0, 1]) < 0.005
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.005


@pytest.mark.parametrize(("count", "size"), [(12, 4), (10, 4), (7, 7), (3, 8), (1, 2), (100, 33)])
def test_every_epoch_is_a_shuffle(count, size):
    """Batches one after another are permutation after permutation, also across their borders."""
    steps = -(-5 * count // size)
    plan = Epochs(count, size, 0)
    seen = np.concatenate([plan.draw(step).rows for step in range(steps)])[: 5 * count]
    epochs = seen.reshape(5, count)
    np.testing.assert_array_equal(np.sort(epochs, 1), np.tile(np.arange(count), (5, 1)))
    if count > 6:
        assert len({tuple(epoch) for epoch in epochs.tolist()}) == 5
        assert tuple(range(count)) not in {tuple(epoch) for epoch in epochs.tolist()}
    assert count < 10 or not np.array_equal(plan.draw(0).rows, Epochs(count, size, 1).draw(0).rows)


def test_a_billion_rows_take_no_memory():
    plan = Epochs(10**9, 64, 0)
    tracemalloc.start()
    rows = plan.draw(10**6).rows
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert rows.max() < 10**9
    assert peak < 100_000


def test_draws_have_the_distributions_they_say():
    draws = Draws(hashed(key_of(0, "test"), np.arange(20_000)))
    integers = draws.integers(3, 10, (2,))
    assert integers.dtype == np.int32
    for column in integers.T:
        assert stats.chisquare(np.bincount(column - 3, minlength=7)).pvalue > 0.001
    assert abs(np.corrcoef(integers.T)[0, 1]) < 0.03
    assert stats.kstest(draws.uniform(), "uniform").pvalue > 0.001
    orders = draws.permutation(3)
    found = np.unique(orders @ [9, 3, 1], return_counts=True)[1]
    assert len(found) == 6
    assert stats.chisquare(found).pvalue > 0.001
    pairs = draws.distinct(2, 4)
    found = np.unique(pairs @ [4, 1], return_counts=True)[1]
    assert len(found) == 12
    assert stats.chisquare(found).pvalue > 0.001


def test_what_a_row_draws_does_not_depend_on_the_others():
    one, many = Draws(hashed(5, np.array([7]))), Draws(hashed(5, np.arange(10)))
    for draw in (lambda d: d.bits((3,)), lambda d: d.uniform(), lambda d: d.permutation(9)):
        np.testing.assert_array_equal(draw(one)[0], draw(many)[7])
    assert one.integers(0, 1000)[0] == many.integers(0, 1000)[7]
    assert len(np.unique(Draws(hashed(5, np.arange(100_000))).bits())) == 100_000


def test_memory_grows_neither_with_seeds_nor_with_epochs():
    """A worker serves many runs, each of many epochs."""

    def serve(seed):
        plan = Epochs(1_000_000, 64, seed)
        for epoch in range(20):
            plan.draw(epoch * 15_625)

    serve(0)
    tracemalloc.start()
    for seed in range(1, 20):
        serve(seed)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 100_000  # one permutation of the rows would be 8 MB
