"""Mixers, joins and feed-forwards from a user's file: each that passes `tfm check` is explained."""

from typing import Any

import jax
import numpy as np
import pytest
from flax import linen as nn
from jax import numpy as jnp

from tests.explain.explained import loaded
from tests.explain.test_explain_page import data, unpacked
from tfm.check.entries import results
from tfm.config.spec import Named
from tfm.explain import page
from tfm.explain.explain import explain
from tfm.layers.attention import MultiHeadAttention
from tfm.layers.block import FEEDFORWARDS, MIXERS
from tfm.layers.context import Auxiliary, Mixer
from tfm.ops.positions import JOINS

TEXT = "3 7 5 3 9 4"


class Wrapped(nn.Module):
    """Attention times a gate; its intermediates are those of the attention."""

    spec: Any
    dims: Any

    def setup(self):
        self.attention = MultiHeadAttention(self.spec.attention, self.dims)
        self.gate = self.dims.dense(self.dims.width)

    def __call__(self, x_BTD, context, cache=None):
        y_BTD, cache, auxiliary = self.attention(x_BTD, context, cache)
        return y_BTD * jax.nn.sigmoid(self.gate(x_BTD)), cache, auxiliary

    def init_cache(self, batch, length):
        return MultiHeadAttention(self.spec.attention, self.dims, parent=None).init_cache(
            batch, length
        )


class Flat(nn.Module):
    """Heads with a gate between them and an output projection that is one matrix."""

    spec: Any
    dims: Any

    @nn.compact
    def __call__(self, x_BTD, context, cache=None):
        batch, length, width = x_BTD.shape
        q, k, v, gate = (
            nn.Dense(width, name=name)(x_BTD).reshape(batch, length, 2, -1)
            for name in ("query", "key", "value", "gate")
        )
        visible = jnp.tril(jnp.ones((1, 1, length, length), bool))
        if context.valid_BT is not None:
            visible &= context.valid_BT[:, None, None]
        weights = jax.nn.softmax(jnp.where(visible, jnp.einsum("BTHK,BSHK->BHTS", q, k), -1e9))
        heads = jnp.einsum("BHTS,BSHE->BTHE", weights, v) * jax.nn.sigmoid(gate)
        y_BTD = nn.Dense(width, name="out")(heads.reshape(x_BTD.shape))
        captured = {"q_BTHK": q, "k_BSGK": k, "v_BSGE": v, "heads_BTHE": heads}
        return y_BTD, cache, Auxiliary(intermediates={**captured, "weights_BHTS": weights})


class Mean(nn.Module):
    """The mean of the past: weights, and no parameters."""

    spec: Any
    dims: Any
    odd: bool = False

    def __call__(self, x_BTD, context, cache=None):
        length = x_BTD.shape[1]
        weights_TS = jnp.tril(jnp.ones((length, length)))
        weights_TS /= jnp.sum(weights_TS, -1, keepdims=True)
        weights_BHTS = jnp.broadcast_to(weights_TS, (len(x_BTD), 1, length, length))
        captured = {"weights_BHTS": weights_BHTS}
        if self.odd:  # not what their names say
            captured = {
                "weights_BHTS": weights_BHTS[..., :2], "scale_B": jnp.float32(1), "note": x_BTD,
                "phase_BTK": x_BTD * 1j, "log_BTD": jnp.log(0 * x_BTD), "q_BTHK": x_BTD,
            }  # fmt: skip
        y_BTD = jnp.einsum("TS,BSD->BTD", weights_TS, x_BTD)
        return y_BTD, cache, Auxiliary(intermediates=captured)


def mixer(module, **facts):
    def entry():
        """Computes something of the user's."""
        return Mixer(lambda spec, dims, position, **own: module(spec, dims, **own), **facts)

    return entry


def odd():
    return Mixer(lambda spec, dims, position, **own: Mean(spec, dims, True, **own), cacheable=False)


USERS = {
    "wrapped": mixer(Wrapped, masked=True, needs_attention=True),
    "flat": mixer(Flat, cacheable=False),
    "mean": mixer(Mean, cacheable=False),
    "odd": odd,
}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    for name, entry in USERS.items():
        monkeypatch.setitem(MIXERS, name, entry)


@pytest.mark.parametrize("name", USERS)
def test_every_mixer_is_explained(tmp_path, name):
    scan = name != "flat"
    run = loaded(tmp_path, "decoder", mixer=name, scan=scan, position={"scheme": "learned"})
    found = explain(run, TEXT)
    made, notes = page.page([found])
    tree = data(made)
    ids = np.array([[int(word) for word in TEXT.split()]])
    logits, captured = run.model.apply(run.variables, ids, capture=("states", "details"))
    np.testing.assert_allclose(found.forward.logits, logits[0], atol=1e-5)
    (out,) = [s for s in tree["runs"][0]["walks"][0]["stages"] if s["name"] == "mixer"]
    y = out["pictures"][-1]
    np.testing.assert_allclose(
        unpacked(tree, y["data"][1]), captured[f"{name}_out_NBTD"][1, 0], atol=1e-5
    )
    if name == "odd":
        assert not found.looks
        assert "'odd' has no weights between tokens" in notes[0]
        assert len(out["pictures"]) == 1  # nothing that is not what its name says
        return
    (site,) = tree["runs"][0]["sites"]
    weights = unpacked(tree, site["maps"]["weights"][1][0])
    np.testing.assert_allclose(weights, captured["weights_NBHTS"][1, 0, 0], atol=1e-5)
    # How the heads are joined is unknown: nothing is said about their values and worth.
    assert "does not know how it joins its heads" in notes[0]
    assert (site["norms"], site["terms"], site["muted"]) == (None, {}, "it was not measured")
    assert {head["silenced"] for row in found.looks[0].heads for head in row} == {None}
    assert ("visible_NHTS" in found.looks[0].site.arrays) == (name == "wrapped")
    if name == "flat":
        q = {picture["label"]: picture for picture in out["pictures"]}["q"]
        np.testing.assert_allclose(
            unpacked(tree, q["data"][0][1]), captured["q_NBTHK"][0, 0, :, 1], atol=1e-5
        )


@pytest.mark.ci
@pytest.mark.parametrize("name", USERS)
def test_these_mixers_pass_the_check(name):
    failed = [r for r in results("MIXERS", Named.of(name, USERS[name]())) if not r.passed]
    assert not failed


class Wide(nn.Module):
    """A feed-forward with a field that has the name of a method of ours."""

    spec: Any
    dims: Any
    hidden: int = 5

    @nn.compact
    def __call__(self, x_BTD, dropouts=None):
        return self.dims.dense(self.dims.width)(self.dims.dense(self.hidden)(x_BTD)), {}


def test_a_join_and_a_feedforward_of_the_users_own(tmp_path, monkeypatch):
    monkeypatch.setitem(JOINS, "half", lambda x_BTD, table_BTD: (x_BTD + table_BTD) / 2)
    monkeypatch.setitem(FEEDFORWARDS, "wide", Wide)
    run = loaded(
        tmp_path, "decoder", position={"scheme": "learned", "join": "half"},
        feedforward={"width": 8, "kind": "wide"},
    )  # fmt: skip
    found = explain(run, TEXT)
    stages = {stage.name: stage for stage in found.walks[0].stages}
    assert stages["embedding"].formula == "x = half(E[id], P[t])"
    assert stages["feedforward"].formula.startswith("A feed-forward with a field")
    assert not found.looks[0].terms
    page.page([found])
