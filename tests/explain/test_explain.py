"""What `tfm explain` collects, beside the same computed in NumPy from the parameters."""

import json

import numpy as np
import pytest

from tests.explain.explained import loaded
from tests.helpers.by_hand import float64
from tests.helpers.quick import jit
from tfm.config.names import UserError
from tfm.explain import heads, page
from tfm.explain.explain import explain, numbers
from tfm.explain.forward import Site, forward
from tfm.explain.passage import Passage
from tfm.explain.terms import TERMS
from tfm.ops.positions import alibi_slopes

IDS = [3, 7, 5, 3, 9, 4]
TEXT = " ".join(map(str, IDS))


def close(a, b, atol=1e-5):
    np.testing.assert_allclose(a, b, atol=atol, rtol=1e-5)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def norm(p, x):
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return x * p["scale"] + p["bias"]


def passage(ids=IDS):
    labels = np.array([*ids[1:], -1])
    return Passage({"tokens_BT": np.array([ids], np.int32)}, {"tokens": ids}, "tokens", labels)


@pytest.mark.parametrize("scan", [True, False])
def test_every_stage_is_that_of_its_definition(tmp_path, scan):
    run = loaded(
        tmp_path, "decoder", scan=scan, tied=False, position={"scheme": "learned"},
        attention={"heads": 4, "kv_heads": 2, "out_bias": True},
        feedforward={"width": 12, "kind": "reglu"},
    )  # fmt: skip
    found = forward(run, passage())
    arrays, p = found.sides["decoder"], float64(run.params)
    causal = np.tril(np.ones((6, 6), bool))
    close(arrays["token_TD"], p["embed"]["token"]["embedding"][IDS])
    close(arrays["table_TD"], p["decoder"]["table"]["table_w_LD"][:6])
    x = arrays["token_TD"] + arrays["table_TD"].astype(float)
    for n in range(2):
        own = p["decoder"]
        own = _layer(own["layers"], n) if scan else own[f"layer_{n}"]
        read = norm(own["attention_norm"], x)
        close(arrays["attention_in_NTD"][n], read)
        a = own["attention"]
        q = np.einsum("td,dhk->thk", read, a["query"]["kernel"])
        k, v = (np.einsum("td,dhk->thk", read, a[name]["kernel"]) for name in ("key", "value"))
        for name, wanted in {"q_NTHK": q, "k_NSGK": k, "v_NSGE": v}.items():
            close(arrays[name][n], wanted)
        k, v = (np.repeat(y, 2, 1) for y in (k, v))
        score = np.einsum("thk,shk->hts", q, k) / np.sqrt(2)
        close(arrays["score_NHTS"][n], score)
        close(arrays["logits_NHTS"][n], score)
        assert np.array_equal(arrays["visible_NHTS"][n], np.broadcast_to(causal, (4, 6, 6)))
        weights = softmax(np.where(causal, score, -np.inf))
        close(arrays["weights_NHTS"][n], weights)
        z = np.einsum("hts,shk->thk", weights, v)
        close(arrays["heads_NTHE"][n], z)
        y = np.einsum("thk,hkd->td", z, a["out"]["kernel"]) + a["out"]["bias"]
        close(arrays["attention_out_NTD"][n], y)
        x = x + y
        close(arrays["attention_sum_NTD"][n], x)
        f, read = own["feedforward"], norm(own["feedforward_norm"], x)
        hidden = np.maximum(read @ f["gate"]["kernel"] + f["gate"]["bias"], 0)
        hidden = hidden * (read @ f["up"]["kernel"] + f["up"]["bias"])
        close(arrays["hidden_NTF"][n], hidden)
        x = x + hidden @ f["down"]["kernel"] + f["down"]["bias"]
        close(arrays["feedforward_sum_NTD"][n], x)
        close(arrays["states_NTD"][n], x)
        norms = heads.value_norms(found.sites[0], run.params)
        moved = np.einsum("she,hed->hsd", v, a["out"]["kernel"])
        close(norms[n], np.linalg.norm(moved, axis=-1))
    x = norm(p["decoder"]["norm"], x)
    close(arrays["final_TD"], x)
    close(found.logits, x @ p["head"]["kernel"])


