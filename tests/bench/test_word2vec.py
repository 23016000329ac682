"""`tfm bench word2vec` measures both on the same text."""

import json

import numpy as np
import pytest

from tfm.cli import main as cli


@pytest.mark.ci
def test_both_are_timed(tmp_path, monkeypatch, capsys):
    pytest.importorskip("gensim", reason="needs the extra: pip install 'tfm[bench]'")
    monkeypatch.setenv("TFM_CACHE", str(tmp_path / "cache"))
    words = np.random.default_rng(0).integers(0, 300, (2000, 13)).astype(str)
    text = "\n".join(map(" ".join, words))
    for split in ("train", "valid"):
        (tmp_path / f"{split}.en").write_text(text)
    argv = [f"--config.{split}={tmp_path / split}.en" for split in ("train", "valid")]
    more = ["--config.cores=('one',)", "--config.rounds=2", "--config.seconds=0.2", "--json"]
    assert cli.main(["bench", "word2vec", *argv, *more]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    speeds = row["per_second"]
    assert row["cores"] == "one"
    assert min(speeds.values()) > 0
    assert row["ratio"][0] == pytest.approx(speeds["tfm"] / speeds["gensim"], rel=1)


def test_a_text_that_is_not_there(capsys):
    pytest.importorskip("gensim", reason="needs the extra: pip install 'tfm[bench]'")
    assert cli.main(["bench", "word2vec", "--config.train=nowhere.txt"]) == 2
    assert "nowhere.txt" in capsys.readouterr().err
