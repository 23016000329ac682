"""Predict something for each token that is read, with both sides in view."""

from typing import Any

import numpy as np
from jax import Array
from jax import numpy as jnp

from tfm.data.dataset import Dataset, Examples
from tfm.data.reader import Prompt, Reader
from tfm.evaluate.metric import Metric
from tfm.objectives.base import (
    Batch,
    Losses,
    Objective,
    Rng,
    Sums,
    class_names,
    cross_entropy,
    softmax,
    tagged,
    text_given,
    without_positions,
)
from tfm.objectives.scores import (
    ENTITY_SCORES,
    entity_matches,
    entity_scores,
    is_bio,
    with_lost_tags,
)
from tfm.ops.fast import argmax_last


class Tag(Objective):
    """Predicts a tag or, of a pair, the target token at the same position. Of a word in pieces the
    first is scored, if the data say so. Tags are never an input.

    Tags that mark entities (B-PER, I-PER, O) are also scored as entities; those that are cut off by
    `data.max_length` are missed.
    """

    families = ("encoder", "recurrent")
    forms = ("pairs", "tags")
    tags = True
    output = "tag"

    @property
    def head(self) -> dict[str, Any]:
        return {"outputs": ("tag",), "shape": "N:N"}

    def refuses(self, dataset: Dataset) -> str | None:
        if dataset.form == "text":
            return "would show the wanted tokens: they are the next ones"
        if dataset.form == "pairs" and not dataset.aligned:
            return "needs a target for each position of the source, but their lengths differ"
        return super().refuses(dataset)

    def sizes(self, dataset: Dataset) -> dict[str, int]:
        return {"vocab": dataset.vocab, "classes": dataset.tags or dataset.vocab}

    def prepare(self, examples: Examples, dataset: Dataset, rng: Rng) -> Batch:
        return tagged(examples, dataset)

    def loss(self, logits: Array, batch: Batch, label_smoothing: Array | None = None) -> Losses:
        return {
            **cross_entropy(logits, batch, label_smoothing),
            "predicted_BT": argmax_last(logits),
            "tags_BT": jnp.where(batch.weights > 0, batch.labels, -1),
        }

    def per_example(self, sums: Sums, dataset: Dataset) -> Sums:
        kept = without_positions(sums)
        if not is_bio(dataset.label_names):
            return kept
        tags_BT, said_BT = (sums[x].astype(np.int64) for x in ("tags_BT", "predicted_BT"))
        tags_BT, said_BT = with_lost_tags(tags_BT, said_BT, dataset)
        return kept | entity_matches(tags_BT, said_BT, tags_BT >= 0, dataset.label_names or ())

    def declares(self, dataset: Dataset | None = None) -> tuple[Metric, ...]:
        entities = dataset is None or is_bio(dataset.label_names)
        return (*super().declares(dataset), *(ENTITY_SCORES if entities else ()))

    def metrics(self, sums: Sums, dataset: Dataset) -> dict[str, float]:
        metrics = super().metrics(sums, dataset)
        if "entities" not in sums:
            return metrics
        names = ("entities", "entities_found", "entities_right")
        return metrics | entity_scores(*(float(np.sum(sums[name])) for name in names))

    def read(self, reader: Reader, text: str | None) -> Prompt:
        ids, places = reader.words(text_given(text).split())
        return Prompt(ids, places=places)

    def answer(self, reader: Reader, prompt: Prompt, output: Any) -> list[tuple[str, float]]:
        """Returns the tag of each word and its probability."""
        p_NC = softmax(np.asarray(output, np.float32))[list(prompt.places or ())]
        names = reader.labels
        if names is None and (reader.form == "pairs" or p_NC.shape[1] == reader.vocab):
            names = tuple(reader.names(range(p_NC.shape[1])))
        known = class_names(names, p_NC.shape[1])
        return [(known[c], float(p_C[c])) for c, p_C in zip(p_NC.argmax(1), p_NC, strict=True)]
