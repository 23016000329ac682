"""Small Hugging Face folders, made from the golden cases."""

import json

import tokenizers
from safetensors.numpy import save_file

from tests.parity import parity_cases as cases


def weights(name):
    _, grads = cases.golden(name)
    return {tensor: cases.weight(tensor, grad.shape) for tensor, grad in grads.items()}


def write(where, name="llama", change=lambda tensors: tensors, **config):
    """The folder of a case, with other tensors or settings."""
    where.mkdir()
    save_file(change(weights(name)), where / "model.safetensors", {"format": "pt"})
    (where / "config.json").write_text(json.dumps(cases.CASES[name][1] | config))
    words = tokenizers.models.WordLevel({"<unk>": 0, "a": 1, "b": 2}, unk_token="<unk>")
    rules = tokenizers.Tokenizer(words)
    rules.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    rules.save(str(where / "tokenizer.json"))
    return str(where)
