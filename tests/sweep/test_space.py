"""Spaces compared with itertools, and the errors of what they refuse."""

import itertools

import pytest

from tfm.config.names import UserError
from tfm.sweep.space import chain, product, seeds, when, zipped


def test_product_equals_itertools():
    axes = {"a": [1, 2, 3], "b": ["x", "y"], "c": [0.5]}
    wanted = [dict(zip(axes, row, strict=True)) for row in itertools.product(*axes.values())]
    assert list(product(axes)) == wanted
    assert list(product({"a": [1, 2, 3]}, {"b": ["x", "y"], "c": [0.5]})) == wanted
    assert list(product()) == [{}]


def test_zipped_joins_points_by_number():
    points = list(zipped({"a": [1, 2], "b": [3, 4]}, [{"c": 5, "d": 6}, {"c": 7}]))
    assert points == [{"a": 1, "b": 3, "c": 5, "d": 6}, {"a": 2, "b": 4, "c": 7}]
    with pytest.raises(UserError, match="equally long, not 2 of a, 3 of b"):
        list(zipped({"a": [1, 2]}, {"b": [1, 2, 3]}))


def test_chain_follows():
    assert list(chain({"a": [1]}, [{"b": 2}, {}])) == [{"a": 1}, {"b": 2}, {}]


def test_when_asks_what_was_chosen_before():
    space = product(
        {"score": ["dot", "additive"]},
        when({"score": "additive"}, {"heads": [1, 4]}),
        when(lambda point: point.get("heads") == 4, {"width": [64]}),
    )
    assert list(space) == [
        {"score": "dot"},
        {"score": "additive", "heads": 1},
        {"score": "additive", "heads": 4, "width": 64},
    ]
    several = product({"a": [1, 2, 3]}, when({"a": [1, 3]}, {"b": [0]}))
    assert [point.get("b") for point in several] == [0, None, 0]
    with pytest.raises(UserError, match="'scor' has no value yet; did you mean 'score'"):
        list(product({"score": ["dot"]}, when({"scor": "dot"}, {"heads": [1]})))


def test_seeds_and_reuse():
    space = product({"a": [1]}, seeds(2, first=5))
    assert list(space) == list(space) == [{"a": 1, "seed": 5}, {"a": 1, "seed": 6}]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: product({"a": [1]}, {"a": [2]}), "product: 'a' would be set twice"),
        (lambda: zipped({"a": [1]}, [{"a": 2}]), "zipped: 'a' would be set twice"),
        (lambda: product({"a": "dot"}), "'a' has 'dot'; write a list of values"),
        (lambda: product({"a": 3}), "'a' has 3; write a list of values"),
        (lambda: chain([1, 2]), "1 is no point"),
        (lambda: product(7), "7 is no space"),
        (lambda: seeds(0), r"seeds\(0\)"),
    ],
)
def test_mistakes_are_named(make, message):
    with pytest.raises(UserError, match=message):
        list(make())
