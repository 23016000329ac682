"""Models of torch.nn: our specs for them, and whose tensor is whose."""

import numpy as np

from tfm.interop.convert import from_tensors, to_tensors
from tfm.interop.model_type import Pair, module
from tfm.layers.attention import AttentionSpec
from tfm.layers.block import FeedForwardSpec
from tfm.layers.embed import PositionSpec
from tfm.layers.norm import NormSpec
from tfm.models.spec import EncoderDecoderSpec, RecurrentSpec

CELLS = {  # the order of torch's gates, and which of our kernels has the bias
    "rnn": ([""], "i"),
    "lstm": (list("ifgo"), "h"),
    "gru": (list("rzn"), "i"),
}


def transformer(config, weights):
    """torch.nn.Transformer, between a scaled embedding with sinusoids and the same embedding."""
    spec = EncoderDecoderSpec(
        vocab=weights["embedding.weight"].shape[0],
        width=config["d_model"],
        layers=config["layers"],
        max_length=16,
        attention=AttentionSpec(heads=config["nhead"], qkv_bias=True, out_bias=True),
        feedforward=FeedForwardSpec(width=config["dim_feedforward"], kind=config["activation"]),
        norm=NormSpec(placement="pre" if config["norm_first"] else "post", final=True),
        position=PositionSpec(scheme="sinusoidal"),
        scale_embedding=True,
    )
    params = from_tensors(spec, transformer_pairs(spec), weights)
    return spec, params, lambda grads: to_tensors(transformer_pairs(spec), grads)


def transformer_pairs(spec):
    yield Pair("embedding.weight", ("embed/token/embedding",))
    for side in ("encoder", "decoder"):
        parts = {"self_attn": "attention"}
        if side == "decoder":
            parts["multihead_attn"] = "cross"
        for n in range(spec.layers):
            theirs, ours = f"transformer.{side}.layers.{n}", f"{side}/layer_{n}"
            for name, own in parts.items():
                for kind, leaf in (("weight", "kernel"), ("bias", "bias")):
                    qkv = tuple(f"{ours}/{own}/{x}/{leaf}" for x in ("query", "key", "value"))
                    yield Pair(f"{theirs}.{name}.in_proj_{kind}", qkv, int(kind == "weight"))
                yield from module(f"{theirs}.{name}.out_proj", f"{ours}/{own}/out", True)
            yield from module(f"{theirs}.linear1", f"{ours}/feedforward/up", True)
            yield from module(f"{theirs}.linear2", f"{ours}/feedforward/down", True)
            for place, own in enumerate([*parts.values(), "feedforward"], 1):
                yield from module(f"{theirs}.norm{place}", f"{ours}/{own}_norm", True)
        yield from module(f"transformer.{side}.norm", f"{side}/norm", True)


def recurrent(config, weights):
    """torch.nn.RNN, LSTM or GRU of two layers in both directions, between embedding and head."""
    cell, (vocab, width) = config["cell"], weights["embedding.weight"].shape
    spec = RecurrentSpec(
        cell=cell,
        vocab=vocab,
        width=width,
        hidden=config["hidden_size"],
        layers=2,
        bidirectional=True,
        classes=weights["head.bias"].shape[0],
    )
    params = {
        "embed": {"token": {"embedding": weights["embedding.weight"]}},
        "recurrent": {
            f"{direction}_{n}": cell_tree(cell, [weights[name] for name in _names(n, end)])
            for n in range(2)
            for direction, end in (("forward", ""), ("backward", "_reverse"))
        },
        "head": {"kernel": weights["head.weight"].T, "bias": weights["head.bias"]},
    }

    def back(grads):
        out = {
            "embedding.weight": grads["embed"]["token"]["embedding"],
            "head.weight": grads["head"]["kernel"].T,
            "head.bias": grads["head"]["bias"],
        }
        for n in range(2):
            for direction, end in (("forward", ""), ("backward", "_reverse")):
                tree = grads["recurrent"][f"{direction}_{n}"]
                out |= dict(zip(_names(n, end), cell_tensors(cell, tree), strict=True))
        return out

    return spec, params, back


def _names(n, end):
    kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    return [f"cells.{kind}_l{n}{end}" for kind in kinds]


def cell_tree(cell, tensors, join=np.add):
    """Our parameters from torch's four arrays; where we have one bias, it is the sum of theirs."""
    gates, biased = CELLS[cell]
    weight_ih, weight_hh, bias_ih, bias_hh = (np.split(x, len(gates)) for x in tensors)
    tree = {}
    for n, gate in enumerate(gates):
        tree[f"i{gate}"] = {"kernel": weight_ih[n].T}
        tree[f"h{gate}"] = {"kernel": weight_hh[n].T}
        if cell + gate == "grun":
            tree["in"]["bias"], tree["hn"]["bias"] = bias_ih[n], bias_hh[n]
        else:
            tree[f"{biased}{gate}"]["bias"] = join(bias_ih[n], bias_hh[n])
    return tree


def cell_tensors(cell, grads):
    """Gradients of torch's four arrays: where two biases are summed, each has that of the sum."""
    gates, biased = CELLS[cell]
    out = [np.concatenate([grads[f"{side}{gate}"]["kernel"].T for gate in gates]) for side in "ih"]
    for side in "ih":
        names = [f"{side if cell + gate == 'grun' else biased}{gate}" for gate in gates]
        out.append(np.concatenate([grads[name]["bias"] for name in names]))
    return out
