"""What simple methods reach on a data set: the least that a model must be compared with.

Text and sequences: the unigram, and an n-gram that sees the true tokens to the left, on the very
tokens that an objective asks for. Classes: the most frequent one, and a bag of words (naive Bayes).
Tags: the most frequent of each word.
"""

from collections.abc import Iterator

import numpy as np

from tfm.data.dataset import Dataset, Examples, Ragged
from tfm.evaluate.ngram import NGram
from tfm.objectives.base import Objective
from tfm.objectives.batches import eval_targets
from tfm.objectives.scores import class_scores, correlations, entity_matches, entity_scores, is_bio

ORDERS = {"unigram": 1, "trigram": 3}
TOKENS = 5_000_000  # to learn from, at most
BATCH = 64  # of rows whose hidden tokens are drawn together

Found = dict[str, dict[str, float]]


def baselines(objective: Objective, train: Dataset, valid: Dataset, size: int = BATCH) -> Found:
    """For each method the metrics that it reaches on `valid`. With the `size` of the batches of an
    evaluation, methods are asked for the same tokens as the model is."""
    if valid.form == "labels" and valid.classes is None:
        return _mean(train, valid)
    if valid.form == "labels":
        return _classes(train, valid)
    tags = "tags" in objective.forms and "text" not in objective.forms
    if valid.form == "tags" or (valid.aligned and tags):
        return _tags(train, valid)
    return _language(objective, train, valid, size)


def _language(objective: Objective, train: Dataset, valid: Dataset, size: int) -> Found:
    learned = _sequences(train, _apart(train))
    tokens_BT, valid_BT = _rows(learned, train)
    models = {name: NGram(tokens_BT, valid_BT, valid.vocab, n) for name, n in ORDERS.items()}
    logs: dict[str, list[np.ndarray]] = {name: [] for name in models}
    for tokens_BT, valid_BT, asked_BT in _asked(objective, valid, size):
        for name, model in models.items():
            logs[name].append(np.log(model.probabilities(tokens_BT, valid_BT)[asked_BT]))
    return {name: _of_losses(-np.concatenate(found)) for name, found in logs.items()}


def _of_losses(losses: np.ndarray) -> dict[str, float]:
    loss = float(np.mean(losses))
    return {"loss": loss, "perplexity": float(np.exp(min(loss, 700.0)))}


