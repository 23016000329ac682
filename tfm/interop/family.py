"""What a family is here: its config both ways, and its tensors beside our parameters.

Tables of tensors are written for unrolled layers: `layer_0`, `layer_1`, ...
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfm.interop.config_json import ConfigJson
from tfm.models.spec import TransformerSpec


@dataclasses.dataclass(frozen=True)
class Pair:
    """One tensor of theirs and the parameters of ours that it holds.

    A matrix maps `inputs` leading axes of ours to the rest; torch's Linear stores it transposed.
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

    def split(self, tensor: np.ndarray, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
        """Our parameters, from their tensor."""
        matrix = tensor.T if self.inputs and self.transposed else tensor
        if len(shapes) == 1:
            return [matrix.reshape(shapes[0])]
        sizes = [math.prod(shape[self.inputs :]) for shape in shapes]
        parts = np.split(matrix, np.cumsum(sizes)[:-1], axis=-1)
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    def join(self, params: Sequence[np.ndarray]) -> np.ndarray:
        """Their tensor, from our parameters."""
        if not self.inputs:
            flat = np.concatenate([p.reshape(-1) for p in params])
            return flat.reshape(self.shape([p.shape for p in params]))
        rows = math.prod(params[0].shape[: self.inputs])
        matrix = np.concatenate([p.reshape(rows, -1) for p in params], axis=-1)
        return np.ascontiguousarray(matrix.T if self.transposed else matrix)


@dataclasses.dataclass(frozen=True)
class Family:
    """One `model_type` of transformers."""

    spec: type[TransformerSpec]  # the family it belongs to here
    # The tree of a spec, from their config and the names of their tensors.
    from_config: Callable[[ConfigJson, Collection[str]], dict[str, Any]]
    to_config: Callable[[Any], dict[str, Any]]
    pairs: Callable[[Any], Iterator[Pair]]
    architectures: tuple[str, ...]  # their classes whose weights we read
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)  # second names of keys
    prefix: str = ""  # of the names of the body, in a model with a head
    unprefixed: tuple[str, ...] = ("lm_head.",)  # how names begin that never have the prefix
    copies: Mapping[str, str] = dataclasses.field(default_factory=dict)  # a copy → its original
    ignored: str = r"(?!)"  # names of tensors that are no parameters


def linear(theirs: str, ours: str, bias: bool, inputs: int = 1) -> Iterator[Pair]:
    """torch.nn.Linear."""
    yield Pair(f"{theirs}.weight", (f"{ours}/kernel",), inputs)
    if bias:
        yield Pair(f"{theirs}.bias", (f"{ours}/bias",))


def norm(theirs: str, ours: str, bias: bool) -> Iterator[Pair]:
    yield Pair(f"{theirs}.weight", (f"{ours}/scale",))
    if bias:
        yield Pair(f"{theirs}.bias", (f"{ours}/bias",))
