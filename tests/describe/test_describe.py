"""Parameters, memory and the cache, against published numbers and numbers computed by hand."""

import dataclasses
import json

import jax
import pytest
from jax import numpy as jnp

from tfm.cli.describe import main
from tfm.config.names import UserError
from tfm.describe.description import describe
from tfm.describe.memory import Cache, Saved, cache, saved
from tfm.layers.attention import AttentionSpec
from tfm.layers.block import FeedForwardSpec
from tfm.models.spec import (
    ConvolutionSpec,
    DecoderSpec,
    EncoderDecoderSpec,
    EncoderSpec,
    RecurrentSpec,
    SeqToSeqSpec,
    Word2VecSpec,
    model_spec,
)


def llama(layers, width, heads, hidden, **more):
    return {
        "family": "decoder",
        "vocab": 32000,
        "width": width,
        "layers": layers,
        "max_length": 2048,
        "attention": {"heads": heads},
        "feedforward": {"width": hidden, "kind": "swiglu", "bias": False},
        "norm": {"kind": "rms"},
        "position": {"scheme": "rotary"},
        "tied": False,
        "dtype": "bfloat16",
        **more,
    }


BIASES = {"qkv_bias": True, "out_bias": True}
GPT2 = {
    "family": "decoder",
    "vocab": 50257,
    "width": 768,
    "layers": 12,
    "max_length": 1024,
    "attention": {"heads": 12, **BIASES},
    "feedforward": {"width": 3072, "kind": "gelu_tanh"},
    "position": {"scheme": "learned"},
}
PUBLISHED = {
    "gpt2 small": (GPT2, 124_439_808),
    "llama 7b": (llama(32, 4096, 32, 11008), 6_738_415_616),
    "bert base": (
        {
            "family": "encoder",
            "vocab": 30522,
            "width": 768,
            "layers": 12,
            "max_length": 512,
            "types": 2,
            "pooler": True,
            "attention": {"heads": 12, **BIASES},
            "feedforward": {"width": 3072},
            "norm": {"placement": "post", "embedding": True},
            "position": {"scheme": "learned"},
        },
        109_482_240,
    ),
    "t5 small": (
        {
            "family": "encoder_decoder",
            "vocab": 32128,
            "width": 512,
            "layers": 6,
            "max_length": 512,
            "attention": {"heads": 8, "score": "dot"},
            "feedforward": {"width": 2048, "kind": "relu", "bias": False},
            "norm": {"kind": "rms"},
            "position": {"scheme": "relative"},
            "decoder_scheme": "relative(bidirectional=False)",
        },
        60_506_624,
    ),
}


@pytest.fixture
def run(tmp_path, capsys):
    """Returns the output of `tfm describe` for a model."""

    def run(model, *args):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"model": model}))
        main([f"--config={path}", *args])
        return capsys.readouterr().out

    return run


def leaves(part):
    if not part["parts"]:
        yield part
    for below in part["parts"]:
        yield from leaves(below)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_match_published_counts(run, name):
    model, parameters = PUBLISHED[name]
    tree = json.loads(run(model, "--length=8", "--json"))["tree"]
    assert tree["parameters"] == parameters
    arrays = sum(jnp.prod(jnp.array(shape)) for shape in tree["arrays"].values())
    assert arrays + sum(part["parameters"] for part in tree["parts"]) == parameters


def test_json(run):
    description = json.loads(run(llama(3, 32, 4, 48), "--batch=2", "--length=16", "--json"))
    each = list(leaves(description["tree"]))
    assert sum(part["share"] for part in each) == pytest.approx(1)
    assert sum(part["parameters"] for part in each) == description["tree"]["parameters"]
    assert {part["name"]: part["arrays"] for part in each}["up"] == {"kernel": [3, 32, 48]}
    assert description["forward"]["per_token"] == description["forward"]["total"] / (2 * 16)
    assert description["memory"]["weights"] == 4 * description["tree"]["parameters"]
    assert description["memory"]["outputs"] == 4 * 2 * 16 * 32000
    assert description["cache"]["per_token"] == 3 * 2 * 32 * 2


def test_text(run):
    text = run(GPT2, "--length=128")
    assert max(map(len, text.splitlines())) <= 100
    lines = {line.strip("│├└─ ").split("  ")[0]: line for line in text.splitlines()}
    assert lines["model"].endswith("124,439,808  100.0 %")
    assert "kernel 768 × 12 × 64, bias 12 × 64" in lines["query"]
    assert lines["layers ×12"].endswith(" 85,054,464   68.3 %")
    assert lines["weights"].endswith("497.8 MB")
    assert lines["cache for decoding, per token"].endswith("73.73 kB")
    assert "all pairs of tokens count" in text


