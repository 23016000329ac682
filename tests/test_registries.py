"""Every entry of every registry is exercised by a test of the first tier."""

import ast
import pathlib
import re

import pytest

from tests.check import test_check
from tests.helpers.cases import TABLES as ATTENTION
from tests.models import test_recurrent
from tests.optim import test_optimizer
from tests.train import test_objectives, test_resume
from tfm.config import registries
from tfm.models.spec import FAMILIES

TABLES = {**registries.TABLES, "FAMILIES": FAMILIES}
HERE = pathlib.Path(__file__).parent


def in_first_tier(test):
    """Yields the words in the arguments that a test is parametrized with, without those for CI."""
    for mark in getattr(test, "pytestmark", []):
        assert mark.name != "ci", f"{test.__name__} runs in CI only"
        if mark.name == "parametrize":
            for case in mark.args[1]:
                if not any(m.name == "ci" for m in getattr(case, "marks", ())):
                    yield from re.findall(r"\w+", str(getattr(case, "values", case)))


def in_strings(folder):
    """Yields the words in the strings of a folder's tests, without those of tests for CI."""
    for path in (HERE / folder).rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in tree.body:
            marks = [ast.unparse(d) for d in getattr(node, "decorator_list", [])]
            if "pytest.mark.ci" not in marks:
                for leaf in ast.walk(node):
                    if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str):
                        yield from re.findall(r"\w+", leaf.value)


CHECKED = {
    table: lambda: in_first_tier(test_check.test_built_in_entries_pass)
    for table in test_check.entries.CHECKS
}
COVERED = {
    **CHECKED,
    "MASKS": lambda: ATTENTION["mask"],  # against the definition, as some need arrays
    "JOINS": lambda: in_strings("layers"),
    "CELLS": lambda: in_first_tier(
        test_recurrent.test_bfloat16_computes_in_bfloat16_with_float32_parameters
    ),
    "DATASETS": lambda: in_strings("data"),
    "TOKENIZERS": lambda: in_strings("data"),
    "OBJECTIVES": lambda: [
        *in_first_tier(test_resume.test_a_resumed_run_gives_the_same_bits),
        *in_first_tier(test_objectives.test_two_steps),
    ],
    "FAMILIES": lambda: in_first_tier(test_resume.test_a_resumed_run_gives_the_same_bits),
    "OPTIMIZERS": lambda: [
        *in_first_tier(test_optimizer.test_as_optax_does),
        *in_first_tier(test_optimizer.test_scanned_and_unrolled_layers_move_alike),
    ],
    "SCHEDULES": lambda: in_strings("optim"),
    "EVALUATORS": lambda: in_strings("evaluate"),
}


@pytest.mark.parametrize("table", TABLES)
def test_every_entry_is_in_the_first_tier(table):
    assert set(TABLES[table]) <= set(COVERED[table]())
