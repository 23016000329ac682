"""The base of all objectives: examples to batches, text to prompts, outputs to answers."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, cast

import flax.struct
import jax
import numpy as np
from flax import linen as nn
from jax import Array
from jax import numpy as jnp

from tfm.config.names import UserError, suggest
from tfm.data.dataset import FIRST, FORMS, Dataset, Examples
from tfm.data.reader import Prompt, Reader
from tfm.evaluate.metric import HIGH, LOW, NEITHER, Metric
from tfm.ops.fast import argmax_last, log_loss

Losses = dict[str, Array]  # sums for each example
Sums = Mapping[str, np.ndarray]  # the same of a whole data set, on the host
Rng = np.random.Generator
LOSS = Metric("loss", LOW, unit="nats", headline=True)
PERPLEXITY = Metric("perplexity", LOW, least=1.0)
ACCURACY = Metric("accuracy", HIGH, most=1.0, headline=True)
EXACT = Metric("exact", HIGH, most=1.0, headline=True)  # the share of examples without an error
BITS = (
    Metric("bits_per_byte", LOW, unit="bits", headline=True),
    Metric("bits_per_word", LOW, unit="bits"),
)
COUNTED = ("loss", "correct", "count")  # the sums that every objective has
PROMPT_OPTIONS = ("second", "target", "task")


class Batch(flax.struct.PyTreeNode):
    """Inputs by the names of the model's arguments, labels, and the weight of each label.

    Labels and weights have the shape of the logits without their last axis.
    """

    inputs: dict[str, Any]
    labels: Any
    weights: Any
    begins_B: Any = None  # where a state is carried: whether it starts anew


class Targets(NamedTuple):
    """Rows of text, which of it is real, and which tokens are to be predicted."""

    tokens_BT: np.ndarray
    valid_BT: np.ndarray
    predicted_BT: np.ndarray

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        return {"tokens_BT": self.tokens_BT, "valid_BT": self.valid_BT}


class Objective:
    """The base of all objectives. A frozen dataclass where it has options.

    An objective has two directions. `prepare` turns examples into a batch to learn from, `loss`
    and `metrics` score the outputs. `prompt` turns a text into what a trained model reads, and
    `answer` turns its outputs, or the tokens that it wrote, into what a person asked for.
    """

    families: ClassVar[tuple[str, ...]]  # of models
    forms: ClassVar[tuple[str, ...]]  # of data
    labels_in: ClassVar[str | None] = None  # the input that holds each label, one place later
    by_position: ClassVar[bool] = False  # a label for each position, from its logits alone
    smooths: bool = True  # its labels can be smoothed
    same_vocab: ClassVar[bool] = False  # data of another size would be shown with other ids
    chooses: bool = True  # its labels are answers, of which one may be the most frequent
    pads: ClassVar[bool] = False  # its rows differ in length, even if the examples do not
    # What a trained model can do: write tokens one by one, fill masks, classify texts, tag words.
    writes: ClassVar[bool] = False
    fills: ClassVar[bool] = False
    classifies: ClassVar[bool] = False
    tags: ClassVar[bool] = False
    prefix: ClassVar[bool] = False  # the tokens of a prompt see one another
    output: ClassVar[str | None] = None  # the output that it reads, of models with several

    @property
    def head(self) -> Mapping[str, Any]:
        """The settings that a model needs, where its family has them."""
        return {} if self.output is None else {"outputs": (self.output,)}

    def refuses(self, dataset: Dataset) -> str | None:
        """Returns why this data cannot be shown, or None."""
        if dataset.form in self.forms:
            return None
        forms = " or ".join(self.forms)
        return f"needs {forms}, but the data are {dataset.form}: {FORMS[dataset.form]}"

    def sizes(self, dataset: Dataset) -> dict[str, int]:
        """Returns the least sizes that a model must have, by the names of its settings."""
        return {"vocab": dataset.vocab + len(self.added(dataset))}

    def added(self, dataset: Dataset) -> tuple[str, ...]:
        """Returns the names of the ids that the objective adds after those of the data."""
        return ()

    def prepare(self, examples: Examples, dataset: Dataset, rng: Rng) -> Batch:
        """Returns the batch that shows these examples. All that is random comes from `rng`, which
        is a function of (seed, step). Shapes depend on `dataset` alone."""
        raise NotImplementedError

    def shown(self, examples: Examples, dataset: Dataset, rng: Rng) -> np.ndarray | bool:
        """Returns which labels a model is shown on purpose, in the batch that `prepare` makes from
        the same `rng`: True for all, or an array like the labels. No other may be seen in the
        inputs (except in `labels_in`): that is proved before the first step."""
        return False

    def loss(self, logits: Array, batch: Batch, label_smoothing: Array | None = None) -> Losses:
        """Returns sums for each example: loss, correct answers, count and, with
        `label_smoothing`, the smoothed loss. Others are for `per_example`: B, or BT for each
        position."""
        return cross_entropy(logits, batch, label_smoothing)

    def per_example(self, sums: Sums, dataset: Dataset) -> Sums:
        """Returns what `metrics` needs of each example, once the meaning of the ids is known."""
        return sums

    def predicted(self, examples: Examples, dataset: Dataset, rng: Rng) -> Targets:
        """Returns which tokens of text `prepare` hides and asks for, given the same `rng`."""
        raise NotImplementedError

    def declares(self, dataset: Dataset | None = None) -> tuple[Metric, ...]:
        """Returns what `metrics` computes: on this data, or without it, on any."""
        return LOSS, PERPLEXITY, ACCURACY, EXACT

    def metrics(self, sums: Sums, dataset: Dataset) -> dict[str, float]:
        """Returns loss and perplexity per token, and accuracy per token and per example."""
        total = {name: float(np.sum(x)) for name, x in sums.items()}
        if not total["count"]:
            raise UserError("no token of the data is scored: evaluate more examples, or mask more")
        loss = total["loss"] / total["count"]
        return {
            "loss": loss,
            "perplexity": math.exp(min(loss, 700.0)),
            "accuracy": total["correct"] / total["count"],
            "exact": float(np.mean(sums["correct"] == sums["count"])),
        }

    def prompt(self, reader: Reader, text: str | None, **options: Any) -> Prompt:
        """Returns what a model reads for a text; without a text, the token that begins one.

        Options are keywords of `read`: `second`, the second of two sentences; `target`, the answer,
        as a part of the prompt; `task`, the number of a task of a mixture. Raises if one is set
        that the objective does not accept, or has another name.
        """
        _, _, *parameters = inspect.signature(self.read).parameters.values()
        accepted = [x.name for x in parameters if x.kind not in (x.VAR_POSITIONAL, x.VAR_KEYWORD)]
        for name, value in options.items():
            if name not in accepted and (value is not None or name not in PROMPT_OPTIONS):
                raise UserError(
                    f"prompt() has no option {name!r} for {type(self).__name__}, which accepts "
                    f"{' and '.join(accepted) or 'none'}"
                )
        return self.read(reader, text, **{k: x for k, x in options.items() if k in accepted})

    def read(self, reader: Reader, text: str | None, *args: Any, **options: Any) -> Prompt:
        """Returns the prompt for a text. Its keywords are the options that `prompt` accepts."""
        raise UserError("this objective does not say what a model reads for a text: no read()")

    def begin(self, reader: Reader, ids: Sequence[Any]) -> Prompt:
        """Returns the prompt for an example of the data: its ids, or its vector."""
        raise NotImplementedError

    def ends(self, reader: Reader, prompt: Prompt) -> tuple[int, ...]:
        """Returns the ids of which any ends what is written."""
        return reader.ends

    def continues(self, reader: Reader) -> bool:
        """Returns True if what is written continues the text, rather than answers it."""
        return False

    def answer(self, reader: Reader, prompt: Prompt, output: Any) -> Any:
        """Returns what a person asked for. `output` are the tokens that were written, or the
        logits."""
        tokens = [id_ for id_ in output if id_ not in self.ends(reader, prompt)]
        if self.continues(reader):
            tokens = [*(id_ for id_ in prompt.tokens if id_ != reader.start), *tokens]
        return reader.decode(tokens)

    def filled(
        self, reader: Reader, prompt: Prompt, output: Any, top: int
    ) -> list[list[dict[str, Any]]]:
        """Returns what may stand for each mask of a text, the `top` most likely first. `output`
        are the logits or, if the model writes, pairs of tokens and their log-probability."""
        raise NotImplementedError


def cross_entropy(logits: Array, batch: Batch, label_smoothing: Array | None = None) -> Losses:
    """Returns loss, correct answers and count of each example."""
    loss = log_loss(logits, batch.labels)
    correct = (argmax_last(logits) == batch.labels).astype(jnp.float32)
    out = {"loss": loss, "correct": correct, "count": jnp.ones_like(loss)}
    if label_smoothing is not None:  # Szegedy et al. 2016, §7
        mean = jnp.mean(jax.nn.log_softmax(logits), -1)
        out["smoothed"] = (1 - label_smoothing) * loss - label_smoothing * mean
    axes = tuple(range(1, batch.weights.ndim))
    return {name: jnp.sum(x * batch.weights, axes) for name, x in out.items()}


def eval_step(
    module: nn.Module,
    objective: Objective,
    variables: Mapping[str, Any],
    batch: Batch,
    chunk: int | None = None,
) -> Losses:
    """Returns sums for each example (B): loss, correct answers, count, and the objective's others.

    With `chunk`, logits are computed for this number of positions at a time.
    """
    x: Any = module.apply(variables, **batch.inputs, **head_options(chunk))
    return sums_of(module, objective, variables, x, batch, None, chunk)


def head_options(chunk: int | None) -> dict[str, Any]:
    """Returns the arguments of a model whose logits are computed in parts."""
    return {} if chunk is None else {"head": False}


def sums_of(
    module: nn.Module,
    objective: Objective,
    variables: Mapping[str, Any],
    x: Array,
    batch: Batch,
    label_smoothing: Array | None,
    chunk: int | None,
) -> Losses:
    """Returns the objective's sums, given logits, or with `chunk` the states before the head."""
    if chunk is None:
        return objective.loss(x, batch, label_smoothing)

    def logits(x_BTD: Array) -> Array:
        return cast(Array, module.apply(variables, x_BTD, method="logits"))

    if x.shape[1] <= chunk:  # one part: nothing is recomputed
        return objective.loss(logits(x), batch, label_smoothing)
    return chunked_loss(objective, logits, x, batch, label_smoothing, chunk)


