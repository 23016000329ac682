"""Counts tokens per second, beside transformers on PyTorch with the same weights.

Both generate `new` tokens from one token, with a cache and without an end token: greedily for one
row and for many, and by beam search. They are timed in turns, each in its own process. The ratio is
our tokens per second over theirs. Needs a Hugging Face folder and the extra `parity`.
"""

import dataclasses
import json
import os
import pathlib
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

from tfm.bench.turns import CORES, Run, Speed, compare, speed_table, timed
from tfm.config.names import UserError
from tfm.config.spec import Named, Spec, SpecError, choice, field
from tfm.data.reader import Prompt
from tfm.decode.spec import DecodeSpec
from tfm.decode.writer import Writer
from tfm.interop.convert import from_huggingface
from tfm.interop.folder import DTYPES, read_tensors, weight_files
from tfm.runtime import keep_memory

OURS, THEIRS = "tfm", "transformers"
MAKERS = {OURS: "tfm.bench.decode:ours", THEIRS: "tfm.bench.decode:theirs"}
FIRST = 1  # the token that both start from


@dataclasses.dataclass(frozen=True)
class Case:
    batch: int
    beams: int
    folder: str = ""
    new: int = 0


CASES = {"batch 1": Case(1, 1), "batch 32": Case(32, 1), "beam 4": Case(1, 4)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bench(Spec):
    """Each case × cores is one row of the table."""

    folder: str = "stories260K"  # a path, or a name in $TFM_DATA
    cases: tuple[Named, ...] = choice(lambda: CASES, tuple(CASES))
    cores: tuple[Named, ...] = choice(lambda: CORES, ("all",))
    new: int = field(256, least=8)  # tokens
    rounds: int = field(5, least=2)
    seconds: float = field(2.0, above=0)  # of each turn in a round

    def check(self) -> None:
        for name in ("cases", "cores"):
            if not getattr(self, name):
                raise SpecError(name, "{key} must not be empty")
        if find_spec("transformers") is None or find_spec("torch") is None:
            text = "transformers is not installed: pip install 'tfm[parity]'"
            raise SpecError("cases", f"{{key}}: {text}")


def ours(case: Case) -> Run:
    """Decodes as `tfm generate` does, from ids to ids."""
    keep_memory()
    folder = pathlib.Path(case.folder)
    config = json.loads((folder / "config.json").read_text())
    tensors = read_tensors(weight_files(folder))
    model, params = from_huggingface(config, tensors, DTYPES["float32"])
    writer, prompts = Writer.of(model, {"params": params}), [Prompt([FIRST])] * case.batch
    settings = DecodeSpec(max_new=case.new, beams=case.beams)

    def step(_: None) -> None:
        rows = writer.write(prompts, settings, case.batch)
        assert all(len(sequences[0].tokens) == case.new for sequences in rows)

    return timed(step)


def theirs(case: Case) -> Run:
    """Decodes with `generate` of transformers and its cache."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(case.folder).eval()
    model.generation_config.eos_token_id = None
    prompt = torch.full((case.batch, 1), FIRST)
    options = {"max_new_tokens": case.new, "num_beams": case.beams, "do_sample": False}
    options |= {"use_cache": True, "pad_token_id": 0, "attention_mask": torch.ones_like(prompt)}

    @torch.inference_mode()
    def step(_: None) -> None:
        assert model.generate(prompt, **options).shape == (case.batch, case.new + 1)

    return timed(step)


def measure(spec: Bench) -> Iterator[Speed]:
    folder = _folder(spec.folder)
    for cores in spec.cores:
        for name in spec.cases:
            case = dataclasses.replace(name.entry, folder=folder, new=spec.new)
            makers = {who: (maker, case) for who, maker in MAKERS.items()}
            tokens = case.batch * case.new
            yield compare(str(name), makers, cores, spec.rounds, spec.seconds, tokens)


def _folder(name: str) -> str:
    for folder in (pathlib.Path(name), pathlib.Path(os.environ.get("TFM_DATA", ""), name)):
        if (folder / "config.json").is_file():
            return str(folder)
    raise UserError(f"--config.folder={name}: no such Hugging Face folder here or in $TFM_DATA")


def report(spec: Bench, rows: Sequence[Speed]) -> Any:
    return speed_table(rows, "tokens")
