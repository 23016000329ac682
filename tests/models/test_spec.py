"""Wrong model configs are refused with a clear message; specs declare what their modules can do."""

import dataclasses
import functools
import inspect

import jax
import pytest
from jax import numpy as jnp

from tfm.config.names import UserError
from tfm.layers.recurrent import Cell
from tfm.models.spec import FAMILIES, Family, RecurrentSpec, model_spec
from tfm.run import spec as runs

SMALL = {
    "vocab": 13,
    "width": 16,
    "layers": 2,
    "max_length": 12,
    "attention": {"heads": 4},
    "feedforward": {"width": 24},
}


def make(family, **changes):
    spec = model_spec({"model": {**SMALL, "family": family, **changes}})
    return spec.build(), spec


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("decoder", {"num_layer": 3},
         r"unknown key 'model.num_layer'; did you mean 'model.layers'"),
        ("decoder", {"feedforward": {"width": 8, "kind": "swigul"}},
         "unknown model.feedforward.kind 'swigul'; did you mean 'swiglu'"),
        ("decoder", {"width": 64, "attention": {"heads": 5}},
         r"model.attention.heads=5 does not divide width=64; did you mean heads=4\?"),
        ("decoderr", {}, "unknown model.family 'decoderr'; did you mean 'decoder'"),
        ("decoder", {"attention": {"heads": 4, "haeds": 4}},
         "did you mean 'model.attention.heads'"),
        ("decoder", {"attention": {"heads": 4, "score": "adative"}},
         "unknown model.attention.score 'adative'; did you mean 'additive'"),
        ("decoder", {"attention": {"heads": 4, "kv_heads": 3}}, "kv_heads=3 must divide heads=4"),
        ("decoder", {"attention": {"heads": 0}}, "model.attention.heads=0 must be at least 1"),
        ("decoder", {"attention": {"heads": 4, "cap": -1.0}}, "model.attention.cap=-1.0 must be a"),
        ("decoder", {"attention": {"heads": 4, "share_qk": True, "kv_heads": 2}}, "share_qk needs"),
        ("decoder", {"attention": {"heads": 4, "implementation": "blokwise"}},
         "did you mean .blockwise"),
        ("decoder", {"attention": {"heads": 4, "implementation": "fused", "score": "distance"}},
         "model: .*cannot do scores other"),
        ("decoder", {"attention": {"heads": 4, "head_width": 3}, "position": {"scheme": "rotary"}},
         "model: rotary rotates pairs"),
        ("decoder", {"position": {"scheme": "rotary | alibi"}}, "only masks join with"),
        ("decoder", {"position": {"scheme": "rotary(bas=3)"}},
         "model.position.scheme 'rotary' has no option 'bas'"),
        ("decoder", {"position": {"scheme": "sinusoidal", "join": "ad"}}, "did you mean 'add'"),
        ("decoder", {"mask": "padding"}, "model.mask .padding. needs valid_BS, an array: the"),
        ("decoder", {"mask": "windw(left=3)"}, "unknown model.mask 'windw'; did you mean 'window'"),
        ("decoder", {"norm": {"kind": "layers"}}, "unknown model.norm.kind .*did you mean 'layer'"),
        ("decoder", {"norm": {"placement": "pree"}}, "model.norm.placement .*did you mean 'pre'"),
        ("decoder", {"remat": "ful"}, "unknown model.remat 'ful'; did you mean 'full'"),
        ("decoder", {"dtype": "float23"}, "unknown model.dtype 'float23'; did you mean 'float32'"),
        ("decoder", {"init": {"kernel": "xavier"}}, "unknown model.init.kernel 'xavier'"),
        ("decoder", {"layers": -1}, "model.layers=-1 must be at least 1"),
        ("decoder", {"vocab": "13"}, "model.vocab must be int or None, not '13'"),
        ("decoder", {"attention": {"heads": 4, "score": "none"},
                     "feedforward": {"width": 8, "kind": "none"}}, "a layer needs a mixer or"),
        ("encoder", {"outputs": ("mask_lm",)}, "unknown model.outputs 'mask_lm'; .*'masked_lm'"),
        ("encoder", {"outputs": ("classify",)}, "model.classes is missing"),
        ("encoder", {"outputs": ("tag", "tag"), "classes": 3}, "each only once"),
        ("encoder", {"types": -1}, "model.types=-1 must be at least 0"),
        ("encoder", {"outputs": ("pair",), "classes": 2, "dropout": {"head": 0.1}}, "nothing is"),
        ("decoder", {"dropout": {"residual": 1.0}}, r"dropout.residual=1.0 must be in \[0, 1\)"),
        ("decoder", {"dropout": {"residual": -0.1}}, "model.dropout.residual=-0.1 must be in"),
        ("decoder", {"norm": {"eps": 0.0}}, "model.norm.eps=0.0 must be above 0"),
        ("decoder", {"vocab": 10**13}, "beyond what arrays can have"),
        ("decoder", {"position": {"scheme": "rotary(base=0)"}}, "base > 0"),
        ("decoder", {"position": {"scheme": "rotary(base='a')"}}, "base='a' must be float"),
        ("decoder", {"mask": "prefix(length=None)"}, "length=None must be"),
        ("decoder", {"init": {"kernel": "normal(stddev=-1)"}}, "stddev=-1 must be at least 0"),
        ("decoder", {"init": {"kernel": "lecun_normal(in_axis=3)"}}, "it takes none"),
        ("decoder", {"attention": {"heads": 4, "score": "none", "normalizer": "qqq"}},
         "unknown model.attention.normalizer 'qqq'"),
        ("decoder", {"attention": 3}, "model.attention must be a group of heads, head_width"),
        ("encoder", {"outputs": ("masked_lm",), "classes": 3}, "model.classes=3: no output has"),
        ("encoder", {"outputs": ("masked_lm",), "dropout": {"head": 0.1}},
         "model.dropout.head=0.1: nothing is dropped there"),
        ("decoder", {"dropout": {"head": 0.1}}, "this model drops at: embedding, attention, resi"),
        ("decoder", {"position": {"scheme": "rotary", "amplitude": 2.0}},
         "model.position.amplitude=2.0: .*'rotary' has no table to join"),
        ("encoder_decoder", {"decoder_scheme": "rotery"},
         "unknown model.decoder_scheme 'rotery'; did you mean 'rotary'"),
        ("encoder_decoder", {"decoder_mask": "casual"}, "did you mean 'causal'"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_named(family, changes, message):
    with pytest.raises(UserError, match=message):
        make(family, **changes)


def test_a_config_without_a_model_is_named():
    with pytest.raises(UserError, match="no group 'model'"):
        model_spec({"modle": {}})
    with pytest.raises(UserError, match="missing key 'model.family'"):
        model_spec({"model": {"family": ["decoder"]}})
    with pytest.raises(UserError, match="missing key 'model.family', one of: encoder, decoder"):
        model_spec({"model": {}})
    with pytest.raises(UserError, match="missing keys 'model.width'; 'model.layers'; 'model.max_"):
        model_spec({"model": {"family": "decoder"}})
    with pytest.raises(UserError, match="model.vocab is missing, and there is no data set"):
        make("decoder", vocab=None)


def test_specs_are_hashable_and_comparable():
    _, spec = make("decoder")
    assert hash(spec) == hash(dataclasses.replace(spec))
    assert spec != dataclasses.replace(spec, layers=3)


SIZES = {"vocab": 9, "width": 8, "layers": 1, "max_length": 8, "hidden": 8, "channels": (4,),
         "classes": 3, "attention": {"heads": 2}, "feedforward": {"width": 8}}  # fmt: skip


def small(name):
    fields = {field.name for field in dataclasses.fields(FAMILIES[name].spec)} - {"classes"}
    hidden = {"hidden": (8,)} if name == "bag" else {}
    classes = {"classes": 3} if name in ("bag", "convolution") else {}
    tree = {k: v for k, v in (SIZES | hidden).items() if k in fields} | {"family": name} | classes
    return model_spec({"model": tree})


@pytest.mark.parametrize("name", FAMILIES)
def test_calls_refuse_unknown_arguments(name):
    spec = small(name)
    inputs = {key: jnp.zeros(x.shape, x.dtype) for key, x in spec.example(1, 2).items()}
    for argument in ("dropuots", "sgement_BT"):
        with pytest.raises(TypeError, match=argument):
            spec.build().init(jax.random.key(0), **inputs, **{argument: None})


@pytest.mark.parametrize("name", FAMILIES)
def test_capabilities_are_those_of_the_module(name):
    family, spec = FAMILIES[name], small(name)
    takes = inspect.signature(family.module.__call__).parameters
    assert spec.has_source == ("source_BS" in takes)
    assert spec.packs == any("segment" in name for name in takes)
    assert spec.decodes == hasattr(family.module, "decode")
    assert set(spec.example(2, 3)) <= set(takes)
    assert spec.build().spec == spec


def test_capabilities_follow_the_settings():
    recurrent = functools.partial(RecurrentSpec, vocab=9, width=8, hidden=8)
    assert recurrent(shape="1:N", vector=4).from_vector
    assert recurrent(shape="N:1").classifies
    assert not recurrent(shape="N:1").decodes
    assert recurrent(bidirectional=True).uncacheable
    assert recurrent().uncacheable is None
    assert recurrent().max_length is None
    encoder = {"family": "encoder", **SIZES}
    del encoder["hidden"], encoder["channels"]
    both = model_spec({"model": {**encoder, "outputs": ("masked_lm", "tag")}})
    assert (both.fills, both.classifies, both.attends) == (True, True, True)
    assert not model_spec({"model": {**encoder, "outputs": ("tag",)}}).fills


def test_the_biases_of_a_cell_are_those_of_its_weights():
    with pytest.raises(UserError, match=r"no weight 'zi', but iz, in, hz, hn"):
        Cell(lambda x, h, carry: carry, ("z", "n"), ("zi", "in"))
    assert Cell(lambda x, h, carry: carry, ("z", "n"), ("iz", "hn")).biases == ("iz", "hn")


def test_messages_name_the_family_of_the_config(monkeypatch):
    """And the one whose objectives it can be trained with."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Mine(RecurrentSpec):
        family: str = "mine"
        like = "recurrent"

    monkeypatch.setitem(FAMILIES, "mine", Family(Mine, FAMILIES["bag"].module))
    tree = {
        "objective": "masked_lm",
        "model": {"family": "mine", "width": 4, "hidden": 4},
        "data": {"dataset": "copy(length=3, vocab=8)"},
        "train": {"steps": 1},
    }
    with pytest.raises(UserError, match=r"model.family='mine' \(like 'recurrent'\) is for: next"):
        runs.read(tree)
    chunk = {**tree, "objective": "next_token", "train": {"steps": 1, "loss_chunk": 2}}
    with pytest.raises(UserError, match=r"with model.family='mine' \(like 'recurrent'\) cannot be"):
        runs.read(chunk)
    with pytest.raises(UserError, match=r"'mine' declares decodes=True, but Bag has no init_cache"):
        dataclasses.replace(runs.read({**tree, "objective": "next_token"}).model, vocab=8).build()
