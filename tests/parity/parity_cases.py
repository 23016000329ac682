"""Small models that both sides can build: settings as in a `config.json`, weights from names.

The weights are a function of a tensor's name and shape, so that a golden file holds none.
"""

import pathlib
import zlib

import jax
import numpy as np
from jax import numpy as jnp

from tests.helpers.quick import jit
from tests.parity import torch_models
from tfm.interop.convert import from_huggingface, to_huggingface

GOLDEN = pathlib.Path(__file__).parent / "golden"
LENGTH, SOURCE, VOCAB = 7, 9, 23
GPT2 = dict(
    model_type="gpt2", vocab_size=VOCAB, n_embd=12, n_layer=2, n_positions=11, n_head=4,
    activation_function="gelu_new",
)  # fmt: skip
LLAMA = dict(
    model_type="llama", vocab_size=VOCAB, hidden_size=12, intermediate_size=20,
    num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=4,
    max_position_embeddings=65, hidden_act="silu", rms_norm_eps=1e-5,
)  # fmt: skip
BERT = dict(
    model_type="bert", vocab_size=VOCAB, hidden_size=12, num_hidden_layers=2,
    num_attention_heads=4, intermediate_size=20, max_position_embeddings=11, type_vocab_size=2,
    hidden_act="gelu", layer_norm_eps=1e-12, id2label={"0": "a", "1": "b", "2": "c"},
)  # fmt: skip
T5 = dict(
    model_type="t5", vocab_size=VOCAB, d_model=12, d_kv=5, d_ff=20, num_layers=2,
    num_decoder_layers=3, num_heads=4, relative_attention_num_buckets=8,
    relative_attention_max_distance=6,
)  # fmt: skip
LLAMA3 = dict(
    rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=64,
)  # fmt: skip
TORCH = dict(model_type="transformer", d_model=12, nhead=4, dim_feedforward=20, layers=2)
CASES = {  # name → architecture, config
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gpt2_untied": (
        "GPT2LMHeadModel",
        GPT2 | dict(tie_word_embeddings=False, n_inner=18, activation_function="gelu"),
    ),
    "llama": ("LlamaForCausalLM", LLAMA | dict(tie_word_embeddings=False)),
    "llama_linear_old_form": (
        "LlamaForCausalLM",
        LLAMA | dict(rope_theta=500.0, rope_scaling=dict(type="linear", factor=3.0),
                     tie_word_embeddings=True),
    ),
    "llama3_old_form": ("LlamaForCausalLM", LLAMA | dict(rope_theta=900.0, rope_scaling=LLAMA3)),
    "llama3_new_form": (
        "LlamaForCausalLM",
        LLAMA | dict(rope_parameters=LLAMA3 | dict(rope_theta=900.0), attention_bias=True,
                     mlp_bias=True),
    ),
    "bert_states": ("BertModel", BERT),
    "bert_masked_lm": ("BertForMaskedLM", BERT),
    "bert_pretraining": ("BertForPreTraining", BERT | dict(hidden_act="gelu_new")),
    "bert_pair": ("BertForNextSentencePrediction", BERT | dict(hidden_act="relu")),
    "bert_classify": (
        "BertForSequenceClassification",
        BERT | dict(architectures=["BertForSequenceClassification"]),
    ),
    "bert_tag": ("BertForTokenClassification", BERT),
    "t5": ("T5ForConditionalGeneration", T5 | dict(tie_word_embeddings=True)),
    "t5_v1_1": (
        "T5ForConditionalGeneration",
        T5 | dict(tie_word_embeddings=False, feed_forward_proj="gated-gelu"),
    ),
    "ul2": (
        "T5ForConditionalGeneration",
        T5 | dict(tie_word_embeddings=False, feed_forward_proj="gated-silu"),
    ),
    "transformer": ("torch.nn.Transformer", TORCH | dict(norm_first=False, activation="relu")),
    "transformer_pre": ("torch.nn.Transformer", TORCH | dict(norm_first=True, activation="gelu")),
    **{
        cell: (f"torch.nn.{cell.upper()}", dict(model_type="recurrent", cell=cell, hidden_size=5))
        for cell in torch_models.CELLS
    },
}  # fmt: skip


