"""Alignments that are read off attention, beside those that the grammar knows."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from tfm.data.datasets import open_dataset
from tfm.evaluate.alignment import Alignment, alignment
from tfm.objectives.seq2seq import Seq2Seq

COUNT = 21


class Looking:
    """A model with two layers of two heads, which look at: the place itself, the first word; the
    word before, and whatever the last letter of its id says."""

    def apply(self, variables, source_BS, decoder_input_BT, capture, **more):
        assert capture == ("weights",)
        (batch, length), cols = decoder_input_BT.shape, source_BS.shape[1]
        place_BT = jnp.repeat(jnp.arange(length)[None], batch, 0)
        places = [place_BT, 0 * place_BT, place_BT - 1, decoder_input_BT % 10]
        weights = jnp.stack([jax.nn.one_hot(place, cols) for place in places])
        weights_NBHTS = weights.reshape(2, 2, batch, length, cols).swapaxes(1, 2)
        return None, {"decoder": {"cross_weights_NBHTS": weights_NBHTS}}


SPEC = SimpleNamespace(has_source=True, attends=True)
DEAF = SimpleNamespace(has_source=True, attends=False)
LOADED = SimpleNamespace(spec=SPEC, model=Looking(), variables={})


def test_the_share_of_words_whose_source_is_looked_at():
    valid, test = (open_dataset("english_french", split, COUNT, 0) for split in ("valid", "test"))
    examples = test.take(np.arange(COUNT))
    begin, same, first, before = 0, 0, 0, 0
    for length in examples.target.lengths:
        for place, true in enumerate(examples.alignment[begin : begin + length]):
            same += place == true
            first += true == 0
            before += true == max(place - 1, 0)  # with no weight anywhere, the first
        begin += length
    found = alignment(LOADED, valid, test, size=8)
    shares = np.array([same, first, before]) / begin
    np.testing.assert_allclose(np.ravel(found["heads"])[:3], shares)
    assert (found["layer"], found["head"]) == (0, 0)  # more often right than the others
    assert found["right"] == found["baselines"]["same place"] == pytest.approx(same / begin)


@pytest.mark.parametrize(
    ("data", "spec", "message"),
    [
        ("reverse", SPEC, "needs data with word alignments; english_french"),
        (
            "english_french",
            SimpleNamespace(has_source=True, attends=False),
            "attends to its source",
        ),
    ],
)
def test_what_has_no_alignment_is_refused(data, spec, message):
    dataset = open_dataset(data, "valid", COUNT, 0)
    assert message in Alignment().refuses(spec, Seq2Seq(), dataset)
    assert Alignment().refuses(SPEC, Seq2Seq(), open_dataset("english_french", "valid", 3)) is None
