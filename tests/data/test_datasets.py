"""Each task against a solver of its own that reads one presented example at a time."""

import types

import numpy as np
import pytest

from tfm.config.names import UserError
from tfm.data.dataset import Best
from tfm.data.datasets import DATASETS, fingerprint, open_dataset
from tfm.objectives.batches import eval_batches
from tfm.objectives.table import OBJECTIVES, accepting

COUNT = 300
SPECIAL = {0, 1, 2}


def make(task, count=COUNT, split="train", seed=0):
    """Padded arrays of the first rows, and facts of the data set."""
    dataset = open_dataset(task, split, count, seed)
    x, width = dataset.take(np.arange(count)), dataset.max_length
    valid_NT = x.tokens.valid(width)
    padded = lambda flat: None if flat is None else x.tokens.padded(width, flat)
    return types.SimpleNamespace(
        dataset=dataset,
        tokens_NT=x.tokens.padded(width),
        valid_NT=valid_NT,
        scored_NT=valid_NT if x.scored is None else padded(x.scored),
        tags_NT=padded(x.tags),
        label_N=x.labels,
        target=x.target,
        vectors=x.vectors,
    )


def scored(task, objective, count=COUNT):
    """For each example the tokens that are read (without padding), and {position: wanted}."""
    (batch,) = eval_batches(OBJECTIVES[objective], open_dataset(task, "train", count), count)
    tokens_BT = batch.inputs["tokens_BT"]
    valid_BT = batch.inputs.get("valid_BT", np.ones(tokens_BT.shape, bool))
    arrays = tokens_BT, valid_BT, batch.labels, batch.weights
    for tokens, valid, targets, weights in zip(*arrays, strict=True):
        assert set(weights) <= {0.0, 1.0}
        assert not np.any(weights[~valid])
        yield tokens[valid].tolist(), {int(t): int(targets[t]) for t in np.flatnonzero(weights)}


def accuracy(task, solve, objective="next_token", count=COUNT):
    """Of scored tokens and of whole examples; `solve(what is read up to t)` is one token."""
    tokens, exact = [], []
    for read_, wanted in scored(task, objective, count):
        assert wanted
        right = [solve(read_[: t + 1]) == token for t, token in wanted.items()]
        tokens += right
        exact.append(all(right))
    return Best(np.mean(tokens), np.mean(exact))


def continues(answer):
    """A solver of `source SEP target EOS` from the function of the source."""

    def solve(tokens):
        at = tokens.index(1)
        return [*answer(tokens[:at]), 2][len(tokens) - at - 1]

    return solve


def names(answer):
    """A solver of `tokens SEP label`."""
    return lambda tokens: 3 + answer(tokens[:-1]) if tokens[-1] == 1 else None


def latest_pair(tokens):
    """What came after the last token where it stood first."""
    return tokens[tokens.index(tokens[-1]) + 1]


def from_pairs(count):
    def solve(tokens):
        value = dict(zip(tokens[0 : 2 * count : 2], tokens[1 : 2 * count : 2], strict=True))
        return value[tokens[-1]]

    return solve


def matching(kinds):
    def solve(tokens):
        stack = []
        for token in tokens:
            if token < 3 + kinds:
                stack.append(token)
            else:
                assert stack.pop() == token - kinds
        return stack[-1] + kinds

    return solve


def value_of_list(tokens):
    """A parser of [OP a b … ], by recursive descent."""
    operators = {
        13: min,
        14: max,
        15: lambda values: int(np.median(values)),
        16: lambda values: sum(values) % 10,
    }

    def argument(at):
        if tokens[at] < 13:
            return tokens[at] - 3, at + 1
        values, operator, at = [], operators[tokens[at]], at + 1
        while tokens[at] != 17:
            value, at = argument(at)
            values.append(value)
        assert len(values) >= 2
        return operator(values), at + 1

    value, end = argument(0)
    assert end == len(tokens)
    return value