def test_parts_are_listed_in_the_order_in_which_they_run(run):
    tree = json.loads(run(llama(2, 32, 4, 48), "--length=8", "--json"))["tree"]
    names = [part["name"] for part in leaves(tree)]
    attention = ["attention_norm", "query", "key", "value", "out"]
    rest = ["feedforward_norm", "up", "gate", "down", "norm", "head"]
    assert names == ["token", *attention, *rest]


def test_equal_unrolled_layers_are_shown_once(run):
    scanned, unrolled = (
        run(llama(3, 32, 4, 48, scan=scan), "--length=8") for scan in (True, False)
    )
    assert "layer_0…2 ×3" in unrolled
    tree = lambda text: [line.split() for line in text.partition("FLOPs")[0].splitlines()]
    differ = [(a, b) for a, b in zip(tree(scanned), tree(unrolled), strict=True) if a != b]
    assert [(a[2:4], b[2:4]) for a, b in differ] == [(["layers", "×3"], ["layer_0…2", "×3"])]


def test_a_model_of_any_size_is_described_without_its_arrays(run):
    before = {id(array) for array in jax.live_arrays()}
    description = json.loads(run(llama(60, 6656, 52, 17920), "--json"))
    new = [array for array in jax.live_arrays() if id(array) not in before]
    assert description["tree"]["parameters"] == 32_528_943_616
    assert description["length"] == 2048
    assert sum(array.nbytes for array in new) < 10_000


def test_the_default_length(run):
    assert json.loads(run(GPT2, "--json"))["length"] == 1024
    assert describe(RecurrentSpec(vocab=9, width=4, hidden=4)).length == 128
    assert describe(Word2VecSpec(vocab=9, width=4), batch=3).length == 1


SEVEN_B = model_spec({"model": llama(32, 4096, 32, 11008)})
ATTENTION = AttentionSpec(heads=8, kv_heads=2)
SMALL = dict(
    vocab=9, width=64, layers=3, max_length=16, attention=ATTENTION,
    feedforward=FeedForwardSpec(width=8),
)  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (SEVEN_B, Cache(per_token=524_288, per_sequence=4)),  # 2 · 32 layers · 4096 · 2 bytes
        (
            dataclasses.replace(SEVEN_B, attention=AttentionSpec(heads=32, kv_heads=8)),
            Cache(per_token=131_072, per_sequence=4),
        ),
        (DecoderSpec(**SMALL), Cache(per_token=2 * 3 * 2 * 8 * 4, per_sequence=4)),
        (
            DecoderSpec(**SMALL, mask="causal & window(left=4)"),
            Cache(per_token=2 * 3 * 2 * 8 * 4, per_sequence=4, tokens=5),
        ),
        (EncoderSpec(**SMALL), None),
        (
            EncoderDecoderSpec(**SMALL, decoder_layers=5, cross=AttentionSpec(heads=4)),
            Cache(2 * 5 * 2 * 8 * 4, 2 * 5 * 64 * 4, per_sequence=4),
        ),
        (
            RecurrentSpec(vocab=9, width=8, hidden=32, layers=2, cell="lstm"),
            Cache(per_sequence=2 * 2 * 32 * 4),
        ),
        (
            RecurrentSpec(vocab=9, width=8, hidden=32, shape="1:N", vector=5, cell="gru"),
            Cache(per_sequence=32 * 4),
        ),
        (RecurrentSpec(vocab=9, width=8, hidden=32, shape="N:1", classes=2), None),
        (DecoderSpec(**SMALL, mask="everything"), None),
        (
            DecoderSpec(**SMALL | {"attention": AttentionSpec(heads=8, kv_heads=2, value_width=3)}),
            Cache(per_token=3 * 2 * (8 + 3) * 4, per_sequence=4),
        ),
        (
            SeqToSeqSpec(vocab=9, width=8, hidden=32, attention=ATTENTION, dtype="bfloat16"),
            Cache(per_source_token=2 * 2 * 4 * 2, per_sequence=32 * 2 + 4),
        ),
        (  # the state, and both directions' last
            SeqToSeqSpec(vocab=9, width=8, hidden=32),
            Cache(per_sequence=(32 + 2 * 32) * 4 + 4),
        ),
    ],
)
def test_the_cache_by_hand(spec, expected):
    """Most caches also count the tokens of each sequence, in 4 bytes."""
    assert cache(spec) == expected


