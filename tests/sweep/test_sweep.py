"""Runs of a sweep."""

from tfm.sweep import sweep


def test_more_jobs_than_memory_are_not_started(monkeypatch):
    pages = {"SC_AVPHYS_PAGES": 3 * 10**9 // 4096, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr("os.sysconf", pages.__getitem__)
    assert sweep.affordable(2) == (2, None)
    workers, warning = sweep.affordable(500)
    assert workers == 2
    assert "--jobs=500: a worker needs about 1.0 GB and 3 GB are free, so there are 2" in warning
