"""Recurrent and convolutional networks beside torch.nn: outputs, states, gradients."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from tests.parity.torch_models import cell_tree
from tfm.layers.attention import AttentionSpec
from tfm.models.spec import ConvolutionSpec, SeqToSeqSpec

torch = pytest.importorskip("torch", reason="parity needs the extra: pip install 'tfm[parity]'")

pytestmark = pytest.mark.ci

BATCH, LENGTH, WIDTH, HIDDEN, VOCAB = 4, 7, 3, 5, 11
LENGTHS = np.array([3, 7, 1, 6])
VALID = np.arange(LENGTH)[None] < LENGTHS[:, None]


def tensor(x):
    return torch.tensor(np.asarray(x))


def assert_same(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4, rtol=1e-4), ours, theirs)


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

    def cells(module, get, join, ends):
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        return [
            cell_tree("gru", [get(getattr(module, f"{name}{end}")) for name in names], join)
            for end in ends
        ]

    def ours_from(get, join):
        dense = lambda name: {
            "kernel": get(theirs[name].weight).T,
            **({} if theirs[name].bias is None else {"bias": get(theirs[name].bias)}),
        }
        project = lambda name: {"kernel": get(theirs[name].weight).T.reshape(-1, heads, 2)}
        forward, backward = cells(theirs["encoder"], get, join, ("_l0", "_l0_reverse"))
        (decoder,) = cells(theirs["decoder"], get, join, ("",))
        return {
            **{
                name: {"token": {"embedding": get(theirs[name].weight)}}
                for name in ("source_embed", "target_embed")
            },
            "encoder": {"forward_0": forward, "backward_0": backward},
            "decoder": {"forward_0": decoder},
            "start": {"hidden_0": dense("start")},
            "attention": {
                **{name: project(name) for name in ("query", "key", "value")},
                "score_w_HK": get(theirs["score"].weight),
            },
            "readout": dense("readout"),
            "head": dense("head"),
        }

    attention = AttentionSpec(heads=heads, head_width=2, score="additive")
    module = SeqToSeqSpec(vocab=VOCAB, width=WIDTH, hidden=HIDDEN, attention=attention).build()

    def loss(params):
        logits, intermediates = module.apply(
            {"params": params}, source, target, source_valid_BS=VALID, capture=("weights",)
        )
        return jnp.sum(jnp.sin(logits)), (logits, intermediates["decoder"]["weights_BHTS"])

    run = jax.jit(jax.grad(loss, has_aux=True))
    grads, (ours, weights) = run(ours_from(lambda x: x.detach().numpy(), np.add))
    np.testing.assert_allclose(weights, looked.detach(), atol=1e-5)
    np.testing.assert_allclose(ours, logits.detach(), atol=1e-4)
    assert_same(grads, ours_from(lambda x: x.grad.numpy(), lambda a, b: a))


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

    module = ConvolutionSpec(
        vocab=VOCAB, width=WIDTH, channels=channels, window=window, classes=classes
    ).build()
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
