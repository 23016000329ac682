"""Odd Hugging Face folders: each is refused with a message, or gives the logits of transformers.

  python tests/trials/odd_folders.py
  python tests/trials/odd_folders.py 3      # every third of them

The folders are made from the golden cases of tests/parity: other settings, other tensors, other
files, other tokenizers. One that `tfm import` accepts is loaded by transformers too, with the class
that its config names, and so is what `tfm export` makes of the import; their logits must agree to
1e-4 on the rows that are no padding. Texts must have the ids that the folder's tokenizer gives, and
those of the exported one. A traceback, or a difference, is reported, and the exit code is then 1.
It needs torch and transformers, takes a few minutes, and is not a part of the test suite.
"""

import json
import os
import pathlib
import shutil
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

import jax

jax.config.update("jax_platforms", "cpu")

import ml_dtypes  # noqa: E402
import numpy as np  # noqa: E402
import tokenizers  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.numpy import save_file  # noqa: E402
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors  # noqa: E402

from tests.helpers.huggingface import weights  # noqa: E402
from tests.parity import parity_cases as cases  # noqa: E402
from tests.parity.theirs import compute  # noqa: E402
from tfm.config.names import UserError  # noqa: E402
from tfm.interop.folder import export_folder, import_folder  # noqa: E402
from tfm.run.load import load  # noqa: E402

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
POOLER = {
    "bert.pooler.dense.weight": np.full((12, 12), 0.1, np.float32),
    "bert.pooler.dense.bias": np.zeros(12, np.float32),
}
HEAD = {"score.weight": np.ones((2, 12), np.float32)}
TRIALS = [  # case, what is odd: settings, or a function of the tensors
    *((name, {}) for name, case in cases.CASES.items() if "." not in case[0]),
    # architectures
    ("gpt2", {"architectures": ["GPT2Model"]}),
    ("gpt2", {"architectures": ["GPT2ForSequenceClassification"]}),
    ("gpt2", {"architectures": ["GPT2DoubleHeadsModel"]}),
    ("gpt2", {"architectures": ["GPT2LMHeadModel", "GPT2Model"]}),
    ("llama", {"architectures": ["LlamaModel"]}),
    ("llama", {"architectures": ["MistralForCausalLM"]}),
    ("t5", {"architectures": ["T5EncoderModel"]}),
    ("t5", {"architectures": ["T5Model"]}),
    ("bert_tag", {"architectures": ["BertForSequenceClassification"]}),
    ("bert_classify", {"architectures": ["BertForTokenClassification"]}),
    ("bert_classify", {"architectures": ["BertForMultipleChoice"]}),
    ("bert_classify", {"architectures": None}),
    ("bert_pretraining", {"architectures": ["BertForMaskedLM"]}),
    ("bert_pretraining", {"architectures": ["BertForNextSentencePrediction"]}),
    ("bert_masked_lm", {"architectures": ["BertForPreTraining"]}),
    ("bert_states", {"architectures": ["BertForMaskedLM"]}),
    ("bert_tag", lambda t: t | POOLER),
    ("gpt2", lambda t: t | HEAD),
    ("llama", lambda t: t | HEAD),
    # keys that mean the same, or that change the function
    ("gpt2", {"num_attention_heads": 2}),
    ("gpt2", {"num_attention_heads": 4, "n_head": None}),
    ("gpt2", {"hidden_size": 24}),
    ("gpt2", {"max_position_embeddings": 5}),
    ("gpt2", {"num_hidden_layers": 1}),
    ("gpt2", {"n_layer": 1}),
    ("gpt2", {"n_head": 2}),
    ("gpt2", {"n_head": 3}),
    ("gpt2", {"layer_norm_epsilon": 0.1}),
    ("gpt2", {"activation_function": "relu"}),
    ("gpt2", {"activation_function": "quick_gelu"}),
    ("gpt2", {"scale_attn_weights": False}),
    ("gpt2", {"reorder_and_upcast_attn": True}),
    ("gpt2", {"tie_word_embeddings": False}),
    ("t5", {"dense_act_fn": "gelu_new"}),
    ("t5_v1_1", {"dense_act_fn": "relu"}),
    ("t5_v1_1", {"is_gated_act": False}),
    ("t5_v1_1", {"feed_forward_proj": "gated-relu"}),
    ("t5", {"feed_forward_proj": "gelu"}),
    ("t5", {"feed_forward_proj": "gated-gelu"}),
    ("t5", {"relative_attention_num_buckets": 4}),
    ("t5", {"relative_attention_max_distance": 20}),
    ("t5", {"num_decoder_layers": None}),
    ("t5", {"num_hidden_layers": 3}),
    ("t5", {"head_dim": 4}),
    ("t5", {"layer_norm_epsilon": 0.1}),
    ("t5", {"scale_decoder_outputs": False}),
    ("t5", {"tie_word_embeddings": False}),
    ("llama", {"rms_norm_eps": 0.1}),
    ("llama", {"num_key_value_heads": 4}),
    ("llama", {"num_attention_heads": 2, "num_key_value_heads": 1}),
    ("llama", {"head_dim": None}),
    ("llama", {"rope_theta": 77.0}),
    ("llama", {"rope_theta": 77.0, "rope_parameters": {"rope_theta": 99.0}}),
    ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}),
    ("llama", {"rope_scaling": {"type": "linear", "rope_type": "default", "factor": 2.0}}),
    ("llama", {"rope_scaling": cases.LLAMA3, "rope_parameters": {"rope_type": "default"}}),
    ("llama", {"attention_bias": True}),
    ("llama", {"mlp_bias": True}),
    ("llama", {"hidden_act": "gelu"}),
    ("llama", {"tie_word_embeddings": True}),
    ("llama", {"pretraining_tp": 2}),
    ("bert_tag", {"num_labels": 2}),
    ("bert_tag", {"id2label": {"0": "a", "1": "b"}}),
    ("bert_tag", {"layer_norm_eps": 0.1}),
    ("bert_tag", {"position_embedding_type": "relative_key"}),
    ("bert_tag", {"is_decoder": True}),
    ("bert_tag", {"hidden_act": "silu"}),
    ("bert_masked_lm", {"tie_word_embeddings": False}),
    # sizes
    *(("llama", {key: 10**9}) for key in ("num_hidden_layers", "vocab_size", "hidden_size")),
    ("llama", {"head_dim": 10**9}),
    ("gpt2", {"n_embd": 2**31 - 1}),
    ("bert_tag", {"num_attention_heads": 10**30}),
    ("t5", {"num_layers": 10**9}),
    # tensors
    ("llama", lambda t: {k: v.astype(np.float16) for k, v in t.items()}),
    ("llama", lambda t: {k: v.astype(ml_dtypes.bfloat16) for k, v in t.items()}),
    ("llama", lambda t: {k: v.astype(np.float64) for k, v in t.items()}),
    ("llama", lambda t: {k: v.astype(np.int32) for k, v in t.items()}),
    ("llama", lambda t: {k.removeprefix("model."): v for k, v in t.items()}),
    ("gpt2", lambda t: {k.removeprefix("transformer."): v for k, v in t.items()}),
    ("gpt2", lambda t: t | {"lm_head.weight": t["transformer.wte.weight"].copy()}),
    ("gpt2", lambda t: t | {"lm_head.weight": 2 * t["transformer.wte.weight"]}),
    ("gpt2", lambda t: {k: v for k, v in t.items() if "ln_f" not in k}),
    ("gpt2", lambda t: {k: v.T.copy() if v.ndim == 2 else v for k, v in t.items()}),
    ("t5", lambda t: t | {"lm_head.weight": t["shared.weight"].copy()}),
    ("t5", lambda t: t | {"decoder.embed_tokens.weight": 2 * t["shared.weight"]}),
    ("llama", lambda t: {}),
]