SOLVERS = {
    "copy": continues(list),
    "copy(length=9, min_length=1, vocab=5)": continues(list),
    "reverse": continues(lambda source: source[::-1]),
    "reverse(length=9, min_length=2)": continues(lambda source: source[::-1]),
    "sort": continues(sorted),
    "sort(length=9, min_length=2, vocab=7)": continues(sorted),
    "induction": latest_pair,
    "induction(length=3, vocab=6)": latest_pair,
    "recall": from_pairs(4),
    "recall(length=32, pairs=8, vocab=22, alpha=1.0)": from_pairs(8),
    "addition": names(lambda tokens: (tokens[0] + tokens[2] - 6) % 97),
    "parity": names(lambda tokens: tokens.count(4) % 2),
    "parity(length=9, min_length=1)": names(lambda tokens: tokens.count(4) % 2),
    "parity(length=9, min_length=2, each=True)": lambda tokens: 3 + tokens.count(4) % 2,
    "dyck": matching(4),
    "dyck(length=10, kinds=2, depth=20)": matching(2),
    "listops": names(value_of_list),
    "listops(length=30, min_length=4, depth=2, args=3)": names(value_of_list),
}


@pytest.mark.parametrize("task", SOLVERS)
def test_a_solver_reaches_the_best(task):
    assert accuracy(task, SOLVERS[task]) == open_dataset(task, "train", COUNT).best == (1, 1)


BLIND = {
    "reverse": continues(list),
    "sort": continues(list),
    "induction": lambda tokens: tokens[-2],
    "recall": lambda tokens: tokens[1],  # the first value
    "addition": names(lambda tokens: tokens[0] - 3),
    "parity": names(lambda tokens: tokens[-1] - 3),  # the last bit
    "dyck": lambda tokens: max(tokens, key=lambda token: (token < 7, tokens.index(token))) % 4 + 7,
    "listops": names(lambda tokens: max(token - 3 for token in tokens if token < 13)),
}


@pytest.mark.parametrize("task", BLIND)
def test_a_blind_solver_does_not(task):
    assert accuracy(task, BLIND[task]).token < 0.7


def test_every_task_is_solved_here():
    from_files = {
        "characters",
        "bytes",
        "text",
        "table",
        "parallel",
        "conllu",
        "bio",
        "scan",
        "tfds",
    }
    elsewhere = {"spell", "english_french", "english_chinese", "pronoun", "stories"}
    elsewhere |= {"mixture", "none"}
    assert {name.partition("(")[0] for name in SOLVERS} == set(DATASETS) - from_files - elsewhere


@pytest.mark.parametrize("task", SOLVERS)
def test_examples(task):
    """Ids are below the vocabulary, special ids are none of the task's, and all are in use."""
    examples = make(task, 2000)
    ids = examples.tokens_NT[examples.valid_NT]
    assert ids.min() == 3
    assert ids.max() == examples.dataset.vocab - 1
    if examples.label_N is not None:
        assert set(examples.label_N) == set(range(examples.dataset.classes))


@pytest.mark.parametrize("task", ["copy", "reverse", "sort", "parity", "listops"])
def test_lengths_vary_between_their_limits(task):
    examples = make(f"{task}(length=12, min_length=5)", 2000)
    assert examples.valid_NT.shape[1] == 12
    assert set(examples.valid_NT.sum(1)) == set(range(5, 13))


@pytest.mark.parametrize("task", [*SOLVERS, "spell"])
def test_a_row_is_a_function_of_seed_split_and_number(task):
    """Whatever stands beside it, and in whatever order."""
    dataset = open_dataset(task, "train", 1000)
    together, rows = dataset.take(np.arange(40)), np.array([33, 7, 39, 7])
    ends = np.cumsum(together.tokens.lengths)
    for row, tokens in zip(rows, _each(dataset.take(rows)), strict=True):
        np.testing.assert_array_equal(tokens, np.split(together.tokens.ids, ends)[row])
    if "addition" not in task:
        others = [open_dataset(task, "valid", 1000), open_dataset(task, "train", 1000, seed=1)]
        for other in others:
            assert not np.array_equal(other.take(np.arange(40)).tokens.ids, together.tokens.ids)


