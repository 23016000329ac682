"""Counts floating-point operations as XLA counts them, from a jaxpr.

A multiply-add is two. Arithmetic, comparison and selection count one per output element, a sum or a
maximum one per element that it adds. Moving, reshaping and converting data count nothing.
Transcendental functions are counted separately, except for the arithmetic that XLA expands some of
them into.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from jax import numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from tfm.layers.attention import AttentionSpec
from tfm.models.spec import ModelSpec

ARITHMETIC = {
    "abs", "add", "add_any", "and", "ceil", "clamp", "div", "eq", "floor", "ge", "gt", "is_finite",
    "le", "lt", "max", "min", "mul", "ne", "neg", "not", "or", "rem", "round", "select_n", "sign",
    "square", "sub", "xor",
}  # fmt: skip
TRANSCENDENTAL = {  # name → operations of plain arithmetic that XLA adds, per element
    "acos": 3, "acosh": 7, "asin": 5, "asinh": 11, "atan": 0, "atan2": 0, "atanh": 6, "cbrt": 0,
    "cos": 0, "cosh": 3, "digamma": 73, "erf": 0, "erf_inv": 37, "erfc": 60, "exp": 0, "exp2": 1,
    "expm1": 0, "lgamma": 52, "log": 0, "log1p": 0, "logistic": 3, "pow": 0, "rsqrt": 0, "sin": 0,
    "sinh": 10, "sqrt": 0, "tan": 0, "tanh": 0,
}  # fmt: skip
REDUCTIONS = {
    "argmax", "argmin", "cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "reduce",
    "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod", "reduce_sum",
}  # fmt: skip
SUMS = {"product_with_ones", "ones_product"}  # sums of `ops.fast`, computed as products


@dataclasses.dataclass(frozen=True)
class Flops:
    """Numbers of operations."""

    matmul: int = 0  # including convolutions
    other: int = 0
    transcendental: int = 0  # calls; not part of the total
    exact: bool = True  # False: a lower bound, as a loop whose end depends on data counts once

    @property
    def total(self) -> int:
        return self.matmul + self.other

    def __add__(self, other: "Flops") -> "Flops":
        return Flops(
            self.matmul + other.matmul,
            self.other + other.other,
            self.transcendental + other.transcendental,
            self.exact and other.exact,
        )

    def __mul__(self, times: int) -> "Flops":
        return Flops(
            times * self.matmul, times * self.other, times * self.transcendental, self.exact
        )


def flops(spec: ModelSpec, inputs: Mapping[str, Any]) -> tuple[Flops, Flops]:
    """Counts the forward pass, and forward and backward, for inputs of these shapes.

    Attention computes all pairs of tokens: masks save nothing.
    """
    fields = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    reference: dict[str, Any] = {"implementation": "reference"}  # no loop over tiles
    changes: dict[str, Any] = {
        name: dataclasses.replace(value, **reference)
        for name, value in fields.items()
        if isinstance(value, AttentionSpec)
    }
    module = dataclasses.replace(spec, **changes).build()
    variables = dict(init(module, inputs))
    args = variables.pop("params"), (variables, inputs)

    def loss(*args: Any) -> Any:
        outputs = jax.tree.leaves(apply(module, train=True)(*args))
        return sum(jnp.sum(out.astype(jnp.float32)) for out in outputs)

    return count(apply(module, train=False), *args), count(jax.value_and_grad(loss), *args)


def init(module: nn.Module, inputs: Mapping[str, Any]) -> Any:
    """Returns the shapes of all variables."""
    return jax.eval_shape(lambda inputs: module.init(jax.random.key(0), **inputs), inputs)


def apply(module: nn.Module, train: bool) -> Callable[[Any, Any], Any]:
    """Returns the function (params, (model_state, inputs)) → outputs."""

    def outputs(params, data):
        model_state, inputs = data
        variables = {**model_state, "params": params}
        return module.apply(variables, **inputs, train=train, mutable=list(model_state))[0]

    return outputs


def count(fn: Callable[..., Any], *args: Any) -> Flops:
    """Counts the operations of `fn(*args)`, for arrays or their shapes, without running it."""
    return _of_jaxpr(jax.make_jaxpr(fn)(*args).jaxpr)


def _of_jaxpr(jaxpr: Jaxpr) -> Flops:
    """Counts the equations that the results depend on; XLA drops the others too."""
    total, needed = Flops(), set(map(id, jaxpr.outvars))
    for eqn in reversed(jaxpr.eqns):
        if eqn.effects or not needed.isdisjoint(map(id, eqn.outvars)):
            needed.update(map(id, eqn.invars))
            total += _of_equation(eqn)
    return total


def _of_equation(eqn: JaxprEqn) -> Flops:
    name, params = eqn.primitive.name, eqn.params
    size = math.prod(_shape(eqn.outvars[0])) if eqn.outvars else 0
    match name:
        case "dot_general":
            (contracted, _), _ = params["dimension_numbers"]
            inner = math.prod(_shape(eqn.invars[0])[axis] for axis in contracted)
            return Flops(matmul=2 * size * inner)
        case "conv_general_dilated":
            return Flops(matmul=2 * _products(eqn))
        case "integer_pow":
            power = abs(params["y"])  # by repeated squaring
            products = power.bit_length() + power.bit_count() - 2 + (params["y"] < 0)
            return Flops(other=products * size)
        case "scatter_add":
            return Flops(other=math.prod(_shape(eqn.invars[2])))
        case "reduce_window_max" | "reduce_window_min" | "reduce_window_sum":
            return Flops(other=size * (math.prod(params["window_dimensions"]) - 1))
        case "select_and_scatter_add":
            source = math.prod(_shape(eqn.invars[0]))
            return Flops(other=source * math.prod(params["window_dimensions"]))
    if name in ARITHMETIC:
        return Flops(other=size)
    if name in TRANSCENDENTAL:
        return Flops(other=TRANSCENDENTAL[name] * size, transcendental=size)
    if name in REDUCTIONS:
        kept = 0 if name.startswith("cum") else size
        return Flops(other=math.prod(_shape(eqn.invars[0])) - kept)

    parts = list(map(_of_jaxpr, _inner(eqn)))
    if params.get("name") in SUMS:
        added = sum(parts, Flops())
        return dataclasses.replace(added, matmul=0, other=added.other + added.matmul // 2)
    match name:
        case "scan":
            return parts[0] * params["length"]
        case "cond":  # the most expensive branch
            return max(parts, key=lambda branch: branch.total)
        case "while" | "pallas_call":
            return dataclasses.replace(sum(parts, Flops()), exact=False)
    return sum(parts, Flops())


def _inner(eqn: JaxprEqn) -> Iterator[Jaxpr]:
    """Yields the jaxprs that a call, a loop or a branch runs."""
    for value in eqn.params.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            if isinstance(part, ClosedJaxpr):
                yield part.jaxpr
            elif isinstance(part, Jaxpr):
                yield part


def _products(eqn: JaxprEqn) -> int:
    """Counts the products of a convolution, without those of padding and dilation."""
    params, of = eqn.params, eqn.params["dimension_numbers"]
    data, kernel = map(_shape, eqn.invars)
    result = _shape(eqn.outvars[0])
    products = result[of.out_spec[0]] * result[of.out_spec[1]] * kernel[of.rhs_spec[1]]
    for i, axes in enumerate(zip(of.out_spec[2:], of.rhs_spec[2:], of.lhs_spec[2:], strict=True)):
        out, window, size = result[axes[0]], kernel[axes[1]], data[axes[2]]
        first = params["window_strides"][i] * np.arange(out)[:, None] - params["padding"][i][0]
        at = first + params["rhs_dilation"][i] * np.arange(window)
        gap = params["lhs_dilation"][i]
        products *= int(np.sum((at >= 0) & (at % gap == 0) & (at < gap * size)))
    return products


def _shape(variable: Any) -> tuple[int, ...]:
    return variable.aval.shape
