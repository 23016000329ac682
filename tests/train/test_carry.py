"""Truncated backpropagation through time: a state that is carried from batch to batch, beside one
long sequence, and beside PyTorch's loop for word language models."""

import shutil

import jax
import numpy as np
import pytest
from flax import linen as nn
from jax import numpy as jnp

from tests.helpers.quick import jit
from tests.helpers.runs import Silent, arrays, assert_same, lines
from tests.parity.torch_models import cell_tree
from tfm.config.names import UserError
from tfm.data.reader import of_data
from tfm.evaluate import leaks
from tfm.evaluate.loss import measure
from tfm.objectives.batches import train_batch
from tfm.run import spec
from tfm.run.evaluation import evaluate
from tfm.run.spec import plan_of
from tfm.train import loop
from tfm.train.step import run_numbers, run_steps

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
        whole = isinstance(changes, str) or "family" in changes
        tree[name] = changes if whole else {**tree[name], **changes}
    return spec.read(tree)


def begun(run, params=None):
    """The batches of a run, its compiled step, and its state before the first of them."""
    run, data = spec.open_data(run)
    plan = plan_of(run, data["train"])
    batches = [
        train_batch(run.objective.entry, data["train"], plan, run.seed, step)
        for step in range(run.train.steps)
    ]
    init, train_step, _ = run_steps(run)
    state = init(batches[0], jnp.uint32(0))
    if params is not None:
        assert jax.tree.map(jnp.shape, state.params) == jax.tree.map(jnp.shape, params)
        state = state.replace(params=jax.tree.map(jnp.asarray, params))
    return batches, lambda state, batch: train_step(state, batch, run_numbers(run)), state


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
    logits = x @ params["head"]["kernel"] + params["head"]["bias"][None, None]
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)
    return -picked.reshape(BATCH, STEPS, LENGTH).mean((0, 2))


@pytest.mark.parametrize(("cell", "parts"), [("lstm", 2), ("gru", 1)])
def test_windows_are_those_of_one_long_sequence(cell, parts):
    """Losses and gradients of each step of two epochs. Nothing moves, and SGD without momentum
    keeps the gradient as its state."""
    still = {"learning_rate": 1e-30, "clip": None, "momentum": 0.0}
    train = {"accumulate": parts}
    batches, step, state = begun(run_of(model={"cell": cell}, optimizer=still, train=train))
    params = jax.tree.map(lambda x: x + 0.1, jax.device_get(state.params))
    state = state.replace(params=jax.tree.map(jnp.asarray, params))
    ids = BYTES.astype(np.int32)
    losses = lambda params: window_losses(params, cell, ids)
    wanted, grads = jit(lambda params: (losses(params), jax.jacrev(losses)(params)))(params)
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


@pytest.mark.ci
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
        carry = None
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
                    p.sub_(20 * p.grad)
    before = jax.device_get(state.params)
    for batch in batches:
        state = step(state, batch)
    same = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    jax.tree.map(same, jax.device_get(state.params), ours())
    h_NBH, c_NBH = (x.detach().numpy() for x in carry)
    for n in range(2):
        jax.tree.map(same, tuple(state.carry[n][0]), (c_NBH[n], h_NBH[n]))
    moved = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), before, state.params)
    assert min(jax.tree.leaves(moved)) > 1e-3  # it is no comparison of what stood still


def test_a_step_that_is_left_out_begins_an_epoch_all_the_same():
    """The state of the last epoch's end is not carried into the next one."""
    batches, step, state = begun(run_of(train={"on_nonfinite": "skip"}))
    for batch in batches[:STEPS]:
        state = step(state, batch)
    held = jax.device_get(state.carry)
    bad = state.replace(params=jax.tree.map(lambda x: x * jnp.nan, state.params))
    again = jax.tree.map(jnp.copy, bad)
    inside, begins = step(bad, batches[1]), step(again, batches[STEPS])
    assert [int(x.skipped) for x in (inside, begins)] == [1, 1]
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(inside.carry), held)
    assert all(np.any(x) for x in jax.tree.leaves(held))
    assert not any(np.any(x) for x in jax.tree.leaves(jax.device_get(begins.carry)))


def test_a_resumed_run_gives_the_same_bits(folder):
    """It is killed in the middle of its second epoch, with dropout, parts of batches and a mean of
    the weights."""
    run = run_of(
        model={"dropout": {"embedding": 0.2, "residual": 0.2, "head": 0.2}},
        train={"steps": 3 * STEPS, "save_every": 1, "keep": 99, "accumulate": 2, "ema": 0.5,
               "log_every": 2},
    )  # fmt: skip
    whole, resumed = folder / "whole", folder / "resumed"
    loop.train(run, str(whole), Silent())
    shutil.copytree(whole, resumed)
    for step in range(STEPS + 2, 3 * STEPS + 1):
        shutil.rmtree(resumed / f"checkpoints/{step}")
    (resumed / "summary.json").unlink()
    watcher = Silent()
    loop.train(run, str(resumed), watcher)
    assert watcher.messages[-1] == f"going on from step {STEPS + 1}"
    assert_same(resumed, whole)
    states = jax.tree.leaves(arrays(whole)["training"]["carry"])
    assert [x.shape for x in states] == [(BATCH, WIDTH)] * 4
    found, _ = evaluate("whole", checkpoint="last")  # which starts from zero, with any batch
    last = [line for line in lines(whole) if line["split"] == "valid"][-1]
    assert found["loss"] == pytest.approx(last["loss"], rel=1e-6)


