"""A run: a model, its data, its objective and how it is trained; the plan of its batches."""

import dataclasses
import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from flax import linen as nn

from tfm.config.files import load, user_entries
from tfm.config.names import UserError
from tfm.config.spec import (
    MissingKeysError,
    Named,
    Spec,
    SpecError,
    Tree,
    call,
    choice,
    field,
    rate,
    size,
    to_spec,
)
from tfm.data.dataset import Dataset, Reading
from tfm.data.datasets import DATASETS, open_dataset, open_splits, takes_tokenizer
from tfm.data.files import ON_BAD
from tfm.data.plan.lengths import Buckets, PackedRows, into_buckets, into_rows
from tfm.data.plan.order import Epochs, Plan, Streams
from tfm.data.tokenizers import TOKENIZERS
from tfm.describe.flops import flops
from tfm.evaluate.evaluator import Evaluation, check_evaluations, evaluation
from tfm.evaluate.table import EVALUATORS
from tfm.models.common import check_packable
from tfm.models.spec import FAMILIES, ModelSpec, RecurrentSpec, model_spec
from tfm.objectives.base import Batch, Objective
from tfm.objectives.batches import (
    Share,
    check_same_ids,
    eval_batches,
    open_sizes,
    positions,
    read_of,
    shaped,
)
from tfm.objectives.table import OBJECTIVES, accepting, objectives
from tfm.optim.optimizer import OptimizerSpec
from tfm.run.folder import Folder
from tfm.run.memory import check_batch

