"""Checks the README and the chapters: examples run, links exist, tables are complete."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent
CHAPTERS = sorted(
    path
    for path in [*ROOT.glob("*.md"), *ROOT.glob("*/**/README.md"), *ROOT.glob("*/README.md")]
    if not {".venv", ".git"} & set(path.parts)
)
README = (ROOT / "README.md").read_text()


def blocks(text, kind):
    return re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL)


def test_the_readme_is_a_front_page():
    assert len(README.splitlines()) <= 150


def test_ci_runs_the_readmes_test_command():
    (command,) = (block.strip() for block in blocks(README, "") if "pytest" in block)
    assert command in (ROOT / ".ci/run").read_text().splitlines()


def test_the_examples_of_the_readme_run(monkeypatch):
    monkeypatch.chdir(ROOT)
    namespace = {"__name__": "readme"}
    for block in blocks(README, "python"):
        exec(block, namespace)
    assert namespace["get_config"]().model.attention.score == "near"
    assert len(list(namespace["sweep"]())) == 20


def test_the_examples_of_the_chapters_run():
    namespace = {"__name__": "chapters"}
    for name in ("ops", "data", ""):
        for block in blocks((ROOT / "tfm" / name / "README.md").read_text(), "python"):
            exec(block, namespace)
    assert namespace["weights"].shape == (1, 8, 9, 9)
    assert namespace["params"]["params"]["score_w_HK"].shape == (8, 64)
    assert namespace["logits"].shape == (1, 1, 256)


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files(path):
    for link in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        if not link.startswith("http"):
            assert (path.parent / link).exists(), link


@pytest.mark.parametrize("table", ["score", "normalizer", "position", "implementation"])
def test_the_table_of_choices_is_complete(table):
    from tfm.ops.attend import IMPLEMENTATIONS
    from tfm.ops.normalizers import NORMALIZERS
    from tfm.ops.positions import POSITIONS
    from tfm.ops.scores import SCORES

    registry = {
        "score": SCORES,
        "normalizer": NORMALIZERS,
        "position": POSITIONS,
        "implementation": IMPLEMENTATIONS,
    }[table]
    text = (ROOT / "tfm/ops/README.md").read_text()
    (row,) = re.findall(rf"^\| {table} \| (.*) \|$", text, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", row)) == set(registry)
