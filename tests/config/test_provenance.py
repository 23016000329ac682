"""What an entry of a table is made of: edits that matter change its hash, others do not."""

import importlib
import sys
import textwrap

import numpy as np
import pytest

from tfm.config import files as config
from tfm.config import provenance
from tfm.config.names import UserError
from tfm.run.spec import read

FILE = '''
"""A file."""
import numpy as np
from jax import numpy as jnp
SCALE = 2.0
OTHER = 3.0
def helper(x):
    """Helps."""
    return SCALE * x
def mine(q, k):
    # a comment
    return jnp.dot(helper(q), k)
def theirs(q, k):
    return OTHER * q
SCORES = {"mine": Score(mine, params={"w_HK": np.ones}), "theirs": Score(theirs)}
'''


def digest(text):
    return provenance.entry_digest(text, "SCORES", "mine")


@pytest.mark.parametrize(
    "edit",
    [
        ("SCALE = 2.0", "SCALE = 2.5"),
        ("SCALE * x", "SCALE + x"),
        ("jnp.dot(helper(q), k)", "jnp.dot(k, helper(q))"),
        ("np.ones", "np.zeros"),
        ("import numpy as np", "import math as np"),
        ("OTHER = 3.0", "OTHER = 3.0\nSCALE = 1.0"),
        ("OTHER = 3.0", "OTHER = 3.0\nSCALE += 1.0"),
        ("def theirs", "mine.gain = 2\ndef theirs"),
        ("def theirs", "if OTHER:\n    def helper(x):\n        return x\ndef theirs"),
        ("def theirs", "try:\n    import torch as jnp\nexcept ImportError:\n    pass\ndef theirs"),
    ],
)
def test_what_it_draws_on_counts(edit):
    assert digest(FILE.replace(*edit)) != digest(FILE)


@pytest.mark.parametrize(
    "edit",
    [
        ("OTHER = 3.0", "OTHER = 4.0"),
        ("OTHER = 3.0", "OTHER, MORE = 4.0, 5.0"),
        ("OTHER * q", "q"),
        ("# a comment", "# another"),
        ('"""Helps."""', '"""Is of help."""'),
        ('"""A file."""', ""),
        ("def theirs", "\n\ndef theirs"),
    ],
)
def test_what_it_does_not_draw_on_does_not(edit):
    assert digest(FILE.replace(*edit)) == digest(FILE)


def test_of_a_table_that_is_computed_all_counts():
    for more in ("SCORES |= {}", "SCORES['mine'] = Score(theirs)"):
        computed = f"{FILE}{more}\n"
        assert digest(computed) != digest(computed.replace("OTHER = 3.0", "OTHER = 4.0"))


@pytest.mark.parametrize(
    ("lines", "edit"),
    [
        ("used = (SCALE := 5.0)", ("5.0", "6.0")),
        ("exec('SCALE = 5.0')", ("5.0", "6.0")),
        ("x = globals().update(SCALE=5.0)", ("5.0", "6.0")),
        ("import sys\nsetattr(sys.modules[__name__], 'SCALE', 5.0)", ("5.0", "6.0")),
        ("VALUE = 5.0\ndef change():\n    global SCALE\n    SCALE = VALUE\nx = change()",
         ("5.0", "6.0")),
        ("T = {}\nalias = T\nalias['x'] = 5.0\ndef helper(x):\n    return T", ("5.0", "6.0")),
        ("T = []\ndef helper(x):\n    return T\nVALUE = 5\n"
         "def register(f):\n    T.append(VALUE)\n    return f\n@register\ndef f(): ...",
         ("VALUE = 5", "VALUE = 6")),
        ("R = np.random.default_rng(0)\nA = R.normal(size=3)\nB = R.normal()\n"
         "def helper(x):\n    return B", ("size=3", "size=4")),
        ("T = {}\ndef fill(t, x):\n    t['x'] = x\nA = fill(T, 5)\ndef helper(x):\n    return T",
         ("fill(T, 5)", "fill(T, 6)")),
        ("def helper(x):\n    '''5.0'''\nW = float(helper.__doc__)\nhelper.w = W", ("5.0", "6.0")),
    ],
)  # fmt: skip
def test_names_that_change_by_other_means_are_not_lost(lines, edit):
    """Where what changes a name cannot be followed, the whole file counts."""
    text = FILE.replace("def mine", f"{lines}\ndef mine")
    assert digest(text) != digest(text.replace(*edit))


