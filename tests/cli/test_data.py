"""`tfm data`: the cache, and the data of a config as its model sees them."""

import json

import pytest

from tfm.cli import main as cli

CONFIG = """
from ml_collections import ConfigDict

def get_config():
    return ConfigDict({
        "objective": "classify",
        "model": {"family": "recurrent", "cell": "rnn", "width": 4, "hidden": 4},
        "data": {
            "dataset": "table(train='a.tsv', valid='b.tsv', text='s', label='l')",
            "tests": ("table(test='b.tsv', text='s', label='l')",),
            "tokenizer": "words",
            "max_length": 3,
        },
        "train": {"steps": 2, "log_every": 1},
    })
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TFM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.tsv").write_text("s\tl\na very good film\tup\nbad\tdown\na film\tup\ngood\tup\n")
    (tmp_path / "b.tsv").write_text("s\tl\na strange film\tdown\n")
    (tmp_path / "config.py").write_text(CONFIG)
    return tmp_path


def said(capsys, *argv):
    assert cli.main(["data", *argv]) == 0
    return capsys.readouterr().out


def test_a_description(capsys):
    text = said(capsys, "--config=config.py", "--rows=2")
    train, valid, test = text.split("table(")[1:]
    for part in (
        "examples   4, labels",
        "at most 3",
        "labels     up 75.0%, down 25.0%",
        "1 rows truncated to data.max_length=3; 1 tokens lost",
        "example 0  tokens_BT: a very good\n             labels: up",
        "example 1  tokens_BT: bad\n             labels: down",
    ):
        assert part in train
    assert "unknown    33.33% of the tokens" in valid
    assert "tokens_BT: a <unk> film" in valid
    assert "tokens_BT: a <unk> film\n             labels: down" in test


def test_the_cache_is_listed_verified_and_cleared(capsys, folder):
    assert "0 entries" in said(capsys)
    said(capsys, "--config=config.py")
    listed = said(capsys)
    assert "words" in listed
    assert "valid" in listed
    assert "0 damaged" in said(capsys, "--verify")
    metas = [json.loads(p.read_text()) for p in (folder / "cache").glob("data/*/meta.json")]
    tokens = next(meta for meta in metas if meta["about"].get("split") == "train")
    path = folder / "cache" / "data" / tokens["key"] / "tokens"
    path.write_bytes(path.read_bytes()[::-1])
    assert cli.main(["data", "--verify"]) == 2
    assert "1 damaged" in capsys.readouterr().out
    said(capsys, "--config=config.py")  # it is built again
    assert "0 damaged" in said(capsys, "--verify")
    said(capsys, f"--clear={tokens['key'][:12]}")
    assert not path.exists()
    assert cli.main(["data", "--clear=zzz"]) == 2
    assert "no key begins with it" in capsys.readouterr().err
    assert "MB freed" in said(capsys, "--clear=all")
    assert "0 entries" in said(capsys)
    assert cli.main(["data", "--clear=all", "--config=config.py"]) == 2
