"""Hugging Face folders that contradict themselves, are damaged, or lead elsewhere."""

import contextlib
import hashlib
import json
import os
import pathlib

import numpy as np
import pytest

from tests.helpers.huggingface import weights, write
from tests.parity import parity_cases as cases
from tfm import disk
from tfm.cli import main as cli
from tfm.config.names import UserError
from tfm.interop import folder
from tfm.interop.convert import MODEL_TYPES, from_huggingface
from tfm.run.evaluation import evaluate
from tfm.run.load import load


def run(*argv):
    return cli.main(list(argv))


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "not supported, only False"),
        ("gpt2", {"activation_function": "mish"}, "='mish' is an unknown activation"),
        ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope_type='yarn'"),
        ("llama", {"rope_parameters": {"rope_type": "default", "beta": 2}}, "rope setting beta=2"),
        ("llama", {"model_type": "llamma"}, "'llamma' cannot be imported; these can: gpt2,"),
        # Other functions of similar names are not suggested.
        *(("llama", {"model_type": kind}, f"='{kind}' cannot be imported; these can: gpt2")
          for kind in ("roberta", "distilbert", "llama4")),
        ("bert_tag", {"hidden_act": "quick_gelu"}, "'quick_gelu' is an unknown activation; known"),
        ("llama", {"hidden_size": 16}, "misshapen: embed_tokens.weight"),
        ("llama", {"tie_word_embeddings": True}, "left over: lm_head.weight"),
        ("bert_tag", {"position_embedding_type": "relative_key"}, "only 'absolute'"),
        ("t5", {"feed_forward_proj": "gated-mish"}, "'mish' is an unknown activation"),
        ("t5", {"feed_forward_proj": "gated-tanh"}, "there is no gate of 'tanh' here"),
        ("t5", {"feed_forward_proj": "fenced-relu"}, "must be NAME or gated-NAME"),
        ("llama", {"model_type": None}, "config.json has no 'model_type'"),
        ("llama", {"vocab_size": None}, "config.json has no 'vocab_size'"),
        ("llama", {"vocab_size": "50"}, "vocab_size in config.json must be int, not '50'"),
        ("llama", {"num_hidden_layers": 2.0}, "num_hidden_layers .*must be int, not 2.0"),
        ("llama", {"num_attention_heads": 0}, "num_attention_heads=0 .*must be at least 1"),
        ("llama", {"intermediate_size": 24.0}, "intermediate_size .*must be int, not 24.0"),
        ("llama", {"attention_bias": 1}, "attention_bias .*must be bool, not 1"),
        ("llama", {"rms_norm_eps": float("nan")}, "rms_norm_eps=nan .*must be a number from 0"),
        ("llama", {"attention_dropout": 1.5}, "attention_dropout=1.5 .*must be less than 1"),
        ("llama", {"hidden_act": ["silu"]}, r"hidden_act .*must be str, not \['silu'\]"),
        ("llama", {"hidden_act": "tanh"}, "hidden_act: there is no gate of 'tanh'"),
        ("llama", {"rope_parameters": "x"}, "rope_parameters .*must be dict, not 'x'"),
        ("llama", {"rope_scaling": {"type": "linear", "factor": "2"}},
         "rope_scaling.factor in config.json must be float"),
        ("gpt2", {"n_embd": None}, "config.json has no 'n_embd'"),
        ("bert_tag", {"type_vocab_size": 0}, "type_vocab_size=0 .*must be at least 1"),
        ("bert_tag", {"id2label": "ab"}, "id2label .*must be dict"),
        # What transformers reads otherwise than it is written.
        ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "rotates all features"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is not supported"),
        ("llama", {"rope_scaling": {"rope_type": "linear"}}, "no 'rope_scaling.factor'"),
        *(("llama", {"rope_parameters": cases.LLAMA3 | {key: None}}, f"no 'rope_parameters.{key}'")
          for key in cases.LLAMA3 if key != "rope_type"),
        ("llama", {"rope_scaling": cases.LLAMA3, "original_max_position_embeddings": 32},
         "original_max_position_embeddings=32 is not supported, only 64"),
    ],
)  # fmt: skip
def test_configs_that_we_cannot_follow_are_refused(name, config, message, tmp_path):
    with pytest.raises(UserError, match=message):
        folder.import_folder(write(tmp_path / "hf", name, **config), f"{tmp_path}/run")