def _layer(tree, n):
    return {k: _layer(v, n) for k, v in tree.items()} if isinstance(tree, dict) else tree[n]


def test_cross_attention_is_looked_at(tmp_path):
    run = loaded(tmp_path, "encoder_decoder", position={"scheme": "relative"})
    found = explain(run, TEXT, target="5 6 7")
    assert [look.site.name for look in found.looks] == ["encoder", "decoder", "cross"]
    assert [len(look.site.layers) for look in found.looks] == [2, 2, 2]
    assert [text for text, _ in found.sequences["target"]] == ["1", "5", "6", "7"]
    assert [walk.name for walk in found.walks] == ["encoder", "decoder"]
    a = found.looks[2].site.arrays
    assert a["weights_NHTS"].shape == (2, 2, 4, 6)
    close(a["weights_NHTS"], softmax(a["logits_NHTS"].astype(float)))
    close(a["heads_NTHE"], np.einsum("nhts,nshe->nthe", a["weights_NHTS"], a["v_NSGE"]))
    own = found.looks[0].site.arrays
    close(own["logits_NHTS"], own["score_NHTS"] + own["bias_NHTS"])


@pytest.mark.parametrize("decoder", ["bahdanau", "luong"])
def test_alignments_of_a_recurrent_decoder(tmp_path, decoder):
    run = loaded(
        tmp_path, "seq2seq", cell="lstm", decoder=decoder, hidden=6,
        attention={"heads": 2, "score": "additive"},
    )  # fmt: skip
    found = explain(run, TEXT, target="5 6 7")
    (look,) = found.looks
    a, p = look.site.arrays, float64(run.params)
    assert a["weights_NHTS"].shape == (1, 2, 4, 6)
    hidden = np.tanh(a["q_NTHK"][0][:, None] + a["k_NSGK"][0][None])
    score = np.einsum("tshk,hk->hts", hidden, p["attention"]["score_w_HK"])
    close(a["score_NHTS"][0], score)
    close(a["weights_NHTS"][0], softmax(score))
    close(a["heads_NTHE"][0], np.einsum("hts,she->the", a["weights_NHTS"][0], a["v_NSGE"][0]))
    side = found.forward.sides["encoder"]
    cell = np.zeros(6)
    for t in range(6):  # forwards, in the left half
        i, f, g, o = (side[f"gate_{name}_NTH"][0, t, :6] for name in "ifgo")
        cell = f * cell + i * g
        close(side["cells_NTH"][0, t, :6], cell)
        close(side["states_NTH"][0, t, :6], o * np.tanh(cell))
    gates = next(stage for stage in found.walks[0].stages if stage.name == "gates")
    assert [picture.label[0] for picture in gates.pictures] == ["i", "f", "g", "o", "c"]


def static(*pairs):
    """Weights of the score "static" that let each head look where it should."""

    def changed(params):
        w_NHLM = np.zeros((2, 2, 16, 16), np.float32)
        for h, look in enumerate(pairs):
            for t in range(16):
                w_NHLM[:, h, t, look(t)] = 20.0
        params["decoder"]["layers"]["attention"]["score_w_HLM"] = w_NHLM
        return params

    return changed


def test_heads_made_by_hand_get_their_tags(tmp_path):
    wanted = static(lambda t: max(t - 1, 0), lambda t: 0)
    run = loaded(tmp_path, "decoder", wanted, attention={"heads": 2, "score": "static"})
    found = explain(run, TEXT).looks[0].heads
    assert [[one["tag"] for one in row] for row in found] == [["previous-token", "first-token"]] * 2
    close(found[0][0]["previous"], 1, 1e-4)
    close(found[0][0]["itself"], 0, 1e-4)
    close(found[0][1]["first"], 1, 1e-4)
    close(found[0][1]["entropy"], 0, 1e-3)


TAGGED = {
    "diagonal": lambda ids, t: t,
    "previous-token": lambda ids, t: max(t - 1, 0),
    "first-token": lambda ids, t: 0,
    "induction": lambda ids, t: next((s for s in range(1, t) if ids[s - 1] == ids[t]), 0),
    "same-token": lambda ids, t: next((s for s in range(t) if ids[s] == ids[t]), 0),
    "next-token": lambda ids, t: min(t + 1, len(ids) - 1),
}


