"""Hugging Face weights ↔ our parameters: every tensor accounted for, or nothing done."""

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from ml_collections import ConfigDict

from tfm.config import to_spec
from tfm.interop import names, settings
from tfm.interop.names import Pair
from tfm.layers.stack import SCANNED, scanned, unrolled
from tfm.models import build
from tfm.models.spec import DecoderSpec, EncoderDecoderSpec, EncoderSpec
from tfm.names import UserError, pick

Tree = Mapping[str, Any]
Shapes = Mapping[str, tuple[int, ...]]
FLOATS = ("float32", "bfloat16", "float16", "float64")  # what a weight may be stored as


@dataclasses.dataclass(frozen=True)
class Family:
    """One `model_type` of transformers."""

    spec: type[DecoderSpec] | type[EncoderSpec] | type[EncoderDecoderSpec]  # what it is here
    to_spec: Callable[[settings.Config, Collection[str]], Any]
    to_config: Callable[[Any], dict[str, Any]]
    pairs: Callable[[Any], Iterator[Pair]]
    prefix: str = ""  # before the names of the body, in a model with a head
    heads: tuple[str, ...] = ("lm_head.",)  # names that stand without the prefix
    copies: Mapping[str, str] = dataclasses.field(default_factory=dict)  # a copy → what it copies
    buffers: str = r"(?!)"  # names that hold no parameters


