"""Evaluate a checkpoint of a run folder on a split of its data, or on other data."""

from typing import Any

import jax

from tfm.data.datasets import open_dataset
from tfm.evaluate import metrics
from tfm.names import UserError, read
from tfm.objectives.batches import eval_batches
from tfm.objectives.table import OBJECTIVES, check_same_ids, open_sizes
from tfm.spec import to_spec
from tfm.train.load import load
from tfm.train.spec import DataSpec
from tfm.train.step import eval_step


def evaluate(
    workdir: str,
    split: str = "valid",
    dataset: str | None = None,
    objective: str | None = None,
    examples: int | None = None,
    checkpoint: str = "best",
) -> tuple[dict[str, Any], list[str]]:
    """Metrics with intervals, and messages about damaged checkpoints."""
    loaded = load(workdir, checkpoint)
    run = loaded.run
    if run is None and (dataset is None or objective is None):
        raise UserError(
            f"{workdir} is an imported model: say on what, --dataset=… and --objective=…"
        )
    data = to_spec(DataSpec, {"dataset": dataset}, "data.") if run is None else run.data
    text = dataset or data.dataset
    name = objective or (run.objective if run else "")
    shown = read(name, OBJECTIVES, "objective")
    if loaded.spec.family not in shown.families:
        raise UserError(f"objective {name!r} is not for the family {loaded.spec.family!r}")
    count = data.examples if split == "train" else data.valid_examples
    opened = open_dataset(text, split, examples or count, data.seed)
    reason = shown.refuses(opened)
    if reason is not None:
        raise UserError(f"data set {str(text)!r}: objective {name!r} {reason}")
    open_sizes(loaded.spec, shown, opened)
    if run is not None:
        trained = open_dataset(run.data.dataset, "train", run.data.examples, run.data.seed)
        try:
            check_same_ids(shown, trained, opened)
        except UserError as e:
            raise UserError(f"data set {str(text)!r}: {e}") from e
    step = jax.jit(lambda variables, batch: eval_step(loaded.model, shown, variables, batch))
    batches = eval_batches(shown, opened, data.eval_batch)
    sums = metrics.evaluate(step, loaded.variables, batches)
    found = {
        "step": loaded.step,
        "split": split,
        "dataset": str(text),
        "examples": len(sums["count"]),
        **shown.metrics(sums, opened),
        "intervals": metrics.intervals(shown, sums, opened),
    }
    return found, loaded.messages
