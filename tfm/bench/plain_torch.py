"""The same models in PyTorch, written as in nanoGPT.

One matrix product for queries, keys and values, scaled_dot_product_attention, fused AdamW.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from tfm.bench.cases import CLIP, LEARNING_RATE, Case
from tfm.bench.torch_nanogpt import GPT
from tfm.bench.turns import Run, timed


class Attention(nn.Module):
    def __init__(self, case: Case):
        super().__init__()
        self.heads = case.heads
        self.qkv = nn.Linear(case.width, 3 * case.width)
        self.out = nn.Linear(case.width, case.width)

    def forward(self, x: Tensor, source: Tensor, mask: Any, causal: bool = False) -> Tensor:
        if source is x:
            q, k, v = self.qkv(x).chunk(3, -1)
        else:
            width = x.shape[-1]
            weight, bias = self.qkv.weight, self.qkv.bias
            q = F.linear(x, weight[:width], bias[:width])
            k, v = F.linear(source, weight[width:], bias[width:]).chunk(2, -1)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Post-norm with biases; attends to `source` if there is one."""

    def __init__(self, case: Case, cross: bool = False):
        super().__init__()
        self.attention = Attention(case)
        self.cross = Attention(case) if cross else None
        self.up = nn.Linear(case.width, 4 * case.width)
        self.down = nn.Linear(4 * case.width, case.width)
        self.activation = F.relu if case.kind == "encoder_decoder" else F.gelu
        self.norms = nn.ModuleList(nn.LayerNorm(case.width) for _ in range(2 + cross))

    def forward(self, x: Tensor, mask: Any, source: Any = None, source_mask: Any = None) -> Tensor:
        x = self.norms[0](x + self.attention(x, x, mask, causal=source is not None))
        if self.cross is not None:
            x = self.norms[2](x + self.cross(x, source, source_mask))
        return self.norms[1](x + self.down(self.activation(self.up(x))))


class Embedding(nn.Module):
    def __init__(self, case: Case, token: nn.Embedding):
        super().__init__()
        self.token = token
        self.place = nn.Embedding(case.length, case.width)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.token(tokens) + self.place.weight[: tokens.shape[1]]


class Encoder(nn.Module):
    def __init__(self, case: Case):
        super().__init__()
        self.token = nn.Embedding(case.vocab, case.width)
        self.embed = Embedding(case, self.token)
        self.embed_norm = nn.LayerNorm(case.width)
        self.blocks = nn.ModuleList(Block(case) for _ in range(case.layers))
        self.dense = nn.Linear(case.width, case.width)
        self.norm = nn.LayerNorm(case.width)
        self.bias = nn.Parameter(torch.zeros(case.vocab))

    def forward(self, tokens_BT: Tensor, valid_BT: Tensor) -> Tensor:
        x = self.embed_norm(self.embed(tokens_BT))
        for block in self.blocks:
            x = block(x, valid_BT[:, None, None])
        x = self.norm(F.gelu(self.dense(x)))
        return F.linear(x, self.token.weight, self.bias)


class EncoderDecoder(nn.Module):
    def __init__(self, case: Case):
        super().__init__()
        self.token = nn.Embedding(case.vocab, case.width)
        self.source_embed, self.embed = (Embedding(case, self.token) for _ in range(2))
        self.encoder = nn.ModuleList(Block(case) for _ in range(case.layers))
        self.decoder = nn.ModuleList(Block(case, cross=True) for _ in range(case.layers))

    def forward(self, source_BS: Tensor, decoder_input_BT: Tensor, source_valid_BS: Tensor):
        mask = source_valid_BS[:, None, None]
        source, x = self.source_embed(source_BS), self.embed(decoder_input_BT)
        for block in self.encoder:
            source = block(source, mask)
        for block in self.decoder:
            x = block(x, None, source, mask)
        return F.linear(x, self.token.weight)


class LSTM(nn.Module):
    def __init__(self, case: Case):
        super().__init__()
        self.embed = nn.Embedding(case.vocab, case.width)
        self.lstm = nn.LSTM(case.width, case.width, batch_first=True)
        self.head = nn.Linear(case.width, case.vocab)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(tokens_BT))[0])


class LSTMAttention(nn.Module):
    """An encoder–decoder with attention before each step.  Bahdanau et al. 2015."""

    def __init__(self, case: Case):
        super().__init__()
        width = case.width
        self.source_embed, self.embed = (nn.Embedding(case.vocab, width) for _ in range(2))
        self.encoder = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.start = nn.Linear(4 * width, 2 * width)
        self.key = nn.Linear(2 * width, width, bias=False)
        self.query = nn.Linear(width, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)
        self.cell = nn.LSTMCell(3 * width, width)
        self.readout = nn.Linear(3 * width, width, bias=False)
        self.head = nn.Linear(width, case.vocab)

    def forward(self, source_BS: Tensor, decoder_input_BT: Tensor, source_valid_BS: Tensor):
        packed = nn.utils.rnn.pack_padded_sequence(
            self.source_embed(source_BS), source_valid_BS.sum(1), batch_first=True
        )
        packed, (h, c) = self.encoder(packed)
        values, _ = nn.utils.rnn.pad_packed_sequence(
            packed, batch_first=True, total_length=source_BS.shape[1]
        )
        h, c = torch.tanh(self.start(torch.cat([*h, *c], -1))).chunk(2, -1)
        keys = self.key(values)
        outputs = []
        for x in self.embed(decoder_input_BT).unbind(1):
            score = self.score(torch.tanh(self.query(h)[:, None] + keys))[..., 0]
            weights = score.masked_fill(~source_valid_BS, -1e30).softmax(-1)
            context = torch.bmm(weights[:, None], values)[:, 0]
            h, c = self.cell(torch.cat([x, context], -1), (h, c))
            outputs.append(torch.cat([context, h], -1))
        return self.head(torch.tanh(self.readout(torch.stack(outputs, 1))))


MODELS: dict[str, Any] = {
    "decoder": lambda case: GPT(case.vocab, case.width, case.heads, case.layers, case.length),
    "encoder": Encoder,
    "encoder_decoder": EncoderDecoder,
    "lstm": LSTM,
    "lstm_attention": LSTMAttention,
}


def compiled(case: Case) -> Run:
    return eager(case, compiles=True)


def eager(case: Case, compiles: bool = False) -> Run:
    torch.manual_seed(0)
    model = MODELS[case.kind](case)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    batch = case.data
    inputs = {name: torch.from_numpy(x) for name, x in batch.inputs.items()}
    labels = torch.from_numpy(batch.labels).long().flatten()

    def mean_loss(inputs: dict[str, Tensor], labels: Tensor) -> Tensor:
        return F.cross_entropy(model(**inputs).flatten(0, 1), labels)

    loss = torch.compile(mean_loss) if compiles else mean_loss

    def step(_: None) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(inputs, labels).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()

    return timed(step)
