"""Specs: valid values, error messages, and changes of trees."""

import copy
import dataclasses
import json
import pickle

import pytest

from tfm.config.names import UserError
from tfm.config.spec import (
    Named,
    Spec,
    SpecError,
    call,
    choice,
    differences,
    field,
    keys,
    named,
    parse,
    rate,
    replaced,
    size,
    to_spec,
    to_tree,
)

COLORS = {"red": 1, "green": 2}


def steps(count: int = 3, scale: float = 1.0):
    return tuple(scale * n for n in range(count))


FUNCTIONS = {"steps": steps, "empty": lambda: ()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inner(Spec):
    size: int = size()
    drop: float | None = rate(None)
    color: Named = choice(lambda: COLORS, "red", none=True)

    def check(self) -> None:
        if self.size == 13:
            raise SpecError("size", "{key}=13 brings bad luck")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape(Spec):
    """A spec whose `family` selects a variant."""

    family: str = ""
    width: int = size(8)

    @classmethod
    def variant(cls, tree, prefix=""):
        return {"round": Round, "square": Square}[tree["family"]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Round(Shape):
    radius: float = field(1.0, above=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Square(Shape):
    side: int = size(4)
    inner: Inner | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outer(Spec):
    inner: Inner
    shape: Shape = Round(family="round")
    names: tuple[str, ...] = ()
    colors: tuple[Named, ...] = choice(lambda: COLORS, ())
    widths: tuple[int, ...] = size(())
    run: Named = call(lambda: FUNCTIONS, "steps")
    on: bool = False
    share: float = field(0.5, least=0, below=2)
    text: str = "x"
    count: int | None = size(None)


TREE = {"inner": {"size": 3}, "shape": {"family": "square", "side": 2}}


def test_to_spec():
    spec = to_spec(Outer, {"inner": {"size": 3, "drop": 0}, "names": ["a", "b"], "share": 1})
    assert spec == Outer(inner=Inner(size=3, drop=0.0), names=("a", "b"), share=1.0)
    assert isinstance(spec.inner.drop, float)
    assert isinstance(spec.share, float)
    assert type(to_spec(Outer, TREE).shape) is Square


def test_names_resolve_to_entries():
    spec = Outer(inner=Inner(size=1, color="green"), colors=("red", "green"))
    assert spec.inner.color == "green"
    assert spec.inner.color.entry == 2
    assert [color.entry for color in spec.colors] == [1, 2]
    assert Inner(size=1, color="none").color.entry is None
    spec = dataclasses.replace(spec, run="steps(count=2, scale=0.5)")
    assert spec.run.entry == (0.0, 0.5)
    assert spec.run.names == ("steps",)
    assert Outer(inner=Inner(size=1)).run.entry == (0.0, 1.0, 2.0)
    names = [(table, str(name)) for table, name in named(spec)]
    assert names == [
        (COLORS, "green"), (COLORS, "red"), (COLORS, "green"),
        (FUNCTIONS, "steps(count=2, scale=0.5)"),
    ]  # fmt: skip


def test_a_copied_or_pickled_name_is_a_plain_string():
    name = Inner(size=1, color="green").color
    for copied in (copy.deepcopy(name), pickle.loads(pickle.dumps(name))):
        assert type(copied) is str
        assert copied == "green"


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"inner": {"sise": 3}}, "unknown key 'inner.sise'; did you mean 'inner.size'"),
        ({"iner": {}}, "unknown key 'iner'; did you mean 'inner'"),
        ({"inner": {"size": "3"}}, "inner.size must be int, not '3'"),
        ({"inner": {"size": 3.0}}, "inner.size must be int, not 3.0"),
        ({"inner": {"size": True}}, "inner.size must be int, not True"),
        ({"inner": {"size": None}}, "inner.size must be int, not None"),
        ({"inner": {"size": 3, "drop": "x"}}, "inner.drop must be float or None, not 'x'"),
        ({"inner": {"size": 3, "color": 1}}, "inner.color must be str, not 1"),
        ({"inner": {"size": 3}, "names": (1,)}, r"names\[0\] must be str, not 1"),
        ({"inner": {"size": 3}, "names": "ab"}, "names must be tuple"),
        ({"inner": {"size": 3}, "on": 1}, "on must be bool, not 1"),
        ({"inner": 3}, "inner must be a group of size, drop, color, not 3"),
        ({"inner": {}}, "missing key 'inner.size'"),
        ({}, "missing key 'inner.size'"),
        ({"inner": {"size": 0}}, "inner.size=0 must be at least 1"),
        ({"inner": {"size": 13}}, "inner.size=13 brings bad luck"),
        ({"inner": {"size": 1, "drop": 1.0}}, r"inner.drop=1.0 must be in \[0, 1\)"),
        ({"inner": {"size": 1, "drop": -0.5}}, r"inner.drop=-0.5 must be in \[0, 1\)"),
        ({"inner": {"size": 1, "drop": float("nan")}}, "inner.drop=nan must be in"),
        ({"inner": {"size": 1}, "share": 2.0}, r"share=2.0 must be in \[0, 2\)"),
        ({"inner": {"size": 1}, "widths": (3, 0)}, "widths=0 must be at least 1"),
        ({"inner": {"size": 1}, "count": 0}, "count=0 must be at least 1"),
        ({"inner": {"size": 1, "color": "gren"}}, "unknown inner.color 'gren'; did you mean 'gr"),
        ({"inner": {"size": 1}, "colors": ("rd",)}, "unknown colors 'rd'; did you mean 'red'"),
        ({"inner": {"size": 1}, "run": "step"}, "unknown run 'step'; did you mean 'steps'"),
        ({"inner": {"size": 1}, "run": "steps(n=2)"}, "run 'steps' has no option 'n'"),
        ({"inner": {"size": 1}, "run": "steps(count='a')"}, "run 'steps': count='a' must be int"),
        ({"inner": {"size": 1}, "run": "steps("}, "run 'steps.' is not a name"),
        (TREE | {"shape": {"family": "round", "radius": 0.0}}, "shape.radius=0.0 must be above 0"),
        (TREE | {"shape": {"family": "round", "side": 3}}, "unknown key 'shape.side'"),
        (
            TREE | {"shape": {"family": "square", "inner": {"size": 0}}},
            "^shape.inner.size=0 must be at least 1",
        ),
    ],
)
def test_errors_name_the_full_key(tree, message):
    with pytest.raises(UserError, match=message):
        to_spec(Outer, tree)