IDEA = """
    import numpy as np
    from ml_collections import ConfigDict
    from tfm.ops.scores import Score, dot
    {above}
    def mine(q, k, **at):
        {within}
        return dot(q, k) * SCALE
    def theirs(q, k, **at):
        return 2 * dot(q, k)
    SCORES = {{"mine": Score(mine), "theirs": Score(theirs)}}
    def get_config(score="mine"):
        return ConfigDict({{
            "objective": "next_token", "data": {{
                "dataset": "copy(length=3, vocab=8)", "examples": 4, "valid_examples": 4}},
            "model": {{"family": "decoder", "width": 8, "layers": 1, "max_length": 8,
                      "attention": {{"heads": 2, "score": score}}, "feedforward": {{"width": 8}}}},
            "train": {{"steps": 1}}}})
"""


@pytest.fixture
def study(tmp_path, own_tables, monkeypatch):
    """Writes a file with two scores; returns the digest of each after loading it."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    (tmp_path / "helping").mkdir()

    def digests(above="", within=""):
        text = textwrap.dedent(IDEA).format(above=above, within=within)
        (tmp_path / "idea.py").write_text(text)
        found = {}
        for name in ("mine", "theirs"):
            run = read(config.load(f"{tmp_path / 'idea.py'}:{name}").to_dict())
            found[name] = config.user_entries(run)[f"SCORES.{name}"].digest
        return found

    yield digests
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("helping", "beside"):
            del sys.modules[name]


MODULES = {
    "absolute": "from helping.hand import SCALE",
    "star": "from helping.hand import *",
    "attribute": "from helping import hand\nSCALE = hand.SCALE",
    "dotted": "import helping.hand\nSCALE = helping.hand.SCALE",
    "init": "from helping import SCALE",
    "relative": "from helping.relative import SCALE",
    "import_module": "import importlib\nSCALE = importlib.import_module('help' + 'ing.hand').SCALE",
    "dunder": "SCALE = __import__('helping.hand').hand.SCALE",
    "tried": "try:\n    import nowhere.at_all\nexcept ImportError:\n    from helping import SCALE",
    "preloaded": "from helping.hand import SCALE",
}


@pytest.mark.parametrize("how", MODULES)
def test_modules_of_ones_own_count(how, study, tmp_path):
    (tmp_path / "helping/__init__.py").write_text("from helping.hand import SCALE\n")
    (tmp_path / "helping/relative.py").write_text("from .hand import SCALE\n")
    hand = tmp_path / "helping/hand.py"
    found = []
    for scale in ("2.0", "2.0  # a comment", "3.0"):
        hand.write_text(f"SCALE = {scale}\n")
        if how == "preloaded":
            sys.modules.pop("helping.hand", None)
            importlib.import_module("helping.hand")
        found.append(study(MODULES[how]))
    assert found[0] == found[1]
    assert all(found[0][name] != found[2][name] for name in ("mine", "theirs"))


def test_a_module_that_is_edited_while_it_runs_is_hashed_as_it_was_run(study, tmp_path):
    hand = tmp_path / "helping/hand.py"
    above = f"from helping.hand import SCALE\nedit = open({str(hand)!r}, 'w').close()"
    (tmp_path / "idea.py").write_text(textwrap.dedent(IDEA).format(above=above, within=""))
    found = []
    for scale in (2.0, 3.0, 2.0):
        hand.write_text(f"SCALE = {scale}\n")
        config.run_file(tmp_path / "idea.py")
        assert hand.read_text() == ""
        found.append(config._added_by["SCORES", "mine"].digest("SCORES", "mine"))
    assert found[0] == found[2] != found[1]


def test_what_was_hashed_is_what_is_run_later(study, tmp_path):
    (tmp_path / "helping/__init__.py").write_text("SCALE = 2.0\n")
    study("from helping import SCALE")
    (tmp_path / "helping/__init__.py").write_text("SCALE = 3.0\n")
    assert importlib.import_module("helping").SCALE == 2.0


def test_a_file_that_is_edited_while_it_runs_is_hashed_as_it_was_run(study, tmp_path):
    above = "import pathlib\nSCALE = 2.0\nedit = pathlib.Path(__file__).write_text({!r})"
    text = textwrap.dedent(IDEA).format(above=above.format("SCALE = 3.0"), within="")
    (tmp_path / "idea.py").write_text(text)
    config.run_file(tmp_path / "idea.py")
    assert (tmp_path / "idea.py").read_text() == "SCALE = 3.0"
    file = config._added_by["SCORES", "mine"]
    assert file.text == text
    expected = provenance.hash_of(provenance.entry_digest(text, "SCORES", "mine"))
    assert file.digest("SCORES", "mine") == expected


READS = {
    "np.load": "SCALE = float(np.load('w.npy'))",
    "open": "with open('w.npy', 'rb') as f:\n    SCALE = float(np.load(f))",
    "path": "import pathlib\nSCALE = float(np.load(pathlib.Path(__file__).parent / 'w.npy'))",
    "exec": "import pathlib\nexec(pathlib.Path('code.txt').read_text())",
    "helper": "import beside\nSCALE = beside.SCALE",
    "run_path": "import runpy\nSCALE = runpy.run_path('code.txt')['SCALE']",
    "by_path": "import importlib.util as u\ns = u.spec_from_file_location('m', 'code.py')\n"
    "m = u.module_from_spec(s)\ns.loader.exec_module(m)\nSCALE = m.SCALE",
    "fromfile": "SCALE = np.fromfile('w.npy', np.uint8)[-1]",
}


@pytest.mark.parametrize("how", READS)
def test_files_that_are_read_count(how, study, tmp_path):
    (tmp_path / "beside.py").write_text("import numpy\nSCALE = float(numpy.load('w.npy'))\n")
    found = []
    for scale in (2.0, 2.0, 3.0):
        np.save(tmp_path / "w.npy", scale)
        np.save(tmp_path / "unused.npy", scale)
        for name in ("code.txt", "code.py"):
            (tmp_path / name).write_text(f"SCALE = {scale}")
        with np.errstate(all="ignore"):
            found.append(study(READS[how]))
    assert found[0] == found[1]
    assert all(found[0][name] != found[2][name] for name in ("mine", "theirs"))


def test_a_file_that_comes_to_exist_counts(study, tmp_path):
    above = "try:\n    SCALE = float(np.load('w.npy'))\nexcept FileNotFoundError:\n    SCALE = 1.0"
    first = study(above)
    np.save(tmp_path / "w.npy", 1.0)
    assert study(above) != first


def test_what_a_library_does_for_itself_does_not_count(study, tmp_path, monkeypatch):
    """Libraries read files and variables when they are first used in a process, and not again."""
    monkeypatch.setenv("HOME", str(tmp_path))
    one = study("import jax\nSCALE = float(jax.numpy.ones(3).sum())")
    monkeypatch.setenv("HOME", str(tmp_path / "other"))
    monkeypatch.setenv("JAX_TRACEBACK_FILTERING", "off")
    assert one == study("import jax\nSCALE = float(jax.numpy.ones(3).sum())")
    file = config._added_by["SCORES", "mine"]
    assert not file.files
    assert not file.modules


def test_one_process_has_one_module_of_a_name(study, tmp_path):
    (tmp_path / "helping/__init__.py").write_text("SCALE = 1.0\n")
    study("from helping import SCALE")
    other = (tmp_path / "idea.py").read_text().replace('"mine"', '"another"')
    (tmp_path / "other.py").write_text(other.replace('"theirs"', '"one_more"'))
    config.run_file(tmp_path / "other.py")
    (tmp_path / "helping/__init__.py").write_text("SCALE = 2.0\n")
    with pytest.raises(UserError, match="other.py imports helping .* use them in two processes"):
        config.run_file(tmp_path / "other.py")
    assert sys.modules["helping"].SCALE == 1.0
