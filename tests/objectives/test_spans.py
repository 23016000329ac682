"""Span corruption, UL2's mixture and prefix LM: what is hidden, and that it can be put back."""

import numpy as np
import pytest

from tests.objectives.test_prepare import data, ragged, uniform_text
from tfm.config.names import UserError, read
from tfm.data.dataset import Examples, Ragged
from tfm.objectives.base import Batch
from tfm.objectives.batches import eval_batches, eval_targets
from tfm.objectives.span_corruption import UL2, noise_mask
from tfm.objectives.table import OBJECTIVES

VOCAB = 50


def batch_of(name, dataset):
    (batch,) = eval_batches(read(name, OBJECTIVES, ""), dataset, len(dataset))
    return batch


def restored(source, target, vocab):
    """The text, by the definition of a sentinel: it stands for what follows it in the target."""
    spans, sentinel = {}, None
    for token in target:
        if token >= vocab:
            sentinel = token
            spans[sentinel] = []
        else:
            spans[sentinel].append(token)
    end = max(spans)
    assert spans.pop(end) == []  # the last sentinel ends the target
    assert list(spans) == list(range(vocab, end))  # in order, and each once
    out = []
    for token in source:
        out += spans.pop(token) if token >= vocab else [token]
    assert not spans
    return out


def words(batch, row):
    source = batch.inputs["source_BS"][row][batch.inputs["source_valid_BS"][row]]
    target = batch.labels[row][batch.inputs["decoder_valid_BT"][row]]
    return source.tolist(), target.tolist()


def lengths(count=300, longest=40):
    rng = np.random.default_rng(1)
    rows = [rng.integers(0, VOCAB, n) for n in rng.integers(3, longest + 1, count)]
    rows[0] = rng.integers(0, VOCAB, longest)
    return data(
        "text", Examples(tokens=ragged(*rows)), vocab=VOCAB, max_length=longest, count=count
    ), rows


@pytest.mark.parametrize("name", ["span_corruption", "span_corruption(rate=0.5, span=1.0)"])
def test_the_text_can_be_restored(name):
    dataset, rows = lengths()
    batch = batch_of(name, dataset)
    for row, text in enumerate(rows):
        wanted = text if len(text) < 40 else text[:-1]  # the last place of a window is not read
        assert restored(*words(batch, row), VOCAB) == wanted.tolist()
    read_BT, valid_BT = (batch.inputs[f"decoder_{x}_BT"] for x in ("input", "valid"))
    assert np.all(read_BT[:, 0] == dataset.special.bos)
    np.testing.assert_array_equal(
        read_BT[:, 1:][valid_BT[:, 1:]], batch.labels[:, :-1][valid_BT[:, 1:]]
    )
    np.testing.assert_array_equal(batch.weights, valid_BT)


def t5_mask(length, noise, spans, rng):
    """One row, as T5's random_spans_noise_mask is written."""

    def segmentation(items, segments):
        first = rng.permutation(np.arange(items - 1) < segments - 1)
        return np.bincount(np.cumsum(np.pad(first.astype(int), (1, 0))))

    parts = np.stack([segmentation(length - noise, spans), segmentation(noise, spans)], 1)
    starts = np.zeros(length, int)
    starts[np.cumsum(parts.ravel())[:-1]] = 1
    return np.cumsum(starts) % 2 == 1


def test_the_shares_of_t5():
    """Of 100 tokens 15 are hidden, in 5 spans; each position as often as by T5's own code."""
    dataset = uniform_text(VOCAB, rows=4000, length=101)
    batch = batch_of("span_corruption", dataset)
    hidden = np.sum((batch.labels < VOCAB) & (batch.weights > 0), 1)
    assert set(hidden) == {15}
    assert batch.labels.shape[1] == 15 + 5 + 1
    assert batch.inputs["source_BS"].shape[1] == 85 + 5
    (targets,) = eval_targets(read("span_corruption", OBJECTIVES, ""), dataset, len(dataset))
    share_T = targets.predicted_BT.mean(0)
    theirs_T = np.mean([t5_mask(100, 15, 5, np.random.default_rng(i)) for i in range(4000)], 0)
    assert share_T[0] == theirs_T[0] == 0
    assert share_T[-1] == theirs_T[-1] == 1
    sigma_T = np.sqrt(2 * theirs_T * (1 - theirs_T) / 4000)
    assert np.all(np.abs(share_T - theirs_T)[1:-1] < 4 * sigma_T[1:-1])