def test_saved_activations_by_hand():
    """sin(x A) B saves x for A, cos(x A) for the sine and sin(x A) for B."""
    params = {
        "a": jax.ShapeDtypeStruct((5, 7), "float32"),
        "b": jax.ShapeDtypeStruct((7, 3), "float32"),
    }
    x = jax.ShapeDtypeStruct((2, 5), "float32")
    plain = lambda params, x: jnp.sin(x @ params["a"]) @ params["b"]
    assert saved(plain, params, x) == Saved(4 * (2 * 5 + 2 * 2 * 7), 0)

    def half(params, x):
        return plain(jax.tree.map(lambda p: p.astype(jnp.bfloat16), params), x.astype(jnp.bfloat16))

    assert saved(half, params, x) == Saved(2 * (2 * 5 + 2 * 2 * 7), 2 * 7 * 3)
    # x, its transpose, and the mask: that follows from neither, but is no copy of a weight.
    masked = lambda params, x: x @ params["a"][:, :5] @ x.T * jnp.tril(jnp.ones((2, 2)))
    assert saved(masked, params, x) == Saved(4 * (2 * 5 + 5 * 2 + 2 * 2), 0)


@pytest.mark.parametrize(("scan", "dtype"), [(True, "bfloat16"), (False, "float32")])
def test_remat_keeps_the_input_of_each_layer(scan, dtype):
    batch, length, width, hidden = 2, 64, 32, 96

    def activations(**changes):
        model = llama(width=width, heads=4, hidden=hidden, vocab=11, **changes)
        spec = model_spec({"model": model})
        module, inputs = spec.build(), spec.example(batch, length)
        params = jax.eval_shape(lambda i: module.init(jax.random.key(0), **i), inputs)
        return saved(lambda p, i: module.apply(p, **i), params, inputs).activations

    def each(remat):
        """Values kept for each layer and token."""
        few, more = (
            activations(layers=layers, scan=scan, dtype=dtype, remat=remat) for layers in (2, 4)
        )
        return (more - few) / (2 * batch * length * jnp.dtype(dtype).itemsize)

    full, dots, none = each("full"), each("dots"), each("none")
    assert full == pytest.approx(width, rel=0.01)
    # Queries, keys, values, the attention's output; what comes up and the gate; and in float32 the
    # sums of two norms, and of the weights of each head.
    sums = (2 + 4) * 4 / jnp.dtype(dtype).itemsize
    assert dots == pytest.approx(width + 4 * width + 2 * hidden + sums, rel=0.01)
    assert none > 2 * dots


def test_activations_depend_on_the_configured_implementation():
    """The whole matrix keeps length², tiles keep length."""

    def grown(implementation):
        attention = AttentionSpec(heads=4, implementation=implementation)
        spec = DecoderSpec(**SMALL | {"attention": attention, "max_length": 1024})
        short, long = (describe(spec, 1, n).memory["activations"] for n in (256, 1024))
        return long / short

    assert grown("blockwise") < 4.1
    assert grown("reference") > 10


def test_statistics_are_not_parameters():
    spec = ConvolutionSpec(vocab=9, width=4, channels=(8, 16), classes=2)
    description = describe(spec, 2, 16)
    weights = 9 * 4 + 3 * 4 * 8 + 2 * 8 + 3 * 8 * 16 + 2 * 16 + 16 * 2 + 2
    assert description.tree.parameters == weights
    assert description.memory["statistics"] == 4 * 2 * (8 + 16)  # mean, variance


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--batch=0"], "--batch: '0' is not a whole number of at least 1"),
        (["--batch=x"], "--batch: 'x' is not a whole number"),
        (["--batch=-1"], "--batch: '-1' is not a whole number"),
        (["--length"], "--length has no value: write --length=VALUE"),
        (["--length=1.5"], "--length: '1.5' is not a whole number"),
        (["--length=8", "--length=9"], "--length is given more than once"),
        (["--lenght=3"], "unknown option '--lenght=3'; did you mean '--length'?"),
        (["--jsno"], "did you mean '--json'?"),
        (["--conifg=x.py"], "did you mean '--config'?"),
        (["--config.model.widht=3"], "did you mean 'model.width'?"),
        (["--length=2048"], "--length=2048: an input is 2048 long, but max_length=1024"),
    ],
)
def test_mistakes_are_named(run, args, message):
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        run(GPT2, *args)


def test_open_sizes_come_from_the_data(tmp_path, capsys):
    """Parity has 2 symbols, 3 special tokens and 2 classes."""
    path = tmp_path / "config.json"
    data = {"dataset": "parity", "examples": 8, "valid_examples": 8}
    config = {"objective": "classify", "data": data, "train": {"steps": 1}}
    path.write_text(json.dumps({"model": {"family": "bag", "width": 4}, **config}))
    main([f"--config={path}", "--json"])
    description = json.loads(capsys.readouterr().out)
    assert description["tree"]["parameters"] == 5 * 4 + 4 * 2 + 2


def test_open_sizes_without_data_are_named(run):
    with pytest.raises(UserError, match="write --config.model.vocab=N"):
        run({key: value for key, value in GPT2.items() if key != "vocab"})


def test_a_missing_config_is_named():
    with pytest.raises(UserError, match="--config=FILE.py"):
        main(["--batch=2"])


def test_help(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    assert "--config FILE.py" in capsys.readouterr().out
