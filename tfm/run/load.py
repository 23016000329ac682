"""A run folder as a model that can be called: trained, fine-tuned or imported, it is the same."""

import dataclasses
import functools
import pathlib
from collections.abc import Sequence
from typing import Any

from flax import linen as nn

from tfm.config.files import load as load_config
from tfm.config.names import UserError
from tfm.data.dataset import Dataset
from tfm.data.tokenizers.tokenizer import tokenizer_of
from tfm.models.spec import ModelSpec, model_spec
from tfm.run.checkpoint import Checkpoints, evaluated
from tfm.run.folder import Folder
from tfm.run.imported import imported_tokenizer
from tfm.run.spec import RunSpec, of_tree, open_data


@dataclasses.dataclass(frozen=True)
class LoadedRun:
    """The model of a run folder, its parameters, its data and its tokenizer."""

    folder: pathlib.Path
    step: int
    spec: ModelSpec
    model: nn.Module
    variables: dict[str, Any] = dataclasses.field(repr=False)
    run: RunSpec | None  # None: it was imported, not trained here
    messages: list[str]  # about damaged checkpoints

    @property
    def params(self) -> Any:
        return self.variables["params"]

    def __call__(self, **inputs: Any) -> Any:
        """The model's outputs."""
        return self.model.apply(self.variables, **inputs)

    @functools.cached_property
    def known(self) -> dict[str, Any]:
        """What the folder says of its data: how many ids there are, and what they stand for."""
        return Folder(self.folder).read("data.json") or {}

    def generate(
        self, text: str | Sequence[str] | None = None, *, part: int | None = None, **settings: Any
    ) -> Any:
        """What the model writes after a text, with the text; or for a source, its target. Of
        several texts, a list; without a text, from the token that begins one. `settings` are those
        of `DecodeSpec`: max_new, temperature, top_k, top_p, min_p, beams, … With `n_best` above 1,
        a list of sequences for each text, the best first.

        The most likely tokens are taken unless a temperature is given.
        """
        several = not (text is None or isinstance(text, str))
        texts: Any = list(text) if isinstance(text, Sequence) and several else [text]
        if not all(own is None or isinstance(own, str) for own in texts):
            raise UserError(f"generate({text!r}): give a text, a list of texts, or nothing")
        writer = self._writer(part)
        chosen = writer.fitting(texts, settings)
        found: list[Any] = [
            [writer.text(writer.prompt(own), one.tokens) for one in ones]
            for own, ones in zip(texts, writer.write(texts, chosen), strict=True)
        ]
        if chosen.n_best == 1:
            found = [ones[0] for ones in found]
        return found if several else found[0]

    def _writer(self, part: int | None) -> Any:
        from tfm.run.text import text_writer

        kept = vars(self).setdefault("_writers", {})
        if part not in kept:
            kept[part] = text_writer(self, part)
        return kept[part]

    @functools.cached_property
    def data(self) -> dict[str, Dataset]:
        """What it was trained and evaluated on, by split."""
        if self.run is None:
            raise UserError(f"{self.folder} is an imported model: it has no data")
        own = self.known.get("vocabulary") if self.run.data.tokenizer is not None else None
        return open_data(self.run, own)[1]

    @functools.cached_property
    def tokenizer(self) -> Any:
        """With `decode(ids)`: the data's own, or that of an import, from `tokenizers`."""
        if self.run is None and imported_tokenizer(self.folder).is_file():
            import tokenizers

            return tokenizers.Tokenizer.from_file(str(imported_tokenizer(self.folder)))
        tokenizer = tokenizer_of(self.known.get("vocabulary"))
        if tokenizer is not None:
            return tokenizer
        if self.run is None:
            raise UserError(f"{self.folder} has no tokenizer: no tokenizer.json was imported")
        if self.data["train"].decode is None:
            raise UserError(f"{self.folder} has no tokenizer: its data are ids")
        return self.data["train"]


def load(folder: str | pathlib.Path, checkpoint: str = "best", trust: bool = False) -> LoadedRun:
    """The run in a folder, with its best checkpoint or its `last`.

    `trust`: the code that the folder holds, if it does, may be run.
    """
    path = pathlib.Path(folder)
    run, spec = read_spec(path, trust)
    step, variables, messages = Checkpoints(path, read_only=True).variables(checkpoint)
    module = spec.build()
    return LoadedRun(path, step, spec, module, evaluated(variables), run, messages)


def read_spec(folder: pathlib.Path, trust: bool = False) -> tuple[RunSpec | None, ModelSpec]:
    """The run in a folder and its model; an imported model has no run."""
    tree = load_config(str(folder / "config.json"), trust)
    if "objective" in tree:
        run = of_tree(tree.to_dict(), str(folder))
        return run, run.model
    return None, model_spec(tree)