POOLER = {
    "bert.pooler.dense.weight": np.full((12, 12), 0.1, np.float32),
    "bert.pooler.dense.bias": np.zeros(12, np.float32),
}


def spec_of(name, change=lambda tensors: tensors, **config):
    return from_huggingface(cases.CASES[name][1] | config, change(weights(name)))[0]


@pytest.mark.parametrize(
    ("name", "change", "architecture", "outputs"),
    [
        # As published models for named entities are: a pooler that is not used.
        ("bert_tag", lambda t: t | POOLER, "BertForTokenClassification", {"tag"}),
        ("bert_tag", lambda t: t, "BertForTokenClassification", {"tag"}),
        ("bert_tag", lambda t: t, None, {"tag"}),
        ("bert_tag", lambda t: t | POOLER, "BertForSequenceClassification", {"classify"}),
        ("bert_classify", lambda t: t, "BertForSequenceClassification", {"classify"}),
        ("bert_classify", lambda t: t, "BertForTokenClassification", {"tag"}),
        # As bert-base-uncased is: more than the architecture has.
        ("bert_pretraining", lambda t: t, "BertForMaskedLM", {"masked_lm", "pair"}),
        ("bert_pretraining", lambda t: t, None, {"masked_lm", "pair"}),
        ("bert_states", lambda t: t, "BertModel", set()),
    ],
)
def test_the_architecture_decides_what_a_head_is(name, change, architecture, outputs):
    given = None if architecture is None else [architecture]
    spec = spec_of(name, change, architectures=given)
    assert set(spec.outputs) == outputs


def test_a_token_classifier_with_a_pooler_is_that_of_transformers(tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    own = {"architectures": ["BertForTokenClassification"]}
    source = write(tmp_path / "hf", "bert_tag", lambda t: t | POOLER, **own)
    folder.import_folder(source, f"{tmp_path}/run")
    batch = cases.inputs(cases.BERT)
    ours, rows = np.asarray(load(f"{tmp_path}/run")(**batch)), batch["valid_BT"]
    theirs = transformers.BertForTokenClassification.from_pretrained(source)
    tensors = {key: torch.tensor(value) for key, value in batch.items()}
    logits = theirs(tensors["tokens_BT"], tensors["valid_BT"].long(), tensors["types_BT"]).logits
    np.testing.assert_allclose(ours[rows], logits.detach().numpy()[rows], atol=1e-5)
    folder.export_folder(f"{tmp_path}/run", f"{tmp_path}/back")
    said = json.loads((tmp_path / "back/config.json").read_text())
    assert said["architectures"] == own["architectures"]


@pytest.mark.parametrize(
    ("name", "change", "architectures", "message"),
    [
        ("bert_classify", lambda t: t, None, "BertForSequenceClassification'. or ..BertForToken"),
        ("bert_classify", lambda t: t, ["BertModel"], "the weights hold classifier.weight, and"),
        ("bert_tag", lambda t: t, ["BertForMaskedLM"], "the weights hold classifier.weight, and"),
        ("bert_tag", lambda t: t, ["BertForSequenceClassification"], "hold no pooler.dense.weight"),
        ("bert_masked_lm", lambda t: t, ["BertForPreTraining"], "no cls.seq_relationship.weight"),
        ("bert_states", lambda t: t, ["BertForTokenClassification"], "hold no classifier.weight"),
        ("bert_states", lambda t: t, ["BertForQuestionAnswering"], "QuestionAnswering'. cannot"),
        ("gpt2", lambda t: t, ["GPT2ForSequenceClassification"], "these can: GPT2LMHeadModel"),
        ("gpt2", lambda t: t, ["GPT2Model"], "these can: GPT2LMHeadModel"),
        ("llama", lambda t: t, ["LlamaForSequenceClassification"], "these can: LlamaForCausalLM"),
        ("llama", lambda t: t, ["MistralForCausalLM"], "these can: LlamaForCausalLM"),
        ("t5", lambda t: t, ["T5EncoderModel"], "these can: T5ForConditionalGeneration"),
        ("t5", lambda t: t, ["GPT2LMHeadModel"], "these can: T5ForConditionalGeneration"),
        ("t5", lambda t: t, ["T5Model", "T5ForConditionalGeneration"], "must be one name"),
        ("t5", lambda t: t, [3], "must be one name"),
        ("t5", lambda t: t, "T5ForConditionalGeneration", "architectures .*must be list"),
    ],
)
def test_an_architecture_that_the_weights_contradict_is_refused(
    name, change, architectures, message
):
    with pytest.raises(UserError, match=message):
        spec_of(name, change, architectures=architectures)


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("t5", {"dense_act_fn": "gelu_new"}, "feed_forward_proj='relu' and dense_act_fn='gelu_n"),
        ("t5_v1_1", {"dense_act_fn": "relu"}, "='gated-gelu' and dense_act_fn='relu'"),
        ("t5_v1_1", {"is_gated_act": False}, "='gated-gelu' and is_gated_act=False"),
        ("t5", {"num_hidden_layers": 3}, "num_layers=2 and num_hidden_layers=3"),
        ("t5", {"hidden_size": 13}, "d_model=12 and hidden_size=13"),
        ("t5", {"head_dim": 4}, "d_kv=5 and head_dim=4"),
        ("gpt2", {"num_attention_heads": 2}, "n_head=4 and num_attention_heads=2"),
        ("gpt2", {"hidden_size": 24}, "n_embd=12 and hidden_size=24"),
        ("gpt2", {"num_hidden_layers": 1}, "n_layer=2 and num_hidden_layers=1"),
        ("gpt2", {"max_position_embeddings": 5}, "n_positions=11 and max_position_embeddings=5"),
        ("bert_tag", {"num_labels": 2}, "num_labels=2 and the number of id2label=3"),
        ("llama3_old_form", {"rope_parameters": {"rope_theta": 9.0}}, "rope_parameters=.* and "),
        ("llama3_new_form", {"rope_theta": 9.0}, "rope_parameters.rope_theta=900.0 and rope_theta"),
        ("llama", {"rope_scaling": {"type": "linear", "rope_type": "llama3", "factor": 2.0}},
         "rope_scaling.rope_type='llama3' and rope_scaling.type='linear'"),
    ],
)  # fmt: skip
def test_keys_that_disagree_are_refused(name, config, message):
    with pytest.raises(UserError, match=message):
        spec_of(name, **config)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("t5", {"dense_act_fn": "relu", "is_gated_act": False, "hidden_size": 12}),
        ("t5_v1_1", {"dense_act_fn": "gelu_new", "is_gated_act": True, "num_heads": None,
                     "num_attention_heads": 4}),
        ("gpt2", {"num_attention_heads": 4, "hidden_size": 12, "n_embd": None}),
        ("llama3_new_form", {"rope_theta": 900}),
        ("bert_tag", {"num_labels": 3}),
    ],
)  # fmt: skip
def test_keys_that_agree_are_read(name, config):
    assert spec_of(name, **config) == spec_of(name)


