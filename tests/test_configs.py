"""Every config in `configs/` builds as it is; shrunk, it takes a gradient step and lowers."""

import dataclasses
import os
import pathlib
import re

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from tests.helpers.quick import jit
from tests.helpers.runs import Silent
from tests.helpers.tiers import first_tier
from tfm.bench import attention
from tfm.cli.train import next_command
from tfm.config import files as config
from tfm.config.names import UserError
from tfm.config.spec import to_spec
from tfm.layers.dims import Dropouts
from tfm.models.spec import model_spec
from tfm.run import spec as train
from tfm.train import loop

FOLDER = pathlib.Path(__file__).parent.parent / "configs"
TASKS = [
    "copy",
    "reverse",
    "sort",
    "induction",
    "recall",
    "addition",
    "dyck",
    "spell",
    "listops",
    "parity",
    "copy_or_reverse",
]
ARGUMENTS = {
    "bert": ["tiny", "mini", "small", "medium", "base", "large"],
    "cnn": ["tiny", "base"],
    "gpt2": ["tiny", "small", "medium", "large", "xl"],
    "llama": ["tiny", "260k", "7b", "13b", "30b", "3-8b"],
    "mlp": ["tiny", "base"],
    "nanogpt": [""],
    "rnn": ["tiny", "rnn,N:N", "lstm,N:1", "gru,1:N", "lstm,next"],
    "seq2seq": ["tiny", "gru,additive", "lstm,bilinear", "rnn,none"],
    "t5": ["tiny", "small", "base", "large", "3b", "11b", "v1_1_small", "v1_1_base", "v1_1_large",
           "v1_1_xl", "v1_1_xxl"],
    **{f"tasks/{task}": [""] for task in TASKS},
    "tasks/alignment": ["transformer", "gru", "gru,chinese"],
    "tasks/pronoun": ["encoder", "left_to_right", "left_to_right,last", "classify"],
    "tasks/stories": ["next", "bert", "span", "ul2"],
    "text/classifier": [""],
    "text/finetune": ["sst2,pretrained", "sst2,scratch", "sick,pretrained", "sick,scratch"],
    "text/lm": [""],
    "text/ner": [""],
    "text/scan": ["simple", "length", "add_jump"],
    "text/sick": ["encoder", "lstm", "bag"],
    "text/sst2": ["encoder", "lstm", "cnn", "bag"],
    "text/tagging": ["encoder", "lstm"],
    "text/translation": ["transformer", "gru", "lstm", "prompt", "both", "transformer,zh"],
    "text/lstm_lm": ["untied", "tied"],
    "text/wikitext2": ["next", "prefix", "masked", "span", "ul2"],
    "text/word2vec": ["skip_gram", "cbow"],
    "transformer": ["tiny", "small", "base", "big"],
    "ul2": ["tiny", "base", "20b"],
}  # fmt: skip
OF_FILES = {"text/classifier", "text/lm", "text/ner"}  # tests/test_recipes.py runs them
FILES = {str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.rglob("*.py")}
STEPS = ["bert:base", "cnn:", "gpt2:small", "llama:3-8b", "mlp:", "rnn:lstm,N:N", "rnn:gru,N:1",
         "rnn:rnn,1:N", "rnn:lstm,next", "seq2seq:gru,additive", "seq2seq:lstm,bilinear",
         "seq2seq:gru,none", "t5:small", "t5:v1_1_base", "transformer:base", "ul2:20b",
         "text/word2vec:skip_gram", "text/word2vec:cbow"]  # fmt: skip
SIZES = {
    "vocab": 11, "width": 8, "layers": 2, "decoder_layers": 2, "max_length": 6, "hidden": 8,
    "vector": 5, "channels": (6, 6), "classes": 3, "heads": 4, "kv_heads": 2, "head_width": 2,
}  # fmt: skip
LENGTH = 5


def tree(where):
    name, _, argument = where.partition(":")
    if name in OF_FILES and "TFM_DATA" not in os.environ:
        pytest.skip("TFM_DATA is not set: the folder with the data")
    path = f"{FOLDER / name}.py" + (f":{argument}" if argument else "")
    return config.load(path).to_dict()


def load(where):
    """The model of a config. The sizes of some come from their data."""
    if where.startswith("text/finetune"):  # from a run, which is not there
        return dataclasses.replace(train.read(tree(where)).model, vocab=11, classes=2, types=2)
    if where.startswith(("text/", "nanogpt")) and "TFM_DATA" not in os.environ:
        pytest.skip("TFM_DATA is not set: the folder with the data")
    config = tree(where)
    return train.open_data(train.read(config))[0].model if "data" in config else model_spec(config)


