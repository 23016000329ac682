"""`tfm import` and `tfm export`, as folders."""

import dataclasses
import json
import os
import pathlib

import jax
import ml_dtypes
import numpy as np
import pytest
from jax import numpy as jnp
from safetensors.numpy import load_file

from tests.helpers.huggingface import weights, write
from tests.helpers.quick import jit
from tests.parity import parity_cases as cases
from tfm import disk
from tfm.cli import main as cli
from tfm.config.names import UserError
from tfm.data.tokenizers import TOKENIZERS
from tfm.data.tokenizers.tokenizer import vocabulary_of
from tfm.interop import folder
from tfm.interop.convert import MODEL_TYPES, to_huggingface
from tfm.interop.model_type import ConfigJson, parse_call
from tfm.layers.stack import unrolled
from tfm.models.spec import RecurrentSpec
from tfm.run.folder import Folder
from tfm.run.load import load

STORIES = pathlib.Path(os.environ.get("TFM_DATA", "nowhere")) / "stories260K"
needs_stories = pytest.mark.skipif(not STORIES.exists(), reason="needs TFM_DATA: stories260K")


def params_of(folder):
    return load(folder).params


def run(*argv):
    return cli.main(list(argv))


@pytest.mark.parametrize("name", [name for name, case in cases.CASES.items() if "." not in case[0]])
def test_there_and_back(name, tmp_path):
    """What is exported is what was imported, byte for byte, under the same names."""
    source = write(tmp_path / "hf", name)
    assert run("import", source, f"--workdir={tmp_path}/run") == 0
    assert run("export", f"{tmp_path}/run", f"{tmp_path}/back") == 0
    before, after = (load_file(tmp_path / at / "model.safetensors") for at in ("hf", "back"))
    if name == "ul2":
        before["lm_head.weight"] = before["shared.weight"]  # which older releases look for
    assert set(before) == set(after)
    for tensor, value in before.items():
        np.testing.assert_array_equal(after[tensor], value)
    assert (tmp_path / "back/tokenizer.json").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.ci
@pytest.mark.parametrize("name", [name for name, case in cases.CASES.items() if "." not in case[0]])
def test_transformers_loads_what_is_exported(name, tmp_path):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tests.parity.theirs import compute

    architecture, config = cases.CASES[name]
    folder.import_folder(write(tmp_path / "hf", name), f"{tmp_path}/run")
    folder.export_folder(f"{tmp_path}/run", f"{tmp_path}/back")
    said = json.loads((tmp_path / "back/config.json").read_text())
    assert said["architectures"] == [architecture]
    model, report = getattr(transformers, architecture).from_pretrained(
        tmp_path / "back", attn_implementation="eager", output_loading_info=True
    )
    assert not any(report.values()), report
    outputs, _ = compute(architecture, config, model.eval())
    wanted, _ = cases.golden(name)
    for head, value in wanted.items():
        np.testing.assert_allclose(outputs[head], value, atol=1e-5)


def test_weights_in_several_files(tmp_path, monkeypatch):
    source = write(tmp_path / "hf")
    folder.import_folder(source, f"{tmp_path}/run")
    monkeypatch.setattr(folder, "SHARD", 4000)
    folder.export_folder(f"{tmp_path}/run", f"{tmp_path}/back")
    index = json.loads((tmp_path / "back/model.safetensors.index.json").read_text())
    files = set(index["weight_map"].values())
    assert len(files) > 3
    assert {
        f"model-{n:05}-of-{len(files):05}.safetensors" for n in range(1, len(files) + 1)
    } == files
    folder.import_folder(f"{tmp_path}/back", f"{tmp_path}/again")
    once = params_of(f"{tmp_path}/run")
    twice = params_of(f"{tmp_path}/again")
    jax.tree.map(np.testing.assert_array_equal, once, twice)
    (tmp_path / "back" / sorted(files)[1]).unlink()
    with pytest.raises(UserError, match="model-00002.* is missing, but model.safetensors.index"):
        folder.import_folder(f"{tmp_path}/back", f"{tmp_path}/broken")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: {k: v for k, v in t.items() if "up_proj" not in k},
         r"missing: layers.0.mlp.up_proj.weight \(20, 12\)\n  missing: layers.1.mlp.up"),
        (lambda t: t | {"model.layers.7.extra": np.zeros((2, 3), np.float32)},
         r"left over: layers.7.extra \(2, 3\)"),
        (lambda t: t | {"model.norm.weight": np.zeros(13, np.float32)},
         r"misshapen: norm.weight is \(13,\), expected \(12,\)"),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit_are_listed_and_nothing_is_written(change, message, tmp_path):
    source = write(tmp_path / "hf", change=change)
    with pytest.raises(UserError, match=message):
        folder.import_folder(source, f"{tmp_path}/run")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf"]


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("llama", ("rms_norm_eps", "rope_theta", "rope_parameters", "attention_bias", "mlp_bias")),
        ("llama", ("tie_word_embeddings", "max_position_embeddings", "head_dim", "hidden_act")),
        ("t5", ("feed_forward_proj", "num_decoder_layers", "tie_word_embeddings", "n_positions")),
        ("gpt2", ("tie_word_embeddings", "n_inner", "attn_pdrop", "activation_function")),
        ("bert_tag", ("type_vocab_size", "classifier_dropout", "is_decoder", "num_labels")),
    ],
)
def test_null_is_as_good_as_absent(name, keys):
    absent = {key: x for key, x in cases.CASES[name][1].items() if key not in keys}
    tensors = set(weights(name))
    read = MODEL_TYPES[absent["model_type"]].from_config
    with_nulls = ConfigJson(absent | dict.fromkeys(keys))
    assert read(with_nulls, tensors) == read(ConfigJson(absent), tensors)