def test_cuts_are_uniform():
    """Five hidden tokens in two spans: first spans of 1 to 4 tokens, a quarter of the rows each."""
    count = 8000
    full = lambda x: np.full(count, x)
    rng = np.random.default_rng(0)
    mask_BT = noise_mask(12, full(10), full(5), full(2), rng)
    assert not mask_BT[:, 10:].any()
    assert np.all(mask_BT.sum(1) == 5)
    first = np.argmax(mask_BT, 1)
    length = np.argmin(np.take_along_axis(mask_BT, (first[:, None] + np.arange(6)) % 12, 1), 1)
    share = np.bincount(length, minlength=5)[1:] / count
    assert np.all(np.abs(share - 0.25) < 4 * np.sqrt(0.25 * 0.75 / count))
    share = np.bincount(first, minlength=5)[1:] / count
    assert np.all(np.abs(share - 0.25) < 4 * np.sqrt(0.25 * 0.75 / count))


def test_the_mixture_of_ul2():
    dataset = uniform_text(VOCAB, rows=3500, length=129)
    objective = UL2()
    batch = batch_of("ul2", dataset)
    texts = dataset.take(np.arange(3500)).tokens.padded(129)
    modes = batch.inputs["source_BS"][:, 0] - VOCAB - 100
    share = np.bincount(modes, minlength=3) / 3500
    assert np.all(np.abs(share - np.array([2, 1, 4]) / 7) < 4 * np.sqrt(0.25 / 3500))
    kinds = {mode: set() for mode in range(3)}
    for row, mode in enumerate(modes):
        source, target = words(batch, row)
        assert restored(source[1:], target, VOCAB) == texts[row, :-1].tolist()
        hidden, spans = sum(x < VOCAB for x in target), sum(x >= VOCAB for x in target) - 1
        kinds[mode].add((hidden, spans))
    # 128 tokens: 15 % are 19, a quarter 32, half 64.
    assert kinds == {0: {(19, 6), (19, 2)}, 1: {(32, 1)}, 2: {(64, 21), (64, 8), (19, 1), (64, 1)}}
    assert objective.sizes(dataset) == {"vocab": VOCAB + 103}


def test_the_sequential_denoiser_is_a_prefix_lm():
    """The same tokens are hidden, and what is read before them is the prefix."""
    dataset = uniform_text(VOCAB, rows=50, length=41)
    sequential = read("ul2(r=0.0, x=0.0)", OBJECTIVES, "")
    prefix = read("prefix_lm(share=0.75)", OBJECTIVES, "")
    batch = batch_of("ul2(r=0.0, x=0.0)", dataset)
    (one,) = eval_targets(sequential, dataset, 50)
    own = data(
        "text", Examples(tokens=Ragged.of(one.tokens_BT)), vocab=VOCAB, max_length=40, count=50
    )
    (other,) = eval_targets(prefix, own, 50)
    np.testing.assert_array_equal(one.tokens_BT, other.tokens_BT)
    np.testing.assert_array_equal(one.predicted_BT, other.predicted_BT)
    assert one.predicted_BT.sum() == 50 * 10
    shown = next(eval_batches(prefix, own, 50))
    for row in range(50):
        source, target = words(batch, row)
        assert (
            source[1:-1] == shown.inputs["tokens_BT"][row, : shown.inputs["prefix_B"][row]].tolist()
        )
        assert target[1:-1] == shown.labels[row][shown.weights[row] > 0].tolist()


