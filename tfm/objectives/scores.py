"""Scores that are not means over examples, from counts of each example, so that they can be
bootstrapped."""

from collections.abc import Sequence

import numpy as np

from tfm.data.dataset import Dataset
from tfm.evaluate.metric import HIGH, Metric

MACRO_F1 = Metric("macro_f1", HIGH, most=1.0)
MATTHEWS = Metric("matthews", HIGH, -1.0, 1.0)
F1 = Metric("f1", HIGH, most=1.0)  # of the second of two classes
PEARSON = Metric("pearson", HIGH, -1.0, 1.0, headline=True)
SPEARMAN = Metric("spearman", HIGH, -1.0, 1.0)
BEGIN, END = ("B-", "S-", "U-"), ("E-", "S-", "L-", "U-")  # IOB, IOBES and BILOU
ENTITY = ("I-", *BEGIN, *END)
ENTITY_SCORES = (
    Metric("entity_precision", HIGH, most=1.0),
    Metric("entity_recall", HIGH, most=1.0),
    Metric("entity_f1", HIGH, most=1.0, headline=True),
)


def class_scores(label_N: np.ndarray, predicted_N: np.ndarray, classes: int) -> dict[str, float]:
    """Computes macro F1, Matthews' correlation (Gorodkin 2004) and, for two classes, the F1 of the
    second, as in GLUE for MRPC and QQP. Classes without examples and answers do not count."""
    joint = (label_N * classes + predicted_N).astype(np.int64)
    inside = (predicted_N >= 0) & (predicted_N < classes)  # a head may be larger than needed
    table_LP = np.bincount(joint[inside], minlength=classes**2).reshape(classes, classes)
    # Per class: how many there are, how often it was the answer, how often rightly.
    there_L = np.bincount(label_N.astype(np.int64), minlength=classes)
    said_L, right_L = table_LP.sum(0), np.diag(table_LP)
    known_L = there_L + said_L > 0
    f1_L = 2 * right_L / np.maximum(there_L + said_L, 1)
    count = float(len(label_N))
    spread = (count**2 - float(said_L @ said_L)) * (count**2 - float(there_L @ there_L))
    covariance = float(right_L.sum() * count - there_L @ said_L)
    out = {
        "macro_f1": float(np.mean(f1_L[known_L])),
        "matthews": covariance / spread**0.5 if spread > 0 else 0.0,
    }
    return out | ({"f1": float(f1_L[1])} if classes == 2 else {})


def correlations(label_N: np.ndarray, predicted_N: np.ndarray) -> dict[str, float]:
    """Computes Pearson's and Spearman's correlation; 0 if one side is constant."""
    from scipy import stats  # here, since it takes half a second

    if np.ptp(label_N) == 0 or np.ptp(predicted_N) == 0:
        return {"pearson": 0.0, "spearman": 0.0}
    ranks = stats.rankdata(label_N), stats.rankdata(predicted_N)
    pearson = float(np.corrcoef(label_N, predicted_N)[0, 1])
    return {"pearson": pearson, "spearman": float(np.corrcoef(*ranks)[0, 1])}


def is_bio(names: Sequence[str] | None) -> bool:
    """Returns whether tags mark entities: B-X begins one, I-X continues it, O is outside."""
    return names is not None and any(name.startswith(("B-", "I-")) for name in names)


def entity_types(names: Sequence[str]) -> list[str]:
    """Returns the types of entities that tags mark, sorted."""
    return sorted({name[2:] for name in names if name.startswith(ENTITY)})


def entity_counts(
    tags_BT: np.ndarray, scored_BT: np.ndarray, names: Sequence[str]
) -> tuple[np.ndarray, ...]:
    """Finds entities as conlleval does: where each begins, its end at its beginning, and its type
    (BT). An I-X after anything but B-X or I-X begins one.  Tjong Kim Sang & De Meulder 2003. E-X or
    L-X ends one and S-X or U-X is one, as in seqeval.  Ratinov & Roth 2009."""
    kinds = entity_types(names)
    kind_of = np.array([kinds.index(n[2:]) if n.startswith(ENTITY) else -1 for n in names])
    first_of, last_of = (np.array([n.startswith(x) for n in names]) for x in (BEGIN, END))
    # What is scored comes first, in order.
    order_BT = np.argsort(~scored_BT, 1, kind="stable")
    tags_BT = np.take_along_axis(tags_BT, order_BT, 1)
    real_BT = np.take_along_axis(scored_BT, order_BT, 1)
    tag_BT = np.clip(tags_BT, 0, len(names) - 1).astype(np.int64)  # a head may be larger
    kind_BT = np.where(real_BT & (tags_BT < len(names)), kind_of[tag_BT], -1)
    before_BT = np.pad(kind_BT[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
    last_BT = (kind_BT >= 0) & last_of[tag_BT]
    over_BT = np.pad(last_BT[:, :-1], ((0, 0), (1, 0)))
    begins_BT = (kind_BT >= 0) & (first_of[tag_BT] | over_BT | (kind_BT != before_BT))
    after_BT = np.pad(kind_BT[:, 1:], ((0, 0), (0, 1)), constant_values=-1)
    begins_after_BT = np.pad(begins_BT[:, 1:], ((0, 0), (0, 1)))
    ends_BT = (kind_BT >= 0) & (begins_after_BT | (after_BT != kind_BT))
    length = tags_BT.shape[1]
    place_BT = np.where(ends_BT, np.arange(length), length)
    end_BT = np.minimum.accumulate(place_BT[:, ::-1], 1)[:, ::-1]
    return begins_BT, end_BT, kind_BT


def with_lost_tags(
    tags_BT: np.ndarray,
    predicted_BT: np.ndarray,
    dataset: Dataset,
    rows: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Adds the tags of words that the model was not shown, for which it predicts nothing; -1 is not
    scored. Without `rows`, the rows are the first of the data set, in order."""
    if dataset.lost_tags is None:
        return tags_BT, predicted_BT
    lost = dataset.lost_tags(np.arange(len(tags_BT)) if rows is None else rows)
    lost_BN = lost.padded(length := int(lost.lengths.max()))
    lost_BN = np.where(lost.valid(length), lost_BN, -1)
    nothing_BN = np.full(lost_BN.shape, len(dataset.label_names or ()))
    return np.hstack([tags_BT, lost_BN]), np.hstack([predicted_BT, nothing_BN])


def entity_matches(
    tags_BT: np.ndarray, predicted_BT: np.ndarray, scored_BT: np.ndarray, names: Sequence[str]
) -> dict[str, np.ndarray]:
    """Counts the entities of each row, those predicted, and those predicted with the right type,
    beginning and end."""
    begins_BT, end_BT, kind_BT = entity_counts(tags_BT, scored_BT, names)
    said_BT, said_end_BT, said_kind_BT = entity_counts(predicted_BT, scored_BT, names)
    right_BT = begins_BT & said_BT & (end_BT == said_end_BT) & (kind_BT == said_kind_BT)
    counts = {"entities": begins_BT, "entities_found": said_BT, "entities_right": right_BT}
    return {name: x_BT.sum(1).astype(np.float64) for name, x_BT in counts.items()}


def entity_scores(entities: float, predicted: float, right: float) -> dict[str, float]:
    """Computes micro-averages over all entities, as conlleval does; 0 if there are none."""
    return {
        "entity_precision": right / predicted if predicted else 0.0,
        "entity_recall": right / entities if entities else 0.0,
        "entity_f1": 2 * right / (entities + predicted) if entities + predicted else 0.0,
    }