FAMILIES = {
    "gpt2": Family(
        DecoderSpec,
        settings.from_gpt2,
        settings.to_gpt2,
        names.gpt2,
        "transformer.",
        copies={"lm_head.weight": "wte.weight"},
        buffers=r"h\.\d+\.attn\.(masked_)?bias",
    ),
    "llama": Family(
        DecoderSpec,
        settings.from_llama,
        settings.to_llama,
        names.llama,
        "model.",
        copies={"lm_head.weight": "embed_tokens.weight"},
        buffers=r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
    ),
    "bert": Family(
        EncoderSpec,
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
        EncoderDecoderSpec,
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
    config: settings.Config, tensors: Mapping[str, np.ndarray], dtype: np.dtype | None = None
) -> tuple[Any, dict[str, Any]]:
    """A spec and its parameters, as `dtype` or as they are stored.

    What is missing, left over or misshapen, or no number of that dtype, is listed.
    """
    family = pick(FAMILIES, settings.value(config, "model_type", str), "model_type")
    named: dict[str, str] = {}
    for name in tensors:
        body = _body(family, name)
        if body in named:
            raise UserError(f"{named[body]} and {name} are one tensor; the weights hold both")
        named[body] = name
    held = {n: tensors[name] for n, name in named.items() if not re.fullmatch(family.buffers, n)}
    spare = {  # an untied head that happens to equal the embedding is wanted all the same
        copy: held.pop(copy)
        for copy, original in family.copies.items()
        if copy in held and np.array_equal(held[copy], held.get(original, ()))
    }
    spec = _spec(family, config, held)
    return spec, from_tensors(spec, family.pairs(spec), held, spare, dtype)


def _spec(family: Family, config: settings.Config, tensors: Collection[str]) -> Any:
    """Their config as a spec that can be written to a file and read again."""
    spec = family.to_spec(config, tensors)
    return to_spec(family.spec, ConfigDict(dataclasses.asdict(spec)), "model.")


def from_tensors(
    spec: Any,
    pairs: Iterable[Pair],
    tensors: Mapping[str, np.ndarray],
    spare: Mapping[str, np.ndarray] = MappingProxyType({}),
    dtype: np.dtype | None = None,
) -> dict[str, Any]:
    """The parameters that `pairs` find in `tensors`; `spare` ones need not be used."""
    shapes = _shapes(spec, scan=False)
    taken: dict[str, np.ndarray] = {}
    wrong, left = [], dict(tensors)
    for pair in pairs:
        wanted = pair.shape([shapes[path] for path in pair.ours])
        tensor = left.pop(pair.theirs, spare.get(pair.theirs))
        if tensor is None:
            wrong.append(f"missing: {pair.theirs} {wanted}")
        elif tensor.shape != wanted:
            wrong.append(f"misshapen: {pair.theirs} is {tensor.shape}, expected {wanted}")
        elif str(tensor.dtype) not in FLOATS:
            wrong.append(f"no weights: {pair.theirs} is {tensor.dtype}, not {' or '.join(FLOATS)}")
        elif (cast := _cast(tensor, dtype)) is None:
            wrong.append(f"too large for {dtype}: {pair.theirs}, stored as {tensor.dtype}")
        else:
            parts = pair.take(cast, [shapes[path] for path in pair.ours])
            taken |= dict(zip(pair.ours, parts, strict=True))
    wrong += [f"left over: {name} {tensor.shape}" for name, tensor in left.items()]
    if wrong:
        raise UserError("the weights do not fit the config:\n  " + "\n  ".join(sorted(wrong)))
    tree = unflatten_dict(taken, sep="/")
    if not spec.scan:
        return tree
    try:
        return scanned(tree)
    except np.exceptions.DTypePromotionError:
        raise UserError(
            "some layers are stored as bfloat16 and some as float16; --dtype=float32 holds both"
        ) from None


def _cast(tensor: np.ndarray, dtype: np.dtype | None) -> np.ndarray | None:
    """The tensor as `dtype`, or None where a number of it would become infinite."""
    if dtype is None or tensor.dtype == dtype:
        return tensor
    with np.errstate(over="ignore"):
        cast = tensor.astype(dtype)
    return None if np.any(np.isfinite(tensor) & ~np.isfinite(cast)) else cast


def to_huggingface(spec: Any, params: Tree) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Their config and tensors. What does not fit the spec, or has no name there, is listed."""
    families = {kind: family for kind, family in FAMILIES.items() if type(spec) is family.spec}
    if not families:
        can = ", ".join(sorted({family.spec.family for family in FAMILIES.values()}))
        raise UserError(
            f"transformers has no model of family {spec.family!r}; these can be exported: {can}"
        )
    given = {path: np.shape(leaf) for path, leaf in flatten_dict(params, sep="/").items()}
    shapes = _shapes(spec, scan=any(SCANNED in path.split("/") for path in given))
    family, config = _family_of(families, spec)
    _check(shapes, given)
    tensors = to_tensors(family.pairs(spec), params)
    if config["architectures"] == ["BertModel"]:
        return config, tensors
    return config, {
        name if name.startswith(family.heads) else family.prefix + name: tensor
        for name, tensor in tensors.items()
    }


def copied(spec: Any, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Tensors to be written, with the copies that older releases of transformers look for.

    They take `tie_word_embeddings: false`, by which T5 says that states are not scaled, to mean a
    head of its own.
    """
    tied = isinstance(spec, EncoderDecoderSpec) and spec.tied and not spec.scale_head
    return {**tensors, "lm_head.weight": tensors["shared.weight"]} if tied else dict(tensors)


def _check(wanted: Shapes, given: Shapes) -> None:
    """Raise where parameters are not those that a spec asks for."""
    wrong = [f"missing: {path} {wanted[path]}" for path in wanted.keys() - given.keys()]
    wrong += [f"left over: {path} {given[path]}" for path in given.keys() - wanted.keys()]
    wrong += [
        f"misshapen: {path} is {given[path]}, expected {wanted[path]}"
        for path in wanted.keys() & given.keys()
        if wanted[path] != given[path]
    ]
    if wrong:
        raise UserError("the parameters do not fit the config:\n  " + "\n  ".join(sorted(wrong)))


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


def _family_of(families: Mapping[str, Family], spec: Any) -> tuple[Family, dict[str, Any]]:
    """The family that can say all that `spec` says, and its config."""
    reasons = []
    for kind, family in families.items():
        try:
            config = {**family.to_config(spec), "model_type": kind}
            held = {pair.theirs for pair in family.pairs(spec)}
            changed = settings.differences(spec, _spec(family, config, held))
        except UserError as e:
            reasons.append(f"{kind}: {e}")
            continue
        if not changed:
            return family, config
        reasons.append(f"{kind}: cannot say model.{', model.'.join(changed)}")
    raise UserError("no family of transformers is this model:\n  " + "\n  ".join(reasons))


def _shapes(spec: Any, scan: bool) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter, of a spec that can be built."""
    spec = dataclasses.replace(spec, scan=scan)
    module, inputs = build.model(spec), build.example(spec, 1, 1)
    tree = jax.eval_shape(lambda **inputs: module.init(jax.random.key(0), **inputs), **inputs)
    return {path: leaf.shape for path, leaf in flatten_dict(tree["params"], sep="/").items()}


def _body(family: Family, name: str) -> str:
    name = name.removeprefix(family.prefix)
    # BERT's first release called the scale and the bias of a norm so.
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
        "LayerNorm.beta", "LayerNorm.bias"
    )
