import os
import pathlib
import types

import numpy as np
import pytest

from tfm.config.names import UserError
from tfm.data.datasets import fingerprint, open_dataset
from tfm.data.reader import of_data
from tfm.objectives.batches import eval_batches
from tfm.objectives.next_token import NextToken

TEXT = "to be, or not to be: that is the question — 问题"


@pytest.fixture
def text(tmp_path, monkeypatch):
    monkeypatch.setenv("TFM_DATA", str(tmp_path))
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8", newline="")
    return "text.txt"


def task(kind, path, length, **options):
    options = "".join(f", {name}={value}" for name, value in options.items())
    return f"{kind}(path={str(path)!r}, length={length}{options})"


def rows(dataset):
    """The tokens of every row."""
    tokens = dataset.take(np.arange(len(dataset))).tokens
    return np.split(tokens.ids, np.cumsum(tokens.lengths)[:-1])


def scored_once(dataset, tokens, size):
    """The scored tokens of all batches are `tokens` after the first, each with what is before."""
    seen = []
    for batch in eval_batches(NextToken(), dataset, size):
        assert batch.weights.shape[0] == size
        for t in zip(*np.nonzero(batch.weights), strict=True):
            assert batch.inputs["valid_BT"][t]
            assert batch.inputs["tokens_BT"][t] == tokens[len(seen)]
            seen.append(batch.labels[t])
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

    train = open_dataset(name, "train")
    assert (train.form, train.vocab, train.max_length) == ("text", len(vocab), length + 1)
    assert len(train) == cut - length
    for n, row in enumerate(rows(train)):
        np.testing.assert_array_equal(row, ids[n : n + length + 1])

    valid = open_dataset(name, "valid")
    assert len(valid) == -(-(held - 1) // length)
    scored_once(valid, ids[cut:], size=2)
    scored_once(valid, ids[cut:], size=64)
    assert train.fingerprint == valid.fingerprint == fingerprint(name)


@pytest.mark.parametrize("kind", ["characters", "bytes"])
def test_decode_and_bytes_per_token(text, kind):
    valid = open_dataset(task(kind, text, 4, valid=0.2), "valid")
    (batch,) = eval_batches(NextToken(), valid, len(valid))
    said = of_data(valid, types.SimpleNamespace(kind=kind)).decode(batch.labels[batch.weights > 0])
    assert said == (TEXT[-9:] if kind == "characters" else TEXT.encode()[-10:].decode())
    wanted = len(said.encode()) / batch.weights.sum()
    assert valid.bytes_per_token == wanted
    assert (wanted == 1) == (kind == "bytes")
    assert open_dataset("copy", "valid", 3).bytes_per_token is None


@pytest.mark.parametrize("kind", ["characters", "bytes"])
def test_text_to_ids_and_back(text, kind):
    train = open_dataset(task(kind, text, 4), "train")
    reader = of_data(train, types.SimpleNamespace(kind=kind))
    assert reader.decode(reader.ids("not to be — 问")) == "not to be — 问"
    assert reader.ids(TEXT[:5]) == rows(train)[0].tolist()
    if kind == "characters":
        with pytest.raises(UserError, match="'Z' has no id: it is not in the training data"):
            reader.ids("aZ")


def test_a_count_takes_the_first(text):
    name = task("characters", text, 4)
    few, all_ = open_dataset(name, "train", 3), open_dataset(name, "train")
    np.testing.assert_array_equal(np.stack(rows(few)), np.stack(rows(all_)[:3]))
    with pytest.raises(UserError, match="99 examples: it must be a whole number from 1 to 37"):
        open_dataset(name, "train", 99)
    with pytest.raises(UserError, match="unknown split 'test'; known: train, valid"):
        open_dataset(name, "test")


def test_a_file_counts_by_what_it_holds(text, tmp_path):
    one = fingerprint(task("bytes", text, 4))
    (tmp_path / "same").write_bytes(TEXT.encode())
    assert fingerprint(task("bytes", tmp_path / "same", 4)) == one
    (tmp_path / "same").write_bytes(TEXT.encode()[:-1] + b"!")
    assert fingerprint(task("bytes", tmp_path / "same", 4)) != one
    assert fingerprint(task("bytes", text, 5)) != one


def test_a_file_is_opened_when_it_is_needed_and_read_once(text, monkeypatch):
    from tfm.data.formats import text as formats

    formats.characters(path="no/where", length=4)  # only the options are looked at
    reads = []
    real = np.fromfile
    monkeypatch.setattr(np, "fromfile", lambda *args: reads.append(1) or real(*args))
    for _ in range(3):
        fingerprint(task("bytes", text, 6))
        open_dataset(task("bytes", text, 7), "train")
    assert reads == [1]


def test_newlines_stay(tmp_path):
    (tmp_path / "dos").write_bytes(b"a\r\nb\rc\n" * 5)
    train = open_dataset(task("characters", tmp_path / "dos", 5), "train")
    assert of_data(train, None).decode(rows(train)[0]) == "a\r\nb\rc"


def test_where_files_are_found(text, tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    (here / "text.txt").write_text("z" * 30)
    monkeypatch.chdir(here)
    near = open_dataset(task("characters", text, 4), "train")  # as given comes first
    assert near.vocab == 1
    (here / "text.txt").unlink()
    assert open_dataset(task("characters", text, 4), "train").vocab > 1


def test_bad_files_are_named(text, tmp_path, monkeypatch):
    with pytest.raises(UserError) as e:
        open_dataset(task("characters", "tect.txt", 4), "train")
    for part in ("no file", os.getcwd(), str(tmp_path / "tect.txt"), "did you mean 'text.txt'"):
        assert part in str(e.value)
    assert f"TFM_DATA={tmp_path}" in str(e.value)
    monkeypatch.delenv("TFM_DATA")
    with pytest.raises(UserError, match="no file .*/no/where; set TFM_DATA to the folder that"):
        open_dataset(task("bytes", "no/where", 4), "train")
    with pytest.raises(UserError, match="bytes: .* is a folder: name a file in it"):
        open_dataset(task("bytes", tmp_path, 4), "train")
    with pytest.raises(UserError, match="data set 'bytes': path=3 must be str"):
        open_dataset("bytes(path=3, length=4)", "train")
    with pytest.raises(UserError, match="bytes: path='' must be the name of a file"):
        open_dataset("bytes(path='', length=4)", "train")
    with pytest.raises(UserError, match="data set 'bytes' needs path"):
        open_dataset("bytes(length=4)", "train")
    (tmp_path / "empty").touch()
    with pytest.raises(UserError, match="empty is empty"):
        open_dataset(task("bytes", tmp_path / "empty", 4), "train")
    (tmp_path / "latin").write_bytes("naïve".encode("latin-1") * 20)
    with pytest.raises(UserError, match="latin is not UTF-8 text: byte 2 is 0xef; write bytes"):
        open_dataset(task("characters", tmp_path / "latin", 4), "train")
    assert open_dataset(task("bytes", tmp_path / "latin", 4), "train").vocab == 256
    (tmp_path / "short").write_text("0123456789")
    with pytest.raises(UserError, match="length=8 is too much for .*: 8 of its 10 tokens are"):
        open_dataset(task("bytes", tmp_path / "short", 8, valid=0.2), "train")
    assert len(open_dataset(task("bytes", tmp_path / "short", 7, valid=0.2), "train")) == 1
    with pytest.raises(UserError, match="valid=0.1 leaves 1 of 10 tokens"):
        open_dataset(task("bytes", tmp_path / "short", 4), "train")
    for valid in (0, 1, -0.1, "'x'"):
        with pytest.raises(UserError, match="valid=.* must be (a number between 0 and 1|float)"):
            open_dataset(task("bytes", tmp_path / "short", 4, valid=valid), "train")


def test_tinyshakespeare():
    """1,115,394 characters, 65 of them different; nanoGPT trains on the first 1,003,854."""
    if "TFM_DATA" not in os.environ:
        pytest.skip("TFM_DATA, the folder of real data, is not set")
    path = "tinyshakespeare/input.txt"
    text = (pathlib.Path(os.environ["TFM_DATA"]) / path).read_bytes().decode()
    id_of = {c: i for i, c in enumerate(sorted(set(text)))}
    ids = np.array([id_of[c] for c in text])
    assert len(text) == 1_115_394
    train = open_dataset(task("characters", path, 64), "train")
    valid = open_dataset(task("characters", path, 64), "valid")
    assert train.vocab == valid.vocab == 65
    assert len(train) == 1_003_854 - 64
    last = train.take(np.array([len(train) - 1])).tokens.ids
    assert of_data(train, None).decode(last[-5:]) == text[1_003_849:1_003_854]
    scored_once(valid, ids[1_003_854:], 64)
    assert valid.bytes_per_token == 1
