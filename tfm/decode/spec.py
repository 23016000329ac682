"""Settings of decoding: the most likely token, one drawn at random, or beam search."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from tfm.config.names import literal
from tfm.config.spec import Named, Spec, SpecError, choice, field, size, to_spec

STOPPING = {  # when beam search closes a row; in brackets the name in transformers
    "estimate": "when no beam, at its present length, would beat the worst finished one (False)",
    "full": "when as many beams are finished as there are beams (True)",
    "never": "when no beam can beat the worst finished one, at any length ('never')",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodeSpec(Spec):
    """Temperature 0 takes the most likely token; above it, tokens are drawn. `top_k` draws from the
    k most likely, `top_p` from the fewest whose probabilities sum to p (Holtzman et al. 2020),
    `min_p` from those at least p times as likely as the most likely one (Nguyen et al. 2024); in
    this order, after the temperature, as transformers does.

    With `beams`, the score of a sequence is its log-probability / length**length_penalty, where
    length counts the new tokens, its end included.
    """

    max_new: int = field(256, least=1, most=1_000_000)  # tokens
    temperature: float = field(0.0, least=0)
    top_k: int | None = size(None)
    top_p: float | None = field(None, above=0, most=1)
    min_p: float | None = field(None, above=0, below=1)
    repetition_penalty: float | None = field(None, above=0)  # Keskar et al. 2019, §4.1
    beams: int = size(1)
    length_penalty: float = 1.0  # above 0 prefers longer sequences, below 0 shorter ones
    stopping: Named = choice(lambda: STOPPING, "estimate")
    n_best: int = size(1)  # sequences returned for each prompt
    seed: int = field(0, least=0, below=2**32)

    def check(self) -> None:
        if self.temperature == 0:
            for name in ("top_k", "top_p", "min_p", "seed"):
                if getattr(self, name):
                    raise SpecError(
                        name,
                        f"{{key}}={getattr(self, name)}: nothing is drawn at temperature=0, which "
                        "takes the most likely token; temperature=1 draws",
                    )
        elif self.beams > 1:
            raise SpecError(
                "beams", f"{{key}}={self.beams}: beam search draws nothing; temperature=0"
            )
        if self.n_best > max(self.beams, 1) and self.temperature == 0:
            raise SpecError(
                "n_best",
                f"{{key}}={self.n_best}: there are at most as many sequences as beams "
                f"({self.beams}); give more beams, or a temperature",
            )
        defaults = {one.name: one.default for one in dataclasses.fields(self)}
        for name in ("length_penalty", "stopping"):
            if self.beams == 1 and getattr(self, name) != defaults[name]:
                raise SpecError(name, "{key}: it is for beam search; beams=4")


def decoding_settings(options: Mapping[str, str]) -> dict[str, Any]:
    """Returns the settings that options of a command line name, checked."""
    tree = {name: literal(text) for name, text in options.items()}
    to_spec(DecodeSpec, tree, "--")
    return tree
