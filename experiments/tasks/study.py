"""Is every synthetic task solved by a model that can, and left unsolved by one that cannot?

The configs in `configs/tasks` as they are; and a Transformer without positions, to which a
sequence and its reverse are the same, and one without attention, which cannot look anything up.

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