def test_second_names_are_those_of_transformers():
    transformers = pytest.importorskip("transformers")
    for kind, family in MODEL_TYPES.items():
        assert transformers.CONFIG_MAPPING[kind].attribute_map == family.names


@pytest.mark.parametrize("size", [10**4, 10**9, 2**31 - 1, 10**30])
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert_tag", "t5"])
def test_sizes_are_compared_before_anything_is_built(name, size, monkeypatch):
    """What would be built is as large as the config says."""
    built = lambda *_, **__: pytest.fail("it was built")
    monkeypatch.setattr("tfm.interop.convert._shapes", built)
    no_axis = ("max_position_embeddings", "n_positions", "relative_attention_max_distance")
    config = cases.CASES[name][1]
    for key in (key for key, value in config.items() if type(value) is int):
        if name in ("gpt2", "bert_tag") or key not in no_axis:
            with pytest.raises(UserError, match=f"{key}=|layers, and the weights"):
                spec_of(name, **{key: size})


@pytest.mark.parametrize("content", ["[1]", "null", "3"])
def test_json_that_holds_no_names_is_refused(content, tmp_path, capsys):
    source = pathlib.Path(write(tmp_path / "hf"))
    config = (source / "config.json").read_text()
    (source / "config.json").write_text(content)
    assert run("import", str(source), f"--workdir={tmp_path}/run") == 2
    assert "config.json must hold names and values" in capsys.readouterr().err
    (source / "config.json").write_text(config)
    os.rename(source / "model.safetensors", source / "other.safetensors")
    index = source / "model.safetensors.index.json"
    for text, message in [
        (content, "must hold names and values"),
        ("{}", "has no 'weight_map'"),
        ('{"weight_map": [1]}', "has no 'weight_map'"),
        ('{"weight_map": {"a": "../other.safetensors"}}', "which is no file beside it"),
        ('{"weight_map": {"a": 3}}', "weight_map names 3"),
    ]:
        index.write_text(text)
        assert run("import", str(source), f"--workdir={tmp_path}/run") == 2
        assert message in capsys.readouterr().err


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
    (source / "model.safetensors").unlink()
    (source / "model.safetensors").mkdir()
    assert run("import", str(source), f"--workdir={tmp_path}/run") == 2
    assert "cannot read" in capsys.readouterr().err
    (source / "config.json").write_text("{")
    assert run("import", str(source), f"--workdir={tmp_path}/run") == 2
    assert "config.json is not JSON" in capsys.readouterr().err
    (source / "config.json").unlink()
    (source / "config.json").mkdir()
    assert run("import", str(source), f"--workdir={tmp_path}/run") == 2
    assert "cannot read" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_link_out_of_the_folder_is_not_followed(name, tmp_path, capsys):
    source = pathlib.Path(write(tmp_path / "hf"))
    (source / name).rename(tmp_path / "secret")
    (source / name).symlink_to(tmp_path / "secret")
    assert run("import", str(source), f"--workdir={tmp_path}/run") == 2
    assert f"{source / name} is a link to {tmp_path / 'secret'}" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    (source / name).unlink()
    (source / name).symlink_to(source / name)  # to itself
    assert run("import", str(source), f"--workdir={tmp_path}/run") == 2
    assert f"cannot read {source / name}: it is no file" in capsys.readouterr().err
    (source / name).unlink()
    os.mkfifo(source / name)  # which nobody writes to
    assert run("import", str(source), f"--workdir={tmp_path}/run") == 2
    assert f"cannot read {source / name}: it is no file" in capsys.readouterr().err


