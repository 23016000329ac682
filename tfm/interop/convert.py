"""Weights of transformers ↔ our parameters: every tensor is accounted for, or nothing is done."""

import dataclasses
import inspect
import re
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from tfm.config.names import UserError, pick
from tfm.config.spec import to_spec, to_tree
from tfm.interop import bert, gpt2, llama, t5
from tfm.interop.config_json import MOST, ConfigJson, parse_call
from tfm.interop.family import Family, Pair
from tfm.layers.stack import SCANNED, scanned, unrolled
from tfm.models.spec import EncoderDecoderSpec
from tfm.ops.positions import POSITIONS

Tree = Mapping[str, Any]
Shapes = Mapping[str, tuple[int, ...]]
FLOATS = ("float32", "bfloat16", "float16", "float64")  # what a weight may be stored as
# How a model is computed and trained, which their config does not say.
NOT_THEIRS = ("scan", "remat", "dtype", "init", "dropout", "attention.implementation")


def from_huggingface(
    config: Tree, tensors: Mapping[str, np.ndarray], dtype: np.dtype | None = None
) -> tuple[Any, dict[str, Any]]:
    """A spec and its parameters, as `dtype` or as they are stored.

    The error lists what is missing, left over or misshapen, or not a number of that dtype.
    """
    family = _family(config)
    names: dict[str, str] = {}
    for name in tensors:
        body = _body(family, name)
        if body in names:
            raise UserError(f"{names[body]} and {name} are one tensor; the weights hold both")
        names[body] = name
    found = {n: tensors[name] for n, name in names.items() if not re.fullmatch(family.ignored, n)}
    copies = {  # an untied head may happen to equal the embedding, and is needed all the same
        copy: found.pop(copy)
        for copy, original in family.copies.items()
        if copy in found and np.array_equal(found[copy], found.get(original, ()))
    }
    if not found:
        raise UserError("the weights hold no tensor of a model")
    longest = max(axis for tensor in found.values() for axis in (*tensor.shape, 1))
    spec = _spec(family, config, found, longest)
    layers = spec.layers + (getattr(spec, "decoder_layers", None) or 0)
    if layers > len(found):  # before anything of that size is built
        raise UserError(f"the config has {layers} layers, and the weights {len(found)} tensors")
    return spec, from_tensors(spec, family.pairs(spec), found, copies, dtype)


def _family(config: Tree) -> Family:
    """The family of a config, of an architecture that we read."""
    read = ConfigJson(config)
    family = pick(FAMILIES, read.value("model_type", str), "model_type")
    name = read.architecture()
    if name is not None and name not in family.architectures:
        raise UserError(
            f"architectures=[{name!r}] cannot be imported; these can: "
            f"{', '.join(family.architectures)}"
        )
    return family


def _spec(family: Family, config: Tree, tensors: Collection[str], longest: int = MOST) -> Any:
    read = ConfigJson(config, longest=longest).renamed(family.names)
    return to_spec(family.spec, family.from_config(read, tensors), "model.")


def changed(spec: Any, config: Tree, tensors: Collection[str]) -> list[str]:
    """The settings of a model in which it is not the one of their config."""
    family = _family(config)
    theirs = _function(_spec(family, config, {_body(family, name) for name in tensors}))
    return [key for key, value in _function(spec).items() if theirs.get(key) != value]


def _body(family: Family, name: str) -> str:
    """The name of a tensor in a model without a head."""
    # BERT's first release named the scale and the bias of a norm like this.
    old = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
    name = name.removeprefix(family.prefix)
    return re.sub("|".join(old), lambda found: old[found[0]], name)


def from_tensors(
    spec: Any,
    pairs: Iterable[Pair],
    tensors: Mapping[str, np.ndarray],
    copies: Mapping[str, np.ndarray] = MappingProxyType({}),
    dtype: np.dtype | None = None,
) -> dict[str, Any]:
    """The parameters that `pairs` find in `tensors`; `copies` need not be used."""
    shapes = _shapes(spec, scan=False)
    params: dict[str, np.ndarray] = {}
    wrong, left = [], dict(tensors)
    for pair in pairs:
        ours = [shapes[path] for path in pair.ours]
        tensor, shape = left.pop(pair.theirs, copies.get(pair.theirs)), pair.shape(ours)
        if tensor is None:
            wrong.append(f"missing: {pair.theirs} {shape}")
        elif tensor.shape != shape:
            wrong.append(f"misshapen: {pair.theirs} is {tensor.shape}, expected {shape}")
        elif str(tensor.dtype) not in FLOATS:
            wrong.append(f"no weights: {pair.theirs} is {tensor.dtype}, not {' or '.join(FLOATS)}")
        elif (cast := _cast(tensor, dtype)) is None:
            wrong.append(f"too large for {dtype}: {pair.theirs}, stored as {tensor.dtype}")
        else:
            params |= dict(zip(pair.ours, pair.split(cast, ours), strict=True))
    wrong += [f"left over: {name} {tensor.shape}" for name, tensor in left.items()]
    if wrong:
        raise UserError("the weights do not fit the config:\n  " + "\n  ".join(sorted(wrong)))
    tree = unflatten_dict(params, sep="/")
    try:
        return scanned(tree) if spec.scan else tree
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
    """Their config and tensors. The error lists what does not fit the spec or has no name there."""
    given = {path: np.shape(leaf) for path, leaf in flatten_dict(params, sep="/").items()}
    family, config = _family_of(spec)
    _check(_shapes(spec, scan=any(SCANNED in path.split("/") for path in given)), given)
    tensors = to_tensors(family.pairs(spec), params)
    prefix = "" if config["architectures"] == ["BertModel"] else family.prefix
    return config, {
        name if name.startswith(family.unprefixed) else prefix + name: tensor
        for name, tensor in tensors.items()
    }


