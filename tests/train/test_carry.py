"""Truncated backpropagation through time: a state that is carried from batch to batch, beside one
long sequence, and beside PyTorch's loop for word language models."""

import dataclasses
import shutil

import jax
import numpy as np
import pytest
from flax import linen as nn
from jax import numpy as jnp

from tests.helpers.runs import Silent, arrays, assert_same
from tests.parity.torch_models import cell_tree
from tfm.evaluate import leaks
from tfm.evaluate.main import evaluate
from tfm.evaluate.metrics import measured
from tfm.names import UserError
from tfm.objectives.batches import train_batch
from tfm.run import spec
from tfm.run.plan import plan_of
from tfm.spec import to_spec
from tfm.train import loop
from tfm.train.structure import compiled, numbers_of

BATCH, STEPS, LENGTH, WIDTH = 4, 3, 5, 6  # rows; steps of an epoch; of a window
TRAIN = 70  # tokens: 4 streams of 3 windows of 5, and 10 that are left over
BYTES = np.random.default_rng(0).integers(0, 256, TRAIN + 30).astype(np.uint8)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TFM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.bin").write_bytes(BYTES.tobytes())
    (tmp_path / "a.txt").write_text("".join(f"{i} " for i in range(300)))
    return tmp_path


def run_of(dataset="bytes(path='a.bin', length=5, valid=0.3)", **groups):
    tree = {
        "seed": 1,
        "objective": "next_token",
        "model": {"family": "recurrent", "cell": "lstm", "layers": 2, "width": WIDTH,
                  "hidden": WIDTH},
        "data": {"dataset": dataset, "batch": BATCH, "eval_batch": 3},
        "optimizer": {"name": "sgd", "learning_rate": 20.0, "clip": 0.25},
        "train": {"steps": 2 * STEPS, "carry": True},
    }  # fmt: skip
    for name, changes in groups.items():
        tree[name] = {**tree[name], **changes} if isinstance(changes, dict) else changes
    return spec.read(tree)


def begun(run, params=None):
    """The batches of a run, its compiled step, and its state before the first of them."""
    run, data = spec.open_data(run)
    plan = plan_of(run, data["train"])
    batches = [
        train_batch(run.objective.entry, data["train"], plan, run.seed, step)
        for step in range(run.train.steps)
    ]
    init, train_step, _ = compiled(run)
    state = init(batches[0], jnp.uint32(0))
    if params is not None:
        assert jax.tree.map(jnp.shape, state.params) == jax.tree.map(jnp.shape, params)
        state = state.replace(params=jax.tree.map(jnp.asarray, params))
    return batches, lambda state, batch: train_step(state, batch, numbers_of(run)), state


def streams(ids):
    """The tokens that are read, and those that are predicted: 4 streams, side by side."""
    size = BATCH * STEPS * LENGTH
    assert size < TRAIN
    return ids[:size].reshape(BATCH, -1), ids[1 : size + 1].reshape(BATCH, -1)


FLAX = {"lstm": nn.OptimizedLSTMCell, "gru": nn.GRUCell, "rnn": nn.SimpleCell}


def window_losses(params, cell, ids):
    """The mean loss of each window: each stream is one long sequence, over which Flax's own cells
    are stepped; between windows no gradient passes."""
    inputs, labels = streams(ids)
    x = params["embed"]["token"]["embedding"][inputs]
    for n in range(2):
        own = FLAX[cell](WIDTH)
        carry, states = own.initialize_carry(jax.random.key(0), (BATCH, WIDTH)), []
        for t in range(x.shape[1]):
            carry = carry if t % LENGTH else jax.lax.stop_gradient(carry)
            weights = {"params": params["recurrent"][f"forward_{n}"]}
            carry, state = own.apply(weights, carry, x[:, t])
            states.append(state)
        x = jnp.stack(states, 1)
    logits = x @ params["head"]["kernel"] + params["head"]["bias"]
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)
    return -picked.reshape(BATCH, STEPS, LENGTH).mean((0, 2))


