"""Scores that are no means: against scikit-learn, seqeval, SciPy, and by hand."""

import warnings

import numpy as np
import pytest
from scipy import stats

from tests.objectives.test_prepare import LABELS, data, flat, ragged
from tfm.data.dataset import Examples
from tfm.evaluate.loss import intervals
from tfm.objectives.base import Batch
from tfm.objectives.scores import class_scores, correlations, entity_matches, entity_scores
from tfm.objectives.table import OBJECTIVES

NAMES = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


def test_class_scores_by_hand():
    """Class 0: 2 of 3 found, 2 of 3 right; class 1: 2 of 3, 2 of 3; class 2: 1 of 1, 1 of 1."""
    label = np.array([0, 0, 0, 1, 1, 1, 2])
    said = np.array([0, 0, 1, 1, 1, 0, 2])
    assert class_scores(label, said, 3)["macro_f1"] == pytest.approx((2 / 3 + 2 / 3 + 1) / 3)
    # 40 true and 30 false positives, 20 missed, 10 rightly left: Matthews 1975.
    label = np.repeat([1, 0, 1, 0], [40, 30, 20, 10])
    said = np.repeat([1, 1, 0, 0], [40, 30, 20, 10])
    found = class_scores(label, said, 2)
    wanted = (40 * 10 - 30 * 20) / np.sqrt(70 * 60 * 40 * 30)
    assert found["matthews"] == pytest.approx(wanted)
    assert found["f1"] == pytest.approx(80 / 130)
    assert class_scores(np.zeros(4), np.zeros(4), 2)["matthews"] == 0


@pytest.mark.parametrize("classes", [2, 5])
def test_class_scores_as_scikit_learn_has_them(classes):
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(classes)
    label = rng.integers(0, classes, 300)
    said = np.where(rng.random(300) < 0.5, label, rng.integers(0, classes, 300))
    found = class_scores(label, said, classes)
    assert found["macro_f1"] == pytest.approx(metrics.f1_score(label, said, average="macro"))
    assert found["matthews"] == pytest.approx(metrics.matthews_corrcoef(label, said))
    assert ("f1" in found) == (classes == 2)


def test_correlations_as_scipy_has_them():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 6, 100).astype(float)  # with ties
    y = x + rng.normal(size=100)
    found = correlations(x, y)
    assert found["pearson"] == pytest.approx(stats.pearsonr(x, y).statistic)
    assert found["spearman"] == pytest.approx(stats.spearmanr(x, y).statistic)
    assert correlations(x, np.ones(100)) == {"pearson": 0, "spearman": 0}


def tags(*rows):
    longest = max(map(len, rows))
    return np.array([[NAMES.index(t) for t in row] + [-1] * (longest - len(row)) for row in rows])


def test_entities_by_hand():
    """As conlleval counts: an entity is right if its type, its beginning and its end are."""
    true = tags(
        ["B-PER", "I-PER", "O", "B-LOC"],  # 2 entities
        ["B-LOC", "B-LOC", "I-LOC", "O"],  # 2: the second begins beside the first
        ["I-PER", "I-PER", "I-LOC"],  # 2: an I- after another type, or first, begins one
    )
    said = tags(
        ["B-PER", "I-PER", "B-LOC", "I-LOC"],  # PER right; LOC has another beginning
        ["B-LOC", "I-LOC", "I-LOC", "O"],  # one, and it is longer
        ["B-PER", "I-PER", "B-LOC"],  # both right
    )
    found = entity_matches(true, said, true >= 0, NAMES)
    assert found["entities"].tolist() == [2, 2, 2]
    assert found["entities_found"].tolist() == [2, 1, 2]
    assert found["entities_right"].tolist() == [1, 0, 2]
    scores = entity_scores(6, 5, 3)
    assert scores == pytest.approx(
        {"entity_precision": 3 / 5, "entity_recall": 3 / 6, "entity_f1": 6 / 11}
    )


