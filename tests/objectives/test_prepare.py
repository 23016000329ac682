"""Each form of data under each objective, written out by hand."""

import dataclasses

import numpy as np
import pytest

from tfm.config.names import UserError, read
from tfm.data.dataset import Dataset, Examples, Ragged, Special
from tfm.data.datasets import open_dataset
from tfm.data.plan.order import Epochs
from tfm.objectives.base import Objective
from tfm.objectives.batches import eval_batches, train_batch
from tfm.objectives.table import OBJECTIVES, accepting, objectives


def ragged(*rows):
    return Ragged(np.concatenate([np.array(row) for row in rows]), np.array(list(map(len, rows))))


def flat(*rows):
    return np.concatenate([np.array(row) for row in rows])


def data(form, examples, **facts):
    base = dict(form=form, vocab=10, max_length=3, count=2)
    return Dataset(read=examples.take, **base | facts)


TOKENS = ragged([5, 6, 7], [8, 9])
PAIRS = data("pairs", Examples(tokens=TOKENS, target=ragged([7], [5, 6])), max_target=2)
EQUAL = data(
    "pairs", Examples(tokens=TOKENS, target=ragged([7, 6, 5], [9, 8])), max_target=3, aligned=True
)
LABELS = data("labels", Examples(tokens=TOKENS, labels=np.array([0, 2])), classes=3)
TAGS = data(
    "tags",
    Examples(tokens=TOKENS, tags=flat([6, 7, 8], [9, 3]), scored=flat([0, 1, 1], [1, 0]) > 0),
)
TWO = data(
    "labels",
    Examples(tokens=TOKENS, labels=np.array([0, 2]), segments=flat([0, 0, 1], [0, 1])),
    classes=3,
)
NUMBERS = data("labels", Examples(tokens=TOKENS, labels=np.array([2.5, -1.0])))
PIECES = data(
    "tags",
    Examples(tokens=TOKENS, tags=flat([0, 2, 1], [1, 1]), scored=flat([0, 1, 0], [1, 0]) > 0),
    tags=3,
)
OTHER = dataclasses.replace(PAIRS, special=Special(bos=3, eos=4, sep=2))
TEXT = data("text", Examples(tokens=TOKENS))
SOME = data("text", Examples(tokens=TOKENS, scored=flat([1, 0, 1], [0, 1]) > 0))
VECTORS = data(
    "vectors", Examples(tokens=TOKENS, vectors=np.array([[0.5, 1], [2, 3]], np.float32)), vector=2
)
FORMS = {
    "pairs": PAIRS,
    "equal": EQUAL,
    "labels": LABELS,
    "tags": TAGS,
    "text": TEXT,
    "some": SOME,
    "vectors": VECTORS,
    "two": TWO,
    "numbers": NUMBERS,
    "bert": PIECES,
    "other ids": OTHER,
}
SAME = {"tokens_BT": [[5, 6, 7], [8, 9, 0]], "valid_BT": [[1, 1, 1], [1, 1, 0]]}
BOTH = {"source_BS": SAME["tokens_BT"], "source_valid_BS": SAME["valid_BT"]}
AS_TAGGED = {**SAME, "labels": [[6, 7, 8], [9, 3, 0]], "weights": [[0, 1, 1], [1, 0, 0]]}
NEXT = {
    "tokens_BT": [[5, 6], [8, 9]],
    "valid_BT": [[1, 1], [1, 0]],
    "labels": [[6, 7], [9, 0]],
}

JOINED = {
    "tokens_BT": [[5, 6, 7, 1, 7, 0], [8, 9, 1, 5, 6, 0]],
    "valid_BT": [[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 0]],
}
JOINED_LABELS = {
    "labels": [[0, 0, 0, 7, 2, 0], [0, 0, 5, 6, 2, 0]],
    "weights": [[0, 0, 0, 1, 1, 0], [0, 0, 1, 1, 1, 0]],
}
ONE_LABEL = {
    "tokens_BT": [[5, 6, 7, 1], [8, 9, 1, 0]],
    "valid_BT": [[1, 1, 1, 1], [1, 1, 1, 0]],
}
ONE_LABELS = {
    "labels": [[0, 0, 0, 3], [0, 0, 5, 0]],
    "weights": [[0, 0, 0, 1], [0, 0, 1, 0]],
}