def test_links_within_a_folder_and_to_a_folder_are_followed(tmp_path):
    source = pathlib.Path(write(tmp_path / "hf"))
    (source / "model.safetensors").rename(source / "weights")
    (source / "model.safetensors").symlink_to("weights")
    (tmp_path / "link").symlink_to(source)
    folder.import_folder(f"{tmp_path}/link", f"{tmp_path}/run")
    copy = tmp_path / "run" / "tokenizer" / "tokenizer.json"
    assert copy.read_text() == (source / "tokenizer.json").read_text()


def cached(tmp_path):
    """A folder as the cache of huggingface_hub has it: names that link to contents."""
    made = pathlib.Path(write(tmp_path / "hf"))
    repository = tmp_path / "hub" / "models--a--b"
    snapshot = repository / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for path in made.iterdir():
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        path.rename(repository / "blobs" / digest)
        (snapshot / path.name).symlink_to(f"../../blobs/{digest}")
    return snapshot


def test_the_cache_of_hugging_face_is_read(tmp_path):
    snapshot = cached(tmp_path)
    folder.import_folder(str(snapshot), f"{tmp_path}/run")
    said = json.loads((tmp_path / "run" / "imported.json").read_text())["sha256"]
    assert said == {path.name: path.resolve().name for path in snapshot.iterdir()}


@pytest.mark.parametrize("target", ["../secret", "../../secret", "../../../secret"])
def test_the_cache_does_not_lead_elsewhere(target, tmp_path):
    snapshot = cached(tmp_path)
    (snapshot / target).write_text("secret")
    (snapshot / "tokenizer.json").unlink()
    (snapshot / "tokenizer.json").symlink_to(target)
    with pytest.raises(UserError, match="tokenizer.json is a link to .*secret"):
        folder.import_folder(str(snapshot), f"{tmp_path}/run")


