"""Writes the golden files: what transformers computes for each case.

python -m tests.parity.make_golden, from the root of the repository
"""

import numpy as np

from tests.parity.parity_cases import CASES, GOLDEN
from tests.parity.theirs import compute

GOLDEN.mkdir(exist_ok=True)
for name, (architecture, config) in CASES.items():
    outputs, grads = compute(architecture, config)
    arrays = {f"output/{key}": x for key, x in outputs.items()}
    arrays |= {f"grad/{key}": x for key, x in grads.items()}
    np.savez_compressed(GOLDEN / f"{name}.npz", **arrays)
