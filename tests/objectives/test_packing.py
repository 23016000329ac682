"""Packed batches: written out by hand, and against the same rows one by one."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from tests.objectives.test_prepare import PAIRS, SOME, TAGS, TEXT
from tfm.config.names import UserError
from tfm.data.dataset import Dataset, Examples, Ragged
from tfm.data.datasets import open_dataset
from tfm.data.plan.lengths import PackedRows, into_rows
from tfm.data.plan.order import Drawn, Kind, Packing
from tfm.models.spec import model_spec
from tfm.objectives.batches import open_sizes, packed, positions, read_of, train_batch
from tfm.objectives.table import OBJECTIVES


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TFM_CACHE", str(tmp_path))


def shown(objective, dataset):
    rng = np.random.default_rng(0)
    return OBJECTIVES[objective].prepare(dataset.take(np.arange(2)), dataset, rng)


BY_HAND = {
    ("next_token", "text"): {
        "tokens_BT": [5, 6, 8, 0],
        "valid_BT": [1, 1, 1, 0],
        "segment_BT": [1, 1, 2, 0],
        "pos_BT": [0, 1, 0, 0],
        "labels": [6, 7, 9, 0],
        "weights": [1, 1, 1, 0],
    },
    ("next_token", "some"): {"labels": [6, 7, 9, 0], "weights": [0, 1, 1, 0]},
    ("tag", "tags"): {"labels": [6, 7, 8, 9, 3, 0], "weights": [0, 1, 1, 1, 0, 0]},
    ("next_token", "pairs"): {
        "tokens_BT": [5, 6, 7, 1, 7, 8, 9, 1, 5, 6, 0],
        "pos_BT": [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0],
        "segment_BT": [1] * 5 + [2] * 5 + [0],
        "labels": [0, 0, 0, 7, 2, 0, 0, 5, 6, 2, 0],
        "weights": [0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0],
    },
    ("seq2seq", "pairs"): {
        "source_BS": [5, 6, 7, 8, 9, 0],
        "source_segment_BS": [1, 1, 1, 2, 2, 0],
        "source_pos_BS": [0, 1, 2, 0, 1, 0],
        "decoder_input_BT": [1, 7, 1, 5, 6, 0],
        "decoder_segment_BT": [1, 1, 2, 2, 2, 0],
        "decoder_pos_BT": [0, 1, 0, 1, 2, 0],
        "labels": [7, 2, 5, 6, 2, 0],
    },
}


@pytest.mark.parametrize(("objective", "form"), BY_HAND)
def test_by_hand(objective, form):
    dataset = {"text": TEXT, "some": SOME, "tags": TAGS, "pairs": PAIRS}[form]
    wanted = BY_HAND[objective, form]
    sides = 2 if objective == "seq2seq" else 1
    packing = Packing(np.zeros(2, int), 1, (len(wanted["labels"]),) * sides)
    batch = packed(shown(objective, dataset), packing)
    found = {**batch.inputs, "labels": batch.labels, "weights": batch.weights}
    for name, row in wanted.items():
        np.testing.assert_array_equal(found[name], [row], err_msg=name)
    assert all(x.dtype != np.int64 for x in found.values())
    read = read_of(batch)
    assert (read.tokens, read.padding) == (sides * len(wanted["labels"]), sides)


def test_what_cannot_be_packed_is_refused():
    labels = open_dataset("parity(length=6, min_length=2)", "train", 20)
    with pytest.raises(UserError, match="one answer for a row"):
        positions(OBJECTIVES["classify"](), labels, labels.row_lengths())
    with pytest.raises(UserError, match="do not fit into 4"):
        packed(shown("next_token", PAIRS), Packing(np.zeros(2, int), 1, (4,)))


TRANSFORMER = {"width": 8, "layers": 1, "max_length": 16, "attention": {"heads": 2},
               "feedforward": {"width": 8}}  # fmt: skip
CASES = [
    ("next_token", "decoder", "text", "learned"),
    ("next_token", "decoder", "copy(length=5, min_length=2, vocab=8)", "rotary"),
    ("seq2seq", "encoder_decoder", "copy(length=6, min_length=2, vocab=8)", "sinusoidal"),
    ("tag", "encoder", "sort(length=6, min_length=2, vocab=8)", "relative"),
]


def opened(name):
    if name != "text":
        return open_dataset(name, "train", 24)
    lengths_N = np.random.default_rng(0).integers(2, 12, 24)  # lines of a text

    def lines(rows):
        ids = [np.random.default_rng(row).integers(3, 8, lengths_N[row]) for row in rows]
        return Examples(tokens=Ragged(np.concatenate(ids), lengths_N[rows]))

    return Dataset(read=lines, count=24, form="text", vocab=8, max_length=12)


def same(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max())


@pytest.mark.parametrize(("objective", "family", "name", "scheme"), CASES)
def test_packed_rows_have_the_loss_and_gradient_of_single_ones(objective, family, name, scheme):
    model = {"family": family, **TRANSFORMER, "position": {"scheme": scheme}}
    dataset, shown = opened(name), OBJECTIVES[objective]
    module = open_sizes(model_spec({"model": model}), shown, dataset).build()
    taken = positions(shown, dataset, dataset.row_lengths())
    plan = PackedRows(into_rows(taken, (20,) * taken.shape[1]), 4, seed=0)
    drawn = plan.draw(0)
    assert len(drawn.rows) > 6  # of 4 packed rows
    together = train_batch(shown, dataset, plan, 0, 0)
    alone = train_batch(shown, dataset, _Rows(drawn.rows), 0, 0)
    variables = jax.jit(module.init)(jax.random.key(0), **alone.inputs)

    @jax.jit
    @functools.partial(jax.grad, has_aux=True)
    def both(variables, batch):
        sums = shown.loss(module.apply(variables, **batch.inputs), batch)
        return sums["loss"].sum(), sums

    (grads, sums), (wanted, apart) = (both(variables, batch) for batch in (together, alone))
    jax.tree.map(same, grads, wanted)
    for key in ("loss", "correct", "count"):  # of each packed row
        same(sums[key], np.bincount(drawn.packing.row_N, np.asarray(apart[key], float), 4))


@dataclasses.dataclass
class _Rows:
    rows: np.ndarray

    def draw(self, step):
        return Drawn(self.rows)

    def kinds(self):
        return [Kind(1.0, self.draw(0))]