def test_whole_rates_and_bases_are_read_as_numbers():
    config = cases.CASES["llama"][1] | {"rope_theta": 10_000, "attention_dropout": 0}
    spec, _ = folder.from_huggingface(config, weights("llama"))
    assert spec == folder.from_huggingface(cases.CASES["llama"][1], weights("llama"))[0]


def test_a_classifier_that_drops_nothing_is_no_null():
    config = cases.CASES["bert_tag"][1]
    for value, wanted in [(0.0, None), (0.3, 0.3), (None, 0.1)]:
        given = config | {"classifier_dropout": value}
        assert folder.from_huggingface(given, weights("bert_tag"))[0].dropout.head == wanted


def test_params_that_cannot_be_read_are_named(tmp_path, capsys):
    folder.import_folder(write(tmp_path / "hf"), f"{tmp_path}/run")
    (tmp_path / "run/checkpoints/0/variables/_METADATA").unlink()
    assert run("export", f"{tmp_path}/run", f"{tmp_path}/back") == 2
    assert "checkpoint 0 is damaged" in capsys.readouterr().err
    assert not (tmp_path / "back").exists()


def test_arguments_are_named(tmp_path, capsys):
    source = write(tmp_path / "hf")
    for argv, message in [
        ((source,), "the following arguments are required: --workdir"),
        ((f"--workdir={tmp_path}/run",), "the following arguments are required: HF_FOLDER"),
        ((source, f"--workdri={tmp_path}/run"), "did you mean '--workdir'"),
        ((source, f"--workdir={tmp_path}/run", "--dtype=float23"), "did you mean 'float32'"),
        ((source, "--workdir"), "--workdir has no value: write --workdir="),
        ((source, "--workdir="), "--workdir= has no value: write --workdir="),
        ((source, f"--workdir={tmp_path}/a", f"--workdir={tmp_path}/b"), "given more than once"),
        (("", f"--workdir={tmp_path}/run"), "HF_FOLDER is empty"),
        ((source, f"--workdir={source}"), "exists already, and is not empty"),
        ((source, "--workdir=/proc/nowhere/run"), "cannot write to /proc/nowhere"),
    ]:
        assert run("import", *argv) == 2
        assert message in capsys.readouterr().err
    assert run("export", source) == 2
    assert "the following arguments are required: HF_FOLDER" in capsys.readouterr().err
    assert run("export", source, f"{tmp_path}/out") == 2
    assert "has no group 'model'" in capsys.readouterr().err