ON_NONFINITE = {
    "stop": "stop, and mark the run as diverged",
    "skip": "leave the step out, and count it",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSpec(Spec):
    dataset: Named = call(lambda: DATASETS)
    examples: int | None = size(None)  # to train on; None: all there are
    valid_examples: int | None = size(None)  # to evaluate on
    tests: tuple[Named, ...] = call(lambda: DATASETS, ())  # more data to evaluate on at the end
    tokenizer: Named | None = call(lambda: TOKENIZERS, None)  # of text; None: the data are ids
    max_length: int | None = size(None)  # longer examples are truncated; None: the longest
    max_target: int | None = size(None)  # the same for the second side of a pair
    bad: Named = choice(lambda: ON_BAD, "error")  # lines that cannot be read
    seed: int = field(0, least=0)  # which examples there are; the order is the run's
    batch: int = size(64)  # rows
    batch_tokens: int | None = size(None)  # instead of `batch`: tokens at most, with padding
    buckets: int | None = size(None)  # shapes at most, for rows of like length; None: one for all
    pack: int | tuple[int, ...] | None = size(None)  # positions of rows that hold several; by side
    eval_batch: int = size(64)

    @property
    def reading(self) -> Reading:
        """The settings by which text is read."""
        return Reading(self.tokenizer, self.max_length, self.max_target, str(self.bad))

    def check(self) -> None:
        if self.buckets is not None and self.pack is not None:
            raise SpecError("buckets", "{key} and pack: packed rows have one shape; choose one")
        if len(set(self.tests)) < len(self.tests):
            raise SpecError("tests", f"{{key}}={tuple(map(str, self.tests))} names one twice")
        if self.seed and not getattr(self.dataset.entry, "seeded", True):
            raise SpecError(
                "seed",
                f"{{key}}={self.seed}: the examples of {self.dataset.names[0]!r} are always the "
                "same; seed=… chooses their order",
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainSpec(Spec):
    steps: int = field(least=1, most=2**31 - 1)  # counted in 32 bits
    accumulate: int = size(1)  # parts of a batch, one after another, whose gradients are summed
    ema: float | None = rate(None)  # decay of the running mean of the weights that is evaluated
    label_smoothing: float | None = rate(None)
    carry: bool = False  # a recurrent state goes on from batch to batch: truncated BPTT
    loss_chunk: int | None = size(None)  # positions whose logits are held at a time; None: all
    allow_leak: bool = False  # train a model that sees what it must predict
    on_nonfinite: Named = choice(lambda: ON_NONFINITE, "stop")  # loss or gradient
    log_every: int = size(50)
    eval_every: int | None = size(None)  # None: at the end
    save_every: int | None = size(None)  # besides when it is evaluated; None: every three minutes
    keep: int = size(2)  # checkpoints, besides the best
    init_from: str | None = None  # a run folder whose parameters this run starts from
    init_pattern: str | None = field(None, pattern=True)  # the paths of those that are taken

    def check(self) -> None:
        if self.init_pattern is not None and self.init_from is None:
            raise SpecError("init_pattern", f"{{key}}={self.init_pattern!r}: init_from is missing")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateSpec(Spec):
    """Evaluations besides those that every run has: the objective's metrics on the validation data
    whenever it is evaluated, and on `data.tests` at the end."""

    during: tuple[Named, ...] = call(lambda: EVALUATORS, ())  # whenever the run is evaluated
    after: tuple[Named, ...] = call(lambda: EVALUATORS, ())  # once, after the last step


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSpec(Spec):
    seed: int = field(0, least=0, below=2**32)
    objective: Named = call(lambda: OBJECTIVES)
    model: ModelSpec
    data: DataSpec
    optimizer: OptimizerSpec = OptimizerSpec()
    train: TrainSpec
    evaluate: EvaluateSpec = EvaluateSpec()

    @property
    def during(self) -> list[Evaluation]:
        return [evaluation("evaluate.during", x, self.data.tests) for x in self.evaluate.during]

    @property
    def after(self) -> list[Evaluation]:
        """Evaluations of the trained model that `during` does not have."""
        texts = [text for text in self.evaluate.after if text not in self.evaluate.during]
        return [evaluation("evaluate.after", text, self.data.tests) for text in texts]

    def check(self) -> None:
        families, family = self.objective.entry.families, self.model.like or self.model.family
        if family not in families:
            fits = [name for name, entry in objectives().items() if family in entry.families]
            raise SpecError(
                "objective",
                f"{{key}}={self.objective!r} is for {', '.join(families)}; {self._family} is for: "
                f"{', '.join(fits) or 'none yet'}",
            )
        if self.train.label_smoothing is not None and not self.objective.entry.smooths:
            raise SpecError(
                "train.label_smoothing",
                f"{{key}}={self.train.label_smoothing}: objective={str(self.objective)!r} has no "
                "labels to smooth",
            )
        if self.train.loss_chunk is not None and not (
            self.objective.entry.by_position
            and hasattr(FAMILIES[self.model.family].module, "logits")
        ):
            raise SpecError(
                "train.loss_chunk",
                f"{{key}}={self.train.loss_chunk}: objective={str(self.objective)!r} with "
                f"{self._family} cannot be computed in parts",
            )
        warmup = getattr(self.optimizer.schedule.entry, "warmup", 0)
        if warmup > self.train.steps:
            raise SpecError(
                "optimizer.schedule",
                f"{{key}}={str(self.optimizer.schedule)!r}: a warm-up of {warmup} steps is longer "
                f"than train.steps={self.train.steps}",
            )
        if self.train.carry:
            self._check_carry()
        if self.data.pack is not None:
            self._check_pack()
        if self.data.batch_tokens is None and self.data.batch % self.train.accumulate:
            raise SpecError(
                "train.accumulate",
                f"{{key}}={self.train.accumulate} must divide data.batch={self.data.batch}",
            )

    @property
    def _family(self) -> str:
        """Names the family, and the one whose objectives it can be trained with."""
        like = f" (like {self.model.like!r})" if self.model.like else ""
        return f"model.family={self.model.family!r}{like}"

    def _check_carry(self) -> None:
        """Raises if a state cannot be carried; `open_data` checks that rows are consecutive."""
        objective, reason = self.objective, None
        if not isinstance(self.model, RecurrentSpec):
            reason = f"a model of the family {self.model.family!r} has no state; 'recurrent' has"
        elif self.model.bidirectional:
            reason = "model.bidirectional=True reads each window from its end as well"
        elif objective.entry.labels_in is None or "text" not in objective.entry.forms:
            reason = f"objective={str(objective)!r} does not read one long text; 'next_token' does"
        elif self.data.buckets is not None:
            reason = f"data.buckets={self.data.buckets} would change the order of the text"
        if reason is not None:
            raise SpecError("train.carry", f"{{key}}=True: {reason}")

    def _check_pack(self) -> None:
        family = self.model.family
        reason = f"a model of the family {family!r} cannot keep packed rows apart; attention can"
        if self.model.packs:
            try:
                return check_packable(self.model)  # type: ignore[arg-type]
            except UserError as e:
                reason = str(e)
        raise SpecError("data.pack", f"{{key}}={self.data.pack}: {reason}")


def read(tree: Tree) -> RunSpec:
    """Reads the run that a config describes; every key must be known, every value of its type."""
    try:
        run = to_spec(RunSpec, tree)
    except MissingKeysError as e:
        if "model" not in tree or {"objective", "data", "train"} & tree.keys():
            raise
        raise UserError(
            f"the config is a model without a run: {e}. `tfm describe` reads it; configs/text, "
            "configs/tasks and the size `tiny` of each system are complete runs"
        ) from e
    start, data = run.train.init_from, run.data
    if start is not None and data.tokenizer is None and takes_tokenizer(data.dataset):
        # Token vectors are of use with the ids that they were learned for.
        known = {**tree["data"], "tokenizer": f"of_run(path={start!r})"}
        return to_spec(RunSpec, {**tree, "data": known})
    return run


def of_folder(workdir: str, trust: bool = False) -> RunSpec:
    """Reads the run of a folder. `trust`: the copies there of users' files may be run."""
    if os.path.isfile(workdir):
        folder = os.path.dirname(workdir) or "."
        raise UserError(f"{workdir} is a file: name the folder of the run, {folder}")
    return of_tree(load(os.path.join(workdir, "config.json"), trust).to_dict(), workdir)


def of_tree(tree: Tree, workdir: str) -> RunSpec:
    """Reads the run that a folder's config describes."""
    if "objective" not in tree:
        model_spec(tree)  # raises if it is no run at all
        raise UserError(
            f"{workdir} was imported by an older version: import it again, tfm import HF_FOLDER "
            f"--workdir={workdir}"
        )
    try:
        return read(tree)
    except UserError as e:
        raise UserError(
            f"{workdir} holds a run that this version cannot read: {e}. Run it again, in a new "
            f"folder: {Folder(workdir).rerun()}"
        ) from e


def open_datasets(run: RunSpec, vocabulary: str | None = None) -> dict[str, Dataset]:
    """Opens the data to train on, to evaluate on, and that of `data.tests` by its spelling.

    `vocabulary` is that of a run that has begun, whose tokenizer is not learned again.
    """
    data = run.data
    counts = {"train": data.examples, "valid": data.valid_examples}
    if any(evaluation.split == "test" for evaluation in (*run.during, *run.after)):
        counts["test"] = data.valid_examples
    datasets = open_splits(data.dataset, counts, data.seed, vocabulary, data.reading)
    rest = data.seed, datasets["train"].vocabulary, data.reading
    for text in data.tests:
        datasets[str(text)] = open_dataset(text, "test", data.valid_examples, *rest)
    return datasets | {f"valid, {name}": part for name, part in datasets["valid"].parts.items()}


def open_data(run: RunSpec, vocabulary: str | None = None) -> tuple[RunSpec, dict[str, Dataset]]:
    """Opens the data of a run, and sets the sizes of its model that come from the data.

    Raises if the data, the objective and the model do not fit together.
    """
    datasets, objective, model = open_datasets(run, vocabulary), run.objective.entry, run.model
    train = datasets["train"]
    for name, dataset in datasets.items():
        check_batch(run, name, dataset)
        reason = objective.refuses(dataset)
        if reason is not None:
            fits = ", ".join(accepting(dataset))
            raise UserError(f"objective {run.objective!r} {reason}; this data allows: {fits}")
        try:
            check_same_ids(objective, train.vocab, train.vocabulary, dataset)
            model = open_sizes(model, objective, dataset, trains=name == "train")
        except UserError as e:
            raise UserError(f"data set {name!r}: {e}") from e
    run = dataclasses.replace(run, model=model)
    _check_shapes(model.build(), objective, datasets)
    if evaluations := [*run.during, *run.after]:
        check_evaluations(evaluations, model, objective, datasets)
    return run, datasets


def _check_shapes(module: nn.Module, objective: Objective, datasets: dict[str, Dataset]) -> None:
    """Raises errors that follow from the shapes of the batches, before the first step."""
    seen = set[str]()
    for name, dataset in datasets.items():
        inputs = next(eval_batches(objective, dataset, 1)).inputs
        shapes = str({key: x.shape for key, x in inputs.items()})
        if shapes not in seen:
            seen.add(shapes)
            try:
                jax.eval_shape(lambda inputs: module.init(jax.random.key(0), **inputs), inputs)
            except UserError as e:
                raise UserError(f"data set {name!r}: {e}") from e


def plan_of(run: RunSpec, dataset: Dataset) -> Plan:
    """Returns the plan by which a run reads its training data."""
    data = run.data
    if run.train.carry:
        return _streams(run, dataset)
    if data.pack is None and data.buckets is None:
        return Epochs(len(dataset), _size(run, dataset), run.seed)
    key = "pack" if data.pack is not None else "buckets"
    if not dataset.padded:
        raise UserError(
            f"data.{key}={getattr(data, key)}: all rows of data.dataset={str(data.dataset)!r} have "
            "the same length, so there is no padding to save"
        )
    lengths_NS = dataset.row_lengths()
    if data.pack is not None:
        return _packed(run, dataset, lengths_NS)
    buckets = into_buckets(lengths_NS, data.buckets or 1)
    rows = buckets.order[np.cumsum([0, *buckets.counts[:-1]])].tolist()  # one of each bucket
    shapes = [shaped(dataset, *edge) for edge in buckets.edges]
    sizes = [_size(run, shape, row) for shape, row in zip(shapes, rows, strict=True)]
    return Buckets(buckets, tuple(sizes), run.seed)


def _streams(run: RunSpec, dataset: Dataset) -> Plan:
    size = _size(run, dataset)
    about = f"train.carry=True: data.dataset={str(run.data.dataset)!r}"
    if dataset.next_row is None:
        raise UserError(
            f"{about}: its rows do not go on from one to the next; those of text(…) do, if its "
            "stride divides its length, and those of characters(…) and bytes(…)"
        )
    plan = Streams(len(dataset), size, dataset.next_row)
    if not plan.steps:
        raise UserError(
            f"{about} is too short: a batch of {size} rows needs as many windows side by side; "
            "write a smaller data.batch or length"
        )
    return plan


def _packed(run: RunSpec, dataset: Dataset, lengths_NS: np.ndarray) -> Plan:
    taken_NS = positions(run.objective.entry, dataset, lengths_NS)
    sides, pack = taken_NS.shape[1], run.data.pack
    room = (pack,) if isinstance(pack, int) else tuple(pack or ())
    if len(room) not in (1, sides):
        raise UserError(f"data.pack={pack}: give one number, or {sides}, one for each side")
    room = room * sides if len(room) == 1 else room
    longest = taken_NS.max(0).tolist()
    if np.any(np.greater(longest, room)):
        need = ", ".join(map(str, longest))
        raise UserError(
            f"data.pack={pack}: the longest row takes {need} positions; write more, or truncate "
            "rows with data.max_length and data.max_target"
        )
    return PackedRows(into_rows(taken_NS, room), _size(run, dataset, width=sum(room)), run.seed)


def _size(run: RunSpec, dataset: Dataset, row: int = 0, width: int | None = None) -> int:
    """Returns how many rows of `width` tokens, or as wide as `row` with padding, make a batch."""
    data, parts = run.data, run.train.accumulate
    if data.batch_tokens is None:
        return data.batch
    if width is None:
        examples, rng = dataset.take(np.array([row])), np.random.default_rng(0)
        width = read_of(run.objective.entry.prepare(examples, dataset, rng)).tokens
    size = data.batch_tokens // width // parts * parts
    if not size:
        raise UserError(
            f"data.batch_tokens={data.batch_tokens} is too little: a row has {width} tokens, and "
            f"a batch at least train.accumulate={parts} rows"
        )
    return size


def train_flops(run: RunSpec, shapes: Sequence[Share]) -> int:
    """Counts forward and backward passes over all steps, without the optimizer."""
    return round(sum(run.train.steps * part.share * step_flops(run, part.batch) for part in shapes))


def step_flops(run: RunSpec, batch: Batch) -> int:
    shapes = {name: (x.shape, x.dtype.name) for name, x in batch.inputs.items()}
    return _step_flops(run.model, tuple(shapes.items()), tuple(user_entries(run).items()))


@lru_cache(maxsize=64)
def _step_flops(model: ModelSpec, shapes: Any, entries: Any) -> int:
    inputs = {name: jax.ShapeDtypeStruct(*shape) for name, shape in shapes}
    return flops(model, inputs)[1].total
