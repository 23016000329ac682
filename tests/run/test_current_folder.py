"""Nothing in the current folder is run: no modules, and no programs that its settings name."""

import os
import pathlib
import subprocess
import sys

import pytest

from tfm.run import identity
from tfm.sweep import launch

ROOT = pathlib.Path(__file__).parents[2]
MODULES = ("threading", "typing", "hashlib", "secrets", "multiprocessing", "argparse", "ast")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A current folder with modules that end the process which imports them."""
    for name in MODULES:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a module was run')")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_workers_do_not_import_from_it(folder, tmp_path_factory, monkeypatch):
    monkeypatch.setattr(launch, "work", print)  # no need to load JAX
    pool = launch._Pool(tmp_path_factory.mktemp("sweep"), 1)
    process = pool.worker(0).process
    process.join(60)
    assert process.exitcode == 0
    assert "PYTHONSAFEPATH" not in os.environ


def test_python_m_does_not_import_from_it(folder):
    done = subprocess.run(
        [sys.executable, "-m", "tfm", "--help"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "verbs" in done.stdout


def test_git_runs_no_program_of_it(tmp_path, monkeypatch):
    """`git describe --dirty` there obeys core.fsmonitor and the filters of attributes."""
    monkeypatch.chdir(tmp_path)
    spy = f"touch {tmp_path}/was_run; cat"
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@y"]
    (tmp_path / ".gitattributes").write_text("* filter=spy\n")
    (tmp_path / "file").write_text("one")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], check=True)
    for key in ("core.fsmonitor", "filter.spy.clean", "filter.spy.smudge"):
        subprocess.run(["git", "config", key, spy], check=True)
    (tmp_path / "file").write_text("two")  # of the same size: git reads it to compare
    identity._commit.cache_clear()
    commit = identity._commit()
    assert not (tmp_path / "was_run").exists()
    if (ROOT / ".git").exists():
        head = subprocess.run(
            ["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True
        )
        assert commit.rstrip("+") == head.stdout.strip()
    else:
        assert commit is None