def test_models_that_transformers_does_not_know_are_refused():
    spec, params = folder.from_huggingface(cases.CASES["llama"][1], weights("llama"))
    capped = dataclasses.replace(spec, attention=dataclasses.replace(spec.attention, cap=30.0))
    with pytest.raises(UserError, match="llama: cannot express model.attention.cap"):
        to_huggingface(capped, params)
    with pytest.raises(UserError, match="llama: cannot express model.norm.placement"):
        to_huggingface(
            dataclasses.replace(spec, norm=dataclasses.replace(spec.norm, placement="sandwich")),
            params,
        )
    for key, value in {"value_width": 5, "projections": ("key", "value", "out")}.items():
        other = dataclasses.replace(spec.attention, **{key: value})
        with pytest.raises(UserError, match=f"llama: cannot express model.attention.{key}"):
            to_huggingface(dataclasses.replace(spec, attention=other), params)
    with pytest.raises(UserError, match="model.mixer='none' cannot be exported; 'attention' can"):
        to_huggingface(dataclasses.replace(spec, mixer="none", attention=None), params)
    plain = dataclasses.replace(spec.feedforward, kind="gelu")
    with pytest.raises(UserError, match="llama: feedforward.kind='gelu' has no gate, and LLaMA's"):
        to_huggingface(dataclasses.replace(spec, feedforward=plain), params)
    with pytest.raises(UserError, match="no model of family 'recurrent'; these can be exported"):
        to_huggingface(RecurrentSpec(vocab=5, width=4, hidden=4), {})
    # How it is run and trained is no business of theirs.
    other = dataclasses.replace(spec, remat="full", dtype="bfloat16")
    assert to_huggingface(other, params)[0]["model_type"] == "llama"


def test_parameters_that_do_not_fit_are_listed():
    spec, params = folder.from_huggingface(cases.CASES["llama"][1], weights("llama"))
    for form in (params, unrolled(params)):
        assert set(to_huggingface(spec, form)[1]) == set(weights("llama"))
    wide = dataclasses.replace(spec.feedforward, width=21)
    with pytest.raises(
        UserError,
        match=r"misshapen: decoder/layers/feedforward/down/kernel is \(2, 20, 12\), expec",
    ):
        to_huggingface(dataclasses.replace(spec, feedforward=wide), params)
    with pytest.raises(UserError, match=r"missing: decoder/norm/scale \(12,\)"):
        to_huggingface(spec, params | {"decoder": {"layers": params["decoder"]["layers"]}})
    with pytest.raises(UserError, match=r"left over: extra \(3,\)"):
        to_huggingface(spec, params | {"extra": np.zeros(3)})
    with pytest.raises(UserError, match=r"left over: decoder/layer_1/"):
        to_huggingface(dataclasses.replace(spec, layers=1), unrolled(params))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: {"attention": dataclasses.replace(s.attention, heads=5, head_width=None)}, "5"),
        (lambda s: {"position": dataclasses.replace(s.position, scheme="rotary(")}, "'rotary\\('"),
        (lambda s: {"layers": 0}, "layers=0 must be at least 1"),
    ],
)
def test_specs_that_cannot_be_built_are_not_exported(change, message):
    spec, params = folder.from_huggingface(cases.CASES["llama"][1], weights("llama"))
    with pytest.raises(UserError, match=message):
        to_huggingface(dataclasses.replace(spec, **change(spec)), params)


def test_options_of_a_scheme():
    assert parse_call("rotary(base=3.0, scaling='ntk')") == (
        "rotary",
        {"base": 3.0, "scaling": "ntk"},
    )
    assert parse_call(" learned ") == ("learned", {})


@pytest.mark.parametrize(
    ("change", "dtype", "message"),
    [
        (lambda t: t | {"model.norm.weight": np.ones(12, np.int32)}, "float32",
         "not weights: norm.weight is int32, not float32 or"),
        (lambda t: t | {"model.norm.weight": np.full(12, 7e4, np.float32)}, "float16",
         "too large for float16: norm.weight, stored as float32"),
        (lambda t: t | {"norm.weight": t["model.norm.weight"]}, "float32",
         "norm.weight and model.norm.weight are the same tensor; keep one of them|"
         "model.norm.weight and norm.weight are the same tensor; keep one of them"),
        (lambda t: t | {"model.norm.weight": np.ones(12, ml_dtypes.float8_e4m3fn)}, "float32",
         "model.norm.weight is stored as F8_E4M3, which we do not read"),
    ],
)  # fmt: skip
def test_weights_that_would_change_silently_are_refused(change, dtype, message, tmp_path):
    source = write(tmp_path / "hf", change=change)
    with pytest.raises(UserError, match=message):
        folder.import_folder(source, f"{tmp_path}/run", dtype)


def test_what_was_infinite_stays_so(tmp_path):
    odd = lambda t: t | {"model.norm.weight": np.full(12, np.inf, np.float32)}
    folder.import_folder(write(tmp_path / "hf", change=odd), f"{tmp_path}/run", "float16")
    assert np.isinf(params_of(f"{tmp_path}/run")["decoder"]["norm"]["scale"]).all()


