"""`tfm import` and `tfm export`, as folders."""

import dataclasses
import json
import os
import pathlib

import jax
import ml_dtypes
import numpy as np
import parity_cases as cases
import pytest
from jax import numpy as jnp
from quick import jit
from safetensors.numpy import load_file, save_file

from tfm import cli
from tfm.interop import folder
from tfm.interop.convert import to_huggingface
from tfm.models import build
from tfm.names import UserError

STORIES = pathlib.Path(os.environ.get("TFM_DATA", "nowhere")) / "stories260K"
needs_stories = pytest.mark.skipif(not STORIES.exists(), reason="needs TFM_DATA: stories260K")


def weights(name):
    _, grads = cases.golden(name)
    return {tensor: cases.weight(tensor, grad.shape) for tensor, grad in grads.items()}


def write(where, name="llama", change=lambda tensors: tensors, **config):
    """The Hugging Face folder of a case."""
    where.mkdir()
    save_file(change(weights(name)), where / "model.safetensors", {"format": "pt"})
    (where / "config.json").write_text(json.dumps(cases.CASES[name][1] | config))
    (where / "tokenizer.json").write_text("{}")
    return str(where)


def run(*argv):
    return cli.main(list(argv))


@pytest.mark.parametrize("name", [name for name, case in cases.CASES.items() if "." not in case[0]])
def test_there_and_back(name, tmp_path):
    """What is exported is what was imported, byte for byte, under the same names."""
    source = write(tmp_path / "hf", name)
    assert run("import", source, f"--workdir={tmp_path}/run") == 0
    assert run("export", f"{tmp_path}/run", f"{tmp_path}/back") == 0
    before, after = (load_file(tmp_path / at / "model.safetensors") for at in ("hf", "back"))
    assert set(before) == set(after)
    for tensor, value in before.items():
        np.testing.assert_array_equal(after[tensor], value)
    assert (tmp_path / "back/tokenizer.json").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("name", [name for name, case in cases.CASES.items() if "." not in case[0]])
def test_transformers_loads_what_is_exported(name, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from theirs import compute

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
    assert torch is not None


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
    _, once = folder.load(f"{tmp_path}/run")
    _, twice = folder.load(f"{tmp_path}/again")
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
    ("name", "config", "message"),
    [
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "not supported, only False"),
        ("gpt2", {"activation_function": "mish"}, "activation_function='mish' is no activation"),
        ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope_type='yarn'"),
        ("llama", {"rope_parameters": {"rope_type": "default", "beta": 2}}, "rope setting beta=2"),
        ("llama", {"model_type": "llamma"}, "unknown model_type 'llamma'; did you mean 'llama'"),
        ("llama", {"hidden_size": 16}, "misshapen: embed_tokens.weight"),
        ("llama", {"tie_word_embeddings": True}, "left over: lm_head.weight"),
        ("bert_tag", {"position_embedding_type": "relative_key"}, "only 'absolute'"),
        ("t5", {"feed_forward_proj": "gated-mish"}, "'mish' is no activation"),
    ],
)
def test_configs_that_we_cannot_follow_are_refused(name, config, message, tmp_path):
    with pytest.raises(UserError, match=message):
        folder.import_folder(write(tmp_path / "hf", name, **config), f"{tmp_path}/run")


def test_folders_that_cannot_be_read_are_named(tmp_path, capsys):
    assert run("import", f"{tmp_path}/none", f"--workdir={tmp_path}/run") == 2
    assert "no file" in capsys.readouterr().err
    source = pathlib.Path(write(tmp_path / "hf"))
    os.rename(source / "model.safetensors", source / "pytorch_model.bin")
    assert run("import", str(source), f"--workdir={tmp_path}/run") == 2
    assert "pytorch_model.bin is a pickle, which is never read" in capsys.readouterr().err
    (source / "model.safetensors").write_bytes(b"nonsense")
    assert run("import", str(source), f"--workdir={tmp_path}/run") == 2
    assert "is damaged" in capsys.readouterr().err
    (source / "config.json").write_text("{")
    assert run("import", str(source), f"--workdir={tmp_path}/run") == 2
    assert "config.json is not JSON" in capsys.readouterr().err


