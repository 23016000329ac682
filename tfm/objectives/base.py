"""What an objective is: how examples become a batch, and what is counted of a model's answers."""

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, cast

import flax.struct
import jax
import numpy as np
from flax import linen as nn
from jax import Array
from jax import numpy as jnp

from tfm.config.names import UserError
from tfm.data.dataset import FORMS, Dataset, Examples
from tfm.metric import HIGH, LOW, Metric
from tfm.ops.fast import argmax_last, log_loss

Sums = Mapping[str, np.ndarray]
LOSS = Metric("loss", LOW, unit="nats", headline=True)
PERPLEXITY = Metric("perplexity", LOW, least=1.0)
ACCURACY = Metric("accuracy", HIGH, most=1.0, headline=True)
EXACT = Metric("exact", HIGH, most=1.0, headline=True)  # the share of examples without an error
COUNTED = ("loss", "correct", "count")  # the sums that every objective has


class Batch(flax.struct.PyTreeNode):
    """`inputs` by the names of the model's arguments; what is right; how much each answer counts.

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


class Objective:
    """The base of all objectives. A frozen dataclass where it has options."""

    families: ClassVar[tuple[str, ...]]  # of models
    forms: ClassVar[tuple[str, ...]]  # of data
    labels_in: ClassVar[str | None] = None  # the input that holds each label, one place later
    by_position: ClassVar[bool] = False  # a label for each position, from its logits alone
    smooths: bool = True  # whether its labels can be smoothed
    same_vocab: ClassVar[bool] = False  # data of another size would be shown with other ids
    chooses: bool = True  # its labels are answers, of which one may be the most frequent
    pads: ClassVar[bool] = False  # its rows differ in length, even if the examples do not

    @property
    def head(self) -> Mapping[str, Any]:
        """The settings that a model needs, where its family has them."""
        return {}

    def refuses(self, dataset: Dataset) -> str | None:
        """Why this data cannot be shown, or None."""
        if dataset.form in self.forms:
            return None
        return (
            f"needs {' or '.join(self.forms)}, but the data are {dataset.form}: "
            + (FORMS[dataset.form])
        )

    def sizes(self, dataset: Dataset) -> dict[str, int]:
        """The least sizes that a model must have, by the names of its settings."""
        return {"vocab": dataset.vocab}

    def prepare(self, examples: Examples, dataset: Dataset, rng: np.random.Generator) -> Batch:
        """The batch that shows these examples. All that is random comes from `rng`, which is a
        function of (seed, step). Shapes depend on `dataset` alone."""
        raise NotImplementedError

    def shown(
        self, examples: Examples, dataset: Dataset, rng: np.random.Generator
    ) -> np.ndarray | bool:
        """Which labels of the batch that `prepare` makes from the same `rng` a model is shown on
        purpose: True for all, or an array as the labels. No other may be seen in the inputs (but in
        `labels_in`): that is proved before the first step."""
        return False

    def loss(
        self, logits: Array, batch: Batch, label_smoothing: Array | None = None
    ) -> dict[str, Array]:
        """Sums for each example: loss, correct answers, count; and, if it is asked for, the
        smoothed loss. More by other names are for `per_example`: B, or BT for each position."""
        return cross_entropy(logits, batch, label_smoothing)

    def per_example(self, sums: Sums, dataset: Dataset) -> Sums:
        """What `metrics` needs of each example, once it is known what the ids stand for."""
        return sums

    def predicted(
        self, examples: Examples, dataset: Dataset, rng: np.random.Generator
    ) -> "Targets":
        """Of text: which tokens `prepare` hides and asks for, given the same `rng`."""
        raise NotImplementedError

    def declares(self, dataset: Dataset | None = None) -> tuple[Metric, ...]:
        """Returns what `metrics` computes: on this data, or without it, on any."""
        return LOSS, PERPLEXITY, ACCURACY, EXACT

    def metrics(self, sums: Sums, dataset: Dataset) -> dict[str, float]:
        """Loss per token and what follows from it; accuracy per token and per example."""
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


def cross_entropy(
    logits: Array, batch: Batch, label_smoothing: Array | None = None
) -> dict[str, Array]:
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
) -> dict[str, Array]:
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
) -> dict[str, Array]:
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
) -> dict[str, Array]:
    """`objective.loss` of `logits(x)`, `length` positions at a time: the logits of all others are
    not held, and are made again for the gradient.

    Where only sums over positions are asked for, the positions of each row that are scored come
    first, and parts in which none is scored are left out.
    """
    missing = -x_BTD.shape[1] % length

    def cut(x: Array) -> Array:
        """TB…, in parts of `length` positions; those added at the end weigh nothing."""
        x = jnp.pad(x, ((0, 0), (0, missing), *((0, 0),) * (x.ndim - 2)))
        return jnp.moveaxis(x.reshape(len(x), -1, length, *x.shape[2:]), 1, 0)

    @jax.checkpoint
    def part(x_BTD: Array, labels_BT: Array, weights_BT: Array) -> dict[str, Array]:
        own = batch.replace(labels=labels_BT, weights=weights_BT)
        return objective.loss(logits(x_BTD), own, label_smoothing)

    def part_or_zero(x_BTD: Array, labels_BT: Array, weights_BT: Array) -> dict[str, Array]:
        given = x_BTD, labels_BT, weights_BT
        return jax.lax.cond(
            jnp.any(weights_BT > 0),
            part,
            lambda *given: jax.tree.map(jnp.zeros_like, shapes),
            *given,
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
        """Sums of parts are added; what is given for each position stands side by side."""
        if x.ndim == 2:
            return jnp.sum(x, 0)
        return jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1)[:, : x_BTD.shape[1]]

    return {name: joined(x) for name, x in sums.items()}


def int32(x: np.ndarray) -> np.ndarray:
    return x.astype(np.int32, copy=False)
