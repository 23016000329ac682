"""GPT-2.  Radford et al. 2019."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from tfm.interop.model_type import ConfigJson, ModelType, Pair, linear, norm, their_activation
from tfm.models.spec import DecoderSpec


def from_config(config: ConfigJson, tensors: Collection[str]) -> dict[str, Any]:
    config.only(
        scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False
    )
    width = config.number("n_embd")
    return {
        "family": "decoder",
        "vocab": config.number("vocab_size"),
        "width": width,
        "layers": config.value("n_layer", int),
        "max_length": config.number("n_positions"),
        "attention": {"heads": config.number("n_head"), "qkv_bias": True, "out_bias": True},
        "feedforward": {
            "width": config.number("n_inner", 4 * width),
            "kind": config.activation("activation_function", "gelu_new"),
        },
        "norm": {"eps": config.value("layer_norm_epsilon", float, 1e-5)},
        "position": {"scheme": "learned"},
        "init": {"kernel": "normal(stddev=0.02)", "scale_by_depth": True},
        "dropout": {
            "embedding": config.rate("embd_pdrop", 0.1),
            "attention": config.rate("attn_pdrop", 0.1),
            "residual": config.rate("resid_pdrop", 0.1),
        },
        "tied": config.flag("tie_word_embeddings", True),
    }


def to_config(spec: Any) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": spec.vocab,
        "n_embd": spec.width,
        "n_layer": spec.layers,
        "n_positions": spec.max_length,
        "n_head": spec.attention.heads,
        "n_inner": spec.feedforward.width,
        "activation_function": their_activation(spec.feedforward.kind),
        "layer_norm_epsilon": spec.norm.eps,
        "embd_pdrop": spec.dropout.embedding or 0.0,
        "attn_pdrop": spec.dropout.attention or 0.0,
        "resid_pdrop": spec.dropout.residual or 0.0,
        "tie_word_embeddings": spec.tied,
    }


def pairs(spec: Any) -> Iterator[Pair]:
    yield Pair("wte.weight", ("embed/token/embedding",))
    yield Pair("wpe.weight", ("decoder/table/table_w_LD",))
    for n in range(spec.layers):
        theirs, ours = f"h.{n}", f"decoder/layer_{n}"
        yield from norm(f"{theirs}.ln_1", f"{ours}/attention_norm", True)
        qkv = [f"{ours}/attention/{name}" for name in ("query", "key", "value")]
        yield from _conv1d(f"{theirs}.attn.c_attn", qkv)
        yield from _conv1d(f"{theirs}.attn.c_proj", [f"{ours}/attention/out"], 2)
        yield from norm(f"{theirs}.ln_2", f"{ours}/feedforward_norm", True)
        yield from _conv1d(f"{theirs}.mlp.c_fc", [f"{ours}/feedforward/up"])
        yield from _conv1d(f"{theirs}.mlp.c_proj", [f"{ours}/feedforward/down"])
    yield from norm("ln_f", "decoder/norm", True)
    if not spec.tied:
        yield from linear("lm_head", "head", False)


def _conv1d(theirs: str, ours: Sequence[str], inputs: int = 1) -> Iterator[Pair]:
    """Yields the pairs of a Conv1D: an untransposed matrix of one layer or several."""
    yield Pair(f"{theirs}.weight", tuple(f"{name}/kernel" for name in ours), inputs, False)
    yield Pair(f"{theirs}.bias", tuple(f"{name}/bias" for name in ours))


MODEL_TYPE = ModelType(
    DecoderSpec,
    from_config,
    to_config,
    pairs,
    architectures=("GPT2LMHeadModel",),
    names={
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    prefix="transformer.",
    copies={"lm_head.weight": "wte.weight"},
    ignored=r"h\.\d+\.attn\.(masked_)?bias",
)
