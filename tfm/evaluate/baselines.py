"""Baselines: results of simple methods, which a model should exceed.

Baselines are learned from the training data. Text and sequences: the unigram, and an n-gram that
sees the true tokens to the left, on the same tokens that the objective asks for. Classes: the most
frequent class, and a bag of words (naive Bayes). Tags: the most frequent tag of each word.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from tfm.data.dataset import Dataset, Examples, Ragged, spaced_rows
from tfm.evaluate.evaluator import EvalContext, Evaluator, Result
from tfm.evaluate.ngram import NGram
from tfm.objectives.base import Objective
from tfm.objectives.batches import eval_targets
from tfm.objectives.scores import (
    class_scores,
    correlations,
    entity_matches,
    entity_scores,
    is_bio,
    with_lost_tags,
)

ORDERS = {"unigram": 1, "trigram": 3}
TOKENS = 5_000_000  # at most, to learn from
BATCH = 64  # rows whose hidden tokens are drawn together

Scores = dict[str, dict[str, float]]  # by method


@dataclasses.dataclass(frozen=True, kw_only=True)
class Baselines(Evaluator):
    """Computes the metrics of each simple method, as a slice."""

    def evaluate(self, context: EvalContext, dataset: Dataset) -> Result:
        train = context.data("train")
        return Result({}, baselines(context.objective, train, dataset, context.batch))


def baselines(objective: Objective, train: Dataset, valid: Dataset, size: int = BATCH) -> Scores:
    """Returns the metrics of each method on `valid`.

    `size` is the batch size of an evaluation: with the same size, methods are asked for the same
    hidden tokens as the model.
    """
    if valid.form == "labels":
        return (_mean if valid.classes is None else _classes)(train, valid)
    tags = "tags" in objective.forms and "text" not in objective.forms
    if valid.form == "tags" or (valid.aligned and tags):
        return _tags(train, valid)
    return _language(objective, train, valid, size)


def _language(objective: Objective, train: Dataset, valid: Dataset, size: int) -> Scores:
    tokens_BT, valid_BT = _rows(_sequences(train, _apart(train)))
    models = {name: NGram(tokens_BT, valid_BT, valid.vocab, n) for name, n in ORDERS.items()}
    logs: dict[str, list[np.ndarray]] = {name: [] for name in models}
    for tokens_BT, valid_BT, asked_BT in _asked(objective, valid, size):
        for name, model in models.items():
            logs[name].append(np.log(model.probabilities(tokens_BT, valid_BT)[asked_BT]))
    losses = {name: float(-np.mean(np.concatenate(parts))) for name, parts in logs.items()}
    return {
        name: {"loss": loss, "perplexity": float(np.exp(min(loss, 700.0)))}
        for name, loss in losses.items()
    }


def _asked(
    objective: Objective, valid: Dataset, size: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields rows of tokens, a mask of the real ones, and a mask of those that are asked for."""
    if valid.form == "text":
        try:
            yield from eval_targets(objective, valid, size)
            return
        except NotImplementedError:  # the objective asks for every token, or for pairs
            pass
    tokens_BT, valid_BT = _rows(_sequences(valid, np.arange(len(valid))))
    asked_BT = valid_BT.copy()
    asked_BT[:, 0] &= valid.form == "text"  # elsewhere a sequence begins with BOS
    yield tokens_BT, valid_BT, asked_BT


def _sequences(dataset: Dataset, rows: np.ndarray) -> Ragged:
    """Returns the text; or BOS, the target of a pair (or of a vector), and EOS."""
    examples = dataset.take(rows)
    if dataset.form == "text":
        return examples.tokens
    written = examples.tokens if examples.target is None else examples.target
    ends = np.cumsum(written.lengths)
    places = np.stack([ends - written.lengths, ends], 1).ravel()
    special = np.tile([dataset.special.bos, dataset.special.eos], len(ends))
    return Ragged(np.insert(written.ids, places, special), written.lengths + 2)


def _rows(sequences: Ragged) -> tuple[np.ndarray, np.ndarray]:
    length = int(sequences.lengths.max())
    return sequences.padded(length).astype(np.int64), sequences.valid(length)


