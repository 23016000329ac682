"""Checks of a new optimizer, schedule or model family."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import optax
from jax import Array
from jax import numpy as jnp

from tfm.check.results import Result, finite, holds, jit, near, normal, varied
from tfm.config.spec import Named
from tfm.layers.dims import Dropouts
from tfm.optim.optimizer import OptimizerSpec, init, update

STEPS, BATCH, LENGTH, CUT, SIZE = 30, 2, 6, 4, 8
VALID = {"tokens_BT": "valid_BT", "source_BS": "source_valid_BS"}  # which tokens are real


def schedule(text: Named) -> Iterator[Result]:
    """Yields the results of the checks of a schedule."""
    entry, says = text.entry, "it returns a function of (step, steps)"
    yield holds("function", says, callable(entry), entry)
    if not callable(entry):
        return
    at = jit(lambda step: jnp.asarray(entry(step, STEPS)))
    values = np.stack([at(jnp.int32(step)) for step in range(STEPS)])
    shape = values.shape[1:]
    yield holds("number", "its function returns one number", shape == (), shape)
    yield finite("finite", "its numbers are finite", values)
    least = float(np.min(values))
    yield holds("sign", "its numbers are at least 0", not least < 0, least)


def optimizer(text: Named) -> Iterator[Result]:
    """Yields the results of the checks of an optimizer, on parameters with the usual names."""
    spec = OptimizerSpec(name=text, clip=None)
    transform, says = spec.name.entry(spec), "it returns an optax.GradientTransformation"
    right = isinstance(transform, optax.GradientTransformation)
    yield holds("transformation", says, right, transform)
    if not right:
        return
    matrix, vector = jnp.asarray(normal(0, 4, 6)), jnp.asarray(normal(1, 6))
    dense = {"kernel": matrix, "bias": vector}
    params: Any = {"dense": dense, "embed": {"embedding": matrix}, "kernel": matrix}
    state = init(spec, params)

    def step(params: Any, state: Any, number: Array) -> Any:
        rate = {"learning_rate": jnp.float32(0.01)}
        grads, norm = params, optax.tree.norm(params)  # of half their sum of squares
        return update(spec, rate, grads, norm, state, params, number, STEPS)

    like = jax.eval_shape(lambda state: state, state)
    same = like == jax.eval_shape(step, params, state, jnp.int32(0))[1]
    yield Result("state", same, None, "the arrays of its state keep their shapes and types")
    if not same:
        return
    run, end = jit(step), params
    for number in range(STEPS):
        end, state = run(end, state, jnp.int32(number))
    yield finite("finite", "its state and the parameters stay finite", (end, state))
    before, after = (float(optax.tree.norm(x)) for x in (params, end))
    says = f"{STEPS} steps lower a loss, the sum of squares, whose root is {before:.4g} before"
    yield holds("descent", says, after < before, round(after, 4))


def family(text: Named) -> Iterator[Result]:
    """Yields the results of the checks of a family, on the model of a spec."""
    spec: Any = text.entry
    sizes = {name: SIZE for name in spec.needed if getattr(spec, name) is None}
    spec = dataclasses.replace(spec, **sizes)
    module, length = spec.build(), min(spec.max_length or LENGTH, LENGTH)
    inputs: dict[str, Array] = {}
    for seed, (name, x) in enumerate(spec.example(BATCH, length).items()):
        values = np.abs(normal(seed, *x.shape))
        inputs[name] = jnp.asarray(values if x.dtype == jnp.float32 else values > 0.7, x.dtype)
    variables = jit(module.init)(jax.random.key(0), **inputs)
    variables = {**variables, "params": varied(variables["params"])}
    padded = next((name for name in VALID if name in inputs), "")
    real = {VALID[padded]: jnp.ones((BATCH, length), bool)} if padded else {}

    def train(variables: Any) -> Any:
        options: dict[str, Any] = {"dropouts": Dropouts({}, jax.random.key(0)), "train": True}
        options |= {"capture": ("losses",), "mutable": [x for x in variables if x != "params"]}
        return module.apply(variables, **inputs, **real, **options)[0]

    out = jax.eval_shape(train, variables)
    pair = isinstance(out, tuple) and len(out) == 2 and "losses" in out[1]
    says = "with capture=('losses',) the module returns (logits, {'losses': {…}})"
    yield holds("capture", says, pair, out)
    apply = jit(module.apply)
    y = apply(variables, **inputs)
    if spec.decodes:
        shape = BATCH, length, getattr(spec, "decoder_vocab", None) or spec.vocab
        says = f"logits have the shape (batch, length, vocab) = {shape}"
        yield holds("shape", says, np.shape(y) == shape, np.shape(y))
        if np.shape(y) != shape:
            return
    yield finite("finite", "logits are finite", y)
    alike = apply(variables, **{name: x.at[1].set(x[0]) for name, x in inputs.items()})
    first = jax.tree.map(lambda x: x[0], (alike, y))
    yield near("examples", "an example does not depend on the rest of its batch", first)
    if padded and length > CUT:
        real = {VALID[padded]: jnp.broadcast_to(jnp.arange(length)[None] < CUT, (BATCH, length))}
        tokens = inputs[padded]  # 0 and 1
        changed = {**inputs, padded: tokens.at[:, CUT:].set(1 - tokens[:, CUT:])}
        both = [apply(variables, **x, **real) for x in (inputs, changed)]
        if padded == "tokens_BT":  # logits of padding may be anything
            both = [jax.tree.map(lambda x: x[:, :CUT] if x.ndim == 3 else x, y) for y in both]
        yield near("padding", f"tokens that {VALID[padded]} hides change nothing", tuple(both))
    if spec.decodes and spec.uncacheable is None and list(inputs) == ["tokens_BT"]:
        cache, parts = module.apply(variables, BATCH, length + 1, method="init_cache"), []
        decode = jit(functools.partial(module.apply, method="decode"))
        for n in range(length):
            logits, cache = decode(variables, inputs["tokens_BT"][:, n : n + 1], cache)
            parts.append(logits)
        says = "decoding one token at a time with a cache equals one pass over all"
        yield near("cache", says, (jnp.concatenate(parts, 1), y))