WANTED = {
    "pairs, next_token": {**JOINED, **JOINED_LABELS},
    "pairs, prefix_lm": {**JOINED, "prefix_B": [4, 3], **JOINED_LABELS},
    "pairs, seq2seq": {
        **BOTH,
        "decoder_input_BT": [[1, 7, 0], [1, 5, 6]],
        "decoder_valid_BT": [[1, 1, 0], [1, 1, 1]],
        "labels": [[7, 2, 0], [5, 6, 2]],
        "weights": [[1, 1, 0], [1, 1, 1]],
    },
    "equal, tag": {
        **SAME,
        "labels": [[7, 6, 5], [9, 8, 0]],
        "weights": [[1, 1, 1], [1, 1, 0]],
    },
    "labels, next_token": {**ONE_LABEL, **ONE_LABELS},
    "labels, prefix_lm": {**ONE_LABEL, "prefix_B": [4, 3], **ONE_LABELS},
    "labels, seq2seq": {
        **BOTH,
        "decoder_input_BT": [[1], [1]],
        "decoder_valid_BT": [[1], [1]],
        "labels": [[3], [5]],
        "weights": [[1], [1]],
    },
    "labels, classify": {**SAME, "labels": [0, 2], "weights": [1, 1]},
    "two, classify": {**SAME, "labels": [0, 2], "weights": [1, 1]},
    "two, pair": {**SAME, "types_BT": [[0, 0, 1], [0, 1, 0]], "labels": [0, 2], "weights": [1, 1]},
    "numbers, regress": {**SAME, "labels": [2.5, -1.0], "weights": [1, 1]},
    "bert, tag": {**SAME, "labels": [[0, 2, 1], [1, 1, 0]], "weights": [[0, 1, 0], [1, 0, 0]]},
    "other ids, seq2seq": {
        **BOTH,
        "decoder_input_BT": [[3, 7, 0], [3, 5, 6]],
        "decoder_valid_BT": [[1, 1, 0], [1, 1, 1]],
        "labels": [[7, 4, 0], [5, 6, 4]],
        "weights": [[1, 1, 0], [1, 1, 1]],
    },
    "other ids, next_token": {  # a translation by a decoder alone
        "tokens_BT": [[5, 6, 7, 2, 7, 0], [8, 9, 2, 5, 6, 0]],
        "valid_BT": JOINED["valid_BT"],
        "labels": [[0, 0, 0, 7, 4, 0], [0, 0, 5, 6, 4, 0]],
        "weights": JOINED_LABELS["weights"],
    },
    "tags, next_token": AS_TAGGED,
    "tags, tag": AS_TAGGED,
    "text, next_token": {**NEXT, "weights": [[1, 1], [1, 0]]},
    "some, next_token": {**NEXT, "weights": [[0, 1], [1, 0]]},
    "vectors, vector_to_sequence": {
        "tokens_BT": [[1, 5, 6, 7], [1, 8, 9, 0]],
        "valid_BT": [[1, 1, 1, 1], [1, 1, 1, 0]],
        "vector_BD": [[0.5, 1], [2, 3]],
        "labels": [[5, 6, 7, 2], [8, 9, 2, 0]],
        "weights": [[1, 1, 1, 1], [1, 1, 1, 0]],
    },
}


def kind(name, case):
    if name == "weights" or (name, case) == ("labels", "numbers, regress") or "vector" in name:
        return "float32"
    return "bool" if "valid" in name else "int32"


@pytest.mark.parametrize("case", WANTED)
def test_by_hand(case):
    form, objective = case.split(", ")
    (batch,) = eval_batches(read(objective, OBJECTIVES, ""), FORMS[form], 2)
    made = {**batch.inputs, "labels": batch.labels, "weights": batch.weights}
    assert list(made) == list(WANTED[case])
    for name, wanted in WANTED[case].items():
        np.testing.assert_array_equal(made[name], np.array(wanted), err_msg=name)
        assert made[name].dtype == kind(name, case), name


