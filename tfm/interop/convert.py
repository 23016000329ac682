"""Conversion between weights of transformers and our parameters. Every tensor must be used."""

import dataclasses
import inspect
import re
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from tfm.config.names import UserError
from tfm.config.spec import to_spec, to_tree
from tfm.interop import bert, gpt2, llama, t5
from tfm.interop.model_type import MOST, ConfigJson, ModelType, Pair, parse_call
from tfm.layers.stack import SCANNED, scanned, unrolled
from tfm.models.spec import EncoderDecoderSpec
from tfm.ops.positions import POSITIONS

Tree = Mapping[str, Any]
Shapes = Mapping[str, tuple[int, ...]]
FLOATS = ("float32", "bfloat16", "float16", "float64")  # dtypes of stored weights
# Settings of computation and training, which a config of transformers does not have.
NOT_THEIRS = ("scan", "remat", "dtype", "init", "dropout", "attention.implementation")


def from_huggingface(
    config: Tree, tensors: Mapping[str, np.ndarray], dtype: np.dtype | None = None
) -> tuple[Any, dict[str, Any]]:
    """Returns a spec and its parameters, in `dtype` or as stored.

    Raises with a list of tensors that are missing, left over, misshapen or not weights.
    """
    model_type = _model_type(config)
    names: dict[str, str] = {}
    for name in tensors:
        other = names.setdefault(_body(model_type, name), name)
        if other != name:
            raise UserError(f"{other} and {name} are the same tensor; keep one of them")
    ignored = model_type.ignored
    used = {n: tensors[name] for n, name in names.items() if not re.fullmatch(ignored, n)}
    copies = {  # kept, because an untied head may happen to equal the embedding
        copy: used.pop(copy)
        for copy, original in model_type.copies.items()
        if copy in used and np.array_equal(used[copy], used.get(original, ()))
    }
    if not used:
        raise UserError("the weights hold no tensor of a model")
    longest = max(axis for tensor in used.values() for axis in (*tensor.shape, 1))
    spec = _spec(model_type, config, used, longest)
    layers = spec.layers + (getattr(spec, "decoder_layers", None) or 0)
    if layers > len(used):  # before anything of that size is built
        raise UserError(f"the config has {layers} layers, and the weights {len(used)} tensors")
    return spec, from_tensors(spec, model_type.pairs(spec), used, copies, dtype)


def _model_type(config: Tree) -> ModelType:
    """Returns the model type of a config; raises if its architecture cannot be imported."""
    config_json = ConfigJson(config)
    kind = config_json.value("model_type", str)
    if kind not in MODEL_TYPES:  # none is suggested: it would be another model
        known = ", ".join(MODEL_TYPES)
        raise UserError(f"model_type={kind!r} cannot be imported; these can: {known}")
    model_type, name = MODEL_TYPES[kind], config_json.architecture()
    if name is not None and name not in model_type.architectures:
        raise UserError(
            f"architectures=[{name!r}] cannot be imported; these can: "
            f"{', '.join(model_type.architectures)}"
        )
    return model_type


def _spec(
    model_type: ModelType, config: Tree, tensors: Collection[str], longest: int = MOST
) -> Any:
    config_json = ConfigJson(config, longest=longest).renamed(model_type.names)
    return to_spec(model_type.spec, model_type.from_config(config_json, tensors), "model.")


def changed(spec: Any, config: Tree, tensors: Collection[str]) -> list[str]:
    """Lists the settings in which a model differs from a config of transformers."""
    model_type = _model_type(config)
    theirs = _function(_spec(model_type, config, {_body(model_type, name) for name in tensors}))
    return [key for key, value in _function(spec).items() if theirs.get(key) != value]


def _body(model_type: ModelType, name: str) -> str:
    """Returns the name of a tensor in a model without a head."""
    name = name.removeprefix(model_type.prefix)
    # BERT's first release had other names.
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight")
    return name.replace("LayerNorm.beta", "LayerNorm.bias")


def from_tensors(
    spec: Any,
    pairs: Iterable[Pair],
    tensors: Mapping[str, np.ndarray],
    copies: Mapping[str, np.ndarray] = MappingProxyType({}),
    dtype: np.dtype | None = None,
) -> dict[str, Any]:
    """Returns the parameters that `pairs` map `tensors` to; `copies` may stay unused."""
    shapes = _shapes(spec, scan=False)
    ours = {pair: [shapes[path] for path in pair.ours] for pair in pairs}
    available = {p.theirs: copies[p.theirs] for p in ours if p.theirs in copies} | dict(tensors)
    wrong = _mismatches(
        {pair.theirs: pair.shape(ours[pair]) for pair in ours},
        {name: tensor.shape for name, tensor in available.items()},
    )
    params: dict[str, np.ndarray] = {}
    for pair, parts in ours.items():
        tensor = available.get(pair.theirs)
        if tensor is None or tensor.shape != pair.shape(parts):
            continue  # a mismatch
        if str(tensor.dtype) not in FLOATS:
            wrong.append(f"not weights: {pair.theirs} is {tensor.dtype}, not {' or '.join(FLOATS)}")
        elif (cast := _cast(tensor, dtype)) is None:
            wrong.append(f"too large for {dtype}: {pair.theirs}, stored as {tensor.dtype}")
        else:
            params |= dict(zip(pair.ours, pair.split(cast, parts), strict=True))
    if wrong:
        raise UserError("the weights do not fit the config:\n  " + "\n  ".join(sorted(wrong)))
    tree = unflatten_dict(params, sep="/")
    try:
        return scanned(tree) if spec.scan else tree
    except np.exceptions.DTypePromotionError:
        raise UserError(
            "some layers are stored as bfloat16 and some as float16; use --dtype=float32"
        ) from None