def site(weights_TS, cross=False):
    cols = "source" if cross else "tokens"
    arrays = {"weights_NHTS": np.asarray(weights_TS, np.float32)[None, None]}
    return Site("decoder", "", "tokens", cols, [0], arrays, "decoder", "attention", None)


@pytest.mark.parametrize("name", TAGGED)
def test_each_pattern_has_its_tag(name):
    ids = [4, 8, 5, 9, 7, 4, 8, 5, 9, 7]
    weights = np.full((10, 10), 0.02)
    for t in range(10):
        weights[t, TAGGED[name](ids, t)] += 0.8
    ((found,),) = heads.statistics(site(weights), {"tokens": ids})
    assert found["tag"] == name


def test_spread_and_mixed_and_what_is_too_seldom_to_be_told():
    ids = list(range(10))
    even = np.full((10, 10), 0.1)
    ((found,),) = heads.statistics(site(even), {"tokens": ids})
    assert found["tag"] == "spread"
    close(found["entropy"], np.log2(10))
    assert found["induction"] is None  # no token is repeated
    few = np.eye(10) * 0.2 + np.eye(10, k=-3) * 0.8
    few[:, 3] += 1e-3
    ((found,),) = heads.statistics(site(few), {"tokens": ids})
    assert found["tag"] == "mixed"


def test_cross_attention_has_tags_of_its_own():
    both = {"tokens": [1] * 5, "source": [2] * 9}
    along = np.zeros((5, 9))
    along[np.arange(5), np.arange(0, 9, 2)] = 1
    assert heads.statistics(site(along, cross=True), both)[0][0]["tag"] == "monotone"
    last = np.zeros((5, 9))
    last[:, -1] = 1
    assert heads.statistics(site(last, cross=True), both)[0][0]["tag"] == "last-token"


def loss_by_definition(run, params, inputs, labels):
    logits = np.asarray(call(run, params, inputs), np.float64)[0]
    log_p = np.log(softmax(logits))[np.arange(len(labels)), labels]
    return -log_p[labels >= 0].mean()


@pytest.mark.parametrize("scan", [True, False])
def test_a_silenced_head_is_one_without_its_rows_of_the_output(tmp_path, scan):
    run = loaded(tmp_path, "decoder", scan=scan, position={"scheme": "rotary"})
    read = passage()
    got = heads.silenced(run, read, forward(run, read).sites)["decoder"]
    assert got.shape == (2, 2)
    whole = loss_by_definition(run, run.params, read.inputs, read.labels)
    for layer, head in ((0, 1), (1, 0)):
        params = {**run.params, "decoder": _copy(run.params["decoder"])}
        stack = params["decoder"]
        if scan:
            stack["layers"]["attention"]["out"]["kernel"][layer, head] = 0
        else:
            stack[f"layer_{layer}"]["attention"]["out"]["kernel"][head] = 0
        without = loss_by_definition(run, params, read.inputs, read.labels)
        close(got[layer, head], without - whole)
        assert abs(without - whole) > 1e-4


def _copy(tree):
    if isinstance(tree, dict):
        return {name: _copy(part) for name, part in tree.items()}
    return np.array(tree)


def test_a_head_that_is_not_projected_is_silenced_by_its_values(tmp_path):
    run = loaded(tmp_path, "seq2seq", hidden=6, attention={"heads": 2, "qkv_bias": True})
    found = explain(run, TEXT, target="5 6 7")
    inputs = {
        "source_BS": np.array([IDS]),
        "decoder_input_BT": np.array([[1, 5, 6, 7]]),
    }
    labels = np.array([5, 6, 7, 2])
    params = _copy(run.params)
    for name in ("kernel", "bias"):
        params["attention"]["value"][name][..., 1, :] = 0
    whole, without = (loss_by_definition(run, p, inputs, labels) for p in (run.params, params))
    close(found.loss, whole)
    close(found.looks[0].heads[0][1]["silenced"], without - whole)


