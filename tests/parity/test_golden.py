"""Outputs and gradients beside those that transformers computed with the same weights."""

import pytest

from tests.helpers.tiers import first_tier
from tests.parity.parity_cases import CASES, compare, golden, ours

# Other ways to write a config, and heads and norms that are tested by themselves.
VARIANTS = {"gpt2_untied", "llama_linear_old_form", "llama3_old_form", "bert_states", "bert_pair",
            "transformer_pre"}  # fmt: skip


@pytest.mark.parametrize("name", first_tier(CASES, CASES.keys() - VARIANTS))
def test_outputs_and_gradients(name):
    _, config = CASES[name]
    wanted = golden(name)
    shapes = {tensor: grad.shape for tensor, grad in wanted[1].items()}
    compare(config, ours(config, shapes), wanted)