def chunked_loss(
    objective: Objective,
    logits: Callable[[Array], Array],
    x_BTD: Array,
    batch: Batch,
    label_smoothing: Array | None,
    length: int,
) -> Losses:
    """Computes `objective.loss` of `logits(x)` for `length` positions at a time: logits of other
    positions are not held, and are computed again for the gradient.

    If the loss has sums over positions only, scored positions of each row come first, and parts
    without any are skipped.
    """
    missing = -x_BTD.shape[1] % length

    def cut(x: Array) -> Array:
        """Cuts into parts of `length` positions; those added at the end weigh nothing."""
        x = jnp.pad(x, ((0, 0), (0, missing), *((0, 0),) * (x.ndim - 2)))
        return jnp.moveaxis(x.reshape(len(x), -1, length, *x.shape[2:]), 1, 0)

    @jax.checkpoint
    def part(x_BTD: Array, labels_BT: Array, weights_BT: Array) -> Losses:
        chunk = batch.replace(labels=labels_BT, weights=weights_BT)
        return objective.loss(logits(x_BTD), chunk, label_smoothing)

    def part_or_zero(x_BTD: Array, labels_BT: Array, weights_BT: Array) -> Losses:
        return jax.lax.cond(
            jnp.any(weights_BT > 0),
            part,
            lambda *_: jax.tree.map(jnp.zeros_like, shapes),
            *(x_BTD, labels_BT, weights_BT),
        )

    arrays: tuple[Any, ...] = (x_BTD, batch.labels, batch.weights)
    shapes = jax.eval_shape(part, *(x[:, :length] for x in map(jnp.asarray, arrays)))
    sums_only = all(x.ndim == 1 for x in shapes.values())
    if sums_only:
        order_BT = jnp.argsort(batch.weights <= 0, axis=1, stable=True)
        arrays = tuple(
            jnp.take_along_axis(x, order_BT.reshape(*order_BT.shape, *(1,) * (x.ndim - 2)), 1)
            for x in arrays
        )
    each = part_or_zero if sums_only else part
    _, sums = jax.lax.scan(lambda carry, x: (carry, each(*x)), None, tuple(map(cut, arrays)))

    def joined(x: Array) -> Array:
        """Adds the sums of parts; concatenates values that each position has."""
        if x.ndim == 2:
            return jnp.sum(x, 0)
        return jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1)[:, : x_BTD.shape[1]]

    return {name: joined(x) for name, x in sums.items()}


