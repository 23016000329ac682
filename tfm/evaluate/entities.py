"""Entity precision, recall and F1, for all entities and for each type.

Tjong Kim Sang & De Meulder 2003: an entity is right if its type, beginning and end are.
"""

import dataclasses
from typing import Any

import numpy as np

from tfm.data.dataset import Dataset
from tfm.evaluate.evaluator import EvalContext, Evaluator, Result
from tfm.evaluate.loss import evaluate
from tfm.objectives.base import Objective
from tfm.objectives.batches import eval_batches
from tfm.objectives.scores import (
    ENTITY_SCORES,
    entity_counts,
    entity_scores,
    entity_types,
    is_bio,
    with_lost_tags,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entities(Evaluator):
    """Scores tags that mark entities (B-PER, I-PER, O; IOBES and BILOU); each type is a slice."""

    computes = ENTITY_SCORES

    def refuses(self, spec: Any, objective: Objective, dataset: Dataset) -> str | None:
        if dataset.form != "tags" or not is_bio(dataset.label_names):
            return "needs tags that mark entities, such as B-PER, I-PER and O"
        return None

    def evaluate(self, context: EvalContext, dataset: Dataset) -> Result:
        batches = eval_batches(context.objective, dataset, context.batch)
        sums = evaluate(context.eval_step, context.variables, batches)
        tags_BT, said_BT = (sums[x].astype(np.int64) for x in ("tags_BT", "predicted_BT"))
        tags_BT, said_BT = with_lost_tags(tags_BT, said_BT, dataset)
        counts = counts_by_type(tags_BT, said_BT, dataset.label_names or ())
        total = np.sum(list(counts.values()), 0) if counts else np.zeros(3)
        slices = {kind: entity_scores(*map(float, count)) for kind, count in counts.items()}
        return Result(entity_scores(*map(float, total)), slices)


def counts_by_type(
    tags_BT: np.ndarray, predicted_BT: np.ndarray, names: Any
) -> dict[str, np.ndarray]:
    """Returns, for each type, how many entities there are, were predicted, and are right.

    Tags below 0 are not scored.
    """
    scored_BT = tags_BT >= 0
    begins_BT, end_BT, kind_BT = entity_counts(tags_BT, scored_BT, names)
    said_BT, said_end_BT, said_kind_BT = entity_counts(predicted_BT, scored_BT, names)
    right_BT = begins_BT & said_BT & (end_BT == said_end_BT) & (kind_BT == said_kind_BT)
    sides = (begins_BT, kind_BT), (said_BT, said_kind_BT), (right_BT, kind_BT)
    return {
        kind: np.array([np.sum(starts & (kinds_BT == number)) for starts, kinds_BT in sides])
        for number, kind in enumerate(entity_types(names))
    }
