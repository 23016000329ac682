"""Predict the class of a whole sequence, or of two; or a number for it."""

import dataclasses
from collections import Counter
from typing import Any, ClassVar

import numpy as np
from jax import Array
from jax import numpy as jnp

from tfm.config.names import UserError
from tfm.data.dataset import Dataset, Examples
from tfm.data.reader import Prompt, Reader
from tfm.evaluate.metric import LOW, Metric
from tfm.objectives.base import (
    Batch,
    Losses,
    Objective,
    Rng,
    Sums,
    class_names,
    cross_entropy,
    int32,
    numbers_refused,
    softmax,
    text_given,
    text_rows,
)
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


@dataclasses.dataclass(frozen=True)
class Classify(Objective):
    """Reads two sentences as one sequence, which a separator and, with `types`, the types of their
    tokens tell apart. The class is never an input.

    Classes that are `independent`, as in imported models for several labels, have a probability
    each; such models are not trained or evaluated.
    """

    types: bool = False
    independent: bool = False

    families: ClassVar[tuple[str, ...]] = ("encoder", "recurrent", "bag", "convolution")
    forms = ("labels",)
    classifies = True
    output: ClassVar[str | None] = "classify"

    @property
    def head(self) -> dict[str, Any]:
        return {"outputs": (self.output,), "shape": "N:1", **({"types": 2} if self.types else {})}

    def refuses(self, dataset: Dataset) -> str | None:
        reason = numbers_refused(dataset) or super().refuses(dataset)
        if self.independent and reason is None:
            return "is for independent classes, but the data have one class for each text"
        return reason

    def sizes(self, dataset: Dataset) -> dict[str, int]:
        return {"vocab": dataset.vocab, "classes": dataset.classes or 0}

    def prepare(self, examples: Examples, dataset: Dataset, rng: Rng) -> Batch:
        assert examples.labels is not None
        tokens, inputs = examples.tokens, text_rows(examples, dataset).inputs
        if self.types and examples.segments is not None:  # without, all types are 0
            inputs["types_BT"] = int32(tokens.padded(dataset.max_length, examples.segments))
        return Batch(inputs, int32(examples.labels), np.ones(len(tokens), np.float32))

    def loss(self, logits: Array, batch: Batch, label_smoothing: Array | None = None) -> Losses:
        sums = cross_entropy(logits, batch, label_smoothing)
        return {**sums, "label": batch.labels, "predicted": argmax_last(logits)}

    def declares(self, dataset: Dataset | None = None) -> tuple[Metric, ...]:
        two = dataset is None or dataset.classes == 2
        return (*super().declares(dataset), MACRO_F1, MATTHEWS, *((F1,) if two else ()))

    def metrics(self, sums: Sums, dataset: Dataset) -> dict[str, float]:
        metrics = super().metrics(sums, dataset)
        return metrics | class_scores(sums["label"], sums["predicted"], dataset.classes or 0)

    def read(
        self, reader: Reader, text: str | None, second: str | None = None, task: int | None = None
    ) -> Prompt:
        if second is None and self.types and reader.two:
            raise UserError("the run was trained on two sentences: give the second, --second=TEXT")
        if second is not None and reader.two is False:
            raise UserError("the run was trained on single sentences: leave out the second")
        ids, types = reader.sentences(text_given(text), second, task)
        return Prompt(ids, types=types if self.types else None)

    def answer(self, reader: Reader, prompt: Prompt, output: Any) -> dict[str, Any]:
        """Returns the class and the probability of each class."""
        logits_C = np.asarray(output, np.float32)
        p_C = 1 / (1 + np.exp(-logits_C)) if self.independent else softmax(logits_C)
        names, counts = class_names(reader.labels, len(p_C)), Counter(reader.labels)
        names = [name if counts[name] < 2 else f"{name} ({n})" for n, name in enumerate(names)]
        classes = dict(zip(names, p_C.tolist(), strict=True))
        return {"class": max(classes, key=lambda name: classes[name]), "classes": classes}


@dataclasses.dataclass(frozen=True)
class Pair(Classify):
    """Two sentences, told apart by the types of their tokens as well.  Devlin et al. 2019, §3.2."""

    types: bool = True

    families = ("encoder", "bag")
    output = "pair"

    @property
    def head(self) -> dict[str, Any]:
        return {"outputs": ("pair",), "types": 2}

    def refuses(self, dataset: Dataset) -> str | None:
        reason = super().refuses(dataset)
        if reason is None and dataset.take(np.zeros(1, np.int64)).segments is None:
            return "needs two sentences, but the data do not say where the second begins"
        return reason


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

    def prepare(self, examples: Examples, dataset: Dataset, rng: Rng) -> Batch:
        assert examples.labels is not None
        batch = super().prepare(examples, dataset, rng)
        return batch.replace(labels=examples.labels.astype(np.float32))

    def loss(self, logits: Array, batch: Batch, label_smoothing: Array | None = None) -> Losses:
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

    def answer(self, reader: Reader, prompt: Prompt, output: Any) -> dict[str, Any]:
        return {"number": float(output[0])}