def test_weights_of_several_dtypes(tmp_path):
    def mixed(tensors):
        matrix = {True: ml_dtypes.bfloat16, False: np.float64}
        return {name: x.astype(matrix["norm" not in name]) for name, x in tensors.items()}

    source = write(tmp_path / "hf", change=mixed)
    folder.import_folder(source, f"{tmp_path}/run", "stored")
    folder.export_folder(f"{tmp_path}/run", f"{tmp_path}/back")
    assert json.loads((tmp_path / "back/config.json").read_text())["dtype"] == "bfloat16"
    before, after = (load_bits(tmp_path / at / "model.safetensors") for at in ("hf", "back"))
    assert before == after


def test_layers_that_no_dtype_holds_are_refused(tmp_path):
    def mixed(tensors):
        kinds = {True: ml_dtypes.bfloat16, False: np.float16}
        return {name: x.astype(kinds["layers.0" in name]) for name, x in tensors.items()}

    source = write(tmp_path / "hf", change=mixed)
    with pytest.raises(UserError, match="use --dtype=float32"):
        folder.import_folder(source, f"{tmp_path}/run", "stored")
    folder.import_folder(source, f"{tmp_path}/run")


def test_labels_and_nulls_of_the_original_are_kept(tmp_path):
    own = {"classifier_dropout": None, "label2id": {"a": 0, "b": 1, "c": 2}, "pad_token_id": 7}
    for name in ("bert_tag", "bert_masked_lm"):
        folder.import_folder(write(tmp_path / name, name, **own), f"{tmp_path}/run_{name}")
        folder.export_folder(f"{tmp_path}/run_{name}", f"{tmp_path}/back_{name}")
        said = json.loads((tmp_path / f"back_{name}/config.json").read_text())
        assert {key: said[key] for key in own} == own
        assert said["id2label"] == cases.BERT["id2label"]
    # Another number of classes has no use for the old names.
    other = folder._merged({"model_type": "bert", "id2label": {"0": "LABEL_0"}}, said)
    assert other["id2label"] == {"0": "LABEL_0"}


def test_a_tied_head_that_is_not_scaled_is_written_for_older_releases(tmp_path):
    """They take `tie_word_embeddings: false` to mean a head of its own."""
    folder.import_folder(write(tmp_path / "hf", "ul2"), f"{tmp_path}/run")
    folder.export_folder(f"{tmp_path}/run", f"{tmp_path}/back")
    tensors = load_file(tmp_path / "back/model.safetensors")
    np.testing.assert_array_equal(tensors["lm_head.weight"], tensors["shared.weight"])
    assert json.loads((tmp_path / "back/config.json").read_text())["tie_word_embeddings"] is False
    folder.import_folder(f"{tmp_path}/back", f"{tmp_path}/again")
    spec = load(f"{tmp_path}/again").spec
    assert spec.tied
    assert not spec.scale_head
    assert spec == load(f"{tmp_path}/run").spec


def test_half_precision_weights(tmp_path):
    half = lambda tensors: {k: v.astype(ml_dtypes.bfloat16) for k, v in tensors.items()}
    source = write(tmp_path / "hf", change=half)
    for dtype, wanted in [("float32", np.float32), ("stored", ml_dtypes.bfloat16)]:
        folder.import_folder(source, f"{tmp_path}/{dtype}", dtype)
        params = params_of(f"{tmp_path}/{dtype}")
        assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype(wanted)}
    folder.export_folder(f"{tmp_path}/stored", f"{tmp_path}/back")
    assert json.loads((tmp_path / "back/config.json").read_text())["dtype"] == "bfloat16"
    before, after = (load_bits(tmp_path / at / "model.safetensors") for at in ("hf", "back"))
    assert before == after


def load_bits(path):
    from safetensors import safe_open

    with safe_open(path, "numpy") as file:
        return {name: file.get_tensor(name).tobytes() for name in sorted(file.keys())}


def test_a_folder_is_never_half_written(tmp_path, monkeypatch):
    source = write(tmp_path / "hf")
    full = lambda *_: (_ for _ in ()).throw(OSError("full"))
    monkeypatch.setattr(folder.Checkpoints, "save", full)
    with pytest.raises(UserError, match="cannot write .*full"):
        folder.import_folder(source, f"{tmp_path}/run")
    with pytest.raises(UserError, match="cannot write .*full"):
        folder.import_folder(source, f"{tmp_path}/new/deep/run")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf"]