def to_tensors(pairs: Iterable[Pair], params: Tree) -> dict[str, np.ndarray]:
    """Their tensors, from our parameters; none may be left."""
    flat = flatten_dict(unrolled(params), sep="/")
    out = {
        pair.theirs: pair.join([np.asarray(flat.pop(path)) for path in pair.ours]) for pair in pairs
    }
    if flat:
        raise UserError(f"they have no name for the parameters {', '.join(sorted(flat))}")
    return out


def with_copies(spec: Any, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Tensors to be written, with the copies that older releases of transformers look for.

    T5 says with `tie_word_embeddings: false` that states are not scaled. Those releases take it to
    mean that the head has its own weights.
    """
    tied = isinstance(spec, EncoderDecoderSpec) and spec.tied and not spec.scale_head
    return {**tensors, "lm_head.weight": tensors["shared.weight"]} if tied else dict(tensors)


def _check(expected: Shapes, given: Shapes) -> None:
    """Raise where the parameters are not those of the spec."""
    wrong = [f"missing: {path} {expected[path]}" for path in expected.keys() - given.keys()]
    wrong += [f"left over: {path} {given[path]}" for path in given.keys() - expected.keys()]
    wrong += [
        f"misshapen: {path} is {given[path]}, expected {expected[path]}"
        for path in expected.keys() & given.keys()
        if expected[path] != given[path]
    ]
    if wrong:
        raise UserError("the parameters do not fit the config:\n  " + "\n  ".join(sorted(wrong)))


def _shapes(spec: Any, scan: bool) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter."""
    spec = dataclasses.replace(spec, scan=scan)
    module, inputs = spec.build(), spec.example(1, 1)
    tree = jax.eval_shape(lambda **inputs: module.init(jax.random.key(0), **inputs), **inputs)
    return {path: leaf.shape for path, leaf in flatten_dict(tree["params"], sep="/").items()}


def _family_of(spec: Any) -> tuple[Family, dict[str, Any]]:
    """The family whose config can express the whole spec, and that config."""
    families = {kind: family for kind, family in FAMILIES.items() if type(spec) is family.spec}
    if not families:
        known = ", ".join(sorted({family.spec.family for family in FAMILIES.values()}))
        raise UserError(
            f"transformers has no model of family {spec.family!r}; these can be exported: {known}"
        )
    if spec.mixer != "attention":
        raise UserError(f"model.mixer={spec.mixer!r} cannot be exported; 'attention' can")
    reasons = []
    for kind, family in families.items():
        try:
            config = {**family.to_config(spec), "model_type": kind}
            names = {pair.theirs for pair in family.pairs(spec)}
            ours, back = _function(spec), _function(_spec(family, config, names))
        except UserError as e:
            reasons.append(f"{kind}: {e}")
            continue
        changed = [key for key in ours if ours[key] != back.get(key)]
        if not changed:
            return family, config
        reasons.append(f"{kind}: cannot say model.{', model.'.join(changed)}")
    raise UserError("no family of transformers is this model:\n  " + "\n  ".join(reasons))


def _function(spec: Any) -> dict[str, Any]:
    """The settings that decide which function a model computes, with no default left open."""
    flat = flatten_dict(to_tree(spec), sep=".")
    usual = {
        "attention.head_width": spec.width // spec.attention.heads,
        "attention.kv_heads": spec.attention.heads,
        "norm.final": spec.norm.placement != "post",
        "decoder_layers": spec.layers,
        "decoder_scheme": spec.position.scheme,
        "decoder_vocab": spec.vocab,
    }
    flat |= {key: usual[key] for key in usual if key in flat and flat[key] is None}
    if flat["attention.value_width"] is None:
        flat["attention.value_width"] = flat["attention.head_width"]
    return {
        key: _scheme(setting) if key.endswith("scheme") else setting
        for key, setting in flat.items()
        if not key.startswith(NOT_THEIRS)
    }


def _scheme(text: str) -> tuple[str, dict[str, Any]]:
    """A position scheme and all its options, except for how it is initialised."""
    name, options = parse_call(text)
    if callable(POSITIONS[name]):  # a user's own may be a Position, without options
        takes = inspect.signature(POSITIONS[name]).parameters.values()
        options = {p.name: p.default for p in takes} | options
    return name, {key: value for key, value in options.items() if key != "stddev"}


FAMILIES = {"gpt2": gpt2.FAMILY, "llama": llama.FAMILY, "bert": bert.FAMILY, "t5": t5.FAMILY}
