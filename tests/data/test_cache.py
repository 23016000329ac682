"""The cache of tokenised data: damage, kills, two builders at once, memory."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tfm.config.names import UserError
from tfm.data import cache
from tfm.data.dataset import Reading
from tfm.data.datasets import open_dataset


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TFM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "data"


def made(key="k", numbers=1000, calls=None):
    def build(writer):
        if calls is not None:
            calls.append(1)
        for part in np.split(np.arange(numbers), 10):
            writer.append("x", part)
        return {"rows": numbers}

    return cache.entry(key, {"what": "test"}, build)


def test_what_is_written_is_read(folder):
    calls = []
    for _ in range(2):
        found = made(calls=calls)
        np.testing.assert_array_equal(found["x"][:], np.arange(1000))
        assert found["x"][np.array([5, 900])].tolist() == [5, 900]
        assert found.facts == {"rows": 1000}
    assert calls == [1]
    assert cache.key_of(a=1, b=2) == cache.key_of(b=2, a=1) != cache.key_of(a=1, b=3)


@pytest.mark.parametrize("damage", ["flip", "cut", "grow", "gone", "meta", "meta gone"])
def test_what_is_damaged_is_built_again(folder, damage, monkeypatch):
    monkeypatch.setattr(cache, "BLOCK", 512)
    made()
    path = folder / "k" / ("meta.json" if damage.startswith("meta") else "x")
    content = bytearray(path.read_bytes())
    if damage in ("flip", "meta"):
        place = content.index(b"1000") if damage == "meta" else 4001
        content[place] ^= 1
        path.write_bytes(content)
    elif damage.endswith("gone"):
        path.unlink()
    else:
        path.write_bytes(content[:-8] if damage == "cut" else content + b"12345678")
    calls = []
    np.testing.assert_array_equal(made(calls=calls)["x"][:], np.arange(1000))
    assert calls == [1]


def test_of_a_large_file_the_ends_are_checked_on_opening_and_all_by_verify(folder, monkeypatch):
    monkeypatch.setattr(cache, "BLOCK", 512)
    monkeypatch.setattr(cache, "WHOLE", 4000)
    made()
    whole = (folder / "k" / "x").read_bytes()
    for place, seen in ((3, True), (7999, True), (4000, False)):
        content = bytearray(whole)
        content[place] ^= 1
        (folder / "k" / "x").write_bytes(content)
        meta = json.loads((folder / "k" / "meta.json").read_text())
        assert bool(cache.damage(folder / "k", meta)) == seen
        assert cache.damage(folder / "k", meta, whole=True).endswith(f"in block {place // 512}")


def test_what_fails_leaves_nothing(folder):
    def build(writer):
        writer.append("x", np.arange(5))
        raise UserError("a bad line")

    with pytest.raises(UserError, match="a bad line"):
        cache.entry("k", {}, build)
    assert [path.name for path in folder.iterdir()] == [".k.lock"]
    assert made().facts["rows"] == 1000


def test_a_full_disk_is_named(small_disk, monkeypatch):
    monkeypatch.setenv("TFM_CACHE", str(small_disk))
    with pytest.raises(UserError, match="cannot write to the cache .*No space left on device; TFM"):
        made(numbers=1_000_000)
    assert made(numbers=1000).facts["rows"] == 1000


BUILDER = """
import pathlib, sys, time
import numpy as np
from tfm.data import cache
calls, pause = pathlib.Path(sys.argv[1]), float(sys.argv[2])
def build(writer):
    with open(calls, "a") as file:
        file.write("x")
    for part in np.split(np.arange(1000), 10):
        writer.append("x", part)
        time.sleep(pause)
    return {"rows": 1000}