SMALL = ["copy(length=4, vocab=6)", "induction(length=5, vocab=7)", "parity(length=10)"]
SMALL += ["recall(length=4, pairs=1, vocab=20)", "dyck(length=8, kinds=2)", "spell(length=3)"]
SMALL += ["listops(length=6, min_length=4, args=3)", "parity(length=9, min_length=1, each=True)"]
SMALL += ["sort(length=6, min_length=2, vocab=6)", "reverse(length=5, vocab=6)"]


@pytest.mark.parametrize("task", SMALL)
def test_no_example_is_in_two_splits(task):
    """Also where there are so few that independent draws would share most of them."""
    count, seen = 1500, {}
    for split in ("train", "valid", "test"):
        examples = open_dataset(task, split, count).take(np.arange(count))
        seen[split] = {tuple(ids) for ids in _each(examples)}
    for a, b in (("train", "valid"), ("train", "test"), ("valid", "test")):
        assert not seen[a] & seen[b]
    assert len(seen["train"]) > 2 * max(len(seen["valid"]), len(seen["test"]))
    again = open_dataset(task, "train", count, seed=1).take(np.arange(count))
    assert not {tuple(ids) for ids in _each(again)} & seen["test"]  # whatever the seed


def test_too_few_examples_for_three_splits_is_an_error():
    with pytest.raises(UserError, match="none of 2000 draws is for"):  # there is one example
        [make("dyck(length=2, kinds=1, depth=1)", 2, split) for split in ("train", "valid", "test")]


def test_examples_are_taken_and_joined():
    dataset = open_dataset("parity(length=9, min_length=1, each=True)", "train", 50)
    whole, rows = dataset.take(np.arange(50)), np.array([3, 40, 3, 0])
    some = whole.take(rows)
    for row, ids, tags in zip(
        rows, _each(some), np.split(some.tags, np.cumsum(some.tokens.lengths)[:-1]), strict=True
    ):
        np.testing.assert_array_equal(ids, _each(whole)[row])
        np.testing.assert_array_equal(tags, 3 + np.cumsum(ids - 3) % 2)
    joined = type(whole).concatenate([whole.take(np.arange(20)), whole.take(np.arange(20, 50))])
    np.testing.assert_array_equal(joined.tokens.ids, whole.tokens.ids)
    np.testing.assert_array_equal(joined.tags, whole.tags)


def _each(examples):
    return np.split(examples.tokens.ids, np.cumsum(examples.tokens.lengths)[:-1])


@pytest.mark.parametrize("task", ["copy", "recall", "dyck", "listops(length=10, min_length=4)"])
def test_far_rows_of_huge_data_are_as_near_as_the_first(task):
    dataset = open_dataset(task, "train", 10**15)
    near, far = dataset.take(np.arange(200)), dataset.take(10**15 - 200 + np.arange(200))
    assert len(far.tokens) == 200
    assert not np.array_equal(near.tokens.ids[:100], far.tokens.ids[:100])


def test_spelled_vectors():
    examples = make("spell(length=3, vocab=8)", 500)
    assert examples.vectors.shape == (500, 15)
    np.testing.assert_array_equal(
        examples.vectors.reshape(500, 3, 5).argmax(2) + 3, examples.tokens_NT
    )
    np.testing.assert_array_equal(examples.vectors.sum(1), np.full(500, 3))


@pytest.mark.parametrize("task", ["copy", "induction", "recall", "parity", "dyck", "listops"])
def test_the_vocabulary_does_not_change_with_length(task):
    assert (
        open_dataset(f"{task}(length=64)", "train", 3).vocab
        == open_dataset(f"{task}(length=128)", "train", 3).vocab
    )


