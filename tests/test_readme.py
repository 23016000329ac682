"""What the README says can be run, runs."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(kind):
    return re.findall(rf"```{kind}\n(.*?)```", README, re.DOTALL)


def test_ci_runs_the_readmes_test_command():
    (command,) = (block.strip() for block in blocks("") if "pytest" in block)
    assert command in (ROOT / ".ci/run").read_text().splitlines()


def test_the_examples_run():
    namespace = {"__name__": "readme"}
    for block in blocks("python"):
        exec(block, namespace)
    assert namespace["weights"].shape == (1, 8, 9, 9)
    assert len(list(namespace["sweep"]())) == 20
    assert namespace["get_config"]().scores == ("scaled_dot", "near")
    assert namespace["params"]["params"]["score_w_HK"].shape == (8, 64)


@pytest.mark.parametrize("table", ["score", "normaliser", "position", "implementation"])
def test_the_table_of_choices_is_complete(table):
    from tfm.ops.attend import IMPLEMENTATIONS
    from tfm.ops.normalizers import NORMALIZERS
    from tfm.ops.positions import POSITIONS
    from tfm.ops.scores import SCORES

    known = {
        "score": SCORES,
        "normaliser": NORMALIZERS,
        "position": POSITIONS,
        "implementation": IMPLEMENTATIONS,
    }[table]
    (row,) = re.findall(rf"^\| {table} \| (.*) \|$", README, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", row)) == set(known)
