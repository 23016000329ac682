"""A model that others trained writes the text that its author's own program prints."""

import os
import pathlib

import pytest

from tfm.cli import main as cli
from tfm.interop.folder import import_folder

pytestmark = pytest.mark.ci

FOLDER = pathlib.Path(os.environ.get("TFM_DATA", "nowhere"), "stories260K")


@pytest.mark.skipif(not FOLDER.exists(), reason="needs TFM_DATA: stories260K")
def test_generate_prints_its_authors_text(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TFM_CACHE", str(tmp_path / "cache"))
    import_folder(str(FOLDER), str(tmp_path / "run"))
    assert cli.main(["generate", str(tmp_path / "run"), "--start", "--max_new=256"]) == 0
    assert capsys.readouterr().out == (FOLDER / "greedy.txt").read_text()
