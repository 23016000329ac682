"""Recurrent and convolutional networks beside torch.nn: outputs, states, gradients."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from tfm.layers.recurrent import CELLS, RecurrentStack
from tfm.models import convolution, seq2seq
from tfm.models.spec import AttentionSpec, ConvolutionSpec, SeqToSeqSpec

torch = pytest.importorskip("torch", reason="parity needs the extra: pip install 'tfm[parity]'")

BATCH, LENGTH, WIDTH, HIDDEN, VOCAB = 4, 7, 3, 5, 11
LENGTHS = np.array([3, 7, 1, 6])
VALID = np.arange(LENGTH)[None] < LENGTHS[:, None]
KINDS = {
    "rnn": (torch.nn.RNN, [""], "i"),
    "lstm": (torch.nn.LSTM, list("ifgo"), "h"),
    "gru": (torch.nn.GRU, list("rzn"), "i"),
}  # torch's class, the order of its gates, which of our kernels has the bias


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def tensor(x):
    return torch.tensor(np.asarray(x))


def cell_tree(cell, values, join):
    """Our parameters from torch's four arrays; `join` makes one bias of its two."""
    _, gates, biased = KINDS[cell]
    weight_ih, weight_hh, bias_ih, bias_hh = (np.split(np.asarray(v), len(gates)) for v in values)
    tree = {}
    for n, gate in enumerate(gates):
        tree[f"i{gate}"] = {"kernel": weight_ih[n].T}
        tree[f"h{gate}"] = {"kernel": weight_hh[n].T}
        if cell == "gru" and gate == "n":
            tree["in"]["bias"], tree["hn"]["bias"] = bias_ih[n], bias_hh[n]
        else:
            tree[f"{biased}{gate}"]["bias"] = join(bias_ih[n], bias_hh[n])
    return tree


