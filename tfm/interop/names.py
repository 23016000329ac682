"""Whose tensor is whose: Hugging Face's names beside the paths of our parameters.

Each table is written for unrolled layers: `layer_0`, `layer_1`…
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np

from tfm.layers.feedforward import GATED
from tfm.models.spec import DecoderSpec, EncoderDecoderSpec, EncoderSpec


@dataclasses.dataclass(frozen=True)
class Pair:
    """One tensor of theirs and the parameters of ours that it holds.

    A matrix maps `inputs` leading axes of ours to the rest; torch's Linear keeps it transposed.
    Several parameters in one tensor stand side by side on its output axis.
    """

    theirs: str
    ours: tuple[str, ...]
    inputs: int = 0  # 0: no matrix
    transposed: bool = True

    def shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """The shape of their tensor, from those of ours."""
        if not self.inputs:
            if self.ours[0].endswith("/bias"):
                return (sum(math.prod(shape) for shape in shapes),)
            return shapes[0]
        rows = math.prod(shapes[0][: self.inputs])
        cols = sum(math.prod(shape[self.inputs :]) for shape in shapes)
        return (cols, rows) if self.transposed else (rows, cols)

    def take(self, tensor: np.ndarray, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
        """Our parameters out of their tensor."""
        matrix = tensor.T if self.inputs and self.transposed else tensor
        sizes = [math.prod(shape[self.inputs :]) for shape in shapes]
        if len(shapes) == 1:
            return [matrix.reshape(shapes[0])]
        parts = np.split(matrix, np.cumsum(sizes)[:-1], axis=-1)
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    def give(self, params: Sequence[np.ndarray]) -> np.ndarray:
        """Their tensor out of our parameters."""
        target = self.shape([p.shape for p in params])
        if not self.inputs:
            return np.concatenate([p.reshape(-1) for p in params]).reshape(target)
        rows = math.prod(params[0].shape[: self.inputs])
        matrix = np.concatenate([p.reshape(rows, -1) for p in params], axis=-1)
        return np.ascontiguousarray(matrix.T if self.transposed else matrix)


def linear(theirs: str, ours: str, bias: bool, inputs: int = 1) -> Iterator[Pair]:
    """torch.nn.Linear."""
    yield Pair(f"{theirs}.weight", (f"{ours}/kernel",), inputs)
    if bias:
        yield Pair(f"{theirs}.bias", (f"{ours}/bias",))


def conv1d(theirs: str, ours: Sequence[str], bias: bool, inputs: int = 1) -> Iterator[Pair]:
    """GPT-2's Conv1D: a matrix that is not transposed, here of one layer or several."""
    yield Pair(f"{theirs}.weight", tuple(f"{name}/kernel" for name in ours), inputs, False)
    if bias:
        yield Pair(f"{theirs}.bias", tuple(f"{name}/bias" for name in ours))


def norm(theirs: str, ours: str, bias: bool) -> Iterator[Pair]:
    yield Pair(f"{theirs}.weight", (f"{ours}/scale",))
    if bias:
        yield Pair(f"{theirs}.bias", (f"{ours}/bias",))


def gpt2(spec: DecoderSpec) -> Iterator[Pair]:
    yield Pair("wte.weight", ("embed/token/embedding",))
    yield Pair("wpe.weight", ("decoder/table/table_w_LD",))
    for n in range(spec.layers):
        theirs, ours = f"h.{n}", f"decoder/layer_{n}"
        yield from norm(f"{theirs}.ln_1", f"{ours}/attention_norm", True)
        qkv = [f"{ours}/attention/{name}" for name in ("query", "key", "value")]
        yield from conv1d(f"{theirs}.attn.c_attn", qkv, True)
        yield from conv1d(f"{theirs}.attn.c_proj", [f"{ours}/attention/out"], True, 2)
        yield from norm(f"{theirs}.ln_2", f"{ours}/feedforward_norm", True)
        yield from conv1d(f"{theirs}.mlp.c_fc", [f"{ours}/feedforward/up"], True)
        yield from conv1d(f"{theirs}.mlp.c_proj", [f"{ours}/feedforward/down"], True)
    yield from norm("ln_f", "decoder/norm", True)
    if not spec.tied:
        yield from linear("lm_head", "head", False)


