"""Evaluation of a run folder: on its own data or other data, with any evaluators."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax

from tfm.config.names import UserError, read
from tfm.config.spec import Named
from tfm.data.dataset import Dataset
from tfm.data.datasets import DATASETS, open_dataset, takes_tokenizer
from tfm.evaluate.evaluator import EvalContext, Evaluator
from tfm.evaluate.loss import Loss
from tfm.evaluate.word_vectors import WordVectors
from tfm.objectives.base import Objective, eval_step
from tfm.objectives.batches import check_same_ids, open_sizes
from tfm.objectives.table import OBJECTIVES
from tfm.run.folder import Folder
from tfm.run.load import LoadedRun, load
from tfm.run.spec import DataSpec, check_batch


def context_of(
    loaded: LoadedRun,
    objective: Objective,
    step: Callable[..., Any],
    data: Callable[[str], Dataset],
    spec: DataSpec,
) -> EvalContext:
    """Returns what evaluators need to measure a run on `data`."""

    def source(split: str) -> Any:
        return next((test for test in spec.tests if test == split), spec.dataset).entry

    return EvalContext(
        spec=loaded.spec,
        model=loaded.model,
        variables=loaded.variables,
        objective=objective,
        eval_step=step,
        data=data,
        source=source,
        batch=spec.eval_batch,
        reader=loaded.reader,
    )


def evaluate(
    workdir: str,
    split: str = "valid",
    dataset: str | None = None,
    objective: str | None = None,
    examples: int | None = None,
    checkpoint: str = "best",
    trust: bool = False,
    evaluators: Mapping[str, Evaluator] | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Returns the objective's metrics with intervals and, by name, the results of `evaluators`;
    also messages about damaged checkpoints and truncated rows.

    An imported model needs `dataset`. `split` replaces that of the evaluators.
    """
    loaded = load(workdir, checkpoint, trust)
    run = loaded.run
    name, imported = objective or run.objective, run.data.dataset == "none"
    entry = read(name, OBJECTIVES, "objective")
    if (loaded.spec.like or loaded.spec.family) not in entry.families:
        raise UserError(f"objective {name!r} is not for the family {loaded.spec.family!r}")
    data = dataclasses.replace(run.data, tokenizer=None) if imported else run.data
    if dataset is not None:
        source = read(dataset, DATASETS, "data set")
        data = dataclasses.replace(data, dataset=Named.of(dataset, source))
    saved = Folder(workdir).read("data.json") or {}
    vocabulary = saved.get("vocabulary")
    if imported and not takes_tokenizer(data.dataset):
        vocabulary = None

    @functools.cache
    def opened(split: str) -> Dataset:
        count = data.examples if split == "train" else examples or data.valid_examples
        return open_dataset(data.dataset, split, count, data.seed, vocabulary, data.reading)

    if split == "train" and examples is not None:
        data = dataclasses.replace(data, examples=examples)
    valid = opened(split)
    if dataset is None and valid.fingerprint != saved.get("fingerprint"):
        raise UserError(
            f"{workdir}: data set {str(data.dataset)!r} was edited since the run began; "
            "--dataset=… evaluates on the edited data"
        )
    reason = entry.refuses(valid)
    if reason is not None:
        raise UserError(f"data set {str(data.dataset)!r}: objective {name!r} {reason}")
    open_sizes(loaded.spec, entry, valid)  # raises if the model is too small
    check_batch(run, split, valid)
    if saved and not imported:
        try:
            check_same_ids(entry, saved["vocab"], vocabulary, valid)
        except UserError as e:
            raise UserError(f"data set {str(data.dataset)!r}: {e}") from e
    chunk = run.train.loss_chunk if objective is None else None
    step = jax.jit(functools.partial(eval_step, loaded.model, entry, chunk=chunk))
    context = context_of(loaded, entry, step, opened, data)
    where = {"step": loaded.step, "split": split, "dataset": str(data.dataset)}
    where |= {"notes": list(valid.notes)} if valid.notes else {}
    tree = {**where, **Loss().evaluate(context, valid).tree}
    if loaded.spec.word_vectors:
        evaluators = {"words": WordVectors(), **(evaluators or {})}
    for key, unbound in (evaluators or {}).items():
        evaluator = dataclasses.replace(unbound, split=split)
        reason = evaluator.refuses(loaded.spec, entry, valid)
        if reason is not None:
            raise UserError(f"{key} {reason}")
        tree[key] = evaluator.evaluate(context, evaluator.limited(valid)).tree
    return tree, [*loaded.messages, *valid.notes]