def test_a_spec_is_checked_when_it_is_created():
    with pytest.raises(SpecError, match="^size=0 must be at least 1") as error:
        Inner(size=0)
    assert str(error.value.below("model.inner.")) == "model.inner.size=0 must be at least 1"
    with pytest.raises(SpecError, match="size=13 brings"):
        dataclasses.replace(Inner(size=3), size=13)


def test_a_tree_and_back():
    spec = to_spec(Outer, TREE | {"names": ["a"], "run": "steps(count=2)"})
    tree = to_tree(spec)
    assert to_spec(Outer, tree) == spec
    assert to_spec(Outer, json.loads(json.dumps(tree))) == spec
    assert tree["shape"] == {"family": "square", "width": 8, "side": 2, "inner": None}
    assert type(tree["run"]) is str


def test_differences():
    assert differences(Outer(inner=Inner(size=3))) == {"inner": {"size": 3}}
    spec = to_spec(Outer, TREE | {"on": True, "run": "empty", "names": ("a",)})
    assert differences(spec) == {
        "inner": {"size": 3},
        "shape": {"family": "square", "side": 2},
        "names": ("a",),
        "run": "empty",
        "on": True,
    }
    assert to_spec(Outer, differences(spec)) == spec


def test_keys():
    assert [key for key in keys(Outer, TREE) if "." in key] == [
        "inner.size", "inner.drop", "inner.color",
        "shape.family", "shape.width", "shape.side",
        "shape.inner", "shape.inner.size", "shape.inner.drop", "shape.inner.color",
    ]  # fmt: skip
    round_ = {"inner": {}, "shape": {"family": "round"}}
    assert "shape.radius" in set(keys(Outer, round_))
    assert "shape.side" not in set(keys(Outer, round_))


def test_replaced():
    changed = replaced(Outer, TREE, {"inner.size": 5, "inner.drop": 0.5, "on": True})
    assert changed == {"inner": {"size": 5, "drop": 0.5}, "shape": TREE["shape"], "on": True}
    assert TREE == {"inner": {"size": 3}, "shape": {"family": "square", "side": 2}}
    begun = replaced(Outer, TREE, {"shape.inner.size": 2})
    assert to_spec(Outer, begun).shape.inner == Inner(size=2)
    ended = replaced(Outer, begun, {"shape.inner": None})
    assert to_spec(Outer, ended).shape.inner is None


def test_another_family_drops_unknown_keys():
    """The order of the changes does not matter; shared keys are kept."""
    tree = TREE | {"shape": {"family": "square", "side": 2, "width": 5}}
    for changes in (
        {"shape.family": "round", "shape.radius": 2.0},
        {"shape.radius": 2.0, "shape.family": "round"},
    ):
        changed = replaced(Outer, tree, changes)
        assert changed["shape"] == {"family": "round", "width": 5, "radius": 2.0}
    with pytest.raises(UserError, match="unknown key 'shape.side'"):
        replaced(Outer, tree, {"shape.family": "round", "shape.side": 3})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inner.sise": 3}, "unknown key 'inner.sise'; did you mean 'inner.size'"),
        ({"inner": 3}, "'inner' is a group; set one of: inner.size, inner.drop, inner.color"),
        ({"inner.size.x": 3}, "unknown key 'inner.size.x': 'inner.size' is a value, not a group"),
        ({"nams": 3}, "unknown key 'nams'; did you mean 'names'"),
    ],
)
def test_replacing_an_unknown_key_is_named(changes, message):
    with pytest.raises(UserError, match=message):
        replaced(Outer, TREE, changes)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("inner.size", "3", 3),
        ("inner.size", "three", "three"),  # which the spec refuses, with the key
        ("inner.drop", "0.5", 0.5),
        ("inner.drop", "1e-3", 1e-3),
        ("inner.drop", "None", None),
        ("inner.color", "green", "green"),
        ("inner.color", "3", "3"),
        ("on", "true", True),
        ("on", "False", False),
        ("text", "None", "None"),
        ("text", "3", "3"),
        ("names", "a,b", ("a", "b")),
        ("names", "a", ("a",)),
        ("names", "('a', 'b')", ("a", "b")),
        ("names", "()", ()),
        ("colors", "red,green", ("red", "green")),
        ("widths", "4,5", (4, 5)),
        ("widths", "[4]", (4,)),
        ("widths", "4", (4,)),
        ("run", "steps(count=2)", "steps(count=2)"),
        ("shape.side", "2", 2),
        ("shape.inner.drop", "0.1", 0.1),
        ("count", "None", None),
    ],
)
def test_parse(key, text, value):
    parsed = parse(Outer, TREE, key, text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_specs_are_hashable_and_comparable():
    spec = to_spec(Outer, TREE)
    assert hash(spec) == hash(dataclasses.replace(spec))
    assert spec != dataclasses.replace(spec, on=True)