def test_what_cannot_be_read_is_not_said_to_be_unwritable(tmp_path, monkeypatch):
    source = write(tmp_path / "hf")

    opened = disk.open_file
    for name in ("tokenizer.json", "config.json"):

        def fails(path, *args, name=name):
            if pathlib.Path(path).name == name:
                raise PermissionError(13, "Permission denied", str(path))
            return opened(path, *args)

        monkeypatch.setattr(disk, "open_file", fails)
        with pytest.raises(UserError, match=f"cannot read .*{name}: Permission denied"):
            folder.import_folder(source, f"{tmp_path}/new/run")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf"]


def test_old_names_and_copies_are_understood(tmp_path):
    """BERT's first files: gamma and beta, copies of tied tensors, and a buffer."""

    def old(tensors):
        out = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
                "LayerNorm.bias", "LayerNorm.beta"
            ): tensor
            for name, tensor in tensors.items()
        }
        words = tensors["bert.embeddings.word_embeddings.weight"]
        return out | {
            "cls.predictions.decoder.weight": words.copy(),
            "cls.predictions.decoder.bias": tensors["cls.predictions.bias"].copy(),
            "bert.embeddings.position_ids": np.arange(11)[None],
        }

    folder.import_folder(write(tmp_path / "new", "bert_pretraining"), f"{tmp_path}/a")
    folder.import_folder(write(tmp_path / "old", "bert_pretraining", old), f"{tmp_path}/b")
    jax.tree.map(
        np.testing.assert_array_equal,
        params_of(f"{tmp_path}/a"),
        params_of(f"{tmp_path}/b"),
    )
    differs = lambda t: old(t) | {"cls.predictions.decoder.weight": np.zeros((23, 12), np.float32)}
    with pytest.raises(UserError, match="left over: cls.predictions.decoder.weight"):
        folder.import_folder(write(tmp_path / "odd", "bert_pretraining", differs), f"{tmp_path}/c")


@pytest.mark.ci
@needs_stories
def test_trained_weights_tell_the_story_that_their_author_prints(tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers")
    assert run("import", str(STORIES), f"--workdir={tmp_path}/run") == 0
    loaded = load(f"{tmp_path}/run")
    spec, params = loaded.spec, loaded.params
    module = spec.build()

    @jax.jit
    def step(tokens, length):
        return jnp.argmax(module.apply({"params": params}, tokens)[0, length - 1])

    tokens = np.ones((1, 257), np.int32)  # 1 is <s>
    for length in range(1, 257):
        tokens[0, length] = step(tokens, length)
    reader = tokenizers.Tokenizer.from_file(f"{tmp_path}/run/tokenizer/tokenizer.json")
    assert reader.decode(tokens[0, 1:].tolist()) == (STORIES / "greedy.txt").read_text().strip()


@needs_stories
def test_trained_logits_equal_those_of_transformers(tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder.import_folder(str(STORIES), f"{tmp_path}/run")
    loaded = load(f"{tmp_path}/run")
    spec, params = loaded.spec, loaded.params
    tokens = np.random.default_rng(0).integers(0, 512, (2, 37))
    ours = jit(spec.build().apply)({"params": params}, jnp.asarray(tokens))
    folder.export_folder(f"{tmp_path}/run", f"{tmp_path}/back")
    for where in (STORIES, tmp_path / "back"):
        model = transformers.AutoModelForCausalLM.from_pretrained(where)
        wanted = model(torch.tensor(tokens)).logits.detach()
        np.testing.assert_allclose(ours, wanted, atol=1e-4)


def test_a_tokenizer_that_is_not_exported_is_named(tmp_path, monkeypatch, capsys):
    pytest.importorskip("jieba", reason="needs the extra `chinese`")
    tokenizer = TOKENIZERS["words"](segmenter="jieba").make(iter(["我们是好朋友"]))
    known = {"fingerprint": "", "vocab": 6, "vocabulary": vocabulary_of(tokenizer, None)}
    Folder(tmp_path).write("data.json", known)
    monkeypatch.setattr("tfm.cli.export.export_folder", lambda source, target, **_: target)
    assert cli.main(["export", str(tmp_path), str(tmp_path / "out")]) == 0
    assert (
        "without its tokenizer: transformers cannot split text with jieba"
        in capsys.readouterr().out
    )
