"""Packing: first fit against its textbook, every row once per epoch, little room left."""

import numpy as np
import pytest

from tfm.data.plan.lengths import PackedRows, first_fit, into_rows


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TFM_CACHE", str(tmp_path))


def textbook(lengths_NS, room):
    """First fit, by its definition."""
    bins, out = [], []
    for lengths in lengths_NS:
        fits = [number for number, left in enumerate(bins) if np.all(left >= lengths)]
        if not fits:
            bins.append(np.array(room))
        out.append(fits[0] if fits else len(bins) - 1)
        bins[out[-1]] = bins[out[-1]] - lengths
    return out


def sentence_lengths(count, sides=2, seed=0):
    rng = np.random.default_rng(seed)
    return np.clip(rng.lognormal(2.5, 0.4, (count, sides)).round(), 1, 40).astype(np.int32)


@pytest.mark.parametrize(("sides", "room"), [(1, (64,)), (2, (64, 80)), (2, (40, 40))])
def test_first_fit(sides, room):
    lengths_NS = sentence_lengths(200, sides)
    np.testing.assert_array_equal(first_fit(lengths_NS, room, most=200), textbook(lengths_NS, room))


@pytest.mark.parametrize("most", [1, 4, 128])
def test_bins_are_never_too_full(most):
    lengths_NS = sentence_lengths(1000)
    bin_N = first_fit(lengths_NS, (64, 64), most)
    full = np.zeros((bin_N.max() + 1, 2), int)
    np.add.at(full, bin_N, lengths_NS)
    assert full.max() <= 64
    assert full.min() > 0  # none is empty
    assert np.all(np.bincount(bin_N) > 0)


def test_little_room_is_left():
    lengths_NS = sentence_lengths(20_000, 1)
    bins = first_fit(lengths_NS, (128,)).max() + 1
    assert lengths_NS.sum() / (bins * 128) > 0.98
    alone = lengths_NS.sum() / (len(lengths_NS) * lengths_NS.max())
    assert alone < 0.4  # what it would be without


@pytest.mark.parametrize("size", [3, 7])
def test_every_row_comes_once_per_epoch(size):
    lengths_NS = sentence_lengths(300)
    packed = into_rows(lengths_NS, (64, 64))
    plan = PackedRows(packed, size, seed=1)
    bins, seen = len(packed.ends), []
    for step in range(-(-2 * bins // size)):
        drawn = plan.draw(step)
        assert drawn.packing.lengths == (64, 64)
        assert np.all(np.diff(drawn.packing.row_N) >= 0)
        for row in range(size):
            own = drawn.rows[drawn.packing.row_N == row]
            assert np.all(lengths_NS[own].sum(0) <= 64)
            seen.append(own)
    for epoch in (seen[:bins], seen[bins : 2 * bins]):
        np.testing.assert_array_equal(np.sort(np.concatenate(epoch)), np.arange(300))
    assert any(len(a) != len(b) or np.any(a != b) for a, b in zip(seen, seen[bins:], strict=False))