def test_shown_or_refused():
    shown = {f"{form}, {name}" for form, dataset in FORMS.items() for name in accepting(dataset)}
    objectives = ("masked_lm", "word2vec", "prefix_lm", "span_corruption", "ul2")
    random = {f"{form}, {name}" for form in ("text", "some") for name in objectives}
    sequences = {"next_token", "seq2seq", "prefix_lm"}
    same = {f"{form}, {name}" for form in ("equal", "two", "other ids") for name in sequences}
    assert shown == set(WANTED) | random | same | {"two, bert"}


@pytest.mark.parametrize(
    ("form", "objective", "message"),
    [
        ("pairs", "tag", "needs a target for each position of the source"),
        ("pairs", "classify", "needs labels, but the data are pairs"),
        ("labels", "tag", "needs pairs or tags, but the data are labels"),
        ("text", "tag", "would show the wanted tokens"),
        ("vectors", "next_token", "but the data are vectors"),
        ("labels", "pair", "needs two sentences, but the data do not say"),
        ("labels", "regress", "needs numbers, but the labels are classes"),
        ("numbers", "classify", "needs classes, but the labels are numbers"),
        ("numbers", "seq2seq", "needs classes, but the labels are numbers"),
        ("bert", "next_token", "predicts tokens, but the tags are not tokens"),
    ],
)
def test_refusals_say_why(form, objective, message):
    entry = OBJECTIVES[objective]
    assert message in (entry() if isinstance(entry, type) else entry).refuses(FORMS[form])


def assert_equal(one, other):
    for name in one.inputs:
        np.testing.assert_array_equal(one.inputs[name], other.inputs[name])
    np.testing.assert_array_equal(one.labels, other.labels)
    np.testing.assert_array_equal(one.weights, other.weights)


RANDOM = [
    "masked_lm",
    "prefix_lm",
    "span_corruption(rate=0.5, span=1.0)",
    "ul2",
    "word2vec(kind='cbow')",
    "word2vec(negatives=3)",
]


@pytest.mark.parametrize("name", RANDOM)
def test_what_is_random_is_a_function_of_seed_and_step(name):
    dataset, objective = open_dataset("dyck(length=8)", "train", 50), read(name, OBJECTIVES, "")
    plan = Epochs(50, 8, 1)
    there = [train_batch(objective, dataset, plan, 1, step) for step in range(5)]
    back = [train_batch(objective, dataset, plan, 1, step) for step in reversed(range(5))][::-1]
    for one, other in zip(there, back, strict=True):
        assert_equal(one, other)
    same_rows = train_batch(objective, dataset, plan, 2, 0)  # another seed of the objective alone
    with pytest.raises(AssertionError):
        assert_equal(there[0], same_rows)


