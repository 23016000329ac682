"""A loop over time whose weights get their gradients after it."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax import Array, lax
from jax import numpy as jnp

from tfm.ops.products import weight_gradient

Dot = Callable[[str, Array], Array]


def scan_time(
    step: Callable[[Dot, Any, Any, Any], tuple[Any, Any]],
    weights: Mapping[str, Array],
    args: Any,
    carry: Any,
    xs: Any,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """`lax.scan` of `step(dot, args, carry, x)`, where `dot(name, x_BK)` is x @ weights[name].

    A weight's gradient is one product over all steps. JAX's own gradient of a loop adds it up step
    by step, and so reads and writes the whole matrix at each. And a weight is transposed for it
    once, not at each step. `dot` is called once for each name.
    """

    @jax.custom_vjp
    def run(weights: Any, args: Any, carry: Any, xs: Any) -> Any:
        def body(carry: Any, x: Any) -> Any:
            return step(lambda name, x_BK: x_BK @ weights[name], args, carry, x)

        return lax.scan(body, carry, xs, reverse=reverse)

    def forward(weights: Any, args: Any, carry: Any, xs: Any) -> Any:
        transposed = {name: lax.optimization_barrier(w_KN.T) for name, w_KN in weights.items()}

        def tapped(args: Any, carry: Any, xs: Any, taps: Any) -> Any:
            def body(carry: Any, each: Any) -> Any:
                x, tap = each
                read: dict[str, Array] = {}

                def dot(name: str, x_BK: Array) -> Array:
                    read[name] = x_BK
                    return _tapped_product(x_BK, weights[name], transposed[name], tap[name])

                carry, y = step(dot, args, carry, x)
                return carry, (y, read)

            last, (ys, read) = lax.scan(body, carry, (xs, taps), reverse=reverse)
            return (last, ys), read

        batch = jax.tree.leaves(carry)[0].shape[0]
        length = jax.tree.leaves(xs)[0].shape[0]
        taps = {
            name: jnp.zeros((length, batch, w.shape[1]), w.dtype) for name, w in weights.items()
        }
        out, pull, read = jax.vjp(tapped, args, carry, xs, taps, has_aux=True)
        return out, (pull, read)

    def backward(saved: Any, d_out: Any) -> Any:
        pull, read = saved
        d_args, d_carry, d_xs, d_taps = pull(d_out)
        d_weights = {
            name: weight_gradient(_rows(x), _rows(d_taps[name])) for name, x in read.items()
        }
        return d_weights, d_args, d_carry, d_xs

    run.defvjp(forward, backward)
    return run(dict(weights), args, carry, xs)


def _rows(x_TBK: Array) -> Array:
    return x_TBK.reshape(-1, x_TBK.shape[-1])


@jax.custom_vjp
def _tapped_product(x_BK: Array, w_KN: Array, w_NK: Array, tap_BN: Array) -> Array:
    """x @ w. The tap has no value of its own: it receives the gradient of the product."""
    return x_BK @ w_KN


def _tapped_forward(
    x_BK: Array, w_KN: Array, w_NK: Array, tap_BN: Array
) -> tuple[Array, tuple[Array, Array]]:
    return x_BK @ w_KN, (w_KN, w_NK)


def _tapped_backward(
    saved: tuple[Array, Array], d_y_BN: Array
) -> tuple[Array, Array, Array, Array]:
    w_KN, w_NK = saved
    return d_y_BN @ w_NK, jnp.zeros_like(w_KN), jnp.zeros_like(w_NK), d_y_BN


_tapped_product.defvjp(_tapped_forward, _tapped_backward)
