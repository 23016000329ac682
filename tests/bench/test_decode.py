"""`tfm bench decode` measures both with the same weights."""

import json
import os
import pathlib

import pytest

from tfm.cli import main as cli

FOLDER = pathlib.Path(os.environ.get("TFM_DATA", "nowhere"), "stories260K")


@pytest.mark.ci
@pytest.mark.skipif(not FOLDER.exists(), reason="needs TFM_DATA: stories260K")
def test_both_are_timed(capsys):
    pytest.importorskip("transformers", reason="needs the extra: pip install 'tfm[parity]'")
    argv = ["--config.cases=('batch 1',)", "--config.new=8", "--config.rounds=2"]
    assert cli.main(["bench", "decode", *argv, "--config.seconds=0.1", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["case"] == "batch 1"
    assert row["per_second"]["tfm"] > 0
    assert row["per_second"]["transformers"] > 0
    assert row["ratio"][0] == pytest.approx(
        row["per_second"]["tfm"] / row["per_second"]["transformers"], rel=1
    )


def test_a_folder_that_is_not_there(capsys):
    pytest.importorskip("transformers", reason="needs the extra: pip install 'tfm[parity]'")
    assert cli.main(["bench", "decode", "--config.folder=nowhere"]) == 2
    assert "--config.folder=nowhere: no such Hugging Face folder" in capsys.readouterr().err
