"""Trains nanoGPT's small model on a CPU in plain PyTorch; this script does not import tfm.

  python -P tfm/bench/torch_nanogpt.py SETTINGS.json

Trains as nanoGPT does (Karpathy 2022: initialization, groups of weight decay, schedule, random
windows), saves the model, and prints the loss over the whole held-out text in windows side by side.
The model is the smallest GPT-2 without biases, with tied embeddings.
"""

import json
import math
import pathlib
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, bias=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm2 = nn.LayerNorm(width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in qkv)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, vocab: int, width: int, heads: int, layers: int, length: int):
        super().__init__()
        self.token = nn.Embedding(vocab, width)
        self.place = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                last = name.endswith(("out.weight", "down.weight"))  # of a residual branch
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers if last else 1))

    def forward(self, tokens_BT: Tensor) -> Tensor:
        x = self.token(tokens_BT) + self.place.weight[: tokens_BT.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.token.weight)


def loss_of(model: GPT, windows: Tensor) -> Tensor:
    """Returns the mean loss of windows that are one token longer than the input."""
    logits = model(windows[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


def share(step: int, steps: int, warmup: int, final: float) -> float:
    """Returns the share of the peak learning rate: linear warm-up, then a cosine to `final`."""
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(steps - warmup, 1)
    return final + (1 - final) * (1 + math.cos(math.pi * progress)) / 2


def train(model: GPT, text: Tensor, settings: dict[str, Any]) -> torch.optim.Optimizer:
    steps, batch, length = (settings[name] for name in ("steps", "batch", "length"))
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    decayed = {"params": matrices, "weight_decay": settings["weight_decay"]}
    groups = [decayed, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(settings["b1"], settings["b2"]))
    within = torch.arange(length + 1)
    for step in range(steps):
        peak = share(step, steps, settings["warmup"], settings["final"])
        for group in optimizer.param_groups:
            group["lr"] = settings["learning_rate"] * peak
        starts = torch.randint(len(text) - length, (batch, 1))
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model, text[starts + within])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), settings["clip"])
        optimizer.step()
        if (step + 1) % settings["log_every"] == 0:
            print(f"step {step + 1}: loss {loss.item():.4f}", file=sys.stderr)
    return optimizer


@torch.no_grad()
def held_out_loss(model: GPT, text: Tensor, length: int, batch: int) -> float:
    """Returns the loss over all tokens but the first, each predicted once."""
    total, whole = 0.0, (len(text) - 1) // length
    index = torch.arange(whole)[:, None] * length + torch.arange(length + 1)
    for rows in index.split(batch):
        total += loss_of(model, text[rows]).item() * len(rows) * length
    if (rest := text[whole * length :]).numel() > 1:
        total += loss_of(model, rest[None]).item() * (len(rest) - 1)
    return total / (len(text) - 1)


def main(file: str) -> None:
    settings = json.loads(pathlib.Path(file).read_text())
    torch.manual_seed(settings["seed"])
    text = pathlib.Path(settings["text"]).read_text()
    ids = {character: i for i, character in enumerate(sorted(set(text)))}
    tokens = torch.from_numpy(np.array([ids[c] for c in text], np.int64))
    valid_size = math.ceil(round(len(text) * settings["valid"], 6))
    sizes = {name: settings[name] for name in ("width", "heads", "layers", "length")}
    model = GPT(len(ids), **sizes)
    optimizer = train(model, tokens[:-valid_size], settings)
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(saved, pathlib.Path(settings["workdir"]) / "checkpoint.pt")
    loss = held_out_loss(model, tokens[-valid_size:], settings["length"], settings["eval_batch"])
    parameters = sum(p.numel() for p in model.parameters())
    print(json.dumps({"loss": loss, "parameters": parameters}))


if __name__ == "__main__":
    main(sys.argv[1])
