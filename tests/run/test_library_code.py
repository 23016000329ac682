"""Which code of the library a run reaches: an entry that it does not name makes nothing stale."""

import pytest

from tfm.objectives.table import OBJECTIVES
from tfm.ops.scores import SCORES
from tfm.run import library_code
from tfm.run.library_code import reached, symbol_of

SCORES_AT = ("tfm.ops.scores", "SCORES")


def text(names):
    return {module: "\n".join(parts) for module, parts in reached(names).items()}


def test_of_a_table_only_the_named_entries_are_reached():
    found = text({SCORES_AT: ["additive"]})
    assert "def additive" in found["tfm.ops.scores"]
    assert "def bilinear" not in found["tfm.ops.scores"]
    assert "def bilinear" in text({SCORES_AT: ["additive", "bilinear"]})["tfm.ops.scores"]
    assert "def bilinear" in text({})["tfm.ops.scores"]  # who says nothing gets all


def test_a_table_that_unpacks_others_passes_its_names_on():
    found = text({("tfm.data.datasets", "DATASETS"): ["parity"]})
    assert "def parity" in found["tfm.data.synthetic"]
    assert "def recall" not in found["tfm.data.synthetic"]
    assert "def dyck" not in found.get("tfm.data.nested", "")


def test_a_family_leaves_the_others_out():
    names = {("tfm.models.spec", "FAMILIES"): ["decoder"]}
    found = text(names)
    assert "class Decoder" in found["tfm.models.decoder"]
    assert "tfm.models.word2vec" not in found


def test_what_decides_numbers_is_reached_and_what_prints_is_not():
    found = text({})
    for name in (
        "train.step",
        "optim.optimizer",
        "describe.flops",
        "layers.block",
        "ops.blockwise",
    ):
        assert f"tfm.{name}" in found
    for name in (
        "cli.main",
        "cli.train",
        "report.results",
        "interop.convert",
        "terminal",
        "train.board",
    ):
        assert f"tfm.{name}" not in found
    assert "class _Training" in found["tfm.train.loop"]


def test_tables_are_found_by_what_they_are():
    assert symbol_of(SCORES) == SCORES_AT
    assert symbol_of(OBJECTIVES) == ("tfm.objectives.table", "OBJECTIVES")
    assert symbol_of({}) is None


@pytest.mark.parametrize(
    ("old", "new", "stale"),
    [
        (
            '"additive": Score(additive',
            '"more": Score(additive), "additive": Score(additive',
            False,
        ),
        ("def bilinear(", "def bilinear_too(", False),
        ("def additive(", "def another():\n    pass\n\n\ndef additive(", False),
        ("jnp.tanh(", "jnp.sin(", True),
    ],
)
def test_an_edit_counts_if_it_is_reached(monkeypatch, tmp_path, old, new, stale):
    path = library_code.ROOT / "ops" / "scores.py"
    assert old in path.read_text()
    names = {SCORES_AT: ["additive"]}
    before = reached(names)
    copy = tmp_path / "scores.py"
    copy.write_text(path.read_text().replace(old, new))
    paths = library_code._paths() | {"tfm.ops.scores": copy}
    monkeypatch.setattr(library_code, "_paths", lambda: paths)
    library_code._module.cache_clear()
    after = reached(names)
    library_code._module.cache_clear()
    assert (before != after) == stale