def link_tokenizer(source):
    (source.parent / "secret").write_text("secret")
    (source / "tokenizer.json").symlink_to("../secret")


def link_config(source):
    shutil.move(source / "config.json", source.parent / "secret")
    (source / "config.json").symlink_to("../secret")


def two_files(source):
    shutil.copy(source / "model.safetensors", source / "a.safetensors")
    os.rename(source / "model.safetensors", source / "b.safetensors")
    named = {"x": "a.safetensors", "y": "b.safetensors"}
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": named}))


FILES = {
    "tokenizer.json is a link": link_tokenizer,
    "config.json is a link": link_config,
    "every tensor in two files": two_files,
    "config.json is a pipe": lambda s: (os.remove(s / "config.json"), os.mkfifo(s / "config.json")),
    "tokenizer.json is a folder": lambda s: (s / "tokenizer.json").mkdir(),
    "weights cut off": lambda s: os.truncate(s / "model.safetensors", 3000),
    "weights empty": lambda s: os.truncate(s / "model.safetensors", 0),
    "config.json is not UTF-8": lambda s: (s / "config.json").write_bytes(b'{"a": "\xff"}'),
    "config.json is deep": lambda s: (s / "config.json").write_text("[" * 100_000),
    "config.json is a list": lambda s: (s / "config.json").write_text("[]"),
}


NAMES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##a", "##b", ",", "[", "]", "sep"]
TEXTS = ("a b", "ab, a", "A [SEP] b", "a b " * 20, "c", "a\u00e4b")


def rules_of(**odd):
    """The tokenizer of a BERT, with something odd."""
    vocab = {token: id_ for id_, token in enumerate(odd.get("names", NAMES))}
    rules = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    rules.normalizer = normalizers.BertNormalizer(lowercase=odd.get("lower", True))
    rules.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rules.decoder = decoders.WordPiece()
    rules.add_special_tokens(odd.get("special", NAMES[:5]))
    if odd.get("around", True):
        rules.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    if "padding" in odd:
        rules.enable_padding(length=odd["padding"])
    if "truncation" in odd:
        rules.enable_truncation(odd["truncation"])
    return rules