def small(where):
    """The model of a config, shrunk; no data are needed."""
    config = tree(where)
    model = config["model"]
    if "data" in config:  # which would decide these
        labels = model["family"] in ("bag", "convolution") or model.get("shape") in ("N:N", "N:1")
        names = {"vocab": True, "vector": model.get("shape") == "1:N"}
        names["classes"] = labels and not model.get("tied")
        model |= {name: SIZES[name] for name, decided in names.items() if decided}
    return shrink(model_spec(config))


def shrink(spec):
    """The same model, small: sizes that it has are replaced, choices stay."""
    changes = {}
    for field in dataclasses.fields(spec):
        value = getattr(spec, field.name)
        if dataclasses.is_dataclass(value):
            changes[field.name] = shrink(value)
        elif field.name in SIZES and value and isinstance(value, type(SIZES[field.name])):
            changes[field.name] = SIZES[field.name]
        elif field.name == "hidden" and isinstance(value, tuple):
            changes[field.name] = (8,) * len(value)
    return dataclasses.replace(spec, **changes)


def parameters(spec):
    module, inputs = spec.build(), spec.example(1, 4)
    shapes = jax.eval_shape(lambda **inputs: module.init(jax.random.key(0), **inputs), **inputs)
    return sum(leaf.size for leaf in jax.tree.leaves(shapes["params"]))


def test_no_config_is_forgotten():
    # `new_score` configures a benchmark; tests/test_recipes.py runs `finetune_import`.
    assert set(ARGUMENTS) == FILES - {"new_score", "text/finetune_import"}
    steps = {where.partition(":")[0] for where in STEPS}
    assert {name for name in ARGUMENTS if "/" not in name} - steps == {"nanogpt"}  # a decoder


COMPLETE = [name for name in ARGUMENTS if "/" in name] + ["nanogpt"]
TINY = {  # and the verb to try next
    "gpt2": "generate", "llama": "generate", "rnn": "generate", "bert": "fill", "t5": "fill",
    "ul2": "fill", "transformer": "translate", "seq2seq": "translate", "cnn": "classify",
    "mlp": "classify",
}  # fmt: skip
QUICK = {
    "train": {"steps": 2, "eval_every": 2},
    "data": {"batch": 2, "eval_batch": 2, "valid_examples": 2},
    "optimizer": {"schedule": "constant"},
}


@pytest.mark.parametrize("name", COMPLETE)
def test_a_run_is_complete(name):
    run = train.read(tree(f"{name}:"))
    stem = pathlib.Path(name).name
    others = {
        "nanogpt": ("characters",),
        "alignment": ("english_french",),
        "copy_or_reverse": ("mixture", "copy", "reverse"),
        **dict.fromkeys(("sick", "sst2", "finetune", "classifier"), ("table",)),
        "translation": ("parallel",),
        "tagging": ("conllu",),
        "ner": ("bio",),
        **dict.fromkeys(("lm", "lstm_lm", "wikitext2", "word2vec"), ("text",)),
    }
    assert run.data.dataset.names == others.get(stem, (stem,))
    assert run.train.steps >= 1000


def test_every_system_has_a_tiny_run():
    systems = {name for name in ARGUMENTS if "/" not in name} - {"nanogpt"}  # which is small itself
    assert set(TINY) == systems


@pytest.mark.parametrize("name", first_tier(TINY, ["bert"]))
def test_a_tiny_run_trains(name, tmp_path):
    """Its data need no files and decide its vocabulary; it takes two steps."""
    config = tree(f"{name}:tiny")
    assert not {"vocab", "classes"} & config["model"].keys()
    for group, settings in QUICK.items():
        config[group] |= settings
    run = train.read(config)
    summary = loop.train(run, str(tmp_path), Silent())
    assert summary["status"] == "done"
    assert np.isfinite(summary["valid"]["loss"])
    assert next_command(run, str(tmp_path)).startswith(f"tfm {TINY[name]} {tmp_path} ")


def test_the_benchmark_of_a_new_score(own_tables):
    bench = to_spec(attention.Bench, tree("new_score"))
    assert bench.scores == ("scaled_dot", "loud")
    assert set(bench.scores[1].entry.params) == {"log_scale_H", "gain_H"}


WITHOUT_DATA = [name for name in ARGUMENTS if not name.startswith("text/")]


@pytest.mark.parametrize("name", first_tier(sorted(ARGUMENTS.keys() - {"text/ner"}), WITHOUT_DATA))
def test_builds_at_every_size(name):
    for argument in ARGUMENTS[name]:
        load(f"{name}:{argument}").build()


