"""The parts of a `model_type`: its `config.json`, and its tensors beside our parameters.

Tables of tensors are written for unrolled layers: `layer_0`, `layer_1`, ...
"""

import ast
import dataclasses
import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from tfm.config.names import UserError
from tfm.layers.block import GATED
from tfm.models.spec import TransformerSpec

ACTIVATIONS = {  # theirs → ours
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
MOST = 2**31 - 1  # greatest size


@dataclasses.dataclass(frozen=True)
class ConfigJson:
    """A `config.json` of transformers. Checks types and ranges; null means absent."""

    values: Mapping[str, Any]
    prefix: str = ""  # of keys, in error messages
    longest: int = MOST  # longest axis of the weights

    def value(self, key: str, kind: type, default: Any = None) -> Any:
        """Returns the value of a key, or the default if it is absent."""
        value: Any = self.values.get(key)
        name = self.prefix + key
        if value is None and default is None:
            raise UserError(f"config.json has no {name!r}")
        if value is None:
            return default
        if kind is float and type(value) is int and abs(value) < 2**53:
            value = float(value)
        has_type = type(value) is kind  # a name, because mypy would narrow the type
        if not has_type:
            raise UserError(f"{name} in config.json must be {kind.__name__}, not {value!r}")
        if kind is int and not 1 <= value <= MOST:
            raise UserError(f"{name}={value} in config.json must be at least 1 and at most {MOST}")
        if kind is float and not 0 <= value < math.inf:
            raise UserError(f"{name}={value} in config.json must be a number from 0 up")
        return value

    def architecture(self) -> str | None:
        """Returns the class of transformers that wrote the weights, if the config names it."""
        names = self.value("architectures", list, [])
        if len(names) > 1 or not all(isinstance(name, str) for name in names):
            raise UserError(f"architectures in config.json must be one name, not {names!r}")
        return names[0] if names else None

    def agree(self, key: str, other: str, value: Any) -> None:
        """Raises if `key` and another key of the same meaning have different values."""
        stated = self.values.get(key)
        if stated is not None and value is not None and stated != value:
            raise UserError(
                f"{self.prefix}{key}={stated!r} and {other}={value!r} in config.json disagree, but "
                "mean the same; remove the wrong one"
            )

    def renamed(self, names: Mapping[str, str]) -> "ConfigJson":
        """Returns the config with synonyms (left) replaced by the usual keys (right)."""
        values = dict(self.values)
        for other, key in names.items():
            self.agree(key, other, values.get(other))
            value = values.pop(other, None)
            if values.get(key) is None:
                values[key] = value
        return dataclasses.replace(self, values=values)

    def size(self, key: str, default: int | None = None) -> int:
        """Returns a size that is a factor of some axis of the weights. Raises if it is longer than
        all axes, before anything of that size is created."""
        size = self.value(key, int, default)
        if self.values.get(key) is not None and size > self.longest:
            raise UserError(
                f"{key}={size} in config.json is more than the longest axis of the weights, "
                f"{self.longest}"
            )
        return size

    def rate(self, key: str, default: float) -> float | None:
        """Returns a dropout rate, or None for 0."""
        rate = self.value(key, float, default)
        if rate >= 1:
            raise UserError(f"{key}={rate} in config.json must be less than 1")
        return rate or None

    def activation(self, key: str, default: str) -> str:
        """Returns our name of an activation."""
        name = self.value(key, str, default)
        if name not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)  # none is suggested: it would be another function
            raise UserError(f"{key}={name!r} is an unknown activation; known: {known}")
        return ACTIVATIONS[name]

    def gated(self, key: str, default: str) -> str:
        """Returns our name of a feed-forward whose gate has this activation."""
        kind = self.activation(key, default)
        gates = {activation: gate for gate, activation in GATED.items()}
        if kind not in gates:
            raise UserError(f"{key}: there is no gate of {kind!r} here; known: {', '.join(gates)}")
        return gates[kind]

    def only(self, **supported: Any) -> None:
        """Raises if a key has another value than the supported one."""
        for key, usual in supported.items():
            value = self.values.get(key)
            if value is not None and value != usual:
                raise UserError(f"{key}={value!r} is not supported, only {usual!r}")


def their_activation(kind: str) -> str:
    """Returns the name that transformers has for our activation."""
    for name, activation in ACTIVATIONS.items():
        if activation == kind:
            return name
    known = ", ".join(sorted(set(ACTIVATIONS.values())))
    raise UserError(
        f"feedforward.kind={kind!r} has no name in transformers; these have one: {known}"
    )


def their_gate(kind: str) -> str:
    """Returns the name that transformers has for the activation of our gate."""
    if kind not in GATED:
        raise UserError(
            f"feedforward.kind={kind!r} has no gate, and LLaMA's has one; "
            f"these can be exported: {', '.join(GATED)}"
        )
    return their_activation(GATED[kind])


WRITERS: dict[type | str, Callable[[Any], Any]] = {
    "rate": lambda rate: rate or 0.0,
    "activation": their_activation,
    "gated": their_gate,
}


def call(name: str, options: Mapping[str, Any]) -> str:
    """Returns the text `name(option=value)`."""
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in options.items())})"


