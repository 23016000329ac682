"""What an entry of a table is made of: edits that matter change its hash, others do not."""

import sys

import pytest

from tfm import origin

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


@pytest.fixture
def digest(tmp_path):
    def digest(text):
        (tmp_path / "file.py").write_text(text)
        return origin.digest((tmp_path / "file.py").read_text(), "SCORES", "mine")

    return digest


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
def test_what_it_draws_on_counts(edit, digest):
    assert digest(FILE.replace(*edit)) != digest(FILE)


@pytest.mark.parametrize(
    "edit",
    [
        ("OTHER = 3.0", "OTHER = 4.0"),
        ("OTHER * q", "q"),
        ("# a comment", "# another"),
        ('"""Helps."""', '"""Is of help."""'),
        ('"""A file."""', ""),
        ("def theirs", "\n\ndef theirs"),
    ],
)
def test_what_it_does_not_draw_on_does_not(edit, digest):
    assert digest(FILE.replace(*edit)) == digest(FILE)


@pytest.mark.parametrize(
    "line",
    [
        "from helping.hand import SCALE",
        "from helping.hand import *",
        "from helping import hand\nSCALE = hand.SCALE",
        "import helping.hand\nSCALE = helping.hand.SCALE",
        "from helping import SCALE",
        "try:\n    import nowhere.at_all as F\nexcept ImportError:\n    from helping import SCALE",
    ],
)
def test_modules_of_ones_own_count(line, digest, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("helping", "helping.hand"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "helping").mkdir()
    (tmp_path / "helping/__init__.py").write_text("from helping.hand import SCALE\n")
    text, found = FILE.replace("SCALE = 2.0", line), set()
    for scale in (2.0, 3.0):
        (tmp_path / "helping/hand.py").write_text(f"SCALE = {scale}\n")
        origin.digest.cache_clear()
        found.add(digest(text))
    assert len(found) == 2


def test_of_a_table_that_is_computed_all_counts(digest):
    for more in ("SCORES |= {}", "SCORES['mine'] = Score(theirs)"):
        computed = f"{FILE}{more}\n"
        assert digest(computed) != digest(computed.replace("OTHER = 3.0", "OTHER = 4.0"))
