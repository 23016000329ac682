"""Reading a `config.json` of transformers, and the names that it and our specs share."""

import ast
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from tfm.config.names import UserError, suggest

ACTIVATIONS = {  # theirs → ours
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
MOST = 2**31 - 1  # of sizes
GATED = {"relu": "reglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh", "silu": "swiglu"}
PLAIN = {gated: plain for plain, gated in GATED.items()}  # the activation of a gate


@dataclasses.dataclass(frozen=True)
class ConfigJson:
    """Their config. Reading checks types and ranges; null means the same as absent."""

    values: Mapping[str, Any]
    prefix: str = ""  # of keys in error messages
    longest: int = MOST  # axis of the weights

    def value(self, key: str, kind: type, default: Any = None) -> Any:
        found, name = self.values.get(key), self.prefix + key
        if found is None:
            if default is None:
                raise UserError(f"config.json has no {name!r}")
            return default
        if kind is float and type(found) is int and abs(found) < 2**53:
            found = float(found)
        fits = type(found) is kind
        if not fits:
            raise UserError(f"{name} in config.json must be {kind.__name__}, not {found!r}")
        if kind is int and not 1 <= found <= MOST:
            raise UserError(f"{name}={found} in config.json must be at least 1 and at most {MOST}")
        if kind is float and not 0 <= found < math.inf:
            raise UserError(f"{name}={found} in config.json must be a number from 0 up")
        return found

    def architecture(self) -> str | None:
        """The class of transformers that wrote the weights, where it is given."""
        found = self.value("architectures", list, [])
        if len(found) > 1 or not all(isinstance(name, str) for name in found):
            raise UserError(f"architectures in config.json must be one name, not {found!r}")
        return found[0] if found else None

    def agree(self, key: str, other: str, value: Any) -> None:
        """Raise where another key, which means the same, has another value."""
        found = self.values.get(key)
        if found is not None and value is not None and found != value:
            raise UserError(
                f"{self.prefix}{key}={found!r} and {other}={value!r} in config.json disagree, and "
                "mean the same; leave the wrong one out"
            )

    def renamed(self, names: Mapping[str, str]) -> "ConfigJson":
        """With the names on the right, for those on the left that mean the same."""
        values = dict(self.values)
        for other, key in names.items():
            self.agree(key, other, values.get(other))
            found = values.pop(other, None)
            if values.get(key) is None:
                values[key] = found
        return dataclasses.replace(self, values=values)

    def number(self, key: str, default: int | None = None) -> int:
        """A size that some axis of the weights has, or has as a factor. It is compared with them
        here already, before anything of that size is made."""
        found = self.value(key, int, default)
        if self.values.get(key) is not None and found > self.longest:
            raise UserError(
                f"{key}={found} in config.json is more than the longest axis of the weights, "
                f"{self.longest}"
            )
        return found

    def flag(self, key: str, default: bool) -> bool:
        return self.value(key, bool, default)

    def rate(self, key: str, default: float) -> float | None:
        """A dropout rate; 0 is off."""
        found = self.value(key, float, default)
        if found >= 1:
            raise UserError(f"{key}={found} in config.json must be less than 1")
        return found or None

    def activation(self, key: str, default: str) -> str:
        """Our name of an activation."""
        name = self.value(key, str, default)
        if name not in ACTIVATIONS:
            raise UserError(f"{key}={name!r} is no activation of ours{suggest(name, ACTIVATIONS)}")
        return ACTIVATIONS[name]

    def only(self, **supported: Any) -> None:
        """Raise where a key has another value than the one that we support."""
        for key, usual in supported.items():
            found = self.values.get(key)
            if found is not None and found != usual:
                raise UserError(f"{key}={found!r} is not supported, only {usual!r}")


def gated(kind: str, key: str) -> str:
    """Our name of a feed-forward whose gate has this activation."""
    if kind not in GATED:
        raise UserError(f"{key}: there is no gate of {kind!r} here; known: {', '.join(GATED)}")
    return GATED[kind]


def their_activation(kind: str) -> str:
    """Their name of our activation."""
    for name, own in ACTIVATIONS.items():
        if own == kind:
            return name
    known = ", ".join(sorted(set(ACTIVATIONS.values())))
    raise UserError(f"feedforward.kind={kind!r} has no name there; these have one: {known}")


def call(name: str, options: Mapping[str, Any]) -> str:
    """The text `name(option=value)`."""
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in options.items())})"


def parse_call(text: str) -> tuple[str, dict[str, Any]]:
    """The name and the options of a text `name` or `name(option=value)`."""
    match ast.parse(text.strip(), mode="eval").body:
        case ast.Call(func=ast.Name(id=name), keywords=keywords):
            return name, {str(k.arg): ast.literal_eval(k.value) for k in keywords}
    return text.strip(), {}


def scheme_options(scheme: str, name: str) -> dict[str, Any]:
    """The options of a position scheme that must be the one called `name`."""
    found, options = parse_call(scheme)
    if found != name:
        raise UserError(f"position.scheme={scheme!r} cannot be exported; {name!r} can")
    return options