def test_arguments_are_named(tmp_path, capsys):
    source = write(tmp_path / "hf")
    for argv, message in [
        ((source,), "Write --workdir=FOLDER"),
        ((f"--workdir={tmp_path}/run",), "1 folder(s) wanted, 0 given"),
        ((source, f"--workdri={tmp_path}/run"), "did you mean 'workdir'"),
        ((source, f"--workdir={tmp_path}/run", "--dtype=float23"), "did you mean 'float32'"),
        ((source, f"--workdir={source}"), "exists already, and is not empty"),
        ((source, "--workdir=/proc/nowhere/run"), "cannot write to /proc/nowhere"),
    ]:
        assert run("import", *argv) == 2
        assert message in capsys.readouterr().err
    assert run("export", source) == 2
    assert "2 folder(s) wanted, 1 given" in capsys.readouterr().err
    assert run("export", source, f"{tmp_path}/out") == 2
    assert "has no 'model'" in capsys.readouterr().err


def test_models_that_transformers_does_not_know_are_refused():
    spec, params = folder.from_huggingface(cases.CASES["llama"][1], weights("llama"))
    capped = dataclasses.replace(spec, attention=dataclasses.replace(spec.attention, cap=30.0))
    with pytest.raises(UserError, match="llama: cannot say model.attention.cap"):
        to_huggingface(capped, params)
    with pytest.raises(UserError, match="llama: cannot say model.norm.place"):
        to_huggingface(
            dataclasses.replace(spec, norm=dataclasses.replace(spec.norm, place="sandwich")), params
        )
    # How it is run and trained is no business of theirs.
    other = dataclasses.replace(spec, remat="full", dtype="bfloat16")
    assert to_huggingface(other, params)[0]["model_type"] == "llama"


def test_half_precision_weights(tmp_path):
    half = lambda tensors: {k: v.astype(ml_dtypes.bfloat16) for k, v in tensors.items()}
    source = write(tmp_path / "hf", change=half)
    for dtype, wanted in [("float32", np.float32), ("stored", ml_dtypes.bfloat16)]:
        folder.import_folder(source, f"{tmp_path}/{dtype}", dtype)
        _, params = folder.load(f"{tmp_path}/{dtype}")
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
    monkeypatch.setattr(folder, "save_params", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(UserError, match="cannot write .*full"):
        folder.import_folder(source, f"{tmp_path}/run")
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
        folder.load(f"{tmp_path}/a")[1],
        folder.load(f"{tmp_path}/b")[1],
    )
    differs = lambda t: old(t) | {"cls.predictions.decoder.weight": np.zeros((23, 12), np.float32)}
    with pytest.raises(UserError, match="left over: cls.predictions.decoder.weight"):
        folder.import_folder(write(tmp_path / "odd", "bert_pretraining", differs), f"{tmp_path}/c")


@needs_stories
def test_trained_weights_tell_the_story_that_their_author_prints(tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers")
    assert run("import", str(STORIES), f"--workdir={tmp_path}/run") == 0
    spec, params = folder.load(f"{tmp_path}/run")
    module = build.model(spec)

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
    spec, params = folder.load(f"{tmp_path}/run")
    tokens = np.random.default_rng(0).integers(0, 512, (2, 37))
    ours = jit(build.model(spec).apply)({"params": params}, jnp.asarray(tokens))
    folder.export_folder(f"{tmp_path}/run", f"{tmp_path}/back")
    for where in (STORIES, tmp_path / "back"):
        model = transformers.AutoModelForCausalLM.from_pretrained(where)
        wanted = model(torch.tensor(tokens)).logits.detach()
        np.testing.assert_allclose(ours, wanted, atol=1e-4)
