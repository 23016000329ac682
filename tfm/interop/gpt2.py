"""GPT-2.  Radford et al. 2019."""

from collections.abc import Iterator, Sequence
from typing import Any

from tfm.interop.model_type import Key, ModelType, Pair, module
from tfm.models.spec import DecoderSpec


def pairs(spec: Any) -> Iterator[Pair]:
    yield Pair("wte.weight", ("embed/token/embedding",))
    yield Pair("wpe.weight", ("decoder/table/table_w_LD",))
    for n in range(spec.layers):
        theirs, ours = f"h.{n}", f"decoder/layer_{n}"
        yield from module(f"{theirs}.ln_1", f"{ours}/attention_norm", True)
        qkv = [f"{ours}/attention/{name}" for name in ("query", "key", "value")]
        yield from _conv1d(f"{theirs}.attn.c_attn", qkv)
        yield from _conv1d(f"{theirs}.attn.c_proj", [f"{ours}/attention/out"], 2)
        yield from module(f"{theirs}.ln_2", f"{ours}/feedforward_norm", True)
        yield from _conv1d(f"{theirs}.mlp.c_fc", [f"{ours}/feedforward/up"])
        yield from _conv1d(f"{theirs}.mlp.c_proj", [f"{ours}/feedforward/down"])
    yield from module("ln_f", "decoder/norm", True)
    if not spec.tied:
        yield from module("lm_head", "head")


def _conv1d(theirs: str, ours: Sequence[str], inputs: int = 1) -> Iterator[Pair]:
    """Yields the pairs of a Conv1D: an untransposed matrix of one layer or several."""
    yield Pair(f"{theirs}.weight", tuple(f"{name}/kernel" for name in ours), inputs, False)
    yield Pair(f"{theirs}.bias", tuple(f"{name}/bias" for name in ours))


MODEL_TYPE = ModelType(
    spec=DecoderSpec,
    keys=(
        Key("vocab_size", "vocab", "size"),
        Key("n_embd", "width", "size"),
        Key("n_layer", "layers", int),
        Key("n_positions", "max_length", "size"),
        Key("n_head", "attention.heads", "size"),
        Key("n_inner", "feedforward.width", "size", lambda setting: 4 * setting("width")),
        Key("activation_function", "feedforward.kind", "activation", "gelu_new"),
        Key("layer_norm_epsilon", "norm.eps", float, 1e-5),
        Key("embd_pdrop", "dropout.embedding", "rate", 0.1),
        Key("attn_pdrop", "dropout.attention", "rate", 0.1),
        Key("resid_pdrop", "dropout.residual", "rate", 0.1),
        Key("tie_word_embeddings", "tied", bool, True),
    ),
    settings={
        "attention": {"qkv_bias": True, "out_bias": True},
        "position": {"scheme": "learned"},
        "init": {"kernel": "normal(stddev=0.02)", "scale_by_depth": True},
    },
    pairs=pairs,
    architectures=("GPT2LMHeadModel",),
    supported={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    names={
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    prefix="transformer.",
    copies={"lm_head.weight": "wte.weight"},
    ignored=r"h\.\d+\.attn\.(masked_)?bias",
    ids={"bos_token_id": 50256, "eos_token_id": 50256},
)
