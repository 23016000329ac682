"""nanoGPT in PyTorch and in tfm are the same model, trained with the same settings."""

import math
import string

import numpy as np
import pytest

from tfm.bench import nanogpt
from tfm.config.names import UserError

torch = pytest.importorskip("torch")
from tfm.bench import torch_nanogpt  # noqa: E402

SIZES = {"width": 8, "heads": 2, "layers": 2, "length": 4}


def test_settings_match_nanogpts():
    """README of nanoGPT, "I only have a macbook", and config/train_shakespeare_char.py."""
    settings = nanogpt.settings(nanogpt.Bench(), seed=3)
    published = {"layers": 4, "heads": 4, "width": 128, "length": 64, "batch": 12, "steps": 2000,
                 "learning_rate": 1e-3, "warmup": 100, "final": 0.1, "b1": 0.9, "b2": 0.99,
                 "weight_decay": 0.1, "clip": 1.0, "valid": 0.1, "seed": 3}  # fmt: skip
    assert {key: settings[key] for key in published} == published


def test_initial_weights_match_nanogpts():
    torch.manual_seed(0)
    model = torch_nanogpt.GPT(65, width=128, heads=4, layers=4, length=64)
    for name, parameter in model.named_parameters():
        spread = 0.02 / math.sqrt(8) if name.endswith(("out.weight", "down.weight")) else 0.02
        if parameter.dim() == 1:
            assert torch.all(parameter == 1)
        else:
            assert parameter.std().item() == pytest.approx(spread, rel=0.03)


def test_all_held_out_tokens_but_the_first_count_once():
    torch.manual_seed(0)
    model = torch_nanogpt.GPT(5, **SIZES)
    with torch.no_grad():  # far from uniform
        model.token.weight *= 100
    text = torch.from_numpy(np.random.default_rng(0).integers(0, 5, 14))
    total = 0.0
    for place in range(1, 14):
        begin = (place - 1) // 4 * 4  # of its window
        logits = model(text[None, begin:place])[0, -1].detach().double()
        total += float(torch.logsumexp(logits, 0) - logits[text[place]])
    loss = torch_nanogpt.held_out_loss(model, text, length=4, batch=2)
    assert loss == pytest.approx(total / 13, rel=1e-5)


def test_the_learning_rate_warms_up_and_comes_down():
    shares = [torch_nanogpt.share(step, 2000, 100, 0.1) for step in (0, 99, 100, 1050, 2000)]
    assert shares == pytest.approx([0.01, 1, 1, 0.55, 0.1])


def test_a_missing_text_is_reported(monkeypatch, tmp_path):
    monkeypatch.delenv("TFM_DATA", raising=False)
    with pytest.raises(UserError, match="set TFM_DATA to the folder that holds tinyshakespeare"):
        list(nanogpt.measure(nanogpt.Bench()))
    monkeypatch.setenv("TFM_DATA", str(tmp_path))
    with pytest.raises(UserError, match=r"no file .*input\.txt"):
        list(nanogpt.measure(nanogpt.Bench()))


@pytest.mark.ci
def test_both_train_and_are_evaluated_alike(monkeypatch, tmp_path):
    letters = np.array(list(string.printable[:65]))
    text = "".join(np.random.default_rng(0).choice(letters, 3000)) + string.printable[:65]
    file = tmp_path / "tinyshakespeare" / "input.txt"
    file.parent.mkdir()
    file.write_text(text)
    monkeypatch.setenv("TFM_DATA", str(tmp_path))
    (row,) = nanogpt.measure(nanogpt.Bench(steps=2, rounds=1))
    assert row.parameters["tfm"] == row.parameters["torch"]
    # Random letters cannot be predicted: both are near the entropy of their distribution.
    assert row.loss["tfm"] == pytest.approx(math.log(65), rel=0.02)
    assert row.loss["torch"] == pytest.approx(math.log(65), rel=0.02)
    assert min(row.seconds.values()) > 0
