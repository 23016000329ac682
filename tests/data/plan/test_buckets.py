"""Length buckets: every row once per epoch, least padding, the same shapes for all seeds."""

import itertools

import numpy as np
import pytest

from tfm.data.plan.lengths import Buckets, best_edges, into_buckets


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TFM_CACHE", str(tmp_path))


def drawn_lengths(count, sides, seed=0, longest=30):
    rng = np.random.default_rng(seed)
    first = 1 + rng.integers(0, longest, count) * rng.integers(0, 2, count)
    both = [first, np.maximum(1, first + rng.integers(-2, 3, count))][:sides]
    return np.stack(both, 1).astype(np.int32)


def padded_tokens(lengths_NS, ends):
    """By definition: each row goes to the first bucket where its longer side ends, and is as long
    there as the longest row of that bucket or of one before."""
    longer, total, edge = lengths_NS.max(1), 0, np.zeros(lengths_NS.shape[1])
    for begin, end in itertools.pairwise([0, *ends]):
        rows = lengths_NS[(longer > begin) & (longer <= end)]
        edge = np.maximum(edge, rows.max(0, initial=0))
        total += len(rows) * np.maximum(edge, np.minimum(2, lengths_NS.max(0))).sum()
    return total


@pytest.mark.parametrize("sides", [1, 2])
@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_edges_need_the_least_padding(sides, most):
    """Against all choices of edges."""
    lengths_NS = drawn_lengths(60, sides, longest=9)
    ends, edges = best_edges(lengths_NS, most)
    known = np.unique(lengths_NS.max(1))
    choices = itertools.chain.from_iterable(
        itertools.combinations(known[:-1], number) for number in range(most)
    )
    best = min(padded_tokens(lengths_NS, (*chosen, known[-1])) for chosen in choices)
    assert padded_tokens(lengths_NS, ends) == best
    assert ends[-1] == known[-1]
    assert np.all(np.diff(edges, axis=0) >= 0)
    assert len(np.unique(edges, axis=0)) == len(edges) <= most


def test_edges_of_many_lengths_are_near_the_best():
    lengths_NS = np.arange(1, 3001, dtype=np.int32)[:, None]
    ends, _ = best_edges(lengths_NS, 4)
    assert padded_tokens(lengths_NS, ends) < 1.01 * padded_tokens(
        lengths_NS, (750, 1500, 2250, 3000)
    )


CASES = [
    (200, 4, (8, 6, 5, 3)),
    (37, 3, (16, 9, 4)),
    (5, 3, (7, 7, 7)),
    (64, 1, (10,)),
    (1, 2, (3,)),
]


@pytest.mark.parametrize(("count", "most", "sizes"), CASES)
def test_every_row_comes_once_per_epoch(count, most, sizes):
    """What the steps read, each bucket's batches in their order, are whole epochs one after
    another: after k epochs every row has come k times, but for what waits for the next batch."""
    found = into_buckets(drawn_lengths(count, 2), most)
    plan = Buckets(found, sizes[: len(found.counts)], seed=3)
    epochs = 6
    ends = [plan._begin(epoch) for epoch in range(epochs + 1)]
    times = np.zeros(count, int)
    for epoch, (begin, end) in enumerate(itertools.pairwise(ends)):
        for step in range(begin, end):
            assert plan.place(step)[0] == epoch
            np.add.at(times, plan.draw(step).rows, 1)
        waiting = (epoch + 1) * count - times.sum()
        assert 0 <= waiting < plan.sizes[-1]
        assert np.all(times <= epoch + 1)
        # Less than a batch waits; it may be of one epoch or, of very few rows, of several.
        assert np.sum(epoch + 1 - times) == waiting
    assert ends[-1] > 0


def test_rows_fit_their_shape_and_nothing_but_rows_depends_on_the_seed():
    lengths_NS = drawn_lengths(500, 2)
    found = into_buckets(lengths_NS, 5)
    one, other = (Buckets(found, (16, 12, 8, 8, 4), seed) for seed in (0, 1))
    used, differ = set(), 0
    for step in range(200):
        a, b = one.draw(step), other.draw(step)
        shape = a.max_length, a.max_target, len(a.rows)
        assert shape == (b.max_length, b.max_target, len(b.rows))
        assert np.all(lengths_NS[a.rows] <= shape[:2])
        used.add(shape)
        differ += not np.array_equal(a.rows, b.rows)
    assert len(used) == len(one.kinds()) == 5
    assert differ > 190
    epochs = [one.draw(step).rows.tolist() for step in (0, one._begin(1))]
    assert epochs[0] != epochs[1]


def test_kinds_are_the_shares_of_the_shapes():
    lengths_NS = drawn_lengths(400, 1)
    found = into_buckets(lengths_NS, 4)
    plan = Buckets(found, (32, 16, 16, 8), seed=0)
    steps = plan._begin(50)
    counted = np.bincount([plan.place(step)[1] for step in range(steps)], minlength=4) / steps
    kinds = plan.kinds()
    np.testing.assert_allclose([kind.share for kind in kinds], counted, atol=1e-3)
    for kind, edges in zip(kinds, found.edges, strict=True):
        assert kind.drawn.max_length == edges[0]
        assert np.all(lengths_NS[kind.drawn.rows] <= edges)


def test_buckets_are_made_once(monkeypatch):
    lengths_NS = drawn_lengths(300, 2)
    first = into_buckets(lengths_NS, 3)
    monkeypatch.setattr("tfm.data.plan.lengths.best_edges", None)  # it would fail
    again = into_buckets(lengths_NS, 3)
    assert again[:2] == first[:2]
    np.testing.assert_array_equal(again.order[:], first.order[:])
    with pytest.raises(TypeError):
        into_buckets(lengths_NS + 1, 3)
