"""The input side, measured: what is counted is what the batches hold."""

import json

import numpy as np
import pytest

from tfm.bench import data


def test_every_case_is_measured(monkeypatch, capsys):
    small = {"width": 8, "layers": 1, "attention": {"heads": 2}, "feedforward": {"width": 8}}
    for name, case in data.CASES.items():
        model = {**case["model"], **(small if name != "skip_gram" else {"width": 8})}
        monkeypatch.setitem(data.CASES, name, {**case, "model": model})
    more = ["--config.sentences=300", "--config.steps=2", "--config.rounds=2", "--json"]
    data.main(["--config.cases=('windows', 'skip_gram')", *more])
    windows, skip_gram = json.loads(capsys.readouterr().out)
    assert (windows["case"], skip_gram["case"]) == ("windows", "skip_gram")
    assert windows["padding"] == 0
    assert windows["tokens_per_second"] == pytest.approx(64 * windows["rows_per_second"])
    assert windows["rows_per_second"] == pytest.approx(64 / windows["batch_ms"] * 1e3)
    for row in (windows, skip_gram):
        low, high = row["ratio"][1:]
        assert low <= row["ratio"][0] <= high
        assert row["step_ms"] > 0


def test_the_text_is_zipfs(tmp_path):
    data.write_text(tmp_path, 2000, words=1000)
    lines = [(tmp_path / f"train.{side}").read_text().splitlines() for side in ("en", "fr")]
    assert [len(side) for side in lines] == [2000, 2000]
    lengths = np.array([[len(line.split()) for line in side] for side in lines])
    assert np.abs(lengths[0] - lengths[1]).max() <= 4
    _, counts = np.unique(" ".join(lines[0]).split(), return_counts=True)
    first, tenth = np.sort(counts)[::-1][[0, 9]]
    assert 7 < first / tenth < 13  # 10 by Zipf's law