def test_a_prefix_of_any_length():
    dataset = uniform_text(VOCAB, rows=4000, length=9)
    batch = batch_of("prefix_lm", dataset)
    prefix = batch.inputs["prefix_B"]
    share = np.bincount(prefix, minlength=9)[1:] / 4000
    assert np.all(np.abs(share - 1 / 8) < 4 * np.sqrt(1 / 8 / 4000))
    np.testing.assert_array_equal(batch.weights > 0, np.arange(8) >= prefix[:, None] - 1)
    texts = dataset.take(np.arange(4000)).tokens.padded(9)
    np.testing.assert_array_equal(batch.labels, texts[:, 1:])


def test_a_row_that_is_too_short_counts_for_nothing():
    rows = data("text", Examples(tokens=ragged([5], [5, 6, 7])), vocab=VOCAB, max_length=4)
    for name in ("span_corruption", "ul2", "prefix_lm"):
        batch = batch_of(name, rows)
        assert not batch.weights[0].any(), name
        assert batch.weights[1].any(), name


@pytest.mark.parametrize(
    "name", ["masked_lm", "masked_lm(static=True)", "span_corruption", "ul2", "prefix_lm"]
)
def test_targets_are_those_of_the_batches(name):
    """Five batches of which the last is filled up: as many tokens are asked for, and the same."""
    dataset, _ = lengths(count=23)
    objective = read(name, OBJECTIVES, "")
    targets = list(eval_targets(objective, dataset, 5))
    batches = list(eval_batches(objective, dataset, 5))
    assert sum(len(one.tokens_BT) for one in targets) == 23
    for one, batch in zip(targets, batches, strict=True):
        own = (batch.weights > 0) & (batch.labels < VOCAB)
        count = len(one.tokens_BT)
        for row in range(count):
            wanted = one.tokens_BT[row][one.predicted_BT[row]]
            np.testing.assert_array_equal(batch.labels[row][own[row]], wanted)


def test_hidden_tokens_are_counted_apart_from_sentinels():
    objective, rng = OBJECTIVES["span_corruption"](), np.random.default_rng(0)
    dataset = data("text", Examples(tokens=ragged([5, 6, 7], [8, 9])))
    logits = rng.normal(size=(2, 4, 13)).astype(np.float32)
    labels = np.array([[10, 7, 3, 11], [10, 4, 11, 0]])
    weights = np.array([[1, 1, 1, 1], [1, 1, 1, 0]], np.float32)
    sums = {k: np.asarray(x) for k, x in objective.loss(logits, Batch({}, labels, weights)).items()}
    found = objective.metrics(objective.per_example(sums, dataset), dataset)
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    own = -np.log(np.take_along_axis(p, labels[..., None], -1)[..., 0])
    assert found["text_loss"] == pytest.approx((own[0, 1] + own[0, 2] + own[1, 1]) / 3, rel=1e-5)
    assert found["loss"] == pytest.approx((own * weights).sum() / 7, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("span_corruption(rate=1.0)", "span_corruption: rate=1.0 must be between 0 and 1"),
        ("span_corruption(span=0.5)", "span=0.5 at least 1"),
        ("ul2(r=-1.0)", "ul2: r, s, x = .* must not be negative"),
        ("ul2(rate=0.3)", "its denoisers have their own rate"),
        ("prefix_lm(share=0.0)", "prefix_lm: share=0.0 must be between 0 and 1"),
    ],
)
def test_bad_options_are_named(name, message):
    with pytest.raises(UserError, match=message):
        read(name, OBJECTIVES, "objective")


def test_too_few_sentinels_are_refused():
    dataset = uniform_text(VOCAB, rows=5, length=101)
    reason = read("span_corruption(sentinels=5)", OBJECTIVES, "").refuses(dataset)
    assert reason == "needs 6 sentinels for 100 tokens; say so"
