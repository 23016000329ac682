"""Evaluation of a run folder: on its own data or other data, with any evaluators."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from tfm.config.files import user_code, user_entries
from tfm.config.names import UserError, read
from tfm.config.spec import Named
from tfm.data.dataset import Dataset
from tfm.data.datasets import DATASETS, open_dataset, takes_tokenizer
from tfm.data.reader import of_data
from tfm.data.tokenizers.tokenizer import parsed_vocabulary, tokenizer_of, vocabulary_of
from tfm.evaluate.evaluator import EvalContext, Evaluation, Evaluator, Result, evaluation
from tfm.evaluate.loss import Loss
from tfm.evaluate.table import EVALUATORS
from tfm.evaluate.word_vectors import WordVectors
from tfm.objectives.base import Objective, eval_step
from tfm.objectives.batches import check_same_ids, eval_batches, open_sizes
from tfm.objectives.table import OBJECTIVES
from tfm.run.folder import Folder
from tfm.run.load import LoadedRun, load
from tfm.run.memory import check_batch
from tfm.run.spec import DataSpec, RunSpec

REHEARSED = 16  # examples


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


def numbered(vocabulary: str | None) -> str | None:
    """Replaces LABEL_0, LABEL_1, …, which transformers writes for classes without names, by the
    numbers that data have instead."""
    if tokenizer_of(vocabulary) is None or vocabulary is None:
        return vocabulary
    tokenizer, labels = parsed_vocabulary(vocabulary)
    numbers = tuple(map(str, range(len(labels or ()))))
    unnamed = labels == tuple(f"LABEL_{number}" for number in numbers)
    return vocabulary_of(tokenizer, numbers) if unnamed else vocabulary


def evaluate(
    workdir: str,
    split: str = "valid",
    dataset: str | None = None,
    objective: str | None = None,
    examples: int | None = None,
    checkpoint: str = "best",
    trust: bool = False,
    evaluators: Mapping[str, Evaluator] | None = None,
    texts: Sequence[str] = (),
) -> tuple[dict[str, Any], list[str]]:
    """Returns the objective's metrics with intervals and, by name, the results of `evaluators` and
    of those that `texts` spell as in a config; also messages about damaged checkpoints and
    truncated rows.

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
    if imported:
        vocabulary = numbered(vocabulary) if takes_tokenizer(data.dataset) else None

    if split == "train" and examples is not None:
        data = dataclasses.replace(data, examples=examples)

    @functools.cache
    def opened(split: str) -> Dataset:
        count = data.examples if split == "train" else examples or data.valid_examples
        return open_dataset(data.dataset, split, count, data.seed, vocabulary, data.reading)

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
    spelled = {text: read(text, EVALUATORS, "evaluator") for text in texts}  # the run may add some
    for key, unbound in {**spelled, **(evaluators or {})}.items():
        spelling = evaluation("evaluator", Named.of(key, unbound), data.tests)
        evaluator = dataclasses.replace(unbound, split=split)
        reason = evaluator.refuses(loaded.spec, entry, valid)
        if reason is not None:
            raise UserError(f"{key} {reason}")
        on_split = dataclasses.replace(spelling, split=split, evaluator=evaluator)
        tree[key] = on_split.run(context).tree
    return tree, [*loaded.messages, *valid.notes]


def rehearse(
    run: RunSpec, data: Mapping[str, Dataset], evaluations: Sequence[Evaluation]
) -> list[Result]:
    """Returns the results of evaluations on a few examples with initial weights: a mistake in one
    is found before a run, not after its last step."""
    objective, model, train = run.objective.entry, run.model.build(), data["train"]
    inputs = next(eval_batches(objective, data["valid"], 1)).inputs
    variables = jax.jit(model.init)(jax.random.key(0), **inputs)
    loaded = LoadedRun(pathlib.Path(), 0, run, model, variables, [])
    reader = of_data(train, run.data.dataset.entry, objective.added(train))
    vars(loaded).update(data=data, reader=reader)
    chunk = run.train.loss_chunk
    step = jax.jit(functools.partial(eval_step, model, objective, chunk=chunk))

    def few(split: str) -> Dataset:
        return dataclasses.replace(data[split], count=min(len(data[split]), REHEARSED))

    context, results = context_of(loaded, objective, step, few, run.data), []
    for each in evaluations:
        with user_code(f"{each.key}: {each.text!r}"):
            results.append(each.run(context))
    return results


def check_evaluators(run: RunSpec, data: Mapping[str, Dataset]) -> None:
    """Rehearses the evaluations of a run with a user's evaluator or objective; raises if one
    fails."""
    if any(name.startswith(("EVALUATORS.", "OBJECTIVES.")) for name in user_entries(run)):
        rehearse(run, data, [*run.during, *run.after])