def stack_tree(cell, theirs, grad=False):
    """Where two biases are summed, each one's gradient is that of their sum."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    tree = {}
    for n in range(theirs.num_layers):
        for direction, end in (("forward", ""), ("backward", "_reverse")):
            if direction == "forward" or theirs.bidirectional:
                values = [getattr(theirs, f"{name}_l{n}{end}") for name in names]
                values = [v.grad if grad else v.detach() for v in values]
                join = (lambda a, b: a) if grad else (lambda a, b: a + b)
                tree[f"{direction}_{n}"] = cell_tree(cell, values, join)
    return tree


def assert_same(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4, rtol=1e-4), ours, theirs)


@pytest.mark.parametrize("cell", CELLS)
def test_cells(cell):
    torch.manual_seed(0)
    theirs = KINDS[cell][0](WIDTH, HIDDEN, 2, batch_first=True, bidirectional=True)
    x = normal(0, BATCH, LENGTH, WIDTH)
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        tensor(x), tensor(LENGTHS), batch_first=True, enforce_sorted=False
    )
    out, last = theirs(packed)
    states, _ = torch.nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
    last = last if cell == "lstm" else (last,)
    (torch.sin(states).sum() + sum(torch.cos(part).sum() for part in last)).backward()

    module = RecurrentStack(cell, HIDDEN, 2, True)

    def loss(params):
        states, ends, _ = module.apply({"params": params}, x, valid_BT=VALID)
        states = jnp.where(VALID[..., None], states, 0)
        total = jnp.sum(jnp.sin(states)) + sum(jnp.sum(jnp.cos(e)) for e in jax.tree.leaves(ends))
        return total, (states, ends)

    run = jax.jit(jax.grad(loss, has_aux=True))
    grads, (ours, ends) = run(stack_tree(cell, theirs))
    np.testing.assert_allclose(ours, states.detach(), atol=1e-4)
    flat = [end for layer in ends for end in layer]
    flat = [(h, c) for c, h in flat] if cell == "lstm" else [(h,) for h in flat]
    for ours_NBH, wanted in zip(zip(*flat, strict=True), last, strict=True):
        np.testing.assert_allclose(np.stack(ours_NBH), wanted.detach(), atol=1e-4)
    assert_same(grads, stack_tree(cell, theirs, grad=True))


def test_additive_attention():
    """Bahdanau et al. 2015: a bidirectional GRU is read by another, one token at a time."""
    target_length, heads = 5, 2
    rng = np.random.default_rng(3)
    source = rng.integers(0, VOCAB, (BATCH, LENGTH))
    target = rng.integers(0, VOCAB, (BATCH, target_length))
    torch.manual_seed(0)
    theirs = torch.nn.ModuleDict(
        {
            "source_embed": torch.nn.Embedding(VOCAB, WIDTH),
            "target_embed": torch.nn.Embedding(VOCAB, WIDTH),
            "encoder": torch.nn.GRU(WIDTH, HIDDEN, batch_first=True, bidirectional=True),
            "decoder": torch.nn.GRUCell(WIDTH + 2 * heads, HIDDEN),
            "start": torch.nn.Linear(2 * HIDDEN, HIDDEN),
            "query": torch.nn.Linear(HIDDEN, 2 * heads, bias=False),
            "key": torch.nn.Linear(2 * HIDDEN, 2 * heads, bias=False),
            "value": torch.nn.Linear(2 * HIDDEN, 2 * heads, bias=False),
            "score": torch.nn.Embedding(heads, 2),
            "readout": torch.nn.Linear(2 * heads + HIDDEN, HIDDEN, bias=False),
            "head": torch.nn.Linear(HIDDEN, VOCAB),
        }
    )
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        theirs["source_embed"](tensor(source)),
        tensor(LENGTHS),
        batch_first=True,
        enforce_sorted=False,
    )
    states, last = theirs["encoder"](packed)
    states, _ = torch.nn.utils.rnn.pad_packed_sequence(states, batch_first=True)
    h = torch.tanh(theirs["start"](torch.cat([last[0], last[1]], -1)))
    split = lambda x: x.unflatten(-1, (heads, 2))
    k, v = split(theirs["key"](states)), split(theirs["value"](states))
    logits, looked = [], []
    for t in range(target_length):
        energy = torch.tanh(split(theirs["query"](h))[:, None] + k)
        scores = (energy * theirs["score"].weight).sum(-1)
        scores = scores.masked_fill(~tensor(VALID)[..., None], -torch.inf)
        weights = torch.softmax(scores, 1)
        context = (weights[..., None] * v).sum(1).flatten(1)
        x = theirs["target_embed"](tensor(target[:, t]))
        h = theirs["decoder"](torch.cat([x, context], -1), h)
        read = torch.tanh(theirs["readout"](torch.cat([context, h], -1)))
        logits.append(theirs["head"](read))
        looked.append(weights)
    logits, looked = torch.stack(logits, 1), torch.stack(looked, 2).permute(0, 3, 2, 1)
    torch.sin(logits).sum().backward()

    def ours_from(get, grad):
        dense = lambda name: {
            "kernel": get(theirs[name].weight).T,
            **({} if theirs[name].bias is None else {"bias": get(theirs[name].bias)}),
        }
        project = lambda name: {"kernel": get(theirs[name].weight).T.reshape(-1, heads, 2)}
        cell = [getattr(theirs["decoder"], name) for name in ("weight_ih", "weight_hh")]
        cell += [theirs["decoder"].bias_ih, theirs["decoder"].bias_hh]
        join = (lambda a, b: a) if grad else (lambda a, b: a + b)
        return {
            **{
                name: {"token": {"embedding": get(theirs[name].weight)}}
                for name in ("source_embed", "target_embed")
            },
            "encoder": stack_tree("gru", theirs["encoder"], grad),
            "decoder": {"forward_0": cell_tree("gru", [get(x) for x in cell], join)},
            "start": {"hidden_0": dense("start")},
            "attention": {
                **{name: project(name) for name in ("query", "key", "value")},
                "score_w_HK": get(theirs["score"].weight),
            },
            "readout": dense("readout"),
            "head": dense("head"),
        }

    attention = AttentionSpec(heads=heads, head_width=2, score="additive")
    module = seq2seq.make(
        SeqToSeqSpec(vocab=VOCAB, width=WIDTH, hidden=HIDDEN, attention=attention)
    )

    def loss(params):
        logits, made = module.apply(
            {"params": params}, source, target, source_valid_BS=VALID, want=("weights",)
        )
        return jnp.sum(jnp.sin(logits)), (logits, made["decoder"]["weights_BHTS"])

    run = jax.jit(jax.grad(loss, has_aux=True))
    grads, (ours, weights) = run(ours_from(lambda x: x.detach().numpy(), False))
    np.testing.assert_allclose(weights, looked.detach(), atol=1e-5)
    np.testing.assert_allclose(ours, logits.detach(), atol=1e-4)
    assert_same(grads, ours_from(lambda x: x.grad.numpy(), True))


def test_convolution():
    channels, window, classes = (6, 4), 3, 3
    tokens = np.random.default_rng(4).integers(0, VOCAB, (BATCH, LENGTH))
    torch.manual_seed(0)
    embed, head = torch.nn.Embedding(VOCAB, WIDTH), torch.nn.Linear(channels[-1], classes)
    blocks = [
        torch.nn.Sequential(
            torch.nn.Conv1d(before, after, window, padding="same", bias=False),
            torch.nn.BatchNorm1d(after),
            torch.nn.ReLU(),
            torch.nn.MaxPool1d(2, ceil_mode=True),
        )
        for before, after in zip((WIDTH, channels[0]), channels, strict=True)
    ]

    def theirs():
        x = embed(tensor(tokens)).transpose(1, 2)
        for block in blocks:
            x = block(x)
        return head(x.amax(-1))

    def ours_from(get):
        return {
            "embed": {"token": {"embedding": get(embed.weight)}},
            "head": {"kernel": get(head.weight).T, "bias": get(head.bias)},
            **{
                f"block_{n}": {
                    "convolution": {"kernel": get(conv.weight).transpose(2, 1, 0)},
                    "norm": {"scale": get(norm.weight), "bias": get(norm.bias)},
                }
                for n, (conv, norm, *_) in enumerate(blocks)
            },
        }

    module = convolution.make(
        ConvolutionSpec(vocab=VOCAB, width=WIDTH, channels=channels, window=window, classes=classes)
    )
    params = ours_from(lambda x: x.detach().numpy().copy())
    stats = jax.jit(module.init)(jax.random.key(0), tokens)["batch_stats"]

    def loss(params):
        variables = {"params": params, "batch_stats": stats}
        logits, changed = module.apply(variables, tokens, train=True, mutable=["batch_stats"])
        return jnp.sum(jnp.sin(logits)), (logits, changed)

    grads, (logits, changed) = jax.jit(jax.grad(loss, has_aux=True))(params)
    wanted = theirs()
    torch.sin(wanted).sum().backward()
    np.testing.assert_allclose(logits, wanted.detach(), atol=1e-4)
    assert_same(grads, ours_from(lambda x: x.grad.numpy()))

    for n, (_, norm, *_) in enumerate(blocks):
        own = changed["batch_stats"][f"block_{n}"]["norm"]
        np.testing.assert_allclose(own["mean"], norm.running_mean, atol=1e-5)
        count = BATCH * (LENGTH, 4)[n]  # torch notes n / (n − 1) times the variance
        np.testing.assert_allclose(
            0.9 + (own["var"] - 0.9) * count / (count - 1), norm.running_var, atol=1e-5
        )
        norm.running_var.copy_(tensor(own["var"]))
        norm.eval()
    logits = jax.jit(module.apply)({"params": params, **changed}, tokens)
    np.testing.assert_allclose(logits, theirs().detach(), atol=1e-4)
