"""Outputs and gradients beside those that transformers computed with the same weights."""

import pytest

from tests.parity.parity_cases import CASES, compare, golden, ours


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients(name):
    _, config = CASES[name]
    wanted = golden(name)
    shapes = {tensor: grad.shape for tensor, grad in wanted[1].items()}
    compare(config, ours(config, shapes), wanted)