@pytest.mark.parametrize(
    ("kind", "placement", "score"),
    [
        ("layer", "pre", "scaled_dot"),
        pytest.param("rms", "pre", "bilinear", marks=pytest.mark.ci),
        pytest.param("layer", "post", "dot", marks=pytest.mark.ci),
    ],
)
def test_four_terms_of_content_and_position_add_up_to_the_score(tmp_path, kind, placement, score):
    run = loaded(
        tmp_path, "decoder", position={"scheme": "learned"},
        norm={"kind": kind, "placement": placement}, attention={"heads": 2, "score": score},
    )  # fmt: skip
    (look,) = explain(run, TEXT).looks
    assert tuple(look.terms) == TERMS
    close(
        sum(term.pairs_HTS for term in look.terms.values()), look.site.arrays["score_NHTS"][0], 1e-4
    )


def test_the_term_of_positions_alone(tmp_path):
    run = loaded(tmp_path, "decoder", position={"scheme": "learned"}, norm={"kind": "none"})
    found = explain(run, TEXT)
    p = float64(run.params)["decoder"]
    table, own = p["table"]["table_w_LD"][:6], p["layers"]["attention"]
    q, k = (np.einsum("td,dhk->thk", table, own[name]["kernel"][0]) for name in ("query", "key"))
    wanted = np.einsum("thk,shk->hts", q, k) / 2
    close(found.looks[0].terms["position_position"].pairs_HTS, wanted)
    titles = [title for title, _, _ in found.pictures]
    assert titles == ["Position table (decoder)", "How alike are two positions? (decoder)"]
    close(found.pictures[0][2].data, table)


def test_a_bias_by_distance(tmp_path):
    run = loaded(tmp_path, "decoder", position={"scheme": "alibi"})
    found = explain(run, TEXT)
    assert not found.looks[0].terms  # nothing is added to the embeddings
    ((_, text, picture),) = found.pictures
    wanted = -np.array(alibi_slopes(2))[:, None] * np.abs(np.arange(-5, 6))
    close(picture.data, wanted)
    assert "from -5 to 5" in text


@pytest.mark.parametrize("family", ["decoder", "recurrent", "encoder_decoder", "seq2seq"])
def test_continuations_are_those_of_a_model_that_reads_them_anew(tmp_path, family):
    run = loaded(tmp_path, family)
    target = "5 6" if family in ("encoder_decoder", "seq2seq") else None
    found = explain(run, TEXT, target)
    begin = IDS if target is None else [1, 5, 6]
    one = found.next.continuations[1]
    read = np.array([begin + one.ids[:-1]])  # all at once, without padding
    inputs = {"tokens_BT": read}
    if target is not None:
        inputs = {"source_BS": np.array([IDS]), "decoder_input_BT": read}
    p_TV = softmax(np.asarray(call(run, run.params, inputs), np.float64)[0, len(begin) - 1 :])
    assert one.ids[0] == np.argsort(-p_TV[0])[1]
    assert one.ids[1:] == list(p_TV[1:].argmax(-1))
    assert len(one.ids) == 8 or one.ids[-1] == 2
    close(one.probabilities, p_TV[np.arange(len(one.ids)), one.ids], 1e-4)


def call(run, params, inputs):
    return jit(lambda params, inputs: run.model.apply({"params": params}, **inputs))(params, inputs)


def test_a_target_that_nobody_gave_is_the_models_own(tmp_path):
    run = loaded(tmp_path, "encoder_decoder")
    found = explain(run, TEXT)
    written = [id_ for _, id_ in found.sequences["target"]]
    assert written[0] == 1
    inputs = {"source_BS": np.array([IDS]), "decoder_input_BT": np.array([written])}
    best = np.argmax(np.asarray(call(run, run.params, inputs))[0], -1)
    assert list(best[: len(written) - 1]) == written[1:]
    assert "written by the model itself" in found.notes[0]


MIXERS = {
    "linear_attention": True,
    "token_mlp": True,
    "state_space": False,
    "convolution": False,
    "recurrent(cell='lstm')": False,
}