def llama(spec: DecoderSpec) -> Iterator[Pair]:
    yield Pair("embed_tokens.weight", ("embed/token/embedding",))
    attention, feedforward = spec.attention.qkv_bias, spec.feedforward.bias
    for n in range(spec.layers):
        theirs, ours = f"layers.{n}", f"decoder/layer_{n}"
        yield from norm(f"{theirs}.input_layernorm", f"{ours}/attention_norm", False)
        for name in ("query", "key", "value"):
            at = f"{theirs}.self_attn.{name[0]}_proj"
            yield from linear(at, f"{ours}/attention/{name}", attention)
        yield from linear(f"{theirs}.self_attn.o_proj", f"{ours}/attention/out", attention, 2)
        yield from norm(f"{theirs}.post_attention_layernorm", f"{ours}/feedforward_norm", False)
        for name in ("gate", "up", "down"):
            yield from linear(
                f"{theirs}.mlp.{name}_proj", f"{ours}/feedforward/{name}", feedforward
            )
    yield from norm("norm", "decoder/norm", False)
    if not spec.tied:
        yield from linear("lm_head", "head", False)


def bert(spec: EncoderSpec) -> Iterator[Pair]:
    yield Pair("embeddings.word_embeddings.weight", ("embed/token/embedding",))
    yield Pair("embeddings.position_embeddings.weight", ("encoder/table/table_w_LD",))
    yield Pair("embeddings.token_type_embeddings.weight", ("embed/type/embedding",))
    yield from norm("embeddings.LayerNorm", "encoder/embed_norm", True)
    for n in range(spec.layers):
        theirs, ours = f"encoder.layer.{n}", f"encoder/layer_{n}"
        for name in ("query", "key", "value"):
            yield from linear(f"{theirs}.attention.self.{name}", f"{ours}/attention/{name}", True)
        yield from linear(f"{theirs}.attention.output.dense", f"{ours}/attention/out", True, 2)
        yield from norm(f"{theirs}.attention.output.LayerNorm", f"{ours}/attention_norm", True)
        yield from linear(f"{theirs}.intermediate.dense", f"{ours}/feedforward/up", True)
        yield from linear(f"{theirs}.output.dense", f"{ours}/feedforward/down", True)
        yield from norm(f"{theirs}.output.LayerNorm", f"{ours}/feedforward_norm", True)
    if spec.pooler:
        yield from linear("pooler.dense", "pooler", True)
    if "masked_lm" in spec.heads:
        yield from linear("cls.predictions.transform.dense", "masked_lm", True)
        yield from norm("cls.predictions.transform.LayerNorm", "masked_lm_norm", True)
        yield Pair("cls.predictions.bias", ("masked_lm_bias",))
    if "pair" in spec.heads:
        yield from linear("cls.seq_relationship", "pair", True)
    for head in ("classify", "tag"):
        if head in spec.heads:
            yield from linear("classifier", head, True)


def t5(spec: EncoderDecoderSpec) -> Iterator[Pair]:
    yield Pair("shared.weight", ("embed/token/embedding",))
    gated = spec.feedforward.kind in GATED
    sides = {"encoder": spec.layers, "decoder": spec.decoder_layers or spec.layers}
    for side, layers in sides.items():
        bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        yield Pair(bias, (f"{side}/position_w_UH",))
        for n in range(layers):
            theirs, ours = f"{side}.block.{n}.layer", f"{side}/layer_{n}"
            attentions = [("SelfAttention", "attention"), ("EncDecAttention", "cross")]
            for place, (name, own) in enumerate(attentions[: 1 + (side == "decoder")]):
                yield from norm(f"{theirs}.{place}.layer_norm", f"{ours}/{own}_norm", False)
                for part in ("query", "key", "value"):
                    at = f"{theirs}.{place}.{name}.{part[0]}"
                    yield from linear(at, f"{ours}/{own}/{part}", False)
                yield from linear(f"{theirs}.{place}.{name}.o", f"{ours}/{own}/out", False, 2)
            last = f"{theirs}.{1 + (side == 'decoder')}"
            yield from norm(f"{last}.layer_norm", f"{ours}/feedforward_norm", False)
            names = {"wi_0": "gate", "wi_1": "up"} if gated else {"wi": "up"}
            for name, own in {**names, "wo": "down"}.items():
                at = f"{last}.DenseReluDense.{name}"
                yield from linear(at, f"{ours}/feedforward/{own}", False)
        yield from norm(f"{side}.final_layer_norm", f"{side}/norm", False)
    if not spec.tied:
        yield from linear("lm_head", "head", False)