def _asked(
    objective: Objective, valid: Dataset, size: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Rows of tokens, which are real, and which of them are asked for."""
    if valid.form == "text":
        try:
            yield from eval_targets(objective, valid, size)
            return
        except NotImplementedError:  # an objective that asks for every token, or for pairs of them
            pass
    sequences = _sequences(valid, np.arange(len(valid)))
    tokens_BT, valid_BT = _rows(sequences, valid)
    asked_BT = valid_BT.copy()
    asked_BT[:, 0] &= valid.form == "text"  # elsewhere a sequence begins with BOS
    yield tokens_BT, valid_BT, asked_BT


def _sequences(dataset: Dataset, rows: np.ndarray) -> Ragged:
    """What is written: the text; or BOS, the second side of a pair (or what a vector stands for),
    and EOS."""
    examples = dataset.take(rows)
    if dataset.form == "text":
        return examples.tokens
    written = examples.tokens if examples.target is None else examples.target
    ends = np.cumsum(written.lengths)
    places = np.stack([ends - written.lengths, ends], 1).ravel()
    special = np.tile([dataset.special.bos, dataset.special.eos], len(ends))
    ids = np.insert(written.ids, places, special)
    return Ragged(ids, written.lengths + 2)


def _rows(sequences: Ragged, dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    length = int(sequences.lengths.max())
    return sequences.padded(length).astype(np.int64), sequences.valid(length)


def _apart(dataset: Dataset) -> np.ndarray:
    """Rows to learn from, at most TOKENS tokens. Of windows of a text that overlap, only those that
    stand side by side: otherwise each token would be counted many times."""
    count, step = len(dataset), 1
    if dataset.form == "text" and count > 1 and not dataset.padded:
        pair = dataset.take(np.arange(2)).tokens
        one, other = pair.padded(dataset.max_length)
        shifts = (k for k in range(1, len(one)) if np.array_equal(one[k:], other[:-k]))
        step = max(1, len(one) // next(shifts, len(one)))
    length = max(dataset.max_length, dataset.max_target)
    return np.arange(0, count, step)[: max(TOKENS // length, 1)]


def _mean(train: Dataset, valid: Dataset) -> Found:
    label_N, wanted_N = (_all(x).labels for x in (train, valid))
    assert label_N is not None
    assert wanted_N is not None
    said_N = np.full(len(wanted_N), label_N.mean())
    loss = float(np.mean((wanted_N - said_N) ** 2))
    return {"mean": {"loss": loss, **correlations(wanted_N, said_N)}}


def _classes(train: Dataset, valid: Dataset) -> Found:
    learned, asked = _all(train), _all(valid)
    assert learned.labels is not None
    assert asked.labels is not None
    assert valid.classes is not None
    count_C = np.bincount(learned.labels, minlength=valid.classes)
    logits_NC = naive_bayes(learned, asked.tokens, valid.vocab, valid.classes)
    said = {
        "majority class": np.full(len(asked.labels), count_C.argmax()),
        "bag of words": logits_NC.argmax(1),
    }
    return {
        name: {
            "accuracy": float(np.mean(said_N == asked.labels)),
            **class_scores(asked.labels, said_N, valid.classes),
        }
        for name, said_N in said.items()
    }


def naive_bayes(learned: Examples, asked: Ragged, vocab: int, classes: int) -> np.ndarray:
    """log P(class) + Σ log P(token | class), with one added to every count.  Multinomial naive
    Bayes, McCallum & Nigam 1998."""
    assert learned.labels is not None
    label_T = np.repeat(learned.labels, learned.tokens.lengths)
    joint_T = label_T * vocab + learned.tokens.ids
    count_CV = np.bincount(joint_T, minlength=classes * vocab).reshape(classes, vocab) + 1.0
    log_CV = np.log(count_CV / count_CV.sum(1, keepdims=True))
    prior_C = np.log(np.bincount(learned.labels, minlength=classes) + 1.0)
    starts = np.cumsum(asked.lengths) - asked.lengths
    return prior_C + np.add.reduceat(log_CV[:, asked.ids], starts, axis=1).T


def _tags(train: Dataset, valid: Dataset) -> Found:
    classes = valid.tags or valid.vocab
    word_N, tag_N, _ = _words(_all(train))
    asked, wanted, place = _words(found := _all(valid))
    said = most_frequent(word_N, tag_N, asked, classes)
    out = {"accuracy": float(np.mean(said == wanted))}
    if is_bio(valid.label_names) and valid.label_names is not None:
        flat = np.zeros((2, len(found.tokens.ids)), np.int64)
        flat[:, place] = wanted, said
        scored = np.zeros(len(found.tokens.ids), bool)
        scored[place] = True
        rows = [found.tokens.padded(valid.max_length, x) for x in (*flat, scored)]
        counts = entity_matches(rows[0], rows[1], rows[2], valid.label_names)
        out |= entity_scores(*(float(x.sum()) for x in counts.values()))
    return {"most frequent tag of the word": out}


def most_frequent(
    word_N: np.ndarray, tag_N: np.ndarray, asked_N: np.ndarray, classes: int
) -> np.ndarray:
    """For each word the tag that it most often had; for one that was not seen, the most frequent
    tag of the words that were seen once."""
    words, index_N, times = np.unique(word_N, return_inverse=True, return_counts=True)
    pair, count = np.unique(index_N * classes + tag_N, return_counts=True)
    order = np.lexsort((-(pair % classes), count, pair // classes))
    last = np.append(np.diff(pair[order] // classes) > 0, True)  # the best of each word
    best = (pair[order] % classes)[last]
    rare = np.bincount(tag_N[times[index_N] == 1], minlength=classes)
    rest = rare if rare.any() else np.bincount(tag_N, minlength=classes)
    place_N = np.minimum(np.searchsorted(words, asked_N), len(words) - 1)
    return np.where(words[place_N] == asked_N, best[place_N], rest.argmax())


def _words(examples: Examples) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each word that is scored: a hash of its pieces, its tag, and where it stands. A word goes
    on until the next one, or the end of its row."""
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
    most = max(TOKENS // dataset.max_length, 1)
    return dataset.take(np.arange(min(len(dataset), most)))
