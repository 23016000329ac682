"""Evaluate a checkpoint of a run folder on a split of its data, or on other data.

  tfm eval WORKDIR [--split=valid] [--checkpoint=best] [--dataset=NAME] [--objective=NAME]
                   [--examples=N] [--trust]

The checkpoint is `best` (by validation loss) or `last`. The result is loss, perplexity, accuracy,
exact matches and, for text, bits per byte, with 95 % intervals over the examples, as JSON. An
imported model needs --dataset and --objective. Code that the folder holds, a score of one's own, is
run only with --trust.
"""

import functools
import json
import sys
from collections.abc import Sequence
from typing import Any

import jax

from tfm import arguments
from tfm.data.datasets import open_dataset, takes_tokenizer
from tfm.evaluate import metrics
from tfm.folder import Folder, without_nonfinite
from tfm.names import UserError, read
from tfm.objectives.batches import eval_batches
from tfm.objectives.table import OBJECTIVES, check_same_ids, open_sizes
from tfm.run.load import imported_vocabulary, load
from tfm.run.spec import DataSpec
from tfm.runtime import cache_compilations, check_compiler
from tfm.spec import to_spec


def evaluate(
    workdir: str,
    split: str = "valid",
    dataset: str | None = None,
    objective: str | None = None,
    examples: int | None = None,
    checkpoint: str = "best",
    trust: bool = False,
) -> tuple[dict[str, Any], list[str]]:
    """Metrics with intervals, and messages about damaged checkpoints."""
    loaded = load(workdir, checkpoint, trust)
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
    known = Folder(workdir).read("data.json") or {}  # an imported model has no data
    vocabulary = known.get("vocabulary")
    if run is None and takes_tokenizer(text):
        vocabulary = imported_vocabulary(loaded.folder)
    opened = open_dataset(text, split, examples or count, data.seed, vocabulary, data.reading)
    if dataset is None and opened.fingerprint != known.get("fingerprint"):
        raise UserError(
            f"{workdir}: data set {str(text)!r} was edited since the run began; "
            "--dataset=… evaluates on it as it is now"
        )
    reason = shown.refuses(opened)
    if reason is not None:
        raise UserError(f"data set {str(text)!r}: objective {name!r} {reason}")
    open_sizes(loaded.spec, shown, opened)
    if known:
        try:
            check_same_ids(shown, known["vocab"], vocabulary, opened)
        except UserError as e:
            raise UserError(f"data set {str(text)!r}: {e}") from e
    chunk = run.train.loss_chunk if run is not None and objective is None else None
    step = jax.jit(functools.partial(metrics.eval_step, loaded.model, shown, chunk=chunk))
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


def main(argv: Sequence[str]) -> None:
    if set(arguments.HELP) & set(argv):
        print(__doc__, end="")
        return
    options = ("split", "dataset", "objective", "examples", "checkpoint")
    given = arguments.split(argv, words=1, options=options, flags=("trust",), config=False)
    cache_compilations()
    check_compiler()
    chosen: dict[str, Any] = {**given.options, "trust": "trust" in given.flags}
    if "examples" in chosen:
        chosen["examples"] = arguments.whole(given, "examples", 1)
    found, messages = evaluate(given.words[0], **chosen)
    for text in messages:
        print(text, file=sys.stderr)
    print(json.dumps(without_nonfinite(found), indent=1, allow_nan=False))
