"""Predict the class of a whole sequence, or of two; or a number for it."""

import dataclasses
from typing import Any, ClassVar

import numpy as np
from jax import Array
from jax import numpy as jnp

from tfm.data.dataset import Dataset, Examples
from tfm.metric import LOW, Metric
from tfm.objectives.base import Batch, Objective, Sums, cross_entropy, int32
from tfm.objectives.scores import (
    F1,
    MACRO_F1,
    MATTHEWS,
    PEARSON,
    SPEARMAN,
    class_scores,
    correlations,
)
from tfm.ops.fast import argmax_last


class Classify(Objective):
    """Two sentences are read as one sequence; a separator alone tells them apart. The class is
    never an input."""

    families: ClassVar[tuple[str, ...]] = ("encoder", "recurrent", "bag", "convolution")
    forms = ("labels",)

    @property
    def head(self) -> dict[str, Any]:
        return {"outputs": ("classify",), "shape": "N:1"}

    def refuses(self, dataset: Dataset) -> str | None:
        if dataset.form == "labels" and dataset.classes is None:
            return "needs classes, but the labels are numbers"
        return super().refuses(dataset)

    def sizes(self, dataset: Dataset) -> dict[str, int]:
        return {"vocab": dataset.vocab, "classes": dataset.classes or 0}

    def prepare(self, examples: Examples, dataset: Dataset, rng: np.random.Generator) -> Batch:
        assert examples.labels is not None
        tokens, longest = examples.tokens, dataset.max_length
        inputs = {"tokens_BT": int32(tokens.padded(longest)), "valid_BT": tokens.valid(longest)}
        return Batch(inputs, int32(examples.labels), np.ones(len(tokens), np.float32))

    def loss(
        self, logits: Array, batch: Batch, label_smoothing: Array | None = None
    ) -> dict[str, Array]:
        sums = cross_entropy(logits, batch, label_smoothing)
        return {**sums, "label": batch.labels, "predicted": argmax_last(logits)}

    def declares(self, dataset: Dataset | None = None) -> tuple[Metric, ...]:
        two = dataset is None or dataset.classes == 2
        return (*super().declares(dataset), MACRO_F1, MATTHEWS, *((F1,) if two else ()))

    def metrics(self, sums: Sums, dataset: Dataset) -> dict[str, float]:
        found = super().metrics(sums, dataset)
        return found | class_scores(sums["label"], sums["predicted"], dataset.classes or 0)


class Pair(Classify):
    """Two sentences, told apart by the types of their tokens as well.  Devlin et al. 2019, §3.2."""

    families = ("encoder", "bag")

    @property
    def head(self) -> dict[str, Any]:
        return {"outputs": ("pair",), "types": 2}

    def refuses(self, dataset: Dataset) -> str | None:
        reason = super().refuses(dataset)
        if reason is None and dataset.take(np.zeros(1, np.int64)).segments is None:
            return "needs two sentences, but the data do not say where the second begins"
        return reason

    def prepare(self, examples: Examples, dataset: Dataset, rng: np.random.Generator) -> Batch:
        batch = super().prepare(examples, dataset, rng)
        types_BT = int32(examples.tokens.padded(dataset.max_length, examples.segments))
        return batch.replace(inputs={**batch.inputs, "types_BT": types_BT})


@dataclasses.dataclass(frozen=True)
class Regress(Classify):
    """A number for the whole, by least squares: STS-B, the relatedness of SICK."""

    smooths = False
    chooses = False

    def refuses(self, dataset: Dataset) -> str | None:
        if dataset.form == "labels" and dataset.classes is not None:
            return "needs numbers, but the labels are classes"
        return Objective.refuses(self, dataset)

    def sizes(self, dataset: Dataset) -> dict[str, int]:
        return {"vocab": dataset.vocab, "classes": 1}

    def prepare(self, examples: Examples, dataset: Dataset, rng: np.random.Generator) -> Batch:
        assert examples.labels is not None
        batch = super().prepare(examples, dataset, rng)
        return batch.replace(labels=examples.labels.astype(np.float32))

    def loss(
        self, logits: Array, batch: Batch, label_smoothing: Array | None = None
    ) -> dict[str, Array]:
        predicted = logits[..., 0]
        loss = jnp.square(predicted - batch.labels) * batch.weights
        return {
            "loss": loss,
            "correct": jnp.zeros_like(loss),
            "count": batch.weights,
            "label": batch.labels,
            "predicted": predicted,
        }

    def declares(self, dataset: Dataset | None = None) -> tuple[Metric, ...]:
        return Metric("loss", LOW, unit="squared error", headline=True), PEARSON, SPEARMAN

    def metrics(self, sums: Sums, dataset: Dataset) -> dict[str, float]:
        loss = float(np.sum(sums["loss"]) / np.sum(sums["count"]))
        return {"loss": loss, **correlations(sums["label"], sums["predicted"])}
