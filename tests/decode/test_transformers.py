"""Greedy and beam search give what transformers' `generate` gives with the same weights."""

import numpy as np
import pytest

import tfm
from tfm.data.reader import Prompt
from tfm.decode.spec import DecodeSpec
from tfm.decode.writer import Writer
from tfm.interop.folder import import_folder

torch = pytest.importorskip("torch", reason="parity needs the extra: pip install 'tfm[parity]'")
transformers = pytest.importorskip(
    "transformers", reason="parity needs the extra: pip install 'tfm[parity]'"
)

pytestmark = pytest.mark.ci

VOCAB, END, PAD, NEW = 24, 5, 0, 9
KINDS = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=VOCAB, n_positions=64, n_embd=16, n_layer=2, n_head=2)
    ),
    "llama": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        )
    ),
    "t5": lambda: transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=VOCAB, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2,
            decoder_start_token_id=PAD,
        )
    ),
}  # fmt: skip
# With a penalty, transformers counts the padding of a prompt as seen: one length for all.
SEARCHES = [
    {},
    dict(beams=2),
    dict(beams=4, length_penalty=0.0, stopping="full"),
    dict(beams=3, length_penalty=2.0, stopping="never"),
    dict(beams=4, length_penalty=-0.5),
    dict(beams=3, repetition_penalty=1.3),
    dict(beams=4, max_new=40, stopping="never"),  # the cache is moved in several chunks
]
EARLY = {"estimate": False, "full": True, "never": "never"}
RNG = np.random.default_rng(0)
ROWS = [RNG.integers(6, VOCAB, n).tolist() for n in (3, 8, 5)]
EVEN = [row[:3] for row in ROWS]


@pytest.fixture(scope="module", params=KINDS)
def both(request, tmp_path_factory):
    """Their model, and ours with its weights: large ones, so that answers differ."""
    folder = tmp_path_factory.mktemp("decode")
    torch.manual_seed(0)
    model = KINDS[request.param]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape) * 0.4)
    model.save_pretrained(folder / "theirs")
    import_folder(str(folder / "theirs"), str(folder / "ours"))
    run = tfm.load(str(folder / "ours"))
    return request.param, model, Writer.of(run.spec, run.variables, ends=(END,))


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_generate_gives_the_same(both, search):
    kind, model, writer = both
    rows = EVEN if "repetition_penalty" in search else ROWS
    settings = DecodeSpec(**{"max_new": NEW, **search}, n_best=search.get("beams", 1))
    found = writer.write(
        [Prompt([PAD], row) if kind == "t5" else Prompt(row) for row in rows], settings
    )
    longest = max(map(len, rows))
    if kind == "t5":
        padded = [row + [PAD] * (longest - len(row)) for row in rows]
        there = [[1] * len(row) + [0] * (longest - len(row)) for row in rows]
    else:
        padded = [[PAD] * (longest - len(row)) + row for row in rows]
        there = [[0] * (longest - len(row)) + [1] * len(row) for row in rows]
    beams = search.get("beams", 1)
    more = {name: search[name] for name in ("repetition_penalty",) if name in search}
    if beams > 1:
        more |= dict(
            length_penalty=settings.length_penalty,
            early_stopping=EARLY[str(settings.stopping)],
            num_return_sequences=beams,
        )
    out = model.generate(
        torch.tensor(padded),
        attention_mask=torch.tensor(there),
        do_sample=False,
        max_new_tokens=settings.max_new,
        num_beams=beams,
        eos_token_id=END,
        pad_token_id=PAD,
        return_dict_in_generate=True,
        output_scores=True,
        **more,
    )
    written = out.sequences[:, 1 if kind == "t5" else longest :].tolist()
    wanted = []
    for row in written:
        ended = row.index(END) + 1 if END in row else len(row)
        wanted.append(row[:ended])
    flat = [one for ones in found for one in ones]
    assert [one.tokens for one in flat] == wanted
    if beams > 1:
        np.testing.assert_allclose(
            [one.score for one in flat], out.sequences_scores.numpy(), atol=1e-4, rtol=1e-4
        )