def _cast(tensor: np.ndarray, dtype: np.dtype | None) -> np.ndarray | None:
    """Casts the tensor to `dtype`; returns None if a number would become infinite."""
    if dtype is None or tensor.dtype == dtype:
        return tensor
    with np.errstate(over="ignore"):
        cast = tensor.astype(dtype)
    return None if np.any(np.isfinite(tensor) & ~np.isfinite(cast)) else cast


def to_huggingface(spec: Any, params: Tree) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns a config and tensors for transformers. Raises with a list of parameters that do not
    fit the spec or have no name there."""
    actual = {path: np.shape(leaf) for path, leaf in flatten_dict(params, sep="/").items()}
    model_type, config = _exported(spec)
    expected = _shapes(spec, scan=any(SCANNED in path.split("/") for path in actual))
    if wrong := _mismatches(expected, actual):
        raise UserError("the parameters do not fit the config:\n  " + "\n  ".join(sorted(wrong)))
    tensors = to_tensors(model_type.pairs(spec), params)
    prefix = "" if config["architectures"] == ["BertModel"] else model_type.prefix
    return config, {
        name if name.startswith(model_type.unprefixed) else prefix + name: tensor
        for name, tensor in tensors.items()
    }


def to_tensors(pairs: Iterable[Pair], params: Tree) -> dict[str, np.ndarray]:
    """Returns tensors of transformers from our parameters, all of which must be used."""
    flat = flatten_dict(unrolled(params), sep="/")
    out = {
        pair.theirs: pair.join([np.asarray(flat.pop(path)) for path in pair.ours]) for pair in pairs
    }
    if flat:
        raise UserError(f"transformers has no name for the parameters {', '.join(sorted(flat))}")
    return out


def with_copies(spec: Any, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the tensors to write, with a copy that older releases of transformers need.

    In T5, `tie_word_embeddings: false` means that states are not scaled. Those releases conclude
    that the head has its own weights.
    """
    tied = isinstance(spec, EncoderDecoderSpec) and spec.tied and not spec.scale_head
    return {**tensors, "lm_head.weight": tensors["shared.weight"]} if tied else dict(tensors)


def _mismatches(expected: Shapes, actual: Shapes) -> list[str]:
    """Lists what is missing, left over or misshapen."""
    wrong = [f"missing: {path} {expected[path]}" for path in expected.keys() - actual.keys()]
    wrong += [f"left over: {path} {actual[path]}" for path in actual.keys() - expected.keys()]
    return wrong + [
        f"misshapen: {path} is {actual[path]}, expected {expected[path]}"
        for path in expected.keys() & actual.keys()
        if expected[path] != actual[path]
    ]


def _shapes(spec: Any, scan: bool) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every parameter."""
    spec = dataclasses.replace(spec, scan=scan)
    module, inputs = spec.build(), spec.example(1, 1)
    tree = jax.eval_shape(lambda **inputs: module.init(jax.random.key(0), **inputs), **inputs)
    return {path: leaf.shape for path, leaf in flatten_dict(tree["params"], sep="/").items()}


def _exported(spec: Any) -> tuple[ModelType, dict[str, Any]]:
    """Returns the model type whose config can express the whole spec, and that config."""
    model_types = {kind: entry for kind, entry in MODEL_TYPES.items() if type(spec) is entry.spec}
    if not model_types:
        known = ", ".join(sorted({entry.spec.family for entry in MODEL_TYPES.values()}))
        raise UserError(
            f"transformers has no model of family {spec.family!r}; these can be exported: {known}"
        )
    if spec.mixer != "attention":
        raise UserError(f"model.mixer={spec.mixer!r} cannot be exported; 'attention' can")
    reasons = []
    for kind, model_type in model_types.items():
        try:
            config = {**model_type.to_config(spec), "model_type": kind}
            names = {pair.theirs for pair in model_type.pairs(spec)}
            ours, back = _function(spec), _function(_spec(model_type, config, names))
        except UserError as e:
            reasons.append(f"{kind}: {e}")
            continue
        changed = [key for key in ours if ours[key] != back.get(key)]
        if not changed:
            return model_type, config
        reasons.append(f"{kind}: cannot express model.{', model.'.join(changed)}")
    raise UserError(
        "no model type of transformers can express this model:\n  " + "\n  ".join(reasons)
    )


def _function(spec: Any) -> dict[str, Any]:
    """Returns the settings that determine the function of a model, with all defaults filled in."""
    flat = flatten_dict(to_tree(spec), sep=".")
    head_width = spec.attention.head_width or spec.width // spec.attention.heads
    usual = {
        "attention.head_width": head_width,
        "attention.value_width": head_width,
        "attention.kv_heads": spec.attention.heads,
        "norm.final": spec.norm.placement != "post",
        "decoder_layers": spec.layers,
        "decoder_scheme": spec.position.scheme,
        "decoder_vocab": spec.vocab,
    }
    flat |= {key: usual[key] for key in usual if key in flat and flat[key] is None}
    return {
        key: _scheme(setting) if key.endswith("scheme") else setting
        for key, setting in flat.items()
        if not key.startswith(NOT_THEIRS)
    }


def _scheme(text: str) -> tuple[str, dict[str, Any]]:
    """Returns a position scheme and all its options except for its initialization."""
    name, options = parse_call(text)
    if callable(POSITIONS[name]):  # a user's entry may be a Position, without options
        takes = inspect.signature(POSITIONS[name]).parameters.values()
        options = {p.name: p.default for p in takes} | options
    return name, {key: value for key, value in options.items() if key != "stddev"}


MODEL_TYPES = {
    "gpt2": gpt2.MODEL_TYPE,
    "llama": llama.MODEL_TYPE,
    "bert": bert.MODEL_TYPE,
    "t5": t5.MODEL_TYPE,
}