@pytest.mark.parametrize(("cell", "parts"), [("lstm", 1), ("lstm", 2), ("gru", 1), ("rnn", 1)])
def test_windows_are_those_of_one_long_sequence(cell, parts):
    """Losses and gradients of each step of two epochs. Nothing moves, and SGD without momentum
    keeps the gradient as its state."""
    still = {"learning_rate": 1e-30, "clip": None, "momentum": 0.0}
    train = {"accumulate": parts}
    batches, step, state = begun(run_of(model={"cell": cell}, optimizer=still, train=train))
    params = jax.tree.map(lambda x: x + 0.1, jax.device_get(state.params))
    state = state.replace(params=jax.tree.map(jnp.asarray, params))
    ids = BYTES.astype(np.int32)
    wanted = jax.jit(window_losses, static_argnums=1)(params, cell, ids)
    grads = jax.jit(jax.jacrev(window_losses), static_argnums=1)(params, cell, ids)
    before = 0.0
    for number, batch in enumerate(batches):
        state = step(state, batch)
        loss = float(state.metrics["loss"]) - before
        before = float(state.metrics["loss"])
        now = number % STEPS
        np.testing.assert_allclose(loss / (BATCH * LENGTH), wanted[now], rtol=1e-5)
        jax.tree.map(
            lambda a, b, now=now: np.testing.assert_allclose(a, b[now], rtol=1e-4, atol=1e-6),
            state.opt_state.trace,
            grads,
        )
    jax.tree.map(np.testing.assert_array_equal, params, jax.device_get(state.params))


def test_pytorchs_loop_gives_the_same_weights():
    """The loop of PyTorch's word_language_model: the state is detached, gradients are clipped, and
    weights move by 20 times the gradient of the mean over all tokens."""
    torch = pytest.importorskip("torch", reason="parity needs the extra: pip install 'tfm[parity]'")
    torch.manual_seed(0)
    embed = torch.nn.Embedding(256, WIDTH)
    cells = torch.nn.LSTM(WIDTH, WIDTH, 2)
    head = torch.nn.Linear(WIDTH, 256)
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    for n in range(2):  # we have one bias
        getattr(cells, f"bias_hh_l{n}").requires_grad_(False).zero_()
    parameters = [p for x in (embed, cells, head) for p in x.parameters() if p.requires_grad]

    def ours():
        get = lambda x: x.detach().numpy().copy()
        recurrent = {
            f"forward_{n}": cell_tree("lstm", [get(getattr(cells, f"{k}_l{n}")) for k in names])
            for n in range(2)
        }
        return {
            "embed": {"token": {"embedding": get(embed.weight)}},
            "recurrent": recurrent,
            "head": {"kernel": get(head.weight).T, "bias": get(head.bias)},
        }

    batches, step, state = begun(run_of(), ours())
    inputs, labels = (torch.tensor(x.astype(np.int64)).T for x in streams(BYTES))
    for _ in range(2):
        carry, losses = None, []
        for begin in range(0, STEPS * LENGTH, LENGTH):
            if carry is not None:
                carry = tuple(x.detach() for x in carry)
            out, carry = cells(embed(inputs[begin : begin + LENGTH]), carry)
            logits = head(out).reshape(-1, 256)
            wanted = labels[begin : begin + LENGTH].reshape(-1)
            loss = torch.nn.functional.cross_entropy(logits, wanted)
            for p in parameters:
                p.grad = None
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 0.25)
            with torch.no_grad():
                for p in parameters:
                    p -= 20 * p.grad
            losses.append(float(loss))
    before = state.params
    before = jax.device_get(before)
    for batch in batches:
        state = step(state, batch)
    same = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    jax.tree.map(same, jax.device_get(state.params), ours())
    ends = [[[layer[i].detach().numpy() for i in (1, 0)] for layer in (carry,)]]
    assert ends  # (h, c) there, (c, h) here
    for n in range(2):
        same(state.carry[n][0][0], carry[1][n].detach().numpy())
        same(state.carry[n][0][1], carry[0][n].detach().numpy())
    moved = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), before, state.params)
    assert min(jax.tree.leaves(moved)) > 0.01  # it is no comparison of what stood still
