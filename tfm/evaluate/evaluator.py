"""Evaluators: their inputs, their results, and how a config's evaluations run."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

from flax import linen as nn
from jax import Array

from tfm.config.names import UserError, suggest
from tfm.data.dataset import Dataset
from tfm.data.reader import Reader
from tfm.evaluate.metric import Metric
from tfm.objectives.base import Objective, check_declared

Metrics = dict[str, float]
Declared = tuple[Metric, ...]
SPLITS = ("train", "valid", "test")
NO_METRIC = ("step", "split", "evaluator", "slice", "after")  # in a line of the log


@dataclasses.dataclass(frozen=True)
class Result:
    """Metrics on all examples and on slices of them, and details that are not metrics."""

    metrics: Metrics
    slices: Mapping[str, Metrics] = dataclasses.field(default_factory=dict)
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def tree(self) -> dict[str, Any]:
        """Everything side by side, as `tfm eval` prints it."""
        return {**self.metrics, **self.slices, **self.details}


@dataclasses.dataclass(frozen=True)
class EvalContext:
    """A model, and all that an evaluator may need to measure it."""

    spec: Any  # of the model
    model: nn.Module
    variables: Mapping[str, Any]
    objective: Objective
    eval_step: Callable[..., dict[str, Array]]  # (variables, batch) → sums for each example
    data: Callable[[str], Dataset]  # opens a split
    source: Callable[[str], Any]  # returns the Source of a split
    batch: int  # examples that are evaluated at a time
    reader: Reader


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluator:
    """Measures a model on one split.

    Subclasses add their options as fields, declare the metrics that they compute, refuse models and
    data that they cannot measure, and implement `evaluate`. `split` is 'train', 'valid' or 'test'
    of `data.dataset`, the spelling of an entry of `data.tests`, or 'tests' if that has one entry.
    """

    computes: ClassVar[Declared] = ()  # metrics, where they are the same for all models and data
    split: str = "valid"
    rows: int | None = None  # the first examples of the split; None: all
    name: str | None = None  # to tell two evaluations of one kind apart

    def __post_init__(self) -> None:
        if self.rows is not None and self.rows < 1:
            raise UserError(f"rows={self.rows} must be at least 1")
        if self.name is not None and not self.name.isidentifier():
            raise UserError(f"name={self.name!r} must be a word, as 'beam4'")

    def declares(self, spec: Any, objective: Objective, dataset: Dataset | None) -> Declared:
        """Returns the metrics that `evaluate` computes on all examples; without a dataset, those
        that it computes on any data. Slices need no declaration."""
        return self.computes

    def refuses(self, spec: Any, objective: Objective, dataset: Dataset) -> str | None:
        """Returns why this model cannot be measured on this data, or None."""
        return None

    def evaluate(self, context: EvalContext, dataset: Dataset) -> Result:
        """Measures the model. The result is a function of the context and the data alone."""
        raise NotImplementedError

    def limited(self, dataset: Dataset) -> Dataset:
        """Returns the first `rows` examples."""
        if self.rows is None or self.rows >= len(dataset):
            return dataset
        return dataclasses.replace(dataset, count=self.rows)


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """An evaluator as a config spells it, with the name of its results and its split."""

    key: str  # of the config
    text: str
    name: str
    split: str
    evaluator: Evaluator

    def run(self, context: EvalContext) -> Result:
        """Measures the model; raises if the result is no Result, or a metric is not declared."""
        dataset = self.evaluator.limited(context.data(self.split))
        result = self.evaluator.evaluate(context, dataset)
        about = f"{self.key}: evaluate() of {self.text!r} must return"
        if not isinstance(result, Result):
            raise UserError(f"{about} Result({{'name': number}}), not {result!r:.100}")
        for metrics in (result.metrics, *result.slices.values()):
            for name, value in metrics.items():
                if not isinstance(value, int | float):
                    raise UserError(f"{about} Python numbers: {name}=float(…), not {value!r:.100}")
        declared = self.declares(context.spec, context.objective, dataset)
        check_declared(result.metrics, declared, self.text)
        return result

    def declares(self, spec: Any, objective: Objective, dataset: Dataset | None) -> Declared:
        return self.evaluator.declares(spec, objective, dataset)

    def lines(self, result: Result) -> Iterator[dict[str, Any]]:
        """Yields the lines of the log: one for all examples, one for each slice."""
        where = {"split": self.split, "evaluator": self.name}
        yield {**where, **result.metrics}
        for name, metrics in result.slices.items():
            yield {**where, "slice": name, **metrics}


def evaluation(key: str, text: Any, tests: Iterable[str]) -> Evaluation:
    """Returns the evaluation that a config spells at `key`; `tests` are its `data.tests`."""
    evaluator, known = text.entry, [str(test) for test in tests]
    if not isinstance(evaluator, Evaluator):
        raise UserError(f"{key}: {str(text)!r} must be an Evaluator, not {evaluator!r}")
    if type(evaluator).evaluate is Evaluator.evaluate:
        raise UserError(
            f"{key}: {str(text)!r}: its class {type(evaluator).__name__} must define "
            "evaluate(self, context, dataset), which returns Result({'name': number})"
        )
    split = evaluator.split
    if split == "tests" and len(known) == 1:
        split = known[0]
    elif split not in (*SPLITS, *known):
        raise UserError(
            f"{key}: {str(text)!r}: unknown split {split!r}; write 'train', 'valid', 'test' or an "
            f"entry of data.tests, which has {', '.join(map(repr, known)) or 'none'}"
        )
    evaluator = dataclasses.replace(evaluator, split=split)
    return Evaluation(key, str(text), evaluator.name or text.names[0], split, evaluator)


def check_evaluations(
    evaluations: Iterable[Evaluation], spec: Any, objective: Objective, data: Mapping[str, Dataset]
) -> None:
    """Raises if an evaluation cannot apply to a run, or two of them share a name and a split."""
    seen = {(split, "loss"): "the objective, which are always computed" for split in always(data)}
    for x in evaluations:
        reason = x.evaluator.refuses(spec, objective, x.evaluator.limited(data[x.split]))
        if reason is not None:
            raise UserError(f"{x.key}: {x.text!r} {reason}")
        check_declared((), x.declares(spec, objective, data[x.split]), x.text)
        other = seen.setdefault((x.split, x.name), x.text)
        if other != x.text:
            raise UserError(
                f"{x.key}: the results of {x.text!r} on {x.split!r} have the name of those of "
                f"{other}; tell them apart with the option name='…'"
            )


def results_of(
    log: Iterable[Mapping[str, Any]], details: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Returns the results of evaluators for a summary, from the lines of one step of the log."""
    results = dict[str, dict[str, Any]]()
    for line in log:
        if "evaluator" not in line:
            continue
        key = f"{line['split']}:{line['evaluator']}"
        metrics = {name: x for name, x in line.items() if name not in NO_METRIC}
        if "slice" in line:
            results[key]["slices"][line["slice"]] = metrics
        else:  # it comes before its slices
            where = {"name": line["evaluator"], "split": line["split"]}
            rest = {"metrics": metrics, "slices": {}, "details": dict(details.get(key, {}))}
            results[key] = where | rest
    return list(results.values())