def test_without_it_the_state_starts_at_zero():
    """The first batches of both are the same rows, and only from the second on they differ."""
    both = []
    for carry in (True, False):
        batches, step, state = begun(run_of())
        for batch in batches[:2]:
            fresh = batch if carry else batch.replace(begins_B=np.ones(BATCH, bool))
            state = step(state, fresh)
            both.append(float(state.metrics["loss"]))
    assert both[0] == both[2]
    assert abs(both[1] - both[3]) > 1e-5


def test_evaluation_starts_from_zero():
    """What is carried changes neither the proof that nothing is seen, nor any loss."""
    found = []
    for carry in (True, False):
        run, data = spec.open_data(run_of(train={"carry": carry}))
        plan, objective = plan_of(run, data["train"]), run.objective.entry
        init, _, eval_step = run_steps(run)
        state = init(train_batch(objective, data["train"], plan, 0, 0), jnp.uint32(0))
        assert set(state.variables()) == {"params"}
        found.append(measure(objective, data["valid"], eval_step, state.variables(), 3)["loss"])
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    "dataset",
    [
        "text(train='a.txt', length=12, stride=12)",
        "text(train='a.txt', length=12, stride=4)",
        "text(train='a.txt', length=12)",
        "characters(path='a.txt', length=12)",
    ],
)
def test_rows_follow_the_text(dataset):
    """Batch after batch, each row goes on where it ended; all of the text comes once in an epoch,
    but for less than a window of each row and one."""
    text = {"tokenizer": "characters"} if dataset.startswith("text") else {}
    run, data = spec.open_data(run_of(dataset, data=text))
    train, plan = data["train"], plan_of(run, data["train"])
    first = 1 if text else 0  # before the text stands an id that begins it
    shown = "".join(f"{i} " for i in range(300))
    assert plan.steps > 10
    rows = [
        train_batch(run.objective.entry, train, plan, run.seed, step)
        for step in range(2 * plan.steps)
    ]
    for epoch in (rows[: plan.steps], rows[plan.steps :]):
        begins = [batch.begins_B.tolist() for batch in epoch]
        assert begins == [[True] * BATCH] + [[False] * BATCH] * (plan.steps - 1)
        read = np.concatenate([batch.inputs["tokens_BT"] for batch in epoch], 1).reshape(-1)
        wanted = np.concatenate([batch.labels for batch in epoch], 1).reshape(-1)
        assert of_data(train, None).decode(read[first:]) == shown[: len(read) - first]
        assert of_data(train, None).decode(wanted) == shown[1 - first : len(read) + 1 - first]
    size = train.counts().sum() if text else round(0.9 * len(shown)) - 1
    assert 0 <= size - len(read) < 12 * (BATCH + 1)


def test_long_windows_of_evaluation(folder):
    """Each token is scored once, with as much before it as there is; the proof that nothing is seen
    takes the short windows of training; and logits are held in parts where windows are long."""
    short = "text(train='a.txt', valid='a.txt', test='a.txt', length=12, stride=12)"
    long = short.replace("stride=12", "stride=12, eval_length=100")
    opened = {}
    for name in (short, long):
        run = run_of(name, data={"tokenizer": "characters"}, train={"loss_chunk": 12})
        opened[name] = spec.open_data(run)
        for split in ("valid", "train"):
            tokens = opened[name][1][split].take(np.arange(2)).tokens.lengths.tolist()
            length = 101 if (name, split) == (long, "valid") else 13
            assert tokens == [length, length]
    run, data = opened[long]
    objective, tried = run.objective.entry, []
    whole = spec.open_data(run_of(long.replace("100", "9999"), data={"tokenizer": "characters"}))
    losses, counts = {}, {}
    for name, (run, data) in {**opened, "whole": whole}.items():
        init, _, eval_step = run_steps(run)
        first = train_batch(objective, data["train"], plan_of(run, data["train"]), 0, 0)
        variables = init(first, jnp.uint32(0)).variables()
        sums = measure(objective, data["valid"], eval_step, variables, 3)
        losses[name], counts[name] = sums["loss"].sum(), int(sums["count"].sum())
    size = len((folder / "a.txt").read_text())
    assert set(counts.values()) == {size}
    assert losses[long] == pytest.approx(losses["whole"], rel=1e-3)

    real = leaks.find_leak

    def find_leak(eval_step, variables, objective, batch, vocab):
        tried.append(batch.labels.shape)
        return real(eval_step, variables, objective, batch, vocab)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leaks, "find_leak", find_leak)
        loop.check_leak(*opened[long], Silent())
    assert tried == [(3, 12)]


BAD = {
    "'decoder' has no state; 'recurrent' has": dict(
        model={"family": "decoder", "width": 8, "layers": 1, "max_length": 8,
               "attention": {"heads": 1}, "feedforward": {"width": 8}},
    ),
    "model.bidirectional=True reads": dict(model={"bidirectional": True}),
    "objective='tag' does not read one long text": dict(objective="tag"),
    "data.buckets=2 would change the order": dict(data={"buckets": 2}),
    "its rows do not go on from one to the next": dict(
        data={"dataset": "dyck(length=8)", "examples": 50, "valid_examples": 9}
    ),
    "stride divides its length": dict(
        data={"dataset": "text(train='a.txt', length=9, stride=4)", "tokenizer": "bytes"}
    ),
    "is too short: a batch of 15 rows": dict(data={"batch": 15}),
}  # fmt: skip


@pytest.mark.parametrize("message", BAD)
def test_what_cannot_be_carried_is_refused(message):
    def plan():
        run, data = spec.open_data(run_of(**BAD[message]))
        plan_of(run, data["train"])

    with pytest.raises(UserError, match="train.carry=True") as caught:
        plan()
    assert message in str(caught.value)
