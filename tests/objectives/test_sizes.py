"""What a config leaves open comes from the data."""

import dataclasses

import numpy as np
import pytest

from tfm.config.names import UserError, read
from tfm.data.datasets import open_dataset
from tfm.objectives.batches import check_same_ids, open_sizes
from tfm.objectives.table import OBJECTIVES


@dataclasses.dataclass(frozen=True)
class Model:
    """The fields that specs of several families have."""

    family: str = "encoder"
    vocab: int | None = None
    classes: int | None = None
    outputs: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Recurrent:
    family: str = "recurrent"
    vocab: int | None = None
    classes: int | None = None
    shape: str | None = None
    vector: int | None = None
    bidirectional: bool = False
    tied: bool = False


@dataclasses.dataclass(frozen=True)
class Decoder:
    family: str = "decoder"
    vocab: int | None = None


def opened(model, objective, text):
    return open_sizes(model, read(objective, OBJECTIVES, ""), open_dataset(text, "train", 9))


@pytest.mark.parametrize(
    ("model", "objective", "text", "changes"),
    [
        (Decoder(), "next_token", "copy(vocab=9)", dict(vocab=9)),
        (Decoder(vocab=12), "next_token", "copy(vocab=9)", {}),
        (Decoder(), "next_token", "addition(p=11)", dict(vocab=15)),
        (Decoder(), "seq2seq", "listops", dict(vocab=18)),
        (Model(), "tag", "sort(vocab=9)", dict(vocab=9, classes=9, outputs=("tag",))),
        (Model(classes=20), "classify", "parity", dict(vocab=5, outputs=("classify",))),
        (Model(), "masked_lm", "dyck", dict(vocab=12, outputs=("masked_lm",))),
        (Recurrent(), "classify", "parity", dict(vocab=5, classes=2, shape="N:1")),
        (Recurrent(), "next_token", "dyck", dict(vocab=11, shape="N:N")),
        (Recurrent(tied=True), "tag", "recall(vocab=64)", dict(vocab=64, shape="N:N")),
        (
            Recurrent(),
            "vector_to_sequence",
            "spell(length=2, vocab=8)",
            dict(vocab=8, shape="1:N", vector=10),
        ),
    ],
)
def test_open_sizes(model, objective, text, changes):
    assert opened(model, objective, text) == dataclasses.replace(model, **changes)


def test_classes_as_tokens_follow_the_special_ids():
    """Labels from 0 to 9 are written as 3 to 12, whatever the ids that are read."""
    dataset = dataclasses.replace(open_dataset("listops", "train", 9), vocab=11, classes=10)
    assert OBJECTIVES["seq2seq"].sizes(dataset) == {"vocab": 13}
    assert OBJECTIVES["next_token"].sizes(dataset) == {"vocab": 13}


@pytest.mark.parametrize(
    ("model", "objective", "text", "message"),
    [
        (Decoder(vocab=5), "next_token", "copy", "model.vocab=5: the data need at least 32"),
        (Model(classes=1), "classify", "parity", "model.classes=1: the data need at least 2"),
        (
            Model(outputs=("tag",)),
            "classify",
            "parity",
            r"model.outputs=\('tag',\): the objective needs \('classify',\)",
        ),
        (Recurrent(shape="N:1"), "tag", "copy", "model.shape='N:1': the objective needs 'N:N'"),
        (
            Recurrent(shape="1:N", vector=9),
            "vector_to_sequence",
            "spell",
            "model.vector=9: the data need exactly 40",
        ),
    ],
)
def test_what_does_not_fit_is_named(model, objective, text, message):
    with pytest.raises(UserError, match=message):
        opened(model, objective, text)


def test_a_model_is_trained_on_as_many_classes_as_it_has():
    parity, objective = open_dataset("parity", "train", 9), read("classify", OBJECTIVES, "")
    with pytest.raises(UserError, match="model.classes=3: the data need exactly 2"):
        open_sizes(Model(classes=3), objective, parity, trains=True)
    assert open_sizes(Model(classes=3), objective, parity).classes == 3  # which it is tested on


def test_classes_are_refused_where_the_vocabulary_is_predicted():
    with pytest.raises(UserError, match="model.classes=2: the objective needs None"):
        opened(Recurrent(classes=2), "next_token", "dyck")


def test_a_decoder_vocabulary_that_is_too_small_is_named():
    @dataclasses.dataclass(frozen=True)
    class Pair:
        vocab: int | None = None
        decoder_vocab: int | None = 4

    with pytest.raises(UserError, match="model.decoder_vocab=4: the data need at least 9"):
        opened(Pair(), "seq2seq", "copy(vocab=9)")


def test_data_whose_ids_mean_something_else_is_refused(tmp_path):
    def text(letters):
        path = tmp_path / f"{letters}.txt"
        path.write_text(letters * 20)
        return open_dataset(f"characters(path={str(path)!r}, length=4)", "train")

    objective = read("next_token", OBJECTIVES, "")
    ids = lambda dataset: (dataset.vocab, dataset.vocabulary)
    check_same_ids(objective, *ids(text("abc")), text("cba"))
    with pytest.raises(UserError, match="its ids stand for other characters"):
        check_same_ids(objective, *ids(text("abc")), text("bcd"))
    masked = read("masked_lm", OBJECTIVES, "")
    four, two = (open_dataset(f"dyck(kinds={kinds})", "train", 9) for kinds in (4, 2))
    check_same_ids(objective, *ids(four), two)
    with pytest.raises(UserError, match="it has 7 ids, and the training data 11"):
        check_same_ids(masked, *ids(four), two)


def test_data_without_a_scored_token_is_an_error():
    objective = read("next_token", OBJECTIVES, "")
    nothing = {name: np.zeros(3) for name in ("loss", "correct", "count")}
    with pytest.raises(UserError, match="no token of the data is scored"):
        objective.metrics(nothing, open_dataset("dyck", "train", 9))