def weight(name, shape):
    """Any numbers will do that a slip would not survive; scales stay near 1."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    x = rng.normal(size=shape).astype(np.float32)
    if "norm" in name.lower() or "ln_" in name:
        return 0.2 * x + ("bias" not in name)
    return x / np.float32(np.sqrt(shape[-1])) if len(shape) > 1 else 0.3 * x


def inputs(config):
    """A padded batch of odd lengths, as our models name it."""
    rng = np.random.default_rng(0)
    valid = np.arange(LENGTH)[None] < np.array([[5], [LENGTH]])
    tokens = rng.integers(1, VOCAB, (2, LENGTH))  # their embedding learns nothing for token 0
    if config["model_type"] in ("t5", "transformer"):
        source_valid = np.arange(SOURCE)[None] < np.array([[SOURCE], [6]])
        return {
            "source_BS": rng.integers(1, VOCAB, (2, SOURCE)),
            "decoder_input_BT": tokens,
            "source_valid_BS": source_valid,
            "decoder_valid_BT": valid,
        }
    found = {"tokens_BT": tokens, "valid_BT": valid}
    if config["model_type"] == "bert":
        found["types_BT"] = (np.arange(LENGTH)[None] > np.array([[2], [3]])).astype(int)
    return found


def target(name, shape):
    """What an output is wanted to be: the class of each row, or for states a direction."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if name in ("states", "pooled"):
        return rng.normal(size=shape).astype(np.float32)
    return rng.integers(0, shape[-1], shape[:-1])


def counted(outputs, valid):
    """Which rows of an output count: all that are no padding."""
    whole = np.ones(valid.shape[:1], bool)
    return {name: valid if x.ndim == 3 else whole for name, x in outputs.items()}


def ours(config, shapes):
    """Outputs by name and, by their tensors' names, gradients of the loss."""
    weights = {name: weight(name, shape) for name, shape in shapes.items()}
    if config["model_type"] in ("transformer", "recurrent"):
        spec, params, back = getattr(torch_models, config["model_type"])(config, weights)
    else:
        spec, params = from_huggingface(config, weights)
        back = lambda grads: to_huggingface(spec, grads)[1]
    module, batch = spec.build(), inputs(config)
    valid = batch.get("valid_BT", batch.get("decoder_valid_BT"))
    states = spec.family == "encoder" and not spec.outputs

    def loss(params):
        capture = ("pooled",) if states else ()
        out = module.apply({"params": params}, **jax.tree.map(jnp.asarray, batch), capture=capture)
        name = (getattr(spec, "outputs", ()) or ("lm",))[0]
        outputs = out if isinstance(out, dict) else {name: out}
        if states:
            outputs = {"states": out[0], "pooled": out[1]["pooled_BD"]}
        total = 0.0
        for name, rows in counted(outputs, valid).items():
            x = outputs[name]
            wanted = jnp.asarray(target(name, x.shape))
            if name in ("states", "pooled"):
                each = jnp.sum(x * wanted, -1)
            else:
                each = -jnp.take_along_axis(jax.nn.log_softmax(x), wanted[..., None], -1)[..., 0]
            total += jnp.sum(jnp.where(rows, each, 0)) / rows.sum()
        return total, outputs

    params = jax.tree.map(jnp.asarray, params)
    (_, outputs), grads = jit(jax.value_and_grad(loss, has_aux=True))(params)
    return outputs, back(jax.tree.map(np.asarray, grads))


def compare(config, got, wanted):
    """To 5e-5: ours beside a golden file, that file beside a live run, 1e-4 from end to end."""
    batch = inputs(config)
    valid = batch.get("valid_BT", batch.get("decoder_valid_BT"))
    (outputs, grads), (their_outputs, their_grads) = got, wanted
    assert set(outputs) == set(their_outputs)
    for name, rows in counted(outputs, valid).items():
        a, b = np.asarray(outputs[name])[rows], their_outputs[name][rows]
        np.testing.assert_allclose(a, b, atol=5e-5, rtol=0, err_msg=name)
    assert set(grads) == set(their_grads)
    for name, grad in grads.items():
        np.testing.assert_allclose(grad, their_grads[name], atol=5e-5, rtol=0, err_msg=name)


def golden(name):
    """What transformers computed when `make_golden.py` was run."""
    with np.load(GOLDEN / f"{name}.npz") as file:
        found = {key: file[key] for key in file}
    return tuple(
        {key.removeprefix(kind): x for key, x in found.items() if key.startswith(kind)}
        for kind in ("output/", "grad/")
    )
