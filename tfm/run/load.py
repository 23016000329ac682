"""A run folder as a model that can be called, whether trained, fine-tuned or imported."""

import dataclasses
import functools
import pathlib
from collections.abc import Sequence
from typing import Any

from flax import linen as nn

from tfm.config.names import UserError
from tfm.data import reader as readers
from tfm.data.dataset import Dataset
from tfm.data.reader import Reader
from tfm.models.spec import ModelSpec
from tfm.objectives.base import Objective
from tfm.run import predict
from tfm.run.checkpoint import Checkpoints, evaluated
from tfm.run.folder import Folder
from tfm.run.spec import RunSpec, of_folder, open_data


@dataclasses.dataclass(frozen=True)
class LoadedRun:
    """The model of a run folder, its parameters, its reader and its data."""

    folder: pathlib.Path
    step: int
    run: RunSpec
    model: nn.Module
    variables: dict[str, Any] = dataclasses.field(repr=False)
    messages: list[str]  # about damaged checkpoints
    special: bool = False  # special tokens in a text, such as [SEP], are read as such

    @property
    def spec(self) -> ModelSpec:
        return self.run.model

    @property
    def objective(self) -> Objective:
        return self.run.objective.entry

    @property
    def params(self) -> Any:
        return self.variables["params"]

    def __call__(self, **inputs: Any) -> Any:
        """Returns the model's outputs."""
        return self.model.apply(self.variables, **inputs)

    @functools.cached_property
    def reader(self) -> Reader:
        """Maps text to ids and back. No data file is opened, except for runs of older versions."""
        known = Folder(self.folder).read("data.json") or {}
        if "reader" in known:
            reader = readers.of_tree(known["reader"], known["vocabulary"])
        else:
            train, source = self.data["train"], self.run.data.dataset.entry
            reader = readers.of_data(train, source, self.objective.added(train))
        return dataclasses.replace(reader, parses=True) if self.special else reader

    @functools.cached_property
    def data(self) -> dict[str, Dataset]:
        """The data that the run was trained and evaluated on, by split."""
        known = Folder(self.folder).read("data.json") or {}
        tokenized = self.run.data.tokenizer is not None
        return open_data(self.run, known.get("vocabulary") if tokenized else None)[1]

    def generate(
        self, text: str | Sequence[str] | None = None, *, part: int | None = None, **settings: Any
    ) -> Any:
        """Continues a text, or writes the target of a source. Returns a list for a list of texts.
        Without a text, begins with the token that begins one. `settings` are those of
        `DecodeSpec`: max_new, temperature, top_k, top_p, min_p, beams, … With `n_best` above 1,
        returns a list of sequences for each text, the best first.

        Takes the most likely tokens unless a temperature is set.
        """
        several = not (text is None or isinstance(text, str))
        texts: Any = list(text) if isinstance(text, Sequence) and several else [text]
        if not all(one is None or isinstance(one, str) for one in texts):
            raise UserError(f"generate({text!r}): give a text, a list of texts, or nothing")
        written = predict.TextWriter(self, part).write(texts, settings)
        answers: list[Any] = [[one["text"] for one in each["sequences"]] for each in written]
        if settings.get("n_best", 1) == 1:
            answers = [sequences[0] for sequences in answers]
        return answers if several else answers[0]

    def classify(self, text: str, second: str | None = None) -> dict[str, Any]:
        """Returns the class of a text, or of two, with all probabilities; or a number."""
        return predict.classify(self, [(text, second)])[0]

    def tag(self, text: str) -> list[dict[str, Any]]:
        """Returns the tag of each word of a text, and its probability."""
        return predict.tag(self, [text])[0]

    def fill(self, text: str, top: int = 5) -> list[list[dict[str, Any]]]:
        """Returns the most likely tokens, or spans, for each [MASK] of a text."""
        return predict.fill(self, text, top)


def load(
    folder: str | pathlib.Path,
    checkpoint: str = "best",
    trust: bool = False,
    special: bool = False,
) -> LoadedRun:
    """Loads the run in a folder, with its best checkpoint or its `last`.

    `trust`: code that the folder holds, if any, may be run. `special`: special tokens in a text,
    such as [SEP] or </s>, are read as such, as transformers does; otherwise they are text.
    """
    path = pathlib.Path(folder)
    run = of_folder(str(path), trust)
    step, variables, messages = Checkpoints(path, read_only=True).variables(checkpoint)
    return LoadedRun(path, step, run, run.model.build(), evaluated(variables), messages, special)