print(cache.entry("k", {}, build)["x"][:].sum())
"""


def start(tmp_path, pause):
    command = [sys.executable, "-c", BUILDER, str(tmp_path / "calls"), str(pause)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_builders(tmp_path):
    """One builds and the others wait; all read the same."""
    running = [start(tmp_path, 0.05) for _ in range(3)]
    assert [process.communicate()[0] for process in running] == ["499500\n"] * 3
    assert (tmp_path / "calls").read_text() == "x"


def test_a_kill_leaves_nothing_broken(tmp_path, folder):
    killed = start(tmp_path, 60)
    until = time.monotonic() + 60
    while not list(folder.glob(".k-*/x")) and time.monotonic() < until:
        time.sleep(0.05)
    left = list(folder.glob(".k-*"))
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert len(left) == 1
    assert not (folder / "k").exists()
    np.testing.assert_array_equal(made()["x"][:], np.arange(1000))
    assert not list(folder.glob(".k-*"))  # what the killed one left is removed


def test_clearing_spares_what_is_being_built(tmp_path, folder):
    made("other")
    building = start(tmp_path, 0.3)
    until = time.monotonic() + 60
    while not list(folder.glob(".k-*/x")) and time.monotonic() < until:
        time.sleep(0.05)
    opened = made("other")
    assert cache.clear() > 8000
    assert opened["x"][:].sum() == 499500  # who has it open reads on
    assert building.communicate() == ("499500\n", "")
    assert [path.name for path, _ in cache.entries()] == ["k"]


def test_a_file_edited_meanwhile_is_noticed(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("a b c d\n" * 50)
    from tfm.data import corpus

    real = corpus.write_stream

    def edited(*args):
        path.write_text("other text\n" * 99)
        return real(*args)

    monkeypatch.setattr(corpus, "write_stream", edited)
    with pytest.raises(UserError, match="were edited while being read"):
        open_dataset(f"text(train={str(path)!r}, length=2)", "train", reading=Reading("bytes"))


MEMORY = """
import sys, pathlib
import numpy as np
from tfm.data.dataset import Reading
from tfm.data.datasets import open_dataset
dataset = open_dataset(f"text(train={sys.argv[1]!r}, valid={sys.argv[1]!r}, length=64)", "train",
                       reading=Reading("bytes"))
def resident():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096
dataset.take(np.arange(64))
before = resident()
rng = np.random.default_rng(0)
most = 0
for _ in range(400):
    dataset.take(rng.integers(0, len(dataset), 256))
    most = max(most, resident())
print(len(dataset), most - before)
"""


@pytest.mark.ci
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux")
def test_memory_does_not_grow_with_the_data(tmp_path):
    """100,000 random windows of a 200 MB stream: far less of it stays in memory."""
    path = tmp_path / "large.txt"
    with open(path, "w") as file:
        for _ in range(100):
            file.write("the quick brown fox jumps over the lazy dog\n" * 24_000)
    command = [sys.executable, "-c", MEMORY, str(path)]
    ran = subprocess.run(command, capture_output=True, text=True)
    rows, grown = map(int, ran.stdout.split())
    assert rows > 100_000_000, ran.stderr
    assert grown < 64_000_000


def test_large_files_are_hashed_once(tmp_path, monkeypatch):
    from tfm.data import files

    monkeypatch.setattr(files, "LARGE", 10)
    path = tmp_path / "a"
    path.write_bytes(b"0123456789")
    then = path.stat()
    later = time.time_ns() + 10**11
    monkeypatch.setattr(files.time, "time_ns", lambda: later)
    first = files.digest(path)
    files._digest.cache_clear()
    real = files.hashlib.file_digest
    monkeypatch.setattr(files.hashlib, "file_digest", lambda *_: pytest.fail("hashed again"))
    assert files.digest(path) == first
    monkeypatch.setattr(files.hashlib, "file_digest", real)
    path.write_bytes(b"other text")
    os.utime(path, ns=(then.st_atime_ns, then.st_mtime_ns))  # only its time of change is new
    assert files.digest(path) == files.hashlib.sha256(b"other text").hexdigest()
    files._digest.cache_clear()
    assert files.digest(path) != first
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (10, then.st_mtime_ns)
