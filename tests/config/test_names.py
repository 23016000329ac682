import pytest

from tfm.config.names import UserError, canonical, pick, read
from tfm.ops import masks
from tfm.ops.masks import MASKS
from tfm.ops.positions import POSITIONS
from tfm.ops.scores import SCORES


def test_pick_names_the_nearest():
    assert pick(SCORES, "dot", "score") is SCORES["dot"]
    with pytest.raises(UserError, match="unknown score 'adative'; did you mean 'additive'?"):
        pick(SCORES, "adative", "score")
    with pytest.raises(UserError, match="unknown score 'xyz'; known: additive, bilinear, "):
        pick(SCORES, "xyz", "score")


def test_read():
    assert read("causal", MASKS, "mask") == masks.causal()
    assert read("window(left=3, right=1)", MASKS, "mask") == masks.window(3, 1)
    joined = read("causal & (window(left=3) | ~strided(stride=2))", MASKS, "mask")
    assert joined == masks.causal() & (masks.window(3) | ~masks.strided(2))
    own = masks.predicate(lambda t, s: t > s)
    assert read("own & causal", {**MASKS, "own": own}, "mask") == own & masks.causal()
    assert read("rotary(scaling='ntk', factor=8.0)", POSITIONS, "position").rotate is not None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("casual", "unknown mask 'casual'; did you mean 'causal'"),
        ("window", "mask 'window' needs left: write window"),
        ("window(lef=3)", "mask 'window' has no option 'lef'; did you mean 'left'"),
        ("window(left=x)", "'x' in mask 'window.left=x.' is not a number"),
        ("window(3)", "name its options: window.left=3."),
        ("causal + causal", "cannot read 'causal . causal'"),
        ("causal &", "is not a name or name.option=value."),
        ("__import__('os')", "unknown mask '__import__'"),
        ("~" * 50_000 + "causal", "nested too deeply"),
        ("causal & " * 5000 + "causal", "nested too deeply"),
        ("~" * 60 + "causal", "more than 50 operators within each other"),
        ("window(left={[]: 1})", "is not a number, string, bool or None"),
        ("window(left='x')", "left='x' must be int"),
    ],
)
def test_unreadable_texts_are_named(text, message):
    with pytest.raises(UserError, match=message):
        read(text, MASKS, "mask")


def test_entries_without_options_refuse_them():
    with pytest.raises(UserError, match="score 'dot' has no option 'scale'; it takes none"):
        read("dot(scale=2)", SCORES, "score")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("causal", "causal"),
        ("causal()", "causal"),
        ("window(left=3, right=0)", "window(left=3)"),
        ("window( right=1,left=3 )&~causal", "window(left=3, right=1) & ~causal"),
    ],
)  # fmt: skip
def test_one_spelling_for_each_call(text, expected):
    assert canonical(text, MASKS) == expected