def always(data: Mapping[str, Dataset]) -> list[str]:
    """Returns the splits on which a run computes the objective's metrics in any case."""
    return [split for split in data if split not in ("train", "test")]


def available(
    spec: Any, objective: Objective, evaluations: Iterable[Evaluation], data: Mapping[str, Dataset]
) -> dict[str, Metric]:
    """Returns every metric of a run by "split:evaluator.metric", as `report.results.values`."""
    tests = [split for split in data if split not in SPLITS and not split.startswith("valid, ")]
    parts = [(split, "loss", objective.declares(data[split])) for split in always(data)]
    parts += [(x.split, x.name, x.declares(spec, objective, data[x.split])) for x in evaluations]
    out = {}
    for split, evaluator, metrics in parts:
        for metric in metrics:
            out[f"{split}:{evaluator}.{metric.name}"] = metric
            if [split] == tests:
                out[f"tests:{evaluator}.{metric.name}"] = metric
    return out


def resolve(text: str, metrics: Mapping[str, Metric]) -> str:
    """Returns the key in `metrics` that a study's METRIC spells: "accuracy", "test:bleu" or
    "tests:generation.exact". Without a split, it is 'valid'; the objective's metric comes first."""
    split, _, name = text.rpartition(":")
    split = split or "valid"
    names = {key: key.rpartition(":")[2] for key in metrics if key.rpartition(":")[0] == split}
    keys = [key for key, full in names.items() if name in (full, full.partition(".")[2])]
    first = [key for key in keys if names[key].startswith("loss.")] or keys
    if len(first) == 1:
        return first[0]
    if first:
        raise UserError(f"METRIC={text!r} is one of {', '.join(first)}; write which")
    short = [f":{key}".replace(":valid:", ":").replace(":loss.", ":")[1:] for key in metrics]
    near = suggest(text, short).partition("; known")[0]
    raise UserError(
        f"METRIC={text!r} is not computed for this config{near} Available: {', '.join(short)}; "
        "evaluate.after adds others, as 'generation(split=\"test\")' adds 'test:bleu'"
    )
