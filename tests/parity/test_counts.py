"""As many parameters as transformers counts, at every size that has a config."""

import pytest

from tests.test_configs import load, parameters

torch = pytest.importorskip("torch", reason="parity needs the extra: pip install 'tfm[parity]'")
transformers = pytest.importorskip("transformers", reason="parity needs the extra")

pytestmark = pytest.mark.ci


def theirs(where):
    """Their model for one of our configs, from the sizes in its paper's table."""
    name, _, size = where.partition(":")
    if name == "gpt2":
        layers, width, heads = {
            "small": (12, 768, 12), "medium": (24, 1024, 16), "large": (36, 1280, 20),
            "xl": (48, 1600, 25),
        }[size]  # fmt: skip
        return transformers.GPT2LMHeadModel, dict(n_layer=layers, n_embd=width, n_head=heads)
    if name == "llama":
        sizes = {
            "7b": (4096, 32, 32, 32, 11008, 32000), "13b": (5120, 40, 40, 40, 13824, 32000),
            "30b": (6656, 60, 52, 52, 17920, 32000), "3-8b": (4096, 32, 32, 8, 14336, 128256),
        }[size]  # fmt: skip
        keys = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                "intermediate_size", "vocab_size")  # fmt: skip
        return transformers.LlamaForCausalLM, dict(zip(keys, sizes, strict=True))
    if name == "bert":
        sizes = {"mini": (4, 256), "medium": (8, 512), "base": (12, 768), "large": (24, 1024)}
        layers, width = sizes[size]
        return transformers.BertForPreTraining, dict(
            num_hidden_layers=layers, hidden_size=width, num_attention_heads=width // 64,
            intermediate_size=4 * width,
        )  # fmt: skip
    sizes = {
        "small": (512, 64, 2048, 6, 8), "base": (768, 64, 3072, 12, 12),
        "large": (1024, 64, 4096, 24, 16), "3b": (1024, 128, 16384, 24, 32),
        "11b": (1024, 128, 65536, 24, 128), "v1_1_small": (512, 64, 1024, 8, 6),
        "v1_1_base": (768, 64, 2048, 12, 12), "v1_1_xl": (2048, 64, 5120, 24, 32),
        "v1_1_xxl": (4096, 64, 10240, 24, 64), "20b": (4096, 256, 16384, 32, 16),
    }[size]  # fmt: skip
    keys = ("d_model", "d_kv", "d_ff", "num_layers", "num_heads")
    kind = "gated-gelu" if size.startswith("v1_1") else "gated-silu" if name == "ul2" else "relu"
    return transformers.T5ForConditionalGeneration, dict(
        zip(keys, sizes, strict=True), feed_forward_proj=kind
    )


@pytest.mark.parametrize(
    "where",
    [
        *(f"gpt2:{size}" for size in ("small", "medium", "large", "xl")),
        *(f"llama:{size}" for size in ("7b", "13b", "30b", "3-8b")),
        *(f"bert:{size}" for size in ("mini", "medium", "base", "large")),
        *(f"t5:{size}" for size in ("small", "base", "large", "3b", "11b")),
        *(f"t5:v1_1_{size}" for size in ("small", "base", "xl", "xxl")),
        "ul2:20b",
    ],
)
def test_counts(where):
    kind, settings = theirs(where)
    with torch.device("meta"):
        model = kind(kind.config_class(**settings))
        wanted = sum(p.numel() for p in model.parameters())
        if "v1_1" in where:  # whose head is its own, in the published files
            wanted += model.lm_head.weight.numel()
    assert parameters(load(where)) == wanted
