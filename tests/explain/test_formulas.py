"""Formulas of the walk name the parameters that the model has; its numbers are the model's."""

import math

import jax
import numpy as np
import pytest

from tests.explain.explained import loaded
from tests.explain.test_explain_page import data, unpacked
from tests.helpers.by_hand import float64
from tfm.explain import page
from tfm.explain.explain import explain
from tfm.explain.forward import forward
from tfm.explain.passage import passage
from tfm.explain.walk import walks

IDS = [3, 7, 5, 3, 9, 4]
TEXT = " ".join(map(str, IDS))
POST = {
    "outputs": ("masked_lm",), "types": 2, "scale_embedding": True,
    "norm": {"placement": "post", "embedding": True},
    "position": {"scheme": "learned"},
    "attention": {"heads": 2, "qkv_bias": True, "out_bias": True},
}  # fmt: skip
MODELS = {
    "gpt": ("decoder", {"attention": {"heads": 2, "qkv_bias": True, "out_bias": True},
                        "position": {"scheme": "learned"}}),
    "llama": ("decoder", {"attention": {"heads": 2}, "norm": {"kind": "rms"}, "tied": False,
                          "feedforward": {"width": 12, "kind": "swiglu", "bias": False},
                          "position": {"scheme": "rotary"}}),
    "geglu": ("decoder", {"feedforward": {"width": 12, "kind": "geglu"}, "norm": {"bias": False}}),
    "shared": ("decoder", {"attention": {"heads": 2, "share_qk": True, "qkv_bias": True,
                                         "projections": ("query", "value")}}),
    "sandwich": ("decoder", {"norm": {"placement": "sandwich"}}),
    "bert": ("encoder", POST),
}  # fmt: skip
SYMBOLS = {  # the parameter of a layer, and how the formulas write it
    "attention/query/kernel": "W_q", "attention/query/bias": "b_q",
    "attention/key/kernel": "W_k", "attention/key/bias": "b_k",
    "attention/value/kernel": "W_v", "attention/value/bias": "b_v",
    "attention/out/kernel": "W_o", "attention/out/bias": "b_o",
    "feedforward/up/kernel": "W_1", "feedforward/up/bias": "b_1",
    "feedforward/gate/kernel": "W_g", "feedforward/gate/bias": "b_g",
    "feedforward/down/kernel": "W_2", "feedforward/down/bias": "b_2",
    "norm/scale": "scale", "norm/bias": "bias",
}  # fmt: skip
WHOLE = {  # of the whole model
    "embed/token/embedding": "E[id]", "embed/type/embedding": "S[type]",
    "decoder/table/table_w_LD": "P[t]", "encoder/table/table_w_LD": "P[t]", "head/kernel": "W_head",
    "masked_lm_bias": "Eᵀ + c", "masked_lm/bias": "f(x W + b)",
}  # fmt: skip


def walk(run, target=None):
    """The stages of the last side, by name, and the arrays that they are made of."""
    captured = forward(run, passage(run, TEXT, target)[0])
    return {s.name: s for s in walks(run, captured, {})[-1].stages}, captured


@pytest.mark.parametrize("name", MODELS)
def test_formulas_have_the_parameters_of_the_model(tmp_path, name):
    family, changes = MODELS[name]
    run = loaded(tmp_path, family, scan=False, **changes)
    text = "  ".join(stage.formula for stage in walk(run)[0].values())
    leaves = jax.tree_util.tree_leaves_with_path(run.params)
    paths = ["/".join(key.key for key in path) for path, _ in leaves]
    for parameter, symbol in SYMBOLS.items():
        has = any("layer_0" in path and path.endswith(parameter) for path in paths)
        assert (symbol in text) == has, (symbol, text)
    symbols = {
        symbol: any(WHOLE.get(path) == symbol for path in paths) for symbol in WHOLE.values()
    }
    assert {symbol: symbol in text for symbol in symbols} == symbols
    assert ("R_t" in text) == (name == "llama")
    assert ("√8 · E[id]" in text) == (name == "bert")
    assert ("Eᵀ" in text) == ("head/kernel" not in paths)