def parse_call(text: str) -> tuple[str, dict[str, Any]]:
    """Returns the name and the options of a text `name` or `name(option=value)`."""
    match ast.parse(text.strip(), mode="eval").body:
        case ast.Call(func=ast.Name(id=name), keywords=keywords):
            return name, {str(k.arg): ast.literal_eval(k.value) for k in keywords}
    return text.strip(), {}


def scheme_options(scheme: str, name: str) -> dict[str, Any]:
    """Returns the options of a position scheme; raises unless it is the one called `name`."""
    actual, options = parse_call(scheme)
    if actual != name:
        raise UserError(f"position.scheme={scheme!r} cannot be exported; {name!r} can")
    return options


@dataclasses.dataclass(frozen=True)
class Pair:
    """A tensor of transformers and our parameters in it.

    A matrix maps the `inputs` leading axes of our parameter to the rest; torch's Linear stores it
    transposed. Several parameters in one tensor are concatenated along its output axis.
    """

    theirs: str
    ours: tuple[str, ...]
    inputs: int = 0  # 0: not a matrix
    transposed: bool = True

    def shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """Returns the shape of the tensor from those of our parameters."""
        if not self.inputs:
            if self.ours[0].endswith("/bias"):
                return (sum(math.prod(shape) for shape in shapes),)
            return shapes[0]
        rows = math.prod(shapes[0][: self.inputs])
        cols = sum(math.prod(shape[self.inputs :]) for shape in shapes)
        return (cols, rows) if self.transposed else (rows, cols)

    def split(self, tensor: np.ndarray, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
        """Splits the tensor into our parameters."""
        matrix = tensor.T if self.inputs and self.transposed else tensor
        if len(shapes) == 1:
            return [matrix.reshape(shapes[0])]
        sizes = [math.prod(shape[self.inputs :]) for shape in shapes]
        parts = np.split(matrix, np.cumsum(sizes)[:-1], axis=-1)
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    def join(self, params: Sequence[np.ndarray]) -> np.ndarray:
        """Joins our parameters into the tensor."""
        if not self.inputs:
            flat = np.concatenate([p.reshape(-1) for p in params])
            return flat.reshape(self.shape([p.shape for p in params]))
        rows = math.prod(params[0].shape[: self.inputs])
        matrix = np.concatenate([p.reshape(rows, -1) for p in params], axis=-1)
        return np.ascontiguousarray(matrix.T if self.transposed else matrix)


class Key(NamedTuple):
    """A key of config.json and the settings of a spec that have its value.

    Without a default, the key is required. A default may be a function of the other settings.
    """

    theirs: str
    ours: str  # dotted, and separated by spaces if there are several
    kind: type | str  # of the value, or the method of ConfigJson that reads it
    default: Any = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelType:
    """A `model_type` of transformers."""

    spec: type[TransformerSpec]
    keys: tuple[Key, ...]
    settings: Mapping[str, Mapping[str, Any]]  # of all models of this type
    pairs: Callable[[Any], Iterator[Pair]]
    architectures: tuple[str, ...]  # classes of transformers whose weights can be imported
    supported: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # the only values
    # Further settings from the config and the names of the tensors, and keys from a spec.
    read: Callable[[ConfigJson, Collection[str]], Mapping[str, Any]] = lambda config, tensors: {}
    write: Callable[[Any], Mapping[str, Any]] = lambda spec: {}
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)  # synonyms of keys
    prefix: str = ""  # of tensors of the body, in a model with a head
    unprefixed: tuple[str, ...] = ("lm_head.",)  # beginnings of names without the prefix
    copies: Mapping[str, str] = dataclasses.field(default_factory=dict)  # copy → original
    ignored: str = r"(?!)"  # tensors that are not parameters
    ids: Mapping[str, int] = dataclasses.field(default_factory=dict)  # special, unless set

    def from_config(self, config: ConfigJson, tensors: Collection[str]) -> dict[str, Any]:
        """Returns the tree of a spec."""
        config.only(**self.supported)
        tree = {"family": self.spec.family, **flatten_dict(self.settings, sep=".")}
        tree |= self.read(config, tensors)
        for theirs, ours, kind, default in self.keys:
            usual = default(tree.__getitem__) if callable(default) else default
            if isinstance(kind, str):
                value = getattr(config, kind)(theirs, usual)
            else:
                value = config.value(theirs, kind, usual)
            tree |= dict.fromkeys(ours.split(), value)
        return unflatten_dict(tree, sep=".")

    def to_config(self, spec: Any) -> dict[str, Any]:
        """Returns the config.json of a spec."""
        further = self.write(spec)
        config: dict[str, Any] = {"architectures": [self.architectures[0]]}
        for theirs, ours, kind, default in self.keys:
            value = operator.attrgetter(ours.split()[0])(spec)
            if value is None and callable(default):
                value = default(lambda name: operator.attrgetter(name)(spec))
            config[theirs] = WRITERS[kind](value) if kind in WRITERS else value
        return {**config, **further}


def module(theirs: str, ours: str, bias: bool = False) -> Iterator[Pair]:
    """Yields the pairs of a norm, if our name ends in "norm", or of a torch.nn.Linear."""
    if ours.endswith("norm"):
        yield Pair(f"{theirs}.weight", (f"{ours}/scale",))
    else:  # the inputs of "out" are heads and their features
        yield Pair(f"{theirs}.weight", (f"{ours}/kernel",), 2 if ours.endswith("/out") else 1)
    if bias:
        yield Pair(f"{theirs}.bias", (f"{ours}/bias",))