@pytest.mark.parametrize("mixer", MIXERS)
def test_other_mixers(tmp_path, mixer):
    run = loaded(tmp_path, "decoder", mixer=mixer)
    found = explain(run, TEXT)
    arrays = found.forward.sides["decoder"]
    assert bool(found.looks) == MIXERS[mixer]
    stages = {stage.name: stage for stage in found.walks[0].stages}
    assert stages["mixer"].text
    if mixer == "linear_attention":
        a = found.looks[0].site.arrays
        close(a["weights_NHTS"].sum(-1), 1, 1e-4)
        close(a["heads_NTHE"], np.einsum("nhts,nshe->nthe", a["weights_NHTS"], a["v_NSGE"]), 1e-4)
    if mixer == "token_mlp":
        w_NHTS = found.looks[0].site.arrays["weights_NHTS"]
        read, out = arrays["token_mlp_in_NTD"], arrays["token_mlp_out_NTD"]
        close(np.einsum("nts,nsd->ntd", w_NHTS[:, 0], read), out)
    if "lstm" in mixer:
        i, f, g = (arrays[f"gate_{name}_NTH"][0] for name in "ifg")
        close(arrays["cells_NTH"][0, 1], f[1] * arrays["cells_NTH"][0, 0] + i[1] * g[1])
    page.page([found])


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("bag", {"classes": 3, "hidden": (4,)}),
        ("convolution", {"classes": 3, "channels": (4, 5), "batch_norm": False}),
        ("recurrent", {"classes": 3, "shape": "N:1", "cell": "gru", "bidirectional": True}),
        ("encoder", {"outputs": ("classify",), "classes": 3}),
        ("encoder", {"outputs": ("masked_lm",)}),
        ("encoder", {}),
    ],
)
def test_other_families(tmp_path, family, changes):
    own = {} if family in ("encoder", "recurrent") else dict.fromkeys(
        ("layers", "max_length", "attention", "feedforward"))  # fmt: skip
    run = _of_family(tmp_path, family, changes, own)
    found = explain(run, TEXT)
    made, _ = page.page([found])
    assert json.loads(_data(made))["runs"][0]["sequences"]["tokens"][0] == ["3", 3]
    if found.next is not None and "classes" in changes:
        assert found.next.names == {0: "0", 1: "1", 2: "2"}
        assert found.next.logits.shape == (1, 3)
    assert (found.loss is None) == (family == "encoder" and not changes)
    assert all(stage.title for stage in found.walks[0].stages)


def _of_family(tmp_path, family, changes, drop):
    from tests.explain import explained

    kept = {k: v for k, v in explained.SMALL.items() if k not in drop}
    saved, explained.SMALL = explained.SMALL, kept
    try:
        return loaded(tmp_path, family, **changes)
    finally:
        explained.SMALL = saved


def _data(made):
    return made.split('id="data">')[1].split("</script>")[0]


def test_all_numbers_have_names(tmp_path):
    found = numbers(explain(loaded(tmp_path, "decoder"), TEXT, layers=[1]))
    assert found["decoder.weights_NHTS"].shape == (1, 2, 6, 6)
    assert found["decoder.head_silenced_NH"].shape == (1, 2)
    assert found["logits"].shape == (6, 13)
    assert list(found["tokens.ids"]) == IDS


@pytest.mark.parametrize(
    ("family", "text", "options", "said"),
    [
        ("decoder", "  ", {}, "the text is empty"),
        ("decoder", "3 4 five", {}, "'five': the model's data are ids"),
        ("decoder", "3 " * 17, {}, "has 17 tokens, and the model was made for 16"),
        ("decoder", "3 13", {}, "the tokenizer is not the model's"),
        ("decoder", TEXT, {"target": "4"}, "--target is for models that translate"),
        ("decoder", TEXT, {"second": "4"}, "--second is for models that classify"),
        ("decoder", TEXT, {"layers": [2]}, "no layer 2 in the decoder: they are 0 to 1"),
    ],
)
def test_what_cannot_be_explained_is_told(tmp_path, family, text, options, said):
    with pytest.raises(UserError, match=said):
        explain(loaded(tmp_path, family), text, **options)


def test_a_model_that_diverged_is_told(tmp_path):
    def broken(params):
        params["embed"]["token"]["embedding"][5] = np.nan
        return params

    with pytest.raises(UserError, match="not finite: it diverged"):
        explain(loaded(tmp_path, "decoder", broken), TEXT)


def test_word2vec_has_nothing_to_show(tmp_path):
    run = _of_family(tmp_path, "word2vec", {}, {"layers", "max_length", "attention", "feedforward"})
    with pytest.raises(UserError, match="word2vec reads no text: its model has no layers"):
        explain(run, TEXT)
