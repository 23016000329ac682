"""Continues a text, or shows the probabilities of the next token.

The text is a prompt, given in quotes, as a file or on stdin; with --lines, each line is one. The
continuation is printed as it is generated, after its prompt; --json prints it with the
log-probability of each token. A prompt longer than the model's context is an error: nothing is cut
off.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from tfm.cli.options import RunParser, decoding, load_run, texts
from tfm.config.names import UserError
from tfm.config.spec import to_spec
from tfm.decode.sample import Filters, penalised, probabilities
from tfm.decode.spec import DecodeSpec
from tfm.run.text import TextWriter, text_writer, whole_pieces
from tfm.terminal import console, plain, table

TEMPERATURES = (0.5, 1.0, 2.0)
SHOWN = 10  # tokens of a distribution
BAR = 20  # characters
FILTERS = ("top_k", "top_p", "min_p", "repetition_penalty")


def main(argv: Sequence[str]) -> None:
    parser = RunParser("generate", __doc__)
    parser.add_text()
    parser.add_argument("--lines", action="store_true", help="each line is a prompt")
    parser.add_argument(
        "--start", action="store_true", help="generate from the start token, without a prompt"
    )
    parser.add_argument(
        "--distribution",
        action="store_true",
        help="show the probabilities of the next token at several temperatures",
    )
    parser.add_part()
    parser.add_decoding()
    parser.add_json()
    args = parser.parse(argv)
    settings = decoding(args, **({"temperature": "1"} if args.distribution else {}))
    if args.start and (args.text is not None or args.file is not None or args.lines):
        raise UserError("--start writes without a prompt: leave out the text")
    prompts: list[str | None] = [None] if args.start else [*texts(args, args.lines)]
    writer = text_writer(load_run(args), args.part)
    if args.distribution:
        _distribution(writer, prompts, settings, args.json)
        return
    spec = writer.fitting(prompts, settings)
    if args.json:
        print(json.dumps(written(writer, prompts, spec), indent=1, ensure_ascii=False))
    elif len(prompts) == spec.beams == spec.n_best == 1:
        _stream(writer, prompts[0], spec)
    else:
        for text, sequences in zip(prompts, writer.write(prompts, spec), strict=True):
            for sequence in sequences:
                score = f"{sequence.score:.4f}\t" if spec.n_best > 1 else ""
                print(score + writer.text(writer.prompt(text), sequence.tokens))


def written(
    writer: TextWriter, texts: Sequence[str | None], spec: DecodeSpec, batch: int = 32
) -> list[dict[str, Any]]:
    """What is written for each text, token by token."""
    found = []
    for text, ones in zip(texts, writer.write(texts, spec, batch), strict=True):
        prompt = writer.prompt(text)
        sequences = [
            {
                "text": writer.text(prompt, one.tokens),
                "score": one.score,
                "ended": one.ended,
                "tokens": [
                    {"id": id_, "text": writer.codec.piece(id_), "logprob": logprob}
                    for id_, logprob in zip(one.tokens, one.logprobs, strict=True)
                ],
            }
            for one in ones
        ]
        found.append({"prompt": text, "sequences": sequences})
    return found


def _stream(writer: TextWriter, text: str | None, spec: DecodeSpec) -> None:
    prompt = writer.prompt(text)
    texts = (writer.text(prompt, one.tokens) for one in writer.writer.stream(prompt, spec))
    for piece in whole_pieces(texts):
        sys.stdout.write(piece)
        sys.stdout.flush()
    print()


def _distribution(
    writer: TextWriter, texts: Sequence[str | None], settings: dict[str, Any], as_json: bool
) -> None:
    """How likely the next tokens are."""
    if len(texts) > 1:
        raise UserError("--distribution is of one prompt: leave out --lines")
    unused = set(settings) - {"temperature", *FILTERS}
    if unused:
        raise UserError(f"--{min(unused)}: it does not change --distribution")
    chosen = float(settings["temperature"])
    temperatures = sorted({*TEMPERATURES, *([chosen] if chosen else [])})
    others: dict[str, Any] = {name: settings[name] for name in FILTERS if name in settings}
    prompt = writer.prompt(texts[0])
    logits_V = writer.writer.next_logits(prompt)
    if "repetition_penalty" in others:
        penalty = jnp.float32(others.pop("repetition_penalty"))
        seen_V = np.isin(np.arange(len(logits_V)), prompt.tokens)
        logits_V = np.asarray(penalised(jnp.asarray(logits_V), jnp.asarray(seen_V), penalty))
    p_NV = np.stack([next_probabilities(logits_V, t, others) for t in temperatures])
    order = np.argsort(-logits_V, kind="stable")[:SHOWN].tolist()
    if as_json:
        rows = [
            {
                "id": id_,
                "text": writer.codec.piece(id_),
                "probability": {
                    str(t): float(p) for t, p in zip(temperatures, p_NV[:, id_], strict=True)
                },
            }
            for id_ in order
        ]
        print(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    out = table("next token", *(f"temperature {t:g}" for t in temperatures))
    for id_ in order:
        bars = [f"{p:.4f} {'█' * round(BAR * p)}" for p in p_NV[:, id_]]
        out.add_row(repr(plain(writer.codec.piece(id_))), *bars)
    rest = 1 - p_NV[:, order].sum(1)
    out.add_row("all others", *(f"{max(p, 0):.4f} {'█' * round(BAR * p)}" for p in rest))
    console().print(out)


def next_probabilities(
    logits_V: np.ndarray, temperature: float, others: dict[str, Any]
) -> np.ndarray:
    """V: how likely each token is to be drawn."""
    spec = to_spec(DecodeSpec, {**others, "temperature": temperature})
    p_BV = probabilities(jnp.asarray(logits_V)[None], Filters.of(spec), spec.top_k)
    return np.asarray(jax.device_get(p_BV))[0]