def test_blobs_that_are_a_link_are_not_followed(tmp_path):
    snapshot = cached(tmp_path)
    snapshot.parents[1].joinpath("blobs").rename(tmp_path / "elsewhere")
    snapshot.parents[1].joinpath("blobs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="config.json is a link to"):
        folder.import_folder(str(snapshot), f"{tmp_path}/run")


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_one_changed_bit_of_the_weights_is_found(tmp_path):
    folder.import_folder(write(tmp_path / "hf"), f"{tmp_path}/run")
    stored = [p for p in (tmp_path / "run" / "checkpoints").rglob("*") if p.is_file()]
    flip(max(stored, key=lambda path: path.stat().st_size))
    with pytest.raises(UserError, match="checkpoint 0 is damaged"):
        folder.export_folder(f"{tmp_path}/run", f"{tmp_path}/back")
    with pytest.raises(UserError, match="checkpoint 0 is damaged"):
        evaluate(f"{tmp_path}/run", dataset="dyck(length=8)", objective="next_token")
    assert not (tmp_path / "back").exists()


def test_one_changed_bit_beside_the_weights_is_found(tmp_path):
    source = pathlib.Path(write(tmp_path / "hf"))
    folder.import_folder(str(source), f"{tmp_path}/run")
    hashes = json.loads((tmp_path / "run" / "imported.json").read_text())["sha256"]
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        assert hashes[name] == hashlib.sha256((source / name).read_bytes()).hexdigest()
    tokenizer = tmp_path / "run" / "tokenizer" / "tokenizer.json"
    flip(tokenizer)
    with pytest.raises(UserError, match="tokenizer.json is not the file that was imported"):
        folder.export_folder(f"{tmp_path}/run", f"{tmp_path}/back")
    flip(tokenizer)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["model"]["norm"]["eps"] = 1e-3
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="config.json was edited: its checksum differs"):
        load(f"{tmp_path}/run")
    del config["checksum"]
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="differ in model.norm.eps; import it again"):
        folder.export_folder(f"{tmp_path}/run", f"{tmp_path}/back")


@pytest.mark.parametrize("name", ["data.json", "huggingface.json", "imported.json"])
def test_edited_files_of_an_import_are_found_when_they_are_read(name, tmp_path):
    folder.import_folder(write(tmp_path / "hf"), f"{tmp_path}/run")
    tree = json.loads((tmp_path / "run" / name).read_text())
    if name == "data.json":
        tree["reader"]["ends"] = [3]
    (tmp_path / "run" / name).write_text(json.dumps({**tree, "more": 1}))
    reads = {"data.json": lambda: load(f"{tmp_path}/run").reader}
    export = lambda: folder.export_folder(f"{tmp_path}/run", f"{tmp_path}/back")
    with pytest.raises(UserError, match=f"{name} was edited: its checksum differs"):
        reads.get(name, export)()


def test_weights_that_are_not_numbers_are_reported(tmp_path, capsys):
    odd = np.array([np.nan, np.inf, *[1.0] * 10], np.float32)
    source = write(tmp_path / "hf", change=lambda t: t | {"model.norm.weight": odd})
    assert run("import", source, f"--workdir={tmp_path}/run") == 0
    said = capsys.readouterr().err
    assert said == f"{source}: 2 of the 12 weights of model.norm.weight are NaN or infinite\n"


def test_a_path_that_is_read_as_a_pattern_is_refused(tmp_path):
    with pytest.raises(UserError, match="choose one without"):
        folder.import_folder(write(tmp_path / "hf"), f"{tmp_path}/run[1]")
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_what_killed_imports_have_left_is_removed(tmp_path):
    source = write(tmp_path / "hf")
    left, busy, other = (tmp_path / f".run-{x}" for x in ("0123abcd", "4567abcd", "notes"))
    for path in (left, busy, other):
        path.mkdir()
        (path / "file").write_text("x")
    with disk.locked_folder(busy):  # by another process, which writes there
        folder.import_folder(source, f"{tmp_path}/run")
    assert sorted(path.name for path in tmp_path.iterdir()) == [busy.name, other.name, "hf", "run"]
    (tmp_path / ".back-89abcdef").mkdir()
    folder.export_folder(f"{tmp_path}/run", f"{tmp_path}/back")
    assert not (tmp_path / ".back-89abcdef").exists()


def test_a_full_disk_is_told_and_nothing_is_left(tmp_path, small_disk, capsys):
    source = write(tmp_path / "hf")
    folder.import_folder(source, f"{tmp_path}/run")
    with contextlib.suppress(OSError), open(small_disk / "filler", "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    for argv in (["export", f"{tmp_path}/run", f"{small_disk}/a/out"],
                 ["import", source, f"--workdir={small_disk}/a/run"]):  # fmt: skip
        assert run(*argv) == 2
        assert "No space left on device" in capsys.readouterr().err
    assert [path.name for path in small_disk.iterdir()] == ["filler"]
