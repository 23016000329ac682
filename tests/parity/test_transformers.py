"""transformers, live, computes what the golden files say; `test_golden.py` holds us to those."""

import pytest

pytest.importorskip("torch", reason="parity needs the extra: pip install 'tfm[parity]'")
pytest.importorskip("transformers", reason="parity needs the extra: pip install 'tfm[parity]'")

from tests.parity.parity_cases import CASES, compare, golden
from tests.parity.theirs import compute

pytestmark = pytest.mark.ci


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("name", CASES)
def test_a_live_run_gives_the_golden_numbers(name):
    architecture, config = CASES[name]
    compare(config, compute(architecture, config), golden(name))
