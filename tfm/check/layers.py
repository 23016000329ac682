"""Checks of a layer with a new mixer, norm, feed-forward, join or position table."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp

from tfm.check.results import Result, finite, jit, near, normal, varied
from tfm.config.spec import Named
from tfm.layers.attention import AttentionSpec
from tfm.layers.block import BlockSpec, FeedForwardSpec
from tfm.layers.context import Context
from tfm.layers.norm import NormSpec
from tfm.layers.stack import Stack
from tfm.models.common import TransformerCache, visible
from tfm.ops.masks import causal, everything

BATCH, LENGTH, WIDTH, CUT = 2, 9, 8, 5


def block(**fields: Any) -> BlockSpec:
    """Returns a layer with these parts, and no other that could hide their mistakes."""
    sizes: dict[str, Any] = {"width": WIDTH, "layers": 1, "max_length": 16}
    sizes |= {"attention": AttentionSpec(heads=2), "feedforward": FeedForwardSpec(width=WIDTH)}
    plain = {"mixer": "none", "norm": NormSpec(kind=Named("none")), "scan": False}
    return BlockSpec(**{**sizes, **plain, **fields})


@dataclasses.dataclass(frozen=True)
class Layer:
    """A layer, and the capabilities that its new part declares."""

    spec: BlockSpec
    causal: bool = True
    padding: bool = True
    cacheable: bool = False

    @functools.cached_property
    def module(self) -> Stack:
        return Stack(self.spec, 1, self.spec.position.scheme.entry, self.causal)

    def context(self, valid_BT: Array | None) -> Context:
        mask = causal() if self.causal else everything()
        return Context(visible(mask, valid_BT), valid_BT=valid_BT)

    def out(self, variables: Any, x_BTD: Array, valid_BT: Array | None = None) -> Array:
        return self.module.apply(variables, x_BTD, self.context(valid_BT))[0]


def checks(layer: Layer) -> Iterator[Result]:
    """Yields the result of every check."""
    x = jnp.asarray(normal(0, BATCH, LENGTH, WIDTH))
    variables = layer.module.init(jax.random.key(0), x, layer.context(None))
    variables = {**variables, "params": varied(variables.get("params", {}))}
    apply = jit(layer.out)
    y = apply(variables, x)
    if y.shape[:2] != x.shape[:2]:
        says = f"the outputs have as many tokens as the inputs: {x.shape[:2]}, not {y.shape[:2]}"
        yield Result("shape", False, None, says)
        return

    def replaced(batch: Any, places: Any, seed: int = 5) -> Array:
        return x.at[batch, places].set(3 * normal(seed, *x[batch, places].shape))

    yield near(
        "examples", "an example does not depend on the rest of its batch",
        (apply(variables, replaced(1, slice(None)))[0], y[0]),
    )  # fmt: skip

    def training(variables: Any, x: Array, cotangent: Array) -> Any:
        return jax.vjp(lambda params, x: layer.out({**variables, "params": params}, x),
                       variables["params"], x)[1](cotangent)  # fmt: skip

    step = jit(training)
    cotangent = normal(9, *y.shape)
    if layer.causal:
        later = slice(CUT, None)
        changed = apply(variables, replaced(slice(None), later))
        reach_TS = np.zeros((LENGTH, LENGTH))
        for row in range(LENGTH):
            only = np.where(np.arange(LENGTH)[None, :, None] == row, cotangent, 0)
            reach_TS[row] = np.abs(step(variables, x, only)[1]).max((0, 2))
        reach_TS /= max(reach_TS.max(), 1e-30)
        yield near(
            "causality", "no output depends on a later token, by value and by gradient",
            (changed[:, :CUT], y[:, :CUT]),
            (np.triu(reach_TS, 1), np.zeros_like(reach_TS)),
        )  # fmt: skip
    if layer.padding:
        valid = jnp.arange(LENGTH)[None] < jnp.array([CUT, LENGTH])[:, None]
        padded = [apply(variables, replaced(0, slice(CUT, None), seed), valid) for seed in (5, 6)]
        alone = apply(variables, x[:1, :CUT])
        yield near(
            "padding", "padding does not change the other tokens",
            (padded[0][0, :CUT], padded[1][0, :CUT]), (padded[0][:1, :CUT], alone),
            (padded[0][1], y[1]),
        )  # fmt: skip
    yield finite(
        "gradients", "outputs and gradients are finite", [y, step(variables, x, cotangent)]
    )
    with jax.disable_jit():
        yield near(
            "compiled", "compiled code equals single operations", (y, layer.out(variables, x))
        )
    if layer.cacheable:
        yield near(
            "cache", "decoding some tokens at a time with a cache equals one pass over all",
            (_decoded(layer, variables, x), y),
        )  # fmt: skip


def _decoded(layer: Layer, variables: Any, x_BTD: Array) -> Array:
    """Returns the outputs of three calls, each with the cache of the one before."""
    module: Any = layer.module
    outputs: list[Array] = []
    empty = module.apply(variables, BATCH, LENGTH + 1, method="init_cache")
    cache = TransformerCache(empty, jnp.zeros(BATCH, jnp.int32), length=LENGTH + 1)
    for begin, end in ((0, 4), (4, 5), (5, LENGTH)):
        run = functools.partial(module.apply, variables)
        y_BTD, cache = cache.extended(run, x_BTD[:, begin:end], causal(), None)
        outputs.append(y_BTD)
    return jnp.concatenate(outputs, 1)
