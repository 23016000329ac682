"""Recurrent networks by their equations: one token at a time, in NumPy float64, none of `tfm`."""

import jax
import numpy as np


def init(module, *args, **options):
    """Random parameters everywhere, so that none hides behind its zeros or ones."""
    tree = jax.eval_shape(lambda: module.init(jax.random.key(0), *args, **options))
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda x: rng.normal(size=x.shape).astype(x.dtype) / 2, tree)


def float64(tree):
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


def affine(p, x):
    return x @ p["kernel"] + p.get("bias", 0)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def rnn(p, c, h, x):
    return c, np.tanh(affine(p["i"], x) + affine(p["h"], h))


def lstm(p, c, h, x):
    i, f, g, o = (affine(p[f"i{gate}"], x) + affine(p[f"h{gate}"], h) for gate in "ifgo")
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return c, sigmoid(o) * np.tanh(c)


def gru(p, c, h, x):
    r = sigmoid(affine(p["ir"], x) + affine(p["hr"], h))
    z = sigmoid(affine(p["iz"], x) + affine(p["hz"], h))
    n = np.tanh(affine(p["in"], x) + r * affine(p["hn"], h))
    return c, (1 - z) * n + z * h


CELLS = {"rnn": rnn, "lstm": lstm, "gru": gru}


def over_time(cell, p, x, carry=None):
    """x is TD. The last carry, and the states TH."""
    width = p["h" if cell == "rnn" else "hn" if cell == "gru" else "hi"]["kernel"].shape[0]
    c, h = (np.zeros(width), np.zeros(width)) if carry is None else carry
    states = []
    for now in x:
        c, h = CELLS[cell](p, c, h, now)
        states.append(h)
    return (c, h), np.array(states)


def stack(cell, p, x, start=None):
    """x is TD, without padding. The states TH of each layer, and the last carries of each."""
    layers, last = [], []
    while f"forward_{len(layers)}" in p:
        n = len(layers)
        end, states = over_time(cell, p[f"forward_{n}"], x, start and start[n])
        ends = [end]
        if f"backward_{n}" in p:
            end, other = over_time(cell, p[f"backward_{n}"], x[::-1])
            states = np.concatenate([states, other[::-1]], -1)
            ends.append(end)
        x = states
        layers.append(states)
        last.append(ends)
    return layers, last


def start(cell, p, vectors):
    """The carries that the layers of a decoder begin with."""
    parts = ("cell", "hidden") if cell == "lstm" else ("hidden", "hidden")
    return [
        tuple(np.tanh(affine(p[f"{part}_{n}"], v)) for part in parts) for n, v in enumerate(vectors)
    ]


def untouched(grads):
    """The paths of parameters that no gradient reaches."""
    return {
        "/".join(entry.key for entry in path)
        for path, grad in jax.tree_util.tree_leaves_with_path(grads)
        if not np.any(np.abs(grad) > 1e-7)
    }