@pytest.mark.parametrize("size", [1, 3, 5, 7, 16])
def test_evaluation_takes_each_example_once(size):
    objective, dataset = OBJECTIVES["seq2seq"], open_dataset("sort(length=4)", "valid", 15)
    (whole,) = eval_batches(objective, dataset, 15)
    batches = list(eval_batches(objective, dataset, size))
    assert len(batches) == -(-15 // size)
    assert {batch.labels.shape for batch in batches} == {(size, 5)}
    labels = np.concatenate([batch.labels for batch in batches])
    weights = np.concatenate([batch.weights for batch in batches])
    np.testing.assert_array_equal(labels[:15], whole.labels)
    np.testing.assert_array_equal(weights[:15], whole.weights)
    assert not np.any(weights[15:])
    assert np.all(weights[:15] == 1)


def uniform_text(vocab, rows=4000, length=21):
    rng = np.random.default_rng(0)
    tokens = Ragged.of(rng.integers(0, vocab, (rows, length)))
    return data("text", Examples(tokens=tokens), vocab=vocab, max_length=length, count=rows)


def test_masked_lm_has_the_shares_of_bert():
    """15 % are predicted; of those 80 % are masked, 10 % random, 10 % as they were."""
    vocab = 50
    dataset = uniform_text(vocab)
    (batch,) = eval_batches(read("masked_lm", OBJECTIVES, ""), dataset, len(dataset))
    tokens, labels, chosen = batch.inputs["tokens_BT"], batch.labels, batch.weights > 0
    np.testing.assert_array_equal(labels, dataset.take(np.arange(4000)).tokens.padded(21)[:, :-1])
    np.testing.assert_array_equal(tokens[~chosen], labels[~chosen])
    assert np.mean(chosen) == pytest.approx(0.15, abs=0.005)
    masked, kept = tokens[chosen] == vocab, tokens[chosen] == labels[chosen]
    assert np.mean(masked) == pytest.approx(0.8, abs=0.015)
    assert np.mean(kept) == pytest.approx(0.1 + 0.1 / vocab, abs=0.015)
    other = tokens[chosen][~masked & ~kept]
    assert len(np.unique(other)) == vocab
    assert OBJECTIVES["masked_lm"]().sizes(dataset) == {"vocab": vocab + 1}


def test_a_static_mask_follows_from_the_text():
    """Whichever step or seed, a text is masked in the same way, and each text in its own."""
    dataset, objective = uniform_text(50), read("masked_lm(static=True)", OBJECTIVES, "")
    plan = Epochs(4000, 4000, 0)
    batches = [train_batch(objective, dataset, plan, seed, step) for seed, step in ((0, 0), (5, 3))]
    orders = [np.argsort(plan.draw(step).rows) for step in (0, 3)]
    one, other = ({**b.inputs, "w": b.weights} for b in batches)
    for name in one:
        np.testing.assert_array_equal(one[name][orders[0]], other[name][orders[1]])
    chosen, tokens = one["w"] > 0, one["tokens_BT"]
    assert np.mean(chosen) == pytest.approx(0.15, abs=0.005)
    assert np.mean(tokens[chosen] == 50) == pytest.approx(0.8, abs=0.015)
    assert np.all(np.abs(chosen.mean(0) - 0.15) < 0.03)  # at every position


def test_the_mask_of_a_tokenizer():
    """Its id is the mask, no id is added, and special tokens are not chosen."""
    special = Special(pad=0, bos=1, eos=2, sep=2, unk=3, mask=4)
    dataset = dataclasses.replace(uniform_text(50), special=special)
    objective = read("masked_lm(rate=0.5, random=0.0)", OBJECTIVES, "")
    assert objective.sizes(dataset) == {"vocab": 50}
    (batch,) = eval_batches(objective, dataset, len(dataset))
    changed = batch.inputs["tokens_BT"] != batch.labels
    assert set(batch.inputs["tokens_BT"][changed]) == {4}
    assert set(range(50)) - set(batch.labels[batch.weights > 0]) == {0, 1, 2, 4}


def test_masked_lm_predicts_only_what_is_scored():
    dataset = open_dataset("dyck(length=16)", "valid", 200)
    objective = read("masked_lm(rate=0.5, masked=1.0, random=0.0)", OBJECTIVES, "")
    (batch,) = eval_batches(objective, dataset, 200)
    assert np.all(batch.labels[batch.weights > 0] >= 7)
    assert set(batch.inputs["tokens_BT"][batch.weights > 0]) == {dataset.vocab}


@pytest.mark.parametrize("kind", ["skip_gram", "cbow"])
def test_word2vec_takes_words_that_stand_near(kind):
    """In a text that counts, the distance of two words is their difference."""
    start = np.arange(0, 3000, 30)[:, None]
    dataset = data(
        "text",
        Examples(tokens=Ragged.of(start + np.arange(30))),
        vocab=3000,
        max_length=30,
        count=100,
    )
    objective = read(f"word2vec(kind={kind!r}, window=3)", OBJECTIVES, "")
    batches = [train_batch(objective, dataset, Epochs(100, 100, 0), 0, step) for step in range(30)]
    distances = []
    for batch in batches:
        words, labels = batch.inputs["words_BC"], batch.labels
        valid = batch.inputs.get("valid_BC", np.ones(words.shape, bool))
        assert np.all(valid.any(1))
        assert words.shape[1] == (1 if kind == "skip_gram" else 6)
        distances.append((words - labels[:, None])[valid])
        assert np.all((words // 30 == labels[:, None] // 30)[valid])
    found, counts = np.unique(np.concatenate(distances), return_counts=True)
    assert found.tolist() == [-3, -2, -1, 1, 2, 3]
    # The width is drawn from 1 to 3: a pair at distance 1 is always inside, at 3 once in three.
    nearer = counts[[2, 3]].sum() / counts[[0, 5]].sum()
    expected = {"skip_gram": (1 / 2 + 1 / 4 + 1 / 6) / (1 / 6), "cbow": 3.0}[kind]
    assert nearer == pytest.approx(expected, rel=0.2)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("masked_lm(rate=0.0)", "masked_lm: rate=0.0 must be between 0 and 1"),
        ("masked_lm(masked=0.9, random=0.2)", "must be shares of 1"),
        ("word2vec(kind='glove')", "unknown kind 'glove'"),
        ("word2vec(window=0)", "word2vec: window=0 must be at least 1"),
        ("tag(x=1)", "'tag' has no option 'x'"),
        ("seqseq", "unknown objective 'seqseq'; did you mean 'seq2seq'"),
    ],
)
def test_bad_options_are_named(name, message):
    with pytest.raises(UserError, match=message):
        read(name, OBJECTIVES, "objective")


@pytest.mark.parametrize(
    ("form", "objective", "kept"),
    [
        ("text", "next_token", {"tokens_BT"}),
        ("text", "masked_lm", {"tokens_BT"}),
        ("pairs", "seq2seq", {"source_BS", "decoder_input_BT"}),
    ],
)
def test_rows_of_one_length_have_no_padding_to_be_told(form, objective, kept):
    """What a model is given says nothing of padding; all else is as it was."""
    target = ragged([7, 6, 5], [9, 8, 5]) if form == "pairs" else None
    rows = Examples(tokens=ragged([5, 6, 7], [8, 9, 5]), target=target)
    shown = {
        padded: next(
            eval_batches(
                read(objective, OBJECTIVES, "objective"),
                data(form, rows, max_target=3, padded=padded),
                2,
            )
        )
        for padded in (True, False)
    }
    assert set(shown[False].inputs) == kept
    assert set(shown[True].inputs) > kept
    for name in kept:
        np.testing.assert_array_equal(shown[True].inputs[name], shown[False].inputs[name])
    np.testing.assert_array_equal(shown[True].labels, shown[False].labels)
    valid = [x for name, x in shown[True].inputs.items() if name not in kept]
    assert all(x.all() for x in valid)


ACCEPTED = {
    "next_token": "target and task",
    "prefix_lm": "target and task",
    "seq2seq": "target and task",
    "classify": "second and task",
    "pair": "second and task",
    "regress": "second and task",
    "span_corruption": "target",
    "ul2": "target",
    "vector_to_sequence": "target",
    "tag": "none",
    "masked_lm": "none",
    "bert": "none",
    "word2vec": "none",
}


def test_every_objective_says_which_options_its_prompt_accepts():
    assert ACCEPTED.keys() == OBJECTIVES.keys()


@pytest.mark.parametrize("name", ACCEPTED)
@pytest.mark.parametrize("option", ["sceond", "targets", "second", "target", "task"])
def test_prompts_refuse_options_that_the_objective_does_not_accept(name, option):
    # Refused before the text is read, so that no reader is needed.
    if option in ACCEPTED[name].split(" and "):
        return
    objective = objectives()[name]
    with pytest.raises(UserError, match=f"no option '{option}' for .* accepts {ACCEPTED[name]}$"):
        objective.prompt(None, "a text", **{option: "x"})


def test_prompts_refuse_a_misspelled_option_without_a_value():
    with pytest.raises(UserError, match="no option 'sceond' for Classify.* accepts second and"):
        OBJECTIVES["classify"]().prompt(None, "a text", sceond=None)


def test_prompts_pass_on_what_is_accepted_and_allow_other_options_to_be_left_open():
    class Echo(Objective):
        def read(self, reader, text, second=None):
            return reader, text, second

    assert Echo().prompt(1, "a", second="b", target=None, task=None) == (1, "a", "b")
    assert Echo().prompt(1, None) == (1, None, None)
    with pytest.raises(UserError, match="no option 'task' for Echo, which accepts second$"):
        Echo().prompt(1, "a", task=0)
    with pytest.raises(UserError, match=r"no read\(\)"):
        Objective().prompt(None, "a text")
