"""Run folders of strangers: links out of them, FIFOs, huge files, deep JSON. Nothing hangs, nothing
outside of the folder is touched; and folders that change while a run writes to them."""

import dataclasses
import json
import os
import pathlib
import shutil
import signal

import jax
import numpy as np
import pytest
from jax import numpy as jnp

import tfm
from tests.helpers.runs import Silent, assert_same
from tfm import disk
from tfm.cli import main as cli
from tfm.config import files as config
from tfm.config.names import UserError
from tfm.data.tokenizers.published import of_run
from tfm.report import ls
from tfm.run import spec
from tfm.run.checkpoint import Checkpoints
from tfm.run.folder import Folder
from tfm.train import loop
from tfm.train.step import run_steps

SMALL = pathlib.Path(__file__).parent / "small.py"
SECRET = "of another program"
VARIABLES = {"variables": {"params": {"w": np.ones(3, np.float32)}}}


@pytest.fixture(scope="module")
def run():
    argv = [f"--config={SMALL}:recurrent", "--config.train.steps=12"]
    return spec.read(config.from_command_line(argv, spec.RunSpec))


@pytest.fixture(scope="module")
def whole(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    loop.train(run, str(folder), Silent())
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(autouse=True)
def deadline():
    """Fails a test that hangs."""

    def fail(*_):
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


NAMES = ("lock", "config.json", "data.json", "metrics.jsonl", "summary.json", "profile.json",
         "checkpoints", "checkpoints/12", "checkpoints/12/note/metadata", "tensorboard",
         ".config.json.PID", ".source.1")  # fmt: skip


def replace(path, kind, outside):
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(outside / (kind if "." not in path.name else "file"))


@pytest.mark.parametrize("kind", ["file", "folder", "fifo"])
@pytest.mark.parametrize("name", NAMES)
def test_links_out_of_the_folder_and_fifos_are_refused(name, kind, run, folder, tmp_path):
    outside = tmp_path / "outside"
    (outside / "folder").mkdir(parents=True)
    (outside / "file").write_text(SECRET)
    (outside / "folder" / "file").write_text(SECRET)
    replace(folder / name.replace("PID", str(os.getpid())), kind, outside)
    (listed,) = ls.runs(str(folder))
    assert listed.status in ("done", "damaged")
    with pytest.raises(UserError, match="(?s)run/.*(out of its folder|it is no file)"):
        loop.train(run, str(folder), Silent())
    assert (outside / "file").read_text() == SECRET
    assert [path.name for path in (outside / "folder").iterdir()] == ["file"]
    if name.startswith(("config", "checkpoints")):
        with pytest.raises(UserError, match="out of its folder|it is no file|Not a directory"):
            tfm.load(str(folder))
    if name == "data.json":
        with pytest.raises(UserError, match="out of its folder|it is no file"):
            of_run(str(folder)).files()


def test_the_command_of_the_report(folder, tmp_path, capsys):
    """A link for a lock made `tfm train` erase the file that it leads to."""
    (tmp_path / "thesis.tex").write_text(SECRET)
    (folder / "lock").unlink()
    (folder / "lock").symlink_to(tmp_path / "thesis.tex")
    assert cli.main(["train", f"--config={folder}/config.json", f"--workdir={folder}"]) == 2
    assert f"{folder}/lock" in capsys.readouterr().err
    assert (tmp_path / "thesis.tex").read_text() == SECRET


def test_links_inside_a_folder_are_followed(folder):
    (folder / "profile.json").rename(folder / "other.json")
    (folder / "profile.json").symlink_to("other.json")
    assert Folder(folder).summary() is not None
    disk.check_tree(folder)


@pytest.mark.parametrize("depth", [150, 900, 100_000])
@pytest.mark.parametrize("name", ["config.json", "data.json", "summary.json", "metrics.jsonl"])
def test_deep_json_is_named(depth, name, folder, capsys):
    (folder / name).write_text('{"a":' * depth + "1" + "}" * depth + "\n")
    for argv in (["eval", folder], ["generate", folder, "1 2"], ["ls", folder]):
        code = cli.main([str(arg) for arg in argv])
        out, errors = capsys.readouterr()
        assert code == 0 or "nested" in errors or "recursion" in errors
        assert argv[0] != "ls" or name == "data.json" or "damaged" in out
    for text in ("[" * 101 + "]" * 101, '{"a":' * 101 + "1" + "}" * 101):
        with pytest.raises(ValueError, match="more than 100 levels"):
            disk.parse_json(text)
    assert disk.parse_json("[" * 100 + "]" * 100)


def test_a_huge_file_is_not_read(folder):
    os.truncate(folder / "config.json", 1 << 40)  # sparse: it takes no room
    (listed,) = ls.runs(str(folder))
    assert "config.json cannot be read: it has more than 268,435,456 bytes" in listed.reason
    with pytest.raises(UserError, match="it has more than"):
        tfm.load(str(folder))


def test_of_run_notices_an_edited_tokenizer(tmp_path):
    text = json.dumps({"tokenizer": {"kind": "x"}})
    Folder(tmp_path).write("data.json", {"fingerprint": "", "vocab": 3, "vocabulary": text})
    path = tmp_path / "data.json"
    assert of_run(str(tmp_path)).files() == '{"kind": "x"}'
    path.write_text(path.read_text().replace("x", "y"))
    with pytest.raises(UserError, match="of_run: .*data.json was edited: its checksum differs"):
        of_run(str(tmp_path)).files()


def test_a_checkpoint_follows_its_folder(tmp_path):
    """What is at the old path by the time that the file is written belongs to someone else."""
    checkpoints = Checkpoints(tmp_path / "run")
    checkpoints.save(1, VARIABLES)
    for step in (2, 3):
        checkpoints.save(step, VARIABLES)
        if step == 2:
            (tmp_path / "run").rename(tmp_path / "moved")
            (tmp_path / "run" / "checkpoints" / "2").mkdir(parents=True)
            (tmp_path / "run" / "checkpoints" / "2" / "mine").write_text(SECRET)
            break
    with pytest.raises(UserError, match="run/checkpoints was removed or moved while"):
        checkpoints.wait()
    checkpoints.manager.wait_until_finished()
    inside = [path.name for path in (tmp_path / "run").rglob("*")]
    assert sorted(inside) == ["2", "checkpoints", "mine"]
    assert Checkpoints(tmp_path / "moved", read_only=True).manager.latest_step() == 2


@pytest.mark.parametrize("name", ["checkpoints", "metrics.jsonl"])
@pytest.mark.parametrize("last", [False, True])
def test_what_is_deleted_during_a_run_is_named(name, last, run, tmp_path):
    where = tmp_path / "run"

    class Thief(Silent):
        def line(self, line):
            if line["step"] == 12 and line["split"] == ("valid" if last else "train"):
                (where / name).rename(tmp_path / "gone")

    with pytest.raises(UserError, match=name):
        loop.train(run, str(where), Thief())
    assert not (where / "summary.json").exists()


def slow(run, most):
    """Steps that take a while. `most` collects the numbers of those that wait for the device."""
    (init, step, evaluate), waiting = run_steps(run), []

    @jax.jit
    def delay(count):
        x = jnp.full((300, 300), 1 / 300)
        x = jax.lax.fori_loop(0, 30, lambda _, x: x @ x, x + count * 0)
        return count + jnp.int32(jnp.where(x[0, 0] > 100, 1, 0))

    def slowly(state, batch, numbers):
        state = step(state, batch, numbers)
        state = state.replace(step=delay(state.step))
        waiting.append(jnp.copy(state.step))
        most.append(sum(not x.is_ready() for x in waiting))
        return state

    return init, slowly, evaluate


def test_few_steps_wait_for_the_device(run, whole, tmp_path, monkeypatch):
    """So a signal need not wait for many: a run stops within two steps and a save."""
    most = []
    monkeypatch.setattr(loop, "run_steps", lambda run: slow(run, most))
    every = dataclasses.replace(run.train, log_every=12, eval_every=None, save_every=None)
    loop.train(dataclasses.replace(run, train=every), str(tmp_path / "run"), Silent())
    assert max(most) <= 3
    loop.train(run, str(tmp_path / "same"), Silent())
    assert_same(tmp_path / "same", whole)


def test_a_run_is_saved_by_the_clock(run, tmp_path, monkeypatch):
    """With the same results as one that is saved only at its end."""
    train = dataclasses.replace(run.train, save_every=None, eval_every=None, keep=99)
    run = dataclasses.replace(run, train=train)
    loop.train(run, str(tmp_path / "rarely"), Silent())
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(loop, "SAVE_SHARE", 1e9)
    loop.train(run, str(tmp_path / "often"), Silent())
    steps = {name: sorted(int(p.name) for p in (tmp_path / name / "checkpoints").iterdir())
             for name in ("rarely", "often")}  # fmt: skip
    assert steps == {"rarely": [12], "often": list(range(1, 13))}
    assert_same(tmp_path / "rarely", tmp_path / "often")
    for name in ("often",):  # killed before step 8
        (tmp_path / name / "summary.json").unlink()
        for step in range(8, 13):
            shutil.rmtree(tmp_path / name / "checkpoints" / str(step))
    watcher = Silent()
    loop.train(run, str(tmp_path / "often"), watcher)
    assert "going on from step 7" in watcher.messages
    assert_same(tmp_path / "rarely", tmp_path / "often")


@pytest.mark.parametrize("name", ["12/variables/_METADATA", "12/note/metadata", "12"])
def test_a_huge_file_among_checkpoints_is_not_read(name, folder):
    path = folder / "checkpoints" / name
    if path.is_dir():
        shutil.rmtree(path)
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(UserError, match=f"{name}: it (has more than|is no folder)"):
        tfm.load(str(folder))
