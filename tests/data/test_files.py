import os
import pathlib

import numpy as np
import pytest

from tfm.data.pipeline import batch, in_order, load
from tfm.names import UserError

TEXT = "to be, or not to be: that is the question — 问题"


@pytest.fixture
def text(tmp_path, monkeypatch):
    monkeypatch.setenv("TFM_DATA", str(tmp_path))
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8", newline="")
    return "text.txt"


def task(kind, path, length, **options):
    options = "".join(f", {name}={value}" for name, value in options.items())
    return f"{kind}(path={str(path)!r}, length={length}{options})"


def scored_once(source, tokens, size):
    """The scored tokens of all batches are `tokens` after the first, each with what is before."""
    seen = []
    for made in in_order(source, size):
        assert made["weights_BT"].shape[0] == size
        for t in zip(*np.nonzero(made["weights_BT"]), strict=True):
            assert made["valid_BT"][t]
            assert made["tokens_BT"][t] == tokens[len(seen)]
            seen.append(made["targets_BT"][t])
    np.testing.assert_array_equal(seen, tokens[1:])


@pytest.mark.parametrize("kind", ["characters", "bytes"])
@pytest.mark.parametrize("length", [1, 3, 5, 7, 20])
def test_windows(text, kind, length):
    units = list(TEXT) if kind == "characters" else list(TEXT.encode())
    vocab = sorted(set(units)) if kind == "characters" else list(range(256))
    ids = np.array([vocab.index(unit) for unit in units])
    name = task(kind, text, length, valid=0.4)
    held = int(np.ceil(0.4 * len(ids)))
    cut = len(ids) - held

    train = load(name, "train", "next_token")
    assert train.needs == {"vocab": len(vocab)}
    assert len(train) == cut - length
    for n in range(len(train)):
        np.testing.assert_array_equal(train.arrays["tokens_BT"][n], ids[n : n + length])
        np.testing.assert_array_equal(train.arrays["targets_BT"][n], ids[n + 1 : n + length + 1])
    assert np.all(train.arrays["weights_BT"] == 1)
    assert np.all(train.arrays["valid_BT"])
    made = batch(train, seed=0, step=0, size=4)
    assert {name: x.dtype.name for name, x in made.items()} == {
        "tokens_BT": "int32",
        "valid_BT": "bool",
        "targets_BT": "int32",
        "weights_BT": "float32",
    }

    valid = load(name, "valid", "next_token")
    assert len(valid) == -(-(held - 1) // length)
    scored_once(valid, ids[cut:], size=2)
    scored_once(valid, ids[cut:], size=64)
    assert train.fingerprint == valid.fingerprint


def test_windows_are_views(text):
    train = load(task("bytes", text, 8), "train", "next_token")
    for name in ("tokens_BT", "targets_BT"):
        assert train.arrays[name].strides == (1, 1)
        assert train.arrays[name].base is not None
    assert train.arrays["weights_BT"].strides == (0, 0)


@pytest.mark.parametrize("kind", ["characters", "bytes"])
def test_decode_and_bytes_per_token(text, kind):
    name = task(kind, text, 4, valid=0.2)
    valid = load(name, "valid", "next_token")
    weights = valid.arrays["weights_BT"] > 0
    said = valid.task.decode(valid.arrays["targets_BT"][weights])
    assert said == (TEXT[-9:] if kind == "characters" else TEXT.encode()[-10:].decode())
    wanted = len(said.encode()) / weights.sum()
    assert valid.bytes_per_token == wanted
    assert (wanted == 1) == (kind == "bytes")
    assert load("copy", "valid", "seq2seq", 3).bytes_per_token is None


def test_a_count_takes_the_first(text):
    name = task("characters", text, 4)
    few = load(name, "train", "next_token", 3)
    np.testing.assert_array_equal(
        few.arrays["tokens_BT"], load(name, "train", "next_token").arrays["tokens_BT"][:3]
    )
    with pytest.raises(UserError, match="count=99 must be a whole number from 1 to 37"):
        load(name, "train", "next_token", 99)
    with pytest.raises(UserError, match="unknown split 'test'; known: train, valid"):
        load(name, "test", "next_token")
    with pytest.raises(UserError, match="task .characters.*'tag' would show"):
        load(name, "train", "tag")


def test_a_file_counts_by_what_it_holds(text, tmp_path, monkeypatch):
    one = load(task("bytes", text, 4), "train", "next_token").fingerprint
    (tmp_path / "same").write_bytes(TEXT.encode())
    assert load(task("bytes", tmp_path / "same", 4), "train", "next_token").fingerprint == one
    (tmp_path / "same").write_bytes(TEXT.encode()[:-1] + b"!")
    assert load(task("bytes", tmp_path / "same", 4), "train", "next_token").fingerprint != one
    assert load(task("bytes", text, 5), "train", "next_token").fingerprint != one


def test_newlines_stay(tmp_path):
    (tmp_path / "dos").write_bytes(b"a\r\nb\rc\n" * 5)
    train = load(task("characters", tmp_path / "dos", 6), "train", "next_token")
    assert train.task.decode(train.arrays["tokens_BT"][0]) == "a\r\nb\rc"


def test_where_files_are_found(text, tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    (here / "text.txt").write_text("z" * 30)
    monkeypatch.chdir(here)
    near = load(task("characters", text, 4), "train", "next_token")  # as given comes first
    assert near.needs == {"vocab": 1}
    (here / "text.txt").unlink()
    assert load(task("characters", text, 4), "train", "next_token").needs["vocab"] > 1


def test_bad_files_are_named(text, tmp_path, monkeypatch):
    with pytest.raises(UserError) as e:
        load(task("characters", "tect.txt", 4), "train", "next_token")
    for part in ("no file", os.getcwd(), str(tmp_path / "tect.txt"), "did you mean 'text.txt'"):
        assert part in str(e.value)
    assert f"TFM_DATA={tmp_path}" in str(e.value)
    monkeypatch.delenv("TFM_DATA")
    with pytest.raises(UserError, match="no file .*/no/where; set TFM_DATA to the folder that"):
        load(task("bytes", "no/where", 4), "train", "next_token")
    with pytest.raises(UserError, match="bytes: no file"):
        load(task("bytes", tmp_path, 4), "train", "next_token")
    with pytest.raises(UserError, match="task 'bytes': path=3 must be str"):
        load("bytes(path=3, length=4)", "train", "next_token")
    with pytest.raises(UserError, match="bytes: path='' must be the name of a file"):
        load("bytes(path='', length=4)", "train", "next_token")
    with pytest.raises(UserError, match="task 'bytes' needs path"):
        load("bytes(length=4)", "train", "next_token")
    (tmp_path / "empty").touch()
    with pytest.raises(UserError, match="empty is empty"):
        load(task("bytes", tmp_path / "empty", 4), "train", "next_token")
    (tmp_path / "latin").write_bytes("naïve".encode("latin-1") * 20)
    with pytest.raises(UserError, match="latin is not UTF-8 text: byte 2 is 0xef; write bytes"):
        load(task("characters", tmp_path / "latin", 4), "train", "next_token")
    assert load(task("bytes", tmp_path / "latin", 4), "train", "next_token").needs["vocab"] == 256
    (tmp_path / "short").write_text("0123456789")
    with pytest.raises(UserError, match="length=8 is too much for .*: of its 10 tokens 8 are"):
        load(task("bytes", tmp_path / "short", 8, valid=0.2), "train", "next_token")
    assert len(load(task("bytes", tmp_path / "short", 7, valid=0.2), "train", "next_token")) == 1
    with pytest.raises(UserError, match="valid=0.1 leaves 1 of 10 tokens"):
        load(task("bytes", tmp_path / "short", 4), "train", "next_token")
    for valid in (0, 1, -0.1, "'x'"):
        with pytest.raises(UserError, match="valid=.* must be (a number between 0 and 1|float)"):
            load(task("bytes", tmp_path / "short", 4, valid=valid), "train", "next_token")


def test_tinyshakespeare():
    """1,115,394 characters, 65 of them different; nanoGPT trains on the first 1,003,854."""
    if "TFM_DATA" not in os.environ:
        pytest.skip("TFM_DATA, the folder of real data, is not set")
    path = "tinyshakespeare/input.txt"
    text = (pathlib.Path(os.environ["TFM_DATA"]) / path).read_bytes().decode()
    id_of = {c: i for i, c in enumerate(sorted(set(text)))}
    ids = np.array([id_of[c] for c in text])
    assert len(text) == 1_115_394
    train = load(task("characters", path, 64), "train", "next_token")
    valid = load(task("characters", path, 64), "valid", "next_token")
    assert train.needs == valid.needs == {"vocab": 65}
    assert len(train) == 1_003_854 - 64
    assert train.task.decode(train.arrays["targets_BT"][-1][-5:]) == text[1_003_849:1_003_854]
    weights = valid.arrays["weights_BT"]
    assert weights.sum() == 1_115_394 - 1_003_854 - 1
    scored = weights > 0
    np.testing.assert_array_equal(valid.arrays["targets_BT"][scored], ids[1_003_855:])
    np.testing.assert_array_equal(valid.arrays["tokens_BT"][scored], ids[1_003_854:-1])
    assert valid.bytes_per_token == 1
    epoch = -(-len(train) // 4096)
    rows = [batch(train, 0, step, 4096)["tokens_BT"] for step in (0, 1, epoch - 1, epoch)]
    assert all(x.shape == (4096, 64) for x in rows)
