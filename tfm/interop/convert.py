"""Hugging Face weights ↔ our parameters: every tensor accounted for, or nothing done."""

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from tfm.interop import names, settings
from tfm.interop.names import Pair
from tfm.layers.stack import scanned, unrolled
from tfm.models import build
from tfm.names import UserError, pick

Tree = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Family:
    """One `model_type` of transformers."""

    to_spec: Callable[[settings.Config, Collection[str]], Any]
    to_config: Callable[[Any], dict[str, Any]]
    pairs: Callable[[Any], Iterator[Pair]]
    prefix: str = ""  # before the names of the body, in a model with a head
    heads: tuple[str, ...] = ("lm_head.",)  # names that stand without the prefix
    copies: Mapping[str, str] = dataclasses.field(default_factory=dict)  # a copy → what it copies
    buffers: str = r"(?!)"  # names that hold no parameters


FAMILIES = {
    "gpt2": Family(
        settings.from_gpt2,
        settings.to_gpt2,
        names.gpt2,
        "transformer.",
        copies={"lm_head.weight": "wte.weight"},
        buffers=r"h\.\d+\.attn\.(masked_)?bias",
    ),
    "llama": Family(
        settings.from_llama,
        settings.to_llama,
        names.llama,
        "model.",
        copies={"lm_head.weight": "embed_tokens.weight"},
        buffers=r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
    ),
    "bert": Family(
        settings.from_bert,
        settings.to_bert,
        names.bert,
        "bert.",
        ("cls.", "classifier."),
        copies={
            "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
        buffers=r"embeddings\.position_ids",
    ),
    "t5": Family(
        settings.from_t5,
        settings.to_t5,
        names.t5,
        copies={
            "encoder.embed_tokens.weight": "shared.weight",
            "decoder.embed_tokens.weight": "shared.weight",
            "lm_head.weight": "shared.weight",
        },
        # Left in by an early release, and read by nobody.
        buffers=r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
    ),
}


def from_huggingface(
    config: settings.Config, tensors: Mapping[str, np.ndarray]
) -> tuple[Any, dict[str, Any]]:
    """A spec and its parameters. What is missing, left over or misshapen is listed."""
    kind = str(config.get("model_type"))
    family = pick(FAMILIES, kind, "model_type")
    tensors = {_body(family, name): tensor for name, tensor in tensors.items()}
    tensors = {n: t for n, t in tensors.items() if not re.fullmatch(family.buffers, n)}
    spare = {  # an untied head that happens to equal the embedding is wanted all the same
        copy: tensors.pop(copy)
        for copy, original in family.copies.items()
        if copy in tensors and np.array_equal(tensors[copy], tensors.get(original, ()))
    }
    spec = family.to_spec(config, tensors)
    return spec, from_tensors(spec, family.pairs(spec), tensors, spare)


def from_tensors(
    spec: Any,
    pairs: Iterable[Pair],
    tensors: Mapping[str, np.ndarray],
    spare: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> dict[str, Any]:
    """The parameters that `pairs` find in `tensors`; `spare` ones need not be used."""
    shapes = _shapes(spec)
    taken: dict[str, np.ndarray] = {}
    wrong, left = [], dict(tensors)
    for pair in pairs:
        wanted = pair.shape([shapes[path] for path in pair.ours])
        tensor = left.pop(pair.theirs, spare.get(pair.theirs))
        if tensor is None:
            wrong.append(f"missing: {pair.theirs} {wanted}")
        elif tensor.shape != wanted:
            wrong.append(f"misshapen: {pair.theirs} is {tensor.shape}, expected {wanted}")
        else:
            parts = pair.take(tensor, [shapes[path] for path in pair.ours])
            taken |= dict(zip(pair.ours, parts, strict=True))
    wrong += [f"left over: {name} {tensor.shape}" for name, tensor in left.items()]
    if wrong:
        raise UserError("the weights do not fit the config:\n  " + "\n  ".join(sorted(wrong)))
    tree = unflatten_dict(taken, sep="/")
    return scanned(tree) if spec.scan else tree


def to_huggingface(spec: Any, params: Tree) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Their config and tensors. What they have no name for is listed."""
    family, config = _family_of(spec)
    tensors = to_tensors(family.pairs(spec), params)
    if config["architectures"] == ["BertModel"]:
        return config, tensors
    return config, {
        name if name.startswith(family.heads) else family.prefix + name: tensor
        for name, tensor in tensors.items()
    }


def to_tensors(pairs: Iterable[Pair], params: Tree) -> dict[str, np.ndarray]:
    """Their tensors, from our parameters; none may be left."""
    flat = flatten_dict(unrolled(params), sep="/")
    out = {}
    for pair in pairs:
        missing = [path for path in pair.ours if path not in flat]
        if missing:
            raise UserError(f"the parameters have no {', '.join(missing)}")
        out[pair.theirs] = pair.give([np.asarray(flat.pop(path)) for path in pair.ours])
    if flat:
        raise UserError(f"they have no name for the parameters {', '.join(sorted(flat))}")
    return out


def _family_of(spec: Any) -> tuple[Family, dict[str, Any]]:
    """The family that can say all that `spec` says, and its config."""
    reasons = []
    for kind, family in FAMILIES.items():
        try:
            config = {**family.to_config(spec), "model_type": kind}
            held = {pair.theirs for pair in family.pairs(spec)}
            changed = settings.differences(spec, family.to_spec(config, held))
        except (UserError, AttributeError) as e:
            reasons.append(f"{kind}: {e}")
            continue
        if not changed:
            return family, config
        reasons.append(f"{kind}: cannot say model.{', model.'.join(changed)}")
    raise UserError("no family of transformers is this model:\n  " + "\n  ".join(reasons))


def _shapes(spec: Any) -> dict[str, tuple[int, ...]]:
    unscanned = dataclasses.replace(spec, scan=False)
    module, inputs = build.model(unscanned), build.example(unscanned, 1, 1)
    tree = jax.eval_shape(lambda **inputs: module.init(jax.random.key(0), **inputs), **inputs)
    return {path: leaf.shape for path, leaf in flatten_dict(tree["params"], sep="/").items()}


def _body(family: Family, name: str) -> str:
    name = name.removeprefix(family.prefix)
    # BERT's first release called the scale and the bias of a norm so.
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
        "LayerNorm.beta", "LayerNorm.bias"
    )
