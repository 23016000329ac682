"""Standard streams that are closed, full or of another encoding, and errors of the system."""

import io
import os
import pathlib
import subprocess
import sys
from unittest import mock

import jax
import pytest

from tfm.cli import main as cli

ROOT = pathlib.Path(__file__).parents[2]


def tfm(redirections, *argv, **env):
    """Runs a command with redirections of a shell."""
    command = f'exec "$0" -m tfm "$@" {redirections}'
    return subprocess.run(
        ["sh", "-c", command, sys.executable, *argv],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
    )


def test_a_full_disk_behind_the_output():
    done = tfm("> /dev/full", "--help")
    assert done.returncode == 2
    assert done.stderr.startswith(b"tfm: cannot read or write the output: No space left on device")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_streams(closed):
    done = tfm(closed, "--help")
    assert (done.returncode, done.stderr) == (0, b"")
    assert (b"verbs" in done.stdout) == (">&-" not in closed or closed == "2>&-")
    assert tfm(closed, "nobody").returncode == 2


def test_characters_that_the_output_lacks_are_escaped():
    """As JSON spells them, so that --json stays JSON."""
    done = tfm("", "--help", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"[--config.KEY=VALUE \u2026]" in done.stdout


@pytest.mark.parametrize("content", [b"\xff\xfea", b"a\x80"])
def test_text_that_is_not_utf8(content, tmp_path, capsys, monkeypatch):
    (tmp_path / "text").write_bytes(content)
    assert cli.main(["generate", str(tmp_path), f"--file={tmp_path}/text"]) == 2
    assert "text is not UTF-8" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content), "latin-1"))
    assert cli.main(["classify", str(tmp_path)]) == 2
    assert "standard input is not UTF-8" in capsys.readouterr().err
    text = os.fsdecode(content)  # how Python passes it on from the command line
    for argv in ([text], ["a", f"--second={text}"]):
        assert cli.main(["classify", str(tmp_path), *argv]) == 2
        assert "the text is not UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PermissionError(13, "Permission denied", "run/checkpoints"),
         "cannot read or write run/checkpoints: Permission denied"),
        (OSError(28, "No space left on device"), "the output: No space left on device"),
        (MemoryError("Unable to allocate 9 GiB"), "not enough memory: Unable to allocate 9 GiB"),
    ],
)  # fmt: skip
def test_errors_of_the_system_are_one_line(error, message, capsys, monkeypatch):
    monkeypatch.setattr(cli, "run", mock.Mock(side_effect=error))
    monkeypatch.delenv("TFM_TRACEBACK", raising=False)
    assert cli.main(["train"]) == 2
    text = capsys.readouterr().err
    assert message in text
    assert text.count("\n") == 1
    monkeypatch.setenv("TFM_TRACEBACK", "1")
    with pytest.raises(type(error)):
        cli.main(["train"])


def test_a_platform_that_is_not_there(capsys, monkeypatch):
    """JAX raises an AssertionError without a text if the plugin for CUDA is missing."""
    monkeypatch.setattr(cli, "run", mock.Mock(side_effect=AssertionError))
    with pytest.raises(AssertionError):  # an error of ours is not hidden
        cli.main(["describe"])
    monkeypatch.setattr(jax, "default_backend", mock.Mock(side_effect=AssertionError))
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    assert cli.main(["describe"]) == 2
    assert "tfm: JAX_PLATFORMS=cuda: JAX cannot use it here" in capsys.readouterr().err


def test_options_may_stand_before_a_text(tmp_path, capsys):
    for argv in (["--max_new=3", "a text"], ["a text", "--max_new=3"], ["--max_new=3", "--", "-a"]):
        assert cli.main(["generate", str(tmp_path / "nowhere"), *argv]) == 2
        assert "no file" in capsys.readouterr().err


def test_long_values_are_cut_in_messages(capsys):
    assert cli.main(["train", "--config=configs/tasks/recall.py", "--workdir=x", "9" * 9000]) == 2
    assert len(capsys.readouterr().err) < 3000
