"""Does a suitable model solve every synthetic task, and do unsuitable models fail?

Runs the configs in `configs/tasks`, a Transformer without positions, which cannot distinguish a
sequence from its reverse, and one without attention, which cannot look anything up.

  tfm sweep experiments/tasks
"""

from tfm.sweep.space import chain

VARIANT = ("model.position.scheme", "model.attention.score")
TASK = "config"
METRIC = "exact"
NAMES = ("copy", "reverse", "sort", "induction", "recall", "addition", "dyck", "listops", "parity")


def sweep():
    return chain(
        [{"config": f"configs/tasks/{task}.py"} for task in NAMES],
        [{"config": "configs/tasks/reverse.py", "model.position.scheme": "none"}],
        [{"config": "configs/tasks/recall.py", "model.attention.score": "none"}],
    )