def test_induction_asks_for_the_one_earlier_place():
    examples = make("induction(length=10)", 2000)
    before = examples.tokens_NT[:, :-1] == examples.tokens_NT[:, -1:]
    assert np.all(before.sum(1) == 1)
    share = before.mean(0)
    np.testing.assert_allclose(share[:8], 1 / 8, atol=0.03)
    assert share[8] == 0  # there the answer would be the question


def test_recall_is_that_of_zoology():
    examples = make("recall(length=64, pairs=4, vocab=100)", 20000)
    keys, values = examples.tokens_NT[:, 0:8:2], examples.tokens_NT[:, 1:8:2]
    for x, first, end in ((keys, 3, 50), (values, 50, 100)):
        assert (x.min(), x.max()) == (first, end - 1)
        assert np.all(np.diff(np.sort(x, 1), axis=1) > 0)  # each once
        share = np.bincount(np.ravel(x[:, 0]), minlength=end)[first:] / len(x)
        np.testing.assert_allclose(share, 1 / (end - first), atol=0.006)
    assert np.all(examples.scored_NT.sum(1) == 4)
    assert not np.any(examples.scored_NT[:, :8])
    assert not np.any(examples.scored_NT[:, 9::2])
    asked = np.sort(examples.tokens_NT[examples.scored_NT].reshape(-1, 4), 1)
    np.testing.assert_array_equal(asked, np.sort(keys, 1))
    # One pair is asked for at the i-th place with a probability of i^(alpha − 1).
    for alpha in (0.01, 1.0):
        one = make(f"recall(length=26, pairs=1, alpha={alpha})", 40000)
        weight = np.arange(1.0, 13) ** (alpha - 1)
        share = one.scored_NT[:, 2::2].mean(0)
        np.testing.assert_allclose(share, weight / weight.sum(), atol=0.01)


def test_recall_draws_places_one_after_another():
    """Two of three places: the probabilities of drawing without replacement."""
    examples = make("recall(length=10, pairs=2, alpha=0.5)", 40000)
    p = np.arange(1, 4) ** -0.5 / np.sum(np.arange(1, 4) ** -0.5)
    missing = {tuple(sorted({0, 1, 2} - {i})): i for i in range(3)}
    places = examples.scored_NT[:, 4::2]
    for (a, b), left in missing.items():
        wanted = p[a] * p[b] / (1 - p[a]) + p[b] * p[a] / (1 - p[b])
        np.testing.assert_allclose(np.mean(~places[:, left]), wanted, atol=0.01)


def test_addition_splits_the_table():
    seen = []
    for split, size in {"train": 48, "valid": 37, "test": 36}.items():
        assert len(open_dataset("addition(p=11, fraction=0.4)", split)) == size
        examples = make("addition(p=11, fraction=0.4)", size, split)
        again = make("addition(p=11, fraction=0.4)", size, split, seed=1)
        np.testing.assert_array_equal(examples.tokens_NT, again.tokens_NT)
        assert set(examples.tokens_NT[:, 1]) == {14}
        seen += [(a - 3, b - 3) for a, _, b in examples.tokens_NT.tolist()]
    assert len(seen) == 121
    assert set(seen) == {(a, b) for a in range(11) for b in range(11)}
    assert {a for a, _ in seen[:48]} == set(range(11))  # shuffled, not the first rows
    more = make("addition(p=11, fraction=0.5)", 60, "train").tokens_NT[:48] - 3
    assert [(a, b) for a, _, b in more.tolist()] == seen[:48]


def test_dyck_nests_as_deep_as_it_may():
    for depth, deepest in ((1, 1), (3, 3), (50, 10)):
        examples = make(f"dyck(length=20, depth={depth})", 5000)
        opens = np.where(examples.tokens_NT < 7, 1, -1)
        level = np.cumsum(opens, 1)
        assert np.all(level >= 0)
        assert np.all(level[:, -1] == 0)
        assert level.max() == deepest
        np.testing.assert_array_equal(examples.scored_NT, examples.tokens_NT >= 7)