def test_entities_as_seqeval_counts_them():
    seqeval = pytest.importorskip("seqeval.metrics")
    rng = np.random.default_rng(0)
    true = rng.integers(0, 5, (200, 12))
    said = np.where(rng.random((200, 12)) < 0.8, true, rng.integers(0, 5, (200, 12)))
    scored = rng.random((200, 12)) < 0.7  # some pieces are not the first of a word
    found = {k: x.sum() for k, x in entity_matches(true, said, scored, NAMES).items()}
    rows = [
        [[NAMES[t] for t in row[keep]] for row, keep in zip(x, scored, strict=True)]
        for x in (true, said)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = [
            f(*rows) for f in (seqeval.precision_score, seqeval.recall_score, seqeval.f1_score)
        ]
    assert list(entity_scores(*found.values()).values()) == pytest.approx(wanted)


@pytest.mark.parametrize("letters", ["BIES", "BILU"])
def test_entities_in_iobes_and_bilou_as_seqeval_counts_them(letters):
    """Any tags: seqeval reads IOBES leniently, and L and U are its E and S. Well-formed tags: its
    strict mode knows both schemes."""
    seqeval, scheme = pytest.importorskip("seqeval.metrics"), pytest.importorskip("seqeval.scheme")
    names = ["O", *(f"{letter}-{kind}" for kind in ("PER", "LOC") for letter in letters)]
    metrics = seqeval.precision_score, seqeval.recall_score, seqeval.f1_score
    rng = np.random.default_rng(0)

    def scores(true, said):
        counts = entity_matches(true, said, true >= 0, names).values()
        return list(entity_scores(*(x.sum() for x in counts)).values())

    def rows(tags):
        return [[names[t] for t in row] for row in tags]

    true = rng.integers(0, len(names), (300, 12))
    said = np.where(rng.random(true.shape) < 0.8, true, rng.integers(0, len(names), true.shape))
    as_iobes = [
        [[tag.replace("L-", "E-").replace("U-", "S-") for tag in row] for row in rows(x)]
        for x in (true, said)
    ]
    with warnings.catch_warnings(action="ignore"):
        assert scores(true, said) == pytest.approx([f(*as_iobes) for f in metrics])

    begin, inside, last, one = (f"{letter}-" for letter in letters)
    parts = [
        [tag + kind for tag in tags]
        for kind in ("PER", "LOC")
        for tags in ([one], [begin, last], [begin, inside, last])
    ]
    parts += [["O"], ["O", "O"]]

    def well_formed():
        row = [tag for part in rng.integers(0, len(parts), 8) for tag in parts[part]][:12]
        while not row[-1].startswith(("O", last, one)):
            row.pop()
        return [names.index(tag) for tag in row] + [0] * (12 - len(row))

    true, said = np.array([[well_formed() for _ in range(300)] for _ in range(2)])
    strict = {"mode": "strict", "scheme": scheme.IOBES if letters == "BIES" else scheme.BILOU}
    wanted = [f(rows(true), rows(said), **strict) for f in metrics]
    assert 0 < wanted[0] < 1
    assert scores(true, said) == pytest.approx(wanted)


def test_scores_have_intervals():
    """A tagger that is right in half of the sentences, each of which has one entity."""
    objective, rng = OBJECTIVES["tag"], np.random.default_rng(0)
    dataset = data(
        "tags", Examples(tokens=ragged([5, 6]), tags=flat([0, 1])), tags=5, label_names=NAMES
    )
    right = rng.random(400) < 0.5
    true = np.tile([[1, 2]], (400, 1))
    sums = {
        "loss": np.ones(400), "correct": right * 2.0, "count": np.full(400, 2.0),
        "tags_BT": true, "predicted_BT": np.where(right[:, None], true, 0),
    }  # fmt: skip
    sums = objective.per_example(sums, dataset)
    found = objective.metrics(sums, dataset)
    share = right.mean()
    assert found["entity_f1"] == pytest.approx(2 * share / (1 + share))
    low, high = intervals(objective, sums, dataset, draws=300)["entity_f1"]
    assert low < found["entity_f1"] < high
    assert 0.04 < high - low < 0.2


def test_what_a_model_predicts_is_counted():
    logits = np.array([[0.1, 2.0, 0.3], [0.5, 0.2, 0.1]], np.float32)
    batch = Batch({}, np.array([1, 2]), np.ones(2, np.float32))
    sums = {k: np.asarray(x) for k, x in OBJECTIVES["classify"]().loss(logits, batch).items()}
    found = OBJECTIVES["classify"]().metrics(sums, LABELS)
    assert found["accuracy"] == 0.5
    assert found["macro_f1"] == pytest.approx(1 / 3)  # of the classes 0, 1 and 2
    batch = Batch({}, np.array([1.0, 4.0], np.float32), np.ones(2, np.float32))
    sums = {k: np.asarray(x) for k, x in OBJECTIVES["regress"].loss(logits[:, :1], batch).items()}
    found = OBJECTIVES["regress"].metrics(sums, LABELS)
    assert found["loss"] == pytest.approx((0.9**2 + 3.5**2) / 2)
    assert found["pearson"] == pytest.approx(1)