def _apart(dataset: Dataset) -> np.ndarray:
    """Returns rows to learn from, at most TOKENS tokens.

    Overlapping windows of a text are thinned out, so that each token counts once.
    """
    count, step = len(dataset), 1
    if dataset.form == "text" and count > 1 and not dataset.padded:
        pair = dataset.take(np.arange(2)).tokens
        first, second = pair.padded(dataset.max_length)
        shifts = (k for k in range(1, len(first)) if np.array_equal(first[k:], second[:-k]))
        step = max(1, len(first) // next(shifts, len(first)))
    length = max(dataset.max_length, dataset.max_target)
    rows = np.arange(0, count, step)
    return rows[spaced_rows(len(rows), max(TOKENS // length, 1))]


def _mean(train: Dataset, valid: Dataset) -> Scores:
    label_N, true_N = (_all(x).labels for x in (train, valid))
    assert label_N is not None
    assert true_N is not None
    predicted_N = np.full(len(true_N), label_N.mean())
    loss = float(np.mean((true_N - predicted_N) ** 2))
    return {"mean": {"loss": loss, **correlations(true_N, predicted_N)}}


def _classes(train: Dataset, valid: Dataset) -> Scores:
    learned, asked = _all(train), _all(valid)
    assert learned.labels is not None
    assert asked.labels is not None
    assert valid.classes is not None
    count_C = np.bincount(learned.labels, minlength=valid.classes)
    logits_NC = naive_bayes(learned, asked.tokens, valid.vocab, valid.classes)
    predictions = {
        "majority class": np.full(len(asked.labels), count_C.argmax()),
        "bag of words": logits_NC.argmax(1),
    }
    out = {}
    for name, predicted_N in predictions.items():
        accuracy = float(np.mean(predicted_N == asked.labels))
        scores = class_scores(asked.labels, predicted_N, valid.classes)
        out[name] = {"accuracy": accuracy, **scores}
    return out


def naive_bayes(learned: Examples, asked: Ragged, vocab: int, classes: int) -> np.ndarray:
    """Computes log P(class) + Σ log P(token | class), with add-one smoothing.

    Multinomial naive Bayes, McCallum & Nigam 1998.
    """
    assert learned.labels is not None
    label_T = np.repeat(learned.labels, learned.tokens.lengths)
    joint_T = label_T * vocab + learned.tokens.ids
    count_CV = np.bincount(joint_T, minlength=classes * vocab).reshape(classes, vocab) + 1.0
    log_CV = np.log(count_CV / count_CV.sum(1, keepdims=True))
    prior_C = np.log(np.bincount(learned.labels, minlength=classes) + 1.0)
    starts = np.cumsum(asked.lengths) - asked.lengths
    return prior_C + np.add.reduceat(log_CV[:, asked.ids], starts, axis=1).T


def _tags(train: Dataset, valid: Dataset) -> Scores:
    classes = valid.tags or valid.vocab
    word_N, tag_N, _ = _words(_all(train))
    asked, true, place = _words(examples := _all(valid))
    predicted = most_frequent(word_N, tag_N, asked, classes)
    out = {"accuracy": float(np.mean(predicted == true))}
    if is_bio(valid.label_names) and valid.label_names is not None:
        flat = np.zeros((2, len(examples.tokens.ids)), np.int64)
        flat[:, place] = true + 1, predicted + 1  # padding becomes -1
        true_BT, said_BT = (examples.tokens.padded(valid.max_length, x) - 1 for x in flat)
        true_BT, said_BT = with_lost_tags(true_BT, said_BT, valid, examples.rows)
        counts = entity_matches(true_BT, said_BT, true_BT >= 0, valid.label_names)
        out |= entity_scores(*(float(x.sum()) for x in counts.values()))
    return {"most frequent tag of the word": out}


def most_frequent(
    word_N: np.ndarray, tag_N: np.ndarray, asked_N: np.ndarray, classes: int
) -> np.ndarray:
    """Returns the most frequent tag of each word.

    An unknown word gets the most frequent tag of the words that occur once.
    """
    words, index_N, times = np.unique(word_N, return_inverse=True, return_counts=True)
    pair, count = np.unique(index_N * classes + tag_N, return_counts=True)
    order = np.lexsort((-(pair % classes), count, pair // classes))
    last = np.append(np.diff(pair[order] // classes) > 0, True)  # a word's most frequent tag
    best = (pair[order] % classes)[last]
    rare = np.bincount(tag_N[times[index_N] == 1], minlength=classes)
    rest = rare if rare.any() else np.bincount(tag_N, minlength=classes)
    place_N = np.minimum(np.searchsorted(words, asked_N), len(words) - 1)
    return np.where(words[place_N] == asked_N, best[place_N], rest.argmax())


def _words(examples: Examples) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns a hash of its pieces, the tag and the place of each scored word.

    A word extends to the next one, or to the end of its row.
    """
    tokens = examples.tokens
    tags = examples.tags if examples.target is None else examples.target.ids
    assert tags is not None
    scored = np.ones(len(tokens.ids), bool) if examples.scored is None else examples.scored
    begins = scored.copy()
    begins[np.cumsum(tokens.lengths) - tokens.lengths] = True  # what precedes the first word
    starts = np.flatnonzero(begins)
    lengths = np.diff(np.append(starts, len(tokens.ids)))
    keys = Ragged(tokens.ids.astype(np.int64), lengths).hashes()
    real = scored[starts]
    return keys[real], tags[starts[real]].astype(np.int64), starts[real]


def _all(dataset: Dataset) -> Examples:
    return dataset.take(spaced_rows(len(dataset), max(TOKENS // dataset.max_length, 1)))