def norm(p, x):
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return x * p["scale"] + p["bias"]


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))


def test_the_numbers_of_a_post_norm_encoder_are_those_of_its_formulas(tmp_path):
    """Each picture follows from the pictures before it, by the formula that stands over it."""
    run = loaded(tmp_path, "encoder", scan=False, **POST)
    found = explain(run, TEXT)
    tree = data(page.page([found])[0])
    shown = {s["name"]: s for s in tree["runs"][0]["walks"][0]["stages"]}
    assert list(shown) == [
        "pieces", "embedding", "embed_norm", "qkv", "score", "mask", "weights", "values", "joined",
        "attention_sum", "attention_norm", "feedforward", "feedforward_sum", "feedforward_norm",
        "logits", "bars",
    ]  # fmt: skip

    def number(stage, place=-1, layer=None, head=None):
        packed = shown[stage]["pictures"][place]["data"]
        for index in (layer, head):
            packed = packed if index is None else packed[index]
        return unpacked(tree, packed).astype(np.float64)

    def close(a, b):
        np.testing.assert_allclose(a, b, atol=2e-5, rtol=1e-5)

    p = float64(run.params)
    embed = p["embed"]
    token = np.sqrt(8) * embed["token"]["embedding"][IDS] + embed["type"]["embedding"][0]
    close(number("embedding", 0), token)
    close(number("embedding", 1), p["encoder"]["table"]["table_w_LD"][:6])
    x = norm(p["encoder"]["embed_norm"], number("embedding", 0) + number("embedding", 1))
    close(number("embed_norm"), x)
    for n in range(2):
        own = p["encoder"][f"layer_{n}"]
        q = np.einsum("td,dhk->htk", x, own["attention"]["query"]["kernel"])
        q += own["attention"]["query"]["bias"][:, None]
        close(number("qkv", 0, n, 1), q[1])
        heads = np.stack([number("values", 0, n, h) for h in range(2)])
        out = own["attention"]["out"]
        y = np.einsum("hte,hed->td", heads, out["kernel"]) + out["bias"]
        close(number("joined", layer=n), y)
        close(number("attention_sum", layer=n), x + y)
        x = norm(own["attention_norm"], x + y)
        close(number("attention_norm", layer=n), x)
        f = own["feedforward"]
        hidden = gelu(x @ f["up"]["kernel"] + f["up"]["bias"])
        close(number("feedforward", 0, n), hidden)
        y = hidden @ f["down"]["kernel"] + f["down"]["bias"]
        close(number("feedforward", 1, n), y)
        close(number("feedforward_sum", layer=n), x + y)
        x = norm(own["feedforward_norm"], x + y)
        close(number("feedforward_norm", layer=n), x)
    x = norm(p["masked_lm_norm"], gelu(x @ p["masked_lm"]["kernel"] + p["masked_lm"]["bias"]))
    logits = x @ embed["token"]["embedding"].T + p["masked_lm_bias"]
    close(number("logits"), logits)
    close(logits, run.model.apply(run.variables, np.array([IDS]))[0])


@pytest.mark.parametrize("parallel", [False, True])
def test_every_norm_of_a_block_is_a_stage(tmp_path, parallel):
    changes = {"norm": {"placement": "sandwich"}, "parallel": parallel}
    stages, captured = walk(loaded(tmp_path, "decoder", **changes))
    arrays = captured.sides["decoder"]
    if parallel:
        assert [name for name in stages if "norm" in name] == ["norm", "all_out_norm"]
        assert stages["all_sum"].formula == "x′ = x + norm(Σ y)"
        return
    assert [name for name in stages if "norm" in name or "sum" in name] == [
        "norm", "attention_out_norm", "attention_sum",
        "feedforward_norm", "feedforward_out_norm", "feedforward_sum",
    ]  # fmt: skip
    before = arrays["attention_sum_NTD"] + arrays["feedforward_out_norm_NTD"]
    np.testing.assert_allclose(arrays["feedforward_sum_NTD"], before, atol=1e-5)


