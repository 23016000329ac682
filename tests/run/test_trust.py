"""A run keeps a copy of its own code and is read from that; no code is run without trust."""

import json
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

import tfm
from tests.conftest import tables_of_its_own
from tfm.cli import main as cli
from tfm.config import files as config
from tfm.config import provenance
from tfm.config.names import UserError
from tfm.run.evaluation import evaluate
from tfm.run.folder import Folder
from tfm.run.spec import read
from tfm.train import loop

STUDY = """
import importlib
import pathlib

import numpy as np
from ml_collections import ConfigDict

from helping import inner
from tfm.ops.scores import Score, dot

HERE = pathlib.Path(__file__).parent
dynamic = importlib.import_module("helping." + "dynamic")
WEIGHT = float(np.load(HERE / "weights" / "w.npy"))
SHIFT = float(np.load(HERE / "shift.npy"))


def mine(q, k, **at):
    return dot(q, k) * inner.SCALE + SHIFT + dynamic.shift()


SCORES = {"mine": Score(mine)}


def get_config():
    return ConfigDict({
        "objective": "next_token",
        "model": {"family": "decoder", "width": 8, "layers": 1, "max_length": 16,
                  "attention": {"heads": 2, "score": "mine"}, "feedforward": {"width": 8}},
        "data": {"dataset": "copy(length=4, vocab=8)", "examples": 50, "valid_examples": 20,
                 "batch": 10, "eval_batch": 20},
        "train": {"steps": 4, "log_every": 2, "save_every": 2},
    })
"""
MODULES = {
    "__init__.py": "",
    "inner.py": "from .deeper import SCALE\n",
    "deeper.py": "SCALE = 0.5\n",
    "dynamic.py": "shift = lambda: 0.25\n",
}


class Quiet:
    def __init__(self):
        self.lines = []

    def line(self, line):
        self.lines.append(line)

    def message(self, text):
        pass


class Stop(Quiet):
    """Ends a run at its second line, as a kill would."""

    def line(self, line):
        super().line(line)
        if line["step"] == 4:
            raise KeyboardInterrupt


