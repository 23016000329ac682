"""The same cases, computed by transformers and torch.nn."""

import math

import torch
import transformers

from tests.parity.parity_cases import TORCH, VOCAB, counted, inputs, target, weight


class Transformer(torch.nn.Module):
    """torch.nn.Transformer with what it leaves to its user: embedding, positions, head."""

    def __init__(self, norm_first, activation):
        super().__init__()
        width = TORCH["d_model"]
        self.embedding = torch.nn.Embedding(VOCAB, width)
        self.transformer = torch.nn.Transformer(
            width, TORCH["nhead"], TORCH["layers"], TORCH["layers"], TORCH["dim_feedforward"],
            0.0, activation, norm_first=norm_first, batch_first=True,
        )  # fmt: skip

    def embed(self, tokens):
        x = self.embedding(tokens) * math.sqrt(self.embedding.embedding_dim)
        for p in range(tokens.shape[1]):
            for i in range(0, x.shape[2], 2):
                angle = p / 10_000 ** (i / x.shape[2])
                x[:, p, i] += math.sin(angle)
                x[:, p, i + 1] += math.cos(angle)
        return x

    def forward(self, source, target, source_valid, target_valid):
        length = target.shape[1]
        out = self.transformer(
            self.embed(source),
            self.embed(target),
            tgt_mask=torch.ones(length, length).triu(1).bool(),
            src_key_padding_mask=~source_valid,
            tgt_key_padding_mask=~target_valid,
            memory_key_padding_mask=~source_valid,
        )
        return out @ self.embedding.weight.T


class Recurrent(torch.nn.Module):
    """Two layers of cells in both directions, between an embedding and a head."""

    def __init__(self, cell, hidden_size):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCAB, 4)
        kind = getattr(torch.nn, cell.upper())
        self.cells = kind(4, hidden_size, 2, batch_first=True, bidirectional=True)
        self.head = torch.nn.Linear(2 * hidden_size, 6)

    def forward(self, tokens, valid):
        packed = torch.nn.utils.rnn.pack_padded_sequence(
            self.embedding(tokens), valid.sum(1), batch_first=True, enforce_sorted=False
        )
        out, _ = self.cells(packed)
        states, _ = torch.nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
        return self.head(states)


def build(architecture, config):
    """Their model, its weights set by name."""
    model = _model(architecture, config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.tensor(weight(name, tuple(parameter.shape))))
    return model


def _model(architecture, config):
    if config["model_type"] == "transformer":
        return Transformer(config["norm_first"], config["activation"])
    if config["model_type"] == "recurrent":
        return Recurrent(config["cell"], config["hidden_size"])
    settings = {k: v for k, v in config.items() if k != "model_type"}
    kind = getattr(transformers, architecture)
    # The plain implementation, whose masks we can trust on padded rows.
    model = kind(kind.config_class(**settings, attn_implementation="eager"))
    if config.get("feed_forward_proj") == "gated-gelu":  # T5 1.1 has a head of its own
        model.lm_head.weight = torch.nn.Parameter(torch.empty(model.lm_head.weight.shape))
    return model


def compute(architecture, config, model=None):
    """Outputs by name, and gradients of the loss by tensor."""
    model = build(architecture, config) if model is None else model
    batch = {name: torch.tensor(x) for name, x in inputs(config).items()}
    if config["model_type"] == "recurrent":
        valid = batch["valid_BT"]
        outputs = {"lm": model(batch["tokens_BT"], valid)}
    elif config["model_type"] == "transformer":
        valid = batch["decoder_valid_BT"]
        logits = model(
            batch["source_BS"], batch["decoder_input_BT"], batch["source_valid_BS"], valid
        )
        outputs = {"lm": logits}
    elif config["model_type"] == "t5":
        valid = batch["decoder_valid_BT"]
        out = model(
            input_ids=batch["source_BS"],
            attention_mask=batch["source_valid_BS"].long(),
            decoder_input_ids=batch["decoder_input_BT"],
            decoder_attention_mask=valid.long(),
        )
        outputs = {"lm": out.logits}
    else:
        valid = batch["valid_BT"]
        types = {"token_type_ids": batch["types_BT"]} if "types_BT" in batch else {}
        out = model(input_ids=batch["tokens_BT"], attention_mask=valid.long(), **types)
        outputs = _named(architecture, out)
    loss = 0.0
    for name, counts in counted(outputs, valid.numpy()).items():
        x, rows = outputs[name], torch.tensor(counts)
        wanted = torch.tensor(target(name, tuple(x.shape)))
        if name in ("states", "pooled"):
            loss = loss + (x * wanted).sum(-1)[rows].sum() / rows.sum()
        else:
            loss = loss + torch.nn.functional.cross_entropy(x[rows], wanted[rows])
    loss.backward()
    outputs = {name: x.detach().numpy() for name, x in outputs.items()}
    return outputs, {n: p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None}


def _named(architecture, out):
    head = {
        "BertForMaskedLM": "masked_lm",
        "BertForNextSentencePrediction": "pair",
        "BertForSequenceClassification": "classify",
        "BertForTokenClassification": "tag",
    }.get(architecture, "lm")
    if architecture == "BertModel":
        return {"states": out.last_hidden_state, "pooled": out.pooler_output}
    if architecture == "BertForPreTraining":
        return {"masked_lm": out.prediction_logits, "pair": out.seq_relationship_logits}
    return {head: out.logits}