TOKENIZERS = [
    {},
    {"padding": 16},
    {"truncation": 4},
    {"padding": 8, "truncation": 8},
    {"around": False},
    {"lower": False},
    {"special": ["[UNK]"]},
    {"special": [*NAMES[:5], "<extra>"]},
    {"special": [*NAMES[:5], "a b"]},
    {"names": [*NAMES, *(f"x{n}" for n in range(10))]},
    {"names": [*NAMES, *(f"x{n}" for n in range(20))]},
    {"names": NAMES[:8]},
]


def same_texts(source, workdir):
    """Describes a text that the import reads otherwise than the tokenizer of the folder."""
    rules = tokenizers.Tokenizer.from_file(str(source / "tokenizer.json"))
    rules.no_padding()
    rules.no_truncation()
    for special in (True, False):
        reader, rules.encode_special_tokens = load(workdir, special=special).reader, not special
        for text in TEXTS:
            if reader.encode(text) != rules.encode(text).ids:
                return f"{text!r} is {reader.encode(text)}, not {rules.encode(text).ids}"
    return None


def make(root, name, odd):
    """The folder, and the architecture that transformers is to load."""
    source = root / "hf"
    source.mkdir()
    architecture, config = cases.CASES[name]
    tensors = odd(weights(name)) if callable(odd) else weights(name)
    config = {"architectures": [architecture], **config} | ({} if callable(odd) else odd)
    config = {key: value for key, value in config.items() if value is not None}
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    (source / "config.json").write_text(json.dumps(config))
    return source, config.get("architectures", [architecture])[0]


def ours(workdir, batch):
    run = load(workdir)
    if run.spec.family == "encoder" and not run.spec.outputs:
        states, more = run(**batch, capture=("pooled",))
        return {"states": states, "pooled": more["pooled_BD"]}
    out = run(**batch)
    name = (getattr(run.spec, "outputs", ()) or ("lm",))[0]
    return out if isinstance(out, dict) else {name: out}


def logits(folder, architecture, config):
    """The outputs of transformers; the class is that of the config, if there is one."""
    said = json.loads((folder / "config.json").read_text()).get("architectures", [architecture])
    kind = getattr(transformers, said[0])
    model = kind.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    return compute(said[0], config, model)[0]


def trial(root, name, odd):
    """`refused`, `agrees` or `wrong`, and why."""
    tokenizer = name == "tokenizer"
    name = "bert_classify" if tokenizer else name
    source, architecture = make(root, name, {} if tokenizer or odd in FILES.values() else odd)
    if tokenizer:
        rules_of(**odd).save(str(source / "tokenizer.json"))
    if odd in FILES.values():
        odd(source)
    try:
        import_folder(str(source), str(root / "run"))
    except UserError as e:
        return "refused", str(e)
    except Exception as e:
        return "wrong", f"{type(e).__name__}: {e}"
    if odd in FILES.values():
        return "wrong", "it was imported"
    config = cases.CASES[name][1]
    try:
        export_folder(str(root / "run"), str(root / "back"))
        wanted, exported = (logits(root / x, architecture, config) for x in ("hf", "back"))
    except Exception as e:
        return "wrong", f"it is not exported, or loaded: {type(e).__name__}: {e}"
    if tokenizer and (
        reason := same_texts(source, root / "run") or same_texts(root / "back", root / "run")
    ):
        return "wrong", reason
    batch = cases.inputs(config)
    valid, got = batch.get("valid_BT", batch.get("decoder_valid_BT")), ours(root / "run", batch)
    for head, rows in cases.counted(wanted, valid).items():
        if head not in got:
            return "wrong", f"no output {head!r}"
        for what, other in (("", got), ("of the export ", exported)):
            a, b = np.asarray(other[head], np.float32)[rows], wanted[head][rows]
            gap = np.abs(a - b).max() if a.shape == b.shape else np.inf
            if not gap < 1e-4:
                return "wrong", f"{head} {what}differs by {gap}"
    return "agrees", ""


def main():
    count = {"refused": 0, "agrees": 0, "wrong": 0}
    trials = [*TRIALS, *(("llama", odd) for odd in FILES.values())]
    trials += [("tokenizer", odd) for odd in TOKENIZERS]
    for number, (name, odd) in list(enumerate(trials))[:: int(sys.argv[1]) if sys.argv[1:] else 1]:
        with tempfile.TemporaryDirectory() as temporary:
            result, text = trial(pathlib.Path(temporary), name, odd)
        count[result] += 1
        told = next((text for text, change in FILES.items() if change is odd), "tensors")
        shown = told if callable(odd) else odd
        print(f"{number:3} {result:8} {name} {shown}: {' '.join(text.split())[:150]}", flush=True)
    print(", ".join(f"{n} {kind}" for kind, n in count.items()), "of", sum(count.values()))
    return bool(count["wrong"])


if __name__ == "__main__":
    sys.exit(main())