def check_declared(values: Iterable[str], declared: Iterable[Metric], who: str) -> None:
    """Raises if a metric was computed that is not declared, or one has no known direction."""
    names = {metric.name: metric.better for metric in declared}
    for name, better in names.items():
        if better not in (HIGH, LOW, NEITHER):
            right = f"{HIGH!r}, {LOW!r} or {NEITHER!r}"
            raise UserError(f"{who}: Metric({name!r}): better={better!r} must be {right}")
    for name in values:
        if name not in names:
            raise UserError(
                f"{who} computes {name!r} and does not declare it: return Metric({name!r}, …) in "
                f"declares(){suggest(name, names)}"
            )


def int32(x: np.ndarray) -> np.ndarray:
    return x.astype(np.int32, copy=False)


def text_rows(examples: Examples, dataset: Dataset) -> Targets:
    """Returns the tokens as rows, which of them are real, and which may be scored."""
    tokens, longest = examples.tokens, dataset.max_length
    valid_BT = scored_BT = tokens.valid(longest)
    if examples.scored is not None:
        scored_BT = tokens.padded(longest, examples.scored)
    return Targets(int32(tokens.padded(longest)), valid_BT, scored_BT)


def without_last(rows: Targets) -> Targets:
    """Drops the last token of each row: a window of text has one token more than its length, for
    objectives that predict the next one."""
    return Targets(*(x_BT[:, :-1] for x_BT in rows))