def test_a_model_without_norms_or_residuals_has_no_stage_for_them(tmp_path):
    stages, _ = walk(loaded(tmp_path, "decoder", norm={"kind": "none"}, residual=False))
    assert not [name for name in stages if "norm" in name or name == "final"]
    assert stages["attention_sum"].formula == "x′ = y"
    assert "no residual path" in stages["attention_sum"].text


def test_dropout_is_told_where_it_acts(tmp_path):
    rates = {"embedding": 0.1, "attention": 0.2, "residual": 0.3, "feedforward": 0.4}
    stages, _ = walk(loaded(tmp_path, "decoder", dropout={**rates, "output": 0.5}))
    told = {name: stage.text for name, stage in stages.items() if "dropout" in stage.text}
    assert list(told) == [
        "embedding", "weights", "attention_sum", "feedforward", "feedforward_sum", "logits"
    ]  # fmt: skip
    for text, share in zip(told.values(), (0.1, 0.2, 0.3, 0.4, 0.3, 0.5), strict=True):
        assert f"a share of {share} of" in text
    stages, _ = walk(loaded(tmp_path, "decoder", dropout={"embedding": 0.0}, name="other"))
    assert not [stage for stage in stages.values() if "dropout" in stage.text]


def test_the_extreme_logits_of_a_large_vocabulary(tmp_path):
    found = explain(loaded(tmp_path, "decoder", vocab=600), TEXT)
    tree = data(page.page([found])[0])
    (stage,) = [s for s in tree["runs"][0]["walks"][0]["stages"] if s["name"] == "logits"]
    (picture,) = stage["pictures"]
    names, logits = picture["names"], found.forward.logits
    ids = [int(name.strip("<>")) for name in names]
    assert picture["sizes"] == [6, 600]
    np.testing.assert_array_equal(unpacked(tree, picture["data"]), logits[:, ids])
    by_largest, by_smallest = np.argsort(-logits.max(0)), np.argsort(logits.min(0))
    assert set(ids) == {*by_largest[:24].tolist(), *by_smallest[:24].tolist()}
    assert logits.argmax() % 600 == ids[0]
    assert "24 with the largest" in stage["text"]
    stages, captured = walk(loaded(tmp_path, "decoder", name="small"))
    (picture,) = stages["logits"].pictures
    assert picture.names == [*map(str, range(13))]
    np.testing.assert_array_equal(picture.data, captured.logits)


def test_long_texts_do_not_average_the_logits_of_different_tokens(tmp_path):
    run = loaded(tmp_path, "decoder", max_length=128, vocab=200, layers=1)
    found = explain(run, " ".join(["5"] * 128))
    tree = data(page.page([found])[0])
    (stage,) = [s for s in tree["runs"][0]["walks"][0]["stages"] if s["name"] == "logits"]
    assert stage["pictures"][0]["group"] == 1
    assert stage["pictures"][0]["data"]["shape"] == [128, 200]


@pytest.mark.parametrize(
    ("family", "changes", "formula"),
    [
        ("recurrent", {}, "logits = h W + b"),
        ("recurrent", {"tied": True, "hidden": 6}, "logits = h Eᵀ,  E: the embedding"),
        ("encoder", {"outputs": ("tag",), "classes": 3}, "logits = x W + b"),
        ("encoder_decoder", {"scale_head": True}, "logits = (x / √8) Eᵀ,  E: the embedding"),
        ("encoder_decoder", {"tied": False}, "logits = x W_head"),
    ],
)
def test_the_formula_of_the_head(tmp_path, family, changes, formula):
    run = loaded(tmp_path, family, **changes)
    stages, _ = walk(run, "5 6" if family == "encoder_decoder" else None)
    assert stages["logits"].formula == formula
    head = run.params.get("head", run.params.get("tag", {}))
    assert ("+ b" in formula) == ("bias" in head)