@pytest.mark.parametrize("name", sorted(FILES - {"text/finetune_import", *OF_FILES}))
def test_the_docstring_tells_the_truth(name):
    text = (FOLDER / f"{name}.py").read_text().split('"""')[1]
    arguments = re.findall(rf"tfm [\w ]+ --config=configs/{name}\.py:?(\S*)", text)
    assert arguments
    assert set(arguments) <= {"", *ARGUMENTS.get(name, [])}
    argument = arguments[0]
    for count in re.findall(r"prints ([\d,]+) parameters", text):
        assert parameters(load(f"{name}:{argument}")) == int(count.replace(",", ""))


def prepare(where):
    """Returns a config's model, shrunk, a compiled step of gradient descent, and its arguments."""
    spec = small(where)
    module = spec.build()
    shapes = spec.example(3, LENGTH)
    rng = np.random.default_rng(0)
    inputs = {
        name: rng.integers(0, SIZES["vocab"], x.shape)
        if jnp.issubdtype(x.dtype, jnp.integer)
        else rng.normal(size=x.shape).astype(x.dtype)
        for name, x in shapes.items()
    }
    variables = jit(module.init)(jax.random.key(0), **inputs)
    rest = {name: state for name, state in variables.items() if name != "params"}
    rates = spec.rates

    def loss(params, inputs, dropouts):
        options = {} if dropouts is None else {"dropouts": dropouts}
        out, _ = module.apply(
            {"params": params, **rest}, **inputs, **options, train=True, mutable=list(rest)
        )
        leaves = jax.tree.leaves(out)
        return sum(jnp.mean(jax.nn.logsumexp(x, -1) - x[..., 1]) for x in leaves)

    def step(params, inputs, rates, key):
        dropouts = Dropouts(rates, key) if rates else None
        value, grads = jax.value_and_grad(loss)(params, inputs, dropouts)
        return value, jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)

    return spec, jit(step), (variables["params"], inputs, rates, jax.random.key(1))


# Every family once; outputs and gradients of the others are compared in tests/parity.
FIRST = ["bert:base", "gpt2:small", "cnn:", "mlp:", "rnn:gru,N:1", "seq2seq:gru,additive",
         "ul2:20b", "text/word2vec:cbow"]  # fmt: skip


@pytest.mark.parametrize("where", first_tier(STEPS, FIRST))
def test_a_gradient_step(where):
    """One step down the gradient lowers the loss; with dropout on, the loss is finite."""
    spec, step, (params, inputs, rates, key) = prepare(where)
    still = dict.fromkeys(rates, 0.0)
    if spec.family == "word2vec":  # whose output matrix begins at zero
        params = jax.tree.map(lambda x: x + 0.1, params)
    before, stepped = step(params, inputs, still, key)
    after, _ = step(stepped, inputs, still, key)
    assert after < before
    if rates:
        assert np.isfinite(step(params, inputs, rates, key)[0])


@pytest.mark.ci
@pytest.mark.parametrize("where", STEPS)
def test_a_gradient_step_lowers_for_cuda_and_tpu(where):
    _, step, args = prepare(where)
    traced = step.trace(*args)
    for platform in ("cuda", "tpu"):
        traced.lower(lowering_platforms=(platform,))


@pytest.mark.parametrize("where", STEPS)
def test_intermediates_are_returned_by_name(where):
    spec = small(where)
    module, inputs = spec.build(), spec.example(3, LENGTH)
    variables = jax.eval_shape(lambda **inputs: module.init(jax.random.key(0), **inputs), **inputs)
    names = ["states"]
    if "attention" in {field.name for field in dataclasses.fields(spec)} and spec.attention:
        names += ["weights"] if spec.attention.score != "none" else []
    if getattr(spec, "cell", "rnn") != "rnn":
        names += ["gates"]
    apply = lambda variables, inputs, names: module.apply(variables, **inputs, capture=names)
    plain = jax.eval_shape(lambda v, i: apply(v, i, ()), variables, inputs)
    logits, made = jax.eval_shape(lambda v, i: apply(v, i, tuple(names)), variables, inputs)
    assert logits == plain
    found = " ".join(
        jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(made)
    )
    for name in names:
        assert {"states": "states_", "weights": "weights_", "gates": "gate_"}[name] in found
    with pytest.raises(UserError, match="no intermediate 'state' here; did you mean 'states'"):
        jax.eval_shape(lambda v, i: apply(v, i, ("state",)), variables, inputs)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "transformer", "ul2"])
def test_a_wrong_size_is_named(name):
    with pytest.raises(UserError, match="unknown size 'tinyy'"):
        load(f"{name}:tinyy")