def tagged(examples: Examples, dataset: Dataset) -> Batch:
    """Returns tokens as inputs and, at each, its tag or the target token at the same place."""
    rows = text_rows(examples, dataset)
    tags = examples.tags if examples.target is None else examples.target.ids
    labels_BT = int32(examples.tokens.padded(dataset.max_length, tags))
    return Batch(rows.inputs, labels_BT, rows.predicted_BT.astype(np.float32))


def without_positions(sums: Sums) -> dict[str, np.ndarray]:
    """Drops the values that each position has."""
    return {name: x for name, x in sums.items() if not name.endswith("_BT")}


def text_metrics(loss: float, dataset: Dataset) -> dict[str, float]:
    """Returns a loss per token in bits per byte and per word, whatever the tokenizer."""
    sizes = {"byte": dataset.bytes_per_token, "word": dataset.words_per_token}
    bits = loss / math.log(2)
    return {f"bits_per_{name}": bits / size for name, size in sizes.items() if size is not None}


def numbers_refused(dataset: Dataset) -> str | None:
    """Returns why labels cannot be written as tokens, if they cannot."""
    if dataset.form == "labels" and dataset.classes is None:
        return "needs classes, but the labels are numbers"
    return None


def vocab_with_labels(dataset: Dataset) -> int:
    """Returns the number of ids if a class is written as a token."""
    return max(dataset.vocab, FIRST + (dataset.classes or 0))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Computes probabilities on the host."""
    p = np.exp(logits - logits.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def class_names(labels: Sequence[str] | None, count: int) -> list[str]:
    """Returns a name for each class: its label, or else its number."""
    known = labels if labels is not None and len(labels) <= count else ()
    return [*known, *map(str, range(len(known), count))]


def text_given(text: str | None) -> str:
    """Raises if there is no text."""
    if text is None:
        raise UserError("this model needs a prompt: no token of it begins a text")
    if not text:
        raise UserError(
            "the prompt is empty; --start, or generate() without a text, begins with the token "
            "that begins a text"
        )
    return text