def test_listops_nests_as_deep_as_it_may():
    examples = make("listops(length=100, min_length=20, depth=3, args=4)", 2000)
    change = (examples.tokens_NT >= 13) * 1 - 2 * (examples.tokens_NT == 17)
    level = np.cumsum(change, 1)
    assert level.max() == 3
    assert set(examples.tokens_NT[:, 0]) == {13, 14, 15, 16}
    share = np.bincount(examples.label_N, minlength=10) / 2000
    assert share.min() > 0.02


def test_what_the_tasks_allow():
    names = [*(name for name in SOLVERS if "(" not in name), "spell"]
    forms = {name: " ".join(accepting(open_dataset(name, "valid", 5))) for name in names}
    assert forms == {
        **dict.fromkeys(("copy", "reverse", "sort"), "next_token seq2seq tag prefix_lm"),
        **dict.fromkeys(("induction", "recall"), "next_token tag"),
        "dyck": "next_token masked_lm prefix_lm span_corruption ul2 word2vec",
        "spell": "vector_to_sequence",
        **dict.fromkeys(("addition", "parity", "listops"), "next_token seq2seq classify prefix_lm"),
    }


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("copi", "unknown data set 'copi'; did you mean 'copy'"),
        ("copy(len=3)", "data set 'copy' has no option 'len'; did you mean 'length'"),
        ("copy(length=0)", "copy: length=0 must be a whole number at least 1"),
        ("copy(length=2.0)", "data set 'copy': length=2.0 must be int"),
        ("sort(min_length=17)", "sort: min_length=17 must be a whole number from 1 to 16"),
        ("reverse(vocab=4)", "reverse: vocab=4 must be a whole number at least 5"),
        ("induction(length=2)", "induction: length=2"),
        ("induction(vocab=5)", "induction: vocab=5"),
        ("recall(pairs=17)", "recall: pairs=17 must be a whole number from 1 to 16"),
        ("recall(pairs=16, vocab=30)", "recall: vocab=30 has fewer keys than pairs=16; from 38 on"),
        ("recall(alpha=0)", "recall: alpha=0 must be a number between 0 and inf"),
        ("addition(p=1)", "addition: p=1 must be a whole number from 2"),
        ("addition(fraction=1.0)", "addition: fraction=1.0 must be a number between 0 and 1"),
        (
            "addition(p=2, fraction=0.1)",
            "fraction=0.1 of 4 pairs leaves none for 'train'",
        ),
        ("addition(p=2, fraction=0.9)", "fraction=0.9 of 4 pairs leaves none for 'test'"),
        ("parity(each=1)", "data set 'parity': each=1 must be bool"),
        ("dyck(length=7)", "dyck: length=7 must be even"),
        ("dyck(depth=0)", "dyck: depth=0"),
        ("listops(length=8)", "listops: min_length=16 must be a whole number from 4 to 8"),
        ("listops(depth=1)", "min_length=16 is impossible with depth=1 and args=5; at most 7"),
        ("listops(args=1)", "listops: args=1"),
        ("spell(length=0)", "spell: length=0"),
        ("spell(vocab=4)", "spell: vocab=4 must be a whole number at least 5"),
    ],
)
def test_bad_options_are_named(task, message):
    with pytest.raises(UserError, match=message):
        fingerprint(task)


def test_the_least_that_is_allowed_works():
    for task in (
        "copy(length=1, vocab=5)",
        "recall(length=4, pairs=1, vocab=8)",
        "recall(length=64, pairs=16, vocab=38)",
        "addition(p=2, fraction=0.5)",
        "spell(length=2, vocab=5)",
        "dyck(length=4, kinds=2, depth=1)",
        "listops(length=4, min_length=4, depth=1, args=2)",
        "listops(min_length=7, depth=1)",
        "parity(length=4)",
    ):
        assert len(make(task, 2 if "add" in task else 50).tokens_NT) >= 2


def test_lists_that_are_never_drawn_are_an_end():
    with pytest.raises(UserError, match="lists had from min_length=64 to length=64 tokens"):
        make("listops(length=64, min_length=64, depth=3, args=4)", 10)