def write_study(root):
    (root / "study/weights").mkdir(parents=True)
    (root / "study/idea.py").write_text(STUDY)
    np.save(root / "study/weights/w.npy", 1.5)
    np.save(root / "study/shift.npy", 0.125)
    (root / "lib/helping").mkdir(parents=True)
    for name, text in MODULES.items():
        (root / "lib/helping" / name).write_text(text)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a study that is gone, of a run that was finished, and of one that was not."""
    root = tmp_path_factory.mktemp("trained")
    write_study(root)
    with isolated(), pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(root / "lib")
        run = read(config.load(str(root / "study/idea.py")).to_dict())
        with pytest.raises(KeyboardInterrupt):
            loop.train(run, str(root / "begun"), Stop())
        loop.train(run, str(root / "run"), Quiet())
    shutil.move(root / "study", root / "kept")
    shutil.move(root / "lib", root / "kept/lib")
    return root


class isolated:  # noqa: N801
    """Acts like a new process: no user file was loaded, none of its modules imported."""

    def __enter__(self):
        self.tables = tables_of_its_own()
        self.tables.__enter__()

    def __exit__(self, *error):
        for name in [name for name in sys.modules if name.partition(".")[0] == "helping"]:
            del sys.modules[name]
        self.tables.__exit__(*error)


@pytest.fixture
def run(trained, tmp_path):
    """A copy of the finished run."""
    shutil.copytree(trained / "run", tmp_path / "run")
    with isolated():
        yield tmp_path / "run"


def test_a_run_is_evaluated_after_its_study_was_deleted(trained, run):
    assert not (trained / "study").exists()
    assert not (trained / "lib").exists()
    found, _ = evaluate(str(run), trust=True)
    summary = json.loads((run / "summary.json").read_text())
    np.testing.assert_allclose(found["loss"], summary["valid"]["loss"], rtol=1e-6)
    modules = config._added_by["SCORES", "mine"].modules
    assert {name for name in modules if name.startswith("helping")} == {
        "helping", "helping.inner", "helping.deeper", "helping.dynamic"
    }  # fmt: skip
    assert all(module.path.startswith(str(run)) for module in modules.values())


def test_the_folder_says_what_it_holds(trained, run):
    ((name, copy, _, original),) = json.loads((run / "config.json").read_text())["entries"]
    assert name == "SCORES.mine"
    assert (run / copy).read_text() == STUDY
    assert original == str(trained / "study/idea.py")
    files = {path.name for path in (run / "source").rglob("*") if path.is_file()}
    assert files == {"idea.py", "w.npy", "shift.npy", "index.json", *MODULES}


def test_no_code_is_run_unasked(run, capsys):
    code = run / json.loads((run / "config.json").read_text())["entries"][0][1]
    bomb = "raise SystemExit('it was run')"
    code.write_text(bomb)
    calls = [
        lambda: tfm.load(str(run)),
        lambda: evaluate(str(run)),
    ]
    for call in calls:
        with pytest.raises(UserError, match=rf"{code}.*--trust \(in Python, trust=True\)"):
            call()
    for argv in (
        ["eval", str(run)],
        ["export", str(run), str(run / "hf")],
        ["describe", f"--config={run}/config.json"],
        ["train", f"--config={run}/config.json", f"--workdir={run}"],
    ):
        assert cli.main(argv) == 2
        error = capsys.readouterr().err
        assert str(code) in error
        assert "helping/inner.py" in error
        assert "--trust" in error
    with pytest.raises(UserError, match="idea.py was edited since the run began"):
        tfm.load(str(run), trust=True)  # nor then, if it is not what the run began with
    assert cli.main(["eval", str(run), "--trust"]) == 2


def test_runs_without_code_need_no_trust(run, capsys):
    tree = json.loads((run / "config.json").read_text())
    tree["model"]["attention"]["score"], tree["entries"] = "scaled_dot", []
    Folder(run).write("config.json", tree)
    assert cli.main(["describe", f"--config={run}/config.json"]) == 0
    assert tfm.load(str(run)).run.model.attention.score == "scaled_dot"


@pytest.mark.parametrize(
    "place",
    [
        *("../outside.py", "{outside}", "source/link.py", "source/../x.py"),
        *("source/0", "source/loop.py", "a\0b", "x" * 999, 3, None),
    ],
)
def test_code_outside_of_the_folder_is_never_run(place, run, tmp_path):
    outside = tmp_path / "outside.py"
    outside.write_text("raise SystemExit('it was run')")
    (run / "x.py").write_text(outside.read_text())
    (run / "source/link.py").symlink_to(outside)
    (run / "source/loop.py").symlink_to(run / "source/loop.py")
    tree = json.loads((run / "config.json").read_text())
    tree["entries"][0][1] = place.format(outside=outside) if isinstance(place, str) else place
    Folder(run).write("config.json", tree)
    for trust in (False, True):
        with pytest.raises(
            UserError, match="is not in its folder source/|is missing|cannot be read"
        ):
            tfm.load(str(run), trust=trust)


@pytest.mark.parametrize("kind", ["files", "modules"])
def test_an_index_names_only_files_of_its_folder(kind, run, tmp_path):
    (tmp_path / "outside.py").write_text("raise SystemExit('it was run')")
    path = run / "source/index.json"
    index = json.loads(path.read_text())
    value = ["x", provenance.hash_file(str(tmp_path / "outside.py"))]
    index[kind] |= {"../../outside.py": value} if kind == "files" else {
        "helping.inner": "../../outside.py"
    }  # fmt: skip
    path.write_text(json.dumps(index))
    with pytest.raises(UserError, match="is not in its folder source/"):
        tfm.load(str(run), trust=True)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"files": 3}', '{"files": {"0/idea.py": 1}}'])
def test_a_damaged_index_is_named(text, run):
    (run / "source/index.json").write_text(text)
    with pytest.raises(UserError, match="index.json is damaged"):
        tfm.load(str(run), trust=True)


@pytest.mark.parametrize(
    "entries",
    [
        *(3, "x", [3], [["SCORES.mine"]], {"a": 1}),
        *([[name, "source/index.json", "", ""]] for name in (1, "mine", "TABLE.mine")),
    ],
)
def test_damaged_entries_are_named(entries, run):
    tree = json.loads((run / "config.json").read_text())
    Folder(run).write("config.json", {**tree, "entries": entries})
    with pytest.raises(UserError, match="config.json: its 'entries' are damaged"):
        tfm.load(str(run), trust=True)


def test_a_run_goes_on_from_its_copy(trained, tmp_path):
    """With the study gone, it ends as the one that was not interrupted."""
    shutil.copytree(trained / "begun", tmp_path / "begun")
    argv = ["train", f"--config={tmp_path}/begun/config.json", f"--workdir={tmp_path}/begun"]
    with isolated():
        assert cli.main([*argv, "--quiet", "--trust"]) == 0
    one, other = (path / "summary.json" for path in (trained / "run", tmp_path / "begun"))
    assert one.read_text() == other.read_text()


def test_a_run_goes_on_from_its_study_wherever_that_is_now(trained, tmp_path, monkeypatch):
    shutil.copytree(trained / "begun", tmp_path / "begun")
    shutil.copytree(trained / "kept", tmp_path / "moved")
    monkeypatch.syspath_prepend(tmp_path / "moved/lib")
    with isolated():
        moved = read(config.load(str(tmp_path / "moved/idea.py")).to_dict())
        summary = loop.train(moved, str(tmp_path / "begun"), Quiet())
    assert summary == Folder(trained / "run").read("summary.json")


def test_a_new_run_from_a_copy_has_its_own(trained, run, tmp_path):
    """A copy of a copy knows the original, and gives the same digest."""
    tree = config.load(str(run / "config.json"), trust=True).to_dict()
    entries = config.copy_source(read(tree), tmp_path / "run")
    known = json.loads((trained / "run/config.json").read_text())["entries"]
    assert [entry[3] for entry in entries] == [str(trained / "study/idea.py")]
    assert entries[0][2] == known[0][2]


def test_two_versions_of_an_idea_do_not_mix(run, tmp_path, trained):
    """Equal ones share, different ones are refused with what to do."""
    shutil.copytree(run, tmp_path / "same")
    tfm.load(str(run), trust=True)
    tfm.load(str(tmp_path / "same"), trust=True)
    for name, old, new in (
        ("0/idea.py", "dot(q, k) *", "dot(q, k) /"),
        ("1/helping/deeper.py", "0.5", "0.75"),
    ):
        other = tmp_path / name.replace("/", "_")
        shutil.copytree(run, other)
        names = {path.name: path for path in (other / "source").rglob("*.py")}
        path = names[pathlib.Path(name).name]
        path.write_text(path.read_text().replace(old, new))
        index = json.loads((other / "source/index.json").read_text())
        place = path.relative_to(other / "source").as_posix()
        index["files"][place][1] = provenance.hash_file(str(path))
        (other / "source/index.json").write_text(json.dumps(index))
        with pytest.raises(UserError, match="use them in two processes"):
            tfm.load(str(other), trust=True)
    assert config.TABLES["SCORES"]["mine"] is not None


def test_files_that_code_finds_by_the_working_folder_must_be_as_they_were(tmp_path, monkeypatch):
    """Their copy is of no use to the code, so it is said when they have changed."""
    np.save(tmp_path / "w.npy", 1.0)
    get_config = STUDY[STUDY.index("def get_config") :]
    (tmp_path / "idea.py").write_text(
        "import numpy as np\nfrom ml_collections import ConfigDict\n"
        "from tfm.ops.scores import Score, dot\nW = float(np.load('w.npy'))\n"
        f"SCORES = {{'mine': Score(lambda q, k, **at: W * dot(q, k))}}\n{get_config}"
    )
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    run.mkdir()
    with isolated():
        spec = read(config.load("idea.py").to_dict())
        entries = config.copy_source(spec, run)
    (run / "config.json").write_text(json.dumps({"entries": entries}))
    with isolated():
        config.load(str(run / "config.json"), trust=True)
    np.save(tmp_path / "w.npy", 2.0)
    with (
        isolated(),
        pytest.raises(UserError, match="w.npy, which the code .* has changed .* __file__ opens"),
    ):
        config.load(str(run / "config.json"), trust=True)


def test_another_process_reads_a_run_whose_study_is_gone(run):
    argv = [sys.executable, "-m", "tfm", "eval", str(run)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--trust" in done.stderr
    done = subprocess.run([*argv, "--trust"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    summary = json.loads((run / "summary.json").read_text())
    np.testing.assert_allclose(json.loads(done.stdout)["loss"], summary["valid"]["loss"], rtol=1e-6)
