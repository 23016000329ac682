"""Data sets of TensorFlow Datasets, by name; read without TensorFlow.

They must have been prepared as ArrayRecord files, in a folder of their own:

  pip install 'tfm[prepare]'      (in an environment of its own, if versions clash)
  tfm data --prepare=wmt14_translate/de-en --data_dir=FOLDER

(The library's own command, `tfds build`, does not start without Apache Beam.)
"""

import contextlib
import functools
import os
import pathlib
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tfm.config.names import UserError, suggest
from tfm.data.dataset import Source
from tfm.data.files import Bad, Meter, Place, digest, find
from tfm.data.formats.corpus import Part
from tfm.data.formats.records import Record, Records
from tfm.data.formats.streams import TextStream

VALID = ("validation", "valid", "dev", "validation_matched")
EXTRA = "pip install 'tfm[prepare]' brings TensorFlow, which most of them need"
HELD = "95%"  # of the training split is for training, where there is no split for validation
SENTENCE = {"text": "sentence", "label": "label"}
PAIR = {"text": "sentence1", "text2": "sentence2", "label": "label"}
PREMISE = {"text": "premise", "text2": "hypothesis", "label": "label"}
# Which feature is what, by the name of a data set, or with its config.
MAPPINGS: dict[str, Mapping[str, str]] = {
    "lm1b": {"text": "text"},
    "wiki40b": {"text": "text"},
    "imdb_reviews": {"text": "text", "label": "label"},
    "ag_news_subset": {"text": "description", "label": "label"},
    "snli": PREMISE,
    "conll2003": {"text": "tokens", "tags": "ner"},
    "glue/cola": SENTENCE,
    "glue/sst2": SENTENCE,
    "glue/mrpc": PAIR,
    "glue/stsb": PAIR,
    "glue/rte": PAIR,
    "glue/wnli": PAIR,
    "glue/qqp": {"text": "question1", "text2": "question2", "label": "label"},
    "glue/qnli": {"text": "question", "text2": "sentence", "label": "label"},
    "glue/mnli": PREMISE,
    "glue/mnli_matched": PREMISE,
    "glue/mnli_mismatched": PREMISE,
    "glue/ax": PREMISE,
}
TRANSLATIONS = ("wmt14_translate", "wmt16_translate", "wmt19_translate", "ted_hrlr_translate")
WIKI40B = re.compile(r"\n?_(?:START_(?:ARTICLE|SECTION|PARAGRAPH)|NEWLINE)_\n?")


class Prepared:
    """A prepared data set in its folder, and which of its features are wanted."""

    def __init__(
        self, name: str, data_dir: str | None, splits: Mapping[str, str], own: Mapping[str, str]
    ):
        self.name, self.data_dir, self.splits, self.own = name, data_dir, splits, own

    def folder(self) -> pathlib.Path:
        """Of the newest version, unless the name gives one: wmt14_translate/de-en:1.0.0."""
        name, _, version = self.name.partition(":")
        place = self.data_dir or home()
        command = f"`tfm data --prepare={self.name} --data_dir={place}` prepares it ({EXTRA})"
        try:
            folder = find("tfds", str(pathlib.Path(place, name)), folder=True)
        except UserError as e:
            raise UserError(f"{e}. {command}") from None
        inside = [path for path in folder.iterdir() if (path / "dataset_info.json").is_file()]
        versions = [path for path in inside if version in ("", path.name)]
        if not versions:
            there = ", ".join(sorted(p.name for p in folder.iterdir() if p.is_dir()))
            raise UserError(
                f"tfds: {folder} holds no prepared version {version}{' ' * bool(version)}but "
                f"{there or 'nothing'}; write name='{name}/CONFIG', or {command}"
            )
        found = max(versions, key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)])
        if not list(found.glob("*.array_record*")):
            raise UserError(
                f"tfds: {found} holds no ArrayRecord files; others need TensorFlow to be read. "
                f"In another folder, {command}"
            )
        return found

    def builder(self) -> Any:
        folder = self.folder()
        return _builder(folder, (folder / "dataset_info.json").stat().st_mtime_ns)

    def mapping(self) -> dict[str, str]:
        """The feature of each role: text, text2, label, target, tags."""
        features = self.builder().info.features
        name = self.name.partition(":")[0]
        known = MAPPINGS.get(name) or MAPPINGS.get(name.partition("/")[0]) or {}
        if not known and name.partition("/")[0] in TRANSLATIONS:
            known = dict(zip(("text", "target"), features, strict=False))
            first = re.split(r"[-_]", name.partition("/")[2])[0]
            if list(features)[-1].replace("_", "") == first:  # features are sorted by name
                known = {"text": known["target"], "target": known["text"]}
        mapping = dict(self.own) if "text" in self.own else {**known, **self.own}
        if "text" not in mapping:
            raise UserError(
                f"tfds: of {self.name!r} it is not known what is what; its features are "
                f"{', '.join(sorted(features))}: write text='…', and label=, text2=, target= or "
                "tags="
            )
        for role, feature in mapping.items():
            if feature not in features:
                raise UserError(
                    f"tfds: {role}={feature!r}: {self.name} has no such feature"
                    + suggest(feature, features)
                )
        return mapping

    def split(self, split: str) -> str:
        """The name of a split, as TFDS spells it."""
        if self.splits[split]:
            return self.splits[split]
        there = list(self.builder().info.splits)
        valid = next((name for name in VALID if name in there), None)
        if split == "train" and valid is None and not self.splits["valid"]:
            return f"train[:{HELD}]"
        found = {"train": "train", "valid": valid or f"train[{HELD}:]", "test": "test"}[split]
        if found.partition("[")[0] not in there:
            raise UserError(
                f"tfds: {self.name} has no split {found!r}, but {', '.join(there)}: {split}='…'"
            )
        return found

    def part(self, split: str) -> Part:
        folder, name = self.folder(), self.split(split)
        parts = re.findall(r"(?:^|\+)\s*(\w+)", name)
        files = [path for part in parts for path in folder.glob(f"*-{part}.array_record*")]
        hashes = [digest(path) for path in (folder / "features.json", *sorted(files))]
        return Part(" ".join([name, *hashes]), sum(path.stat().st_size for path in files))

    def files(self) -> dict[str, str]:
        """In place of the options that name the data: a hash of it."""
        hashes = {split: self.part(split).digest for split in ("train", "valid")}
        return {"name": hashes["train"], "data_dir": hashes["valid"]}

    def elements(self, split: str, meter: Meter) -> Iterator[tuple[Place, dict[str, Any]]]:
        """The examples of a split, in order."""
        name, size = self.split(split), self.part(split).size
        with _quiet():
            source = self.builder().as_data_source(split=name)
        counted = 0
        for number in range(len(source)):
            yield Place(f"{self.name} {name}", number + 1), source[number]
            if number % 256 == 0:
                meter(size * number // len(source) - counted)
                counted = size * number // len(source)
        meter(size - counted)


@functools.lru_cache(maxsize=16)
def _builder(folder: pathlib.Path, changed: int) -> Any:
    with _quiet():
        import tensorflow_datasets as tfds

        return tfds.builder_from_directory(str(folder), file_format="array_record")


def home() -> str:
    """Where prepared data sets are, unless a folder is given."""
    default = pathlib.Path.home() / "tensorflow_datasets"
    return os.environ.get("TFDS_DATA_DIR", str(default))


def prepare(name: str, data_dir: str) -> str:
    """Download a data set and write it as ArrayRecord files; the folder that holds them."""
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(name, data_dir=data_dir, file_format="array_record")
        builder.download_and_prepare()
    except tfds.core.DatasetNotFoundError as e:
        raise UserError(f"tfds: no data set {name!r}: {str(e).splitlines()[0]}") from e
    except ImportError as e:
        raise UserError(f"tfds: {name} cannot be prepared: {e}. {EXTRA}") from e
    return str(builder.data_dir)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Within it, the library's own warnings are not shown."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _text(value: Any, feature: str, place: Place, bad: Bad) -> str | None:
    try:
        text = value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError as e:
        bad(place, f"{feature!r} is not UTF-8 text: {e}")
        return None
    if not text.strip():
        bad(place, f"{feature!r} is empty")
        return None
    return text


class TfdsText(TextStream):
    """Documents, one after another; an end id stands after each."""

    kind = "tfds"

    def __init__(self, prepared: Prepared, length: int, stride: int):
        super().__init__("tfds", "tfds", "tfds", length, stride, eos=True)
        self.prepared = prepared

    def settings(self) -> dict[str, Any]:
        return {"name": self.prepared.name, "mapping": self.prepared.mapping()}

    def files(self) -> Mapping[str, str]:
        return self.prepared.files()

    def part(self, split: str) -> Part:
        return self.prepared.part(split)

    def blocks(self, split: str, bad: Bad, meter: Meter) -> Iterator[str]:
        feature = self.prepared.mapping()["text"]
        wiki = self.prepared.name.startswith("wiki40b")
        for place, example in self.prepared.elements(split, meter):
            text = _text(example[feature], feature, place, bad)
            if text is not None:
                yield (WIKI40B.sub("\n", text).strip() if wiki else text) + "\n"


class TfdsRecords(Records):
    kind = "tfds"

    def __init__(self, prepared: Prepared):
        self.prepared = prepared

    @property
    def form(self) -> str:  # type: ignore[override]
        mapping = self.prepared.mapping()
        return next(f for r, f in ROLES.items() if r in mapping)

    @property
    def pair(self) -> bool:  # type: ignore[override]
        return "text2" in self.prepared.mapping()

    @property
    def numbers(self) -> bool:  # type: ignore[override]
        role = self.prepared.mapping().get("label")
        return role is not None and "float" in str(
            self.prepared.builder().info.features[role].np_dtype
        )

    def settings(self) -> dict[str, Any]:
        return {"name": self.prepared.name, "mapping": self.prepared.mapping()}

    def files(self) -> Mapping[str, str]:
        return self.prepared.files()

    def part(self, split: str) -> Part:
        return self.prepared.part(split)

    def label_names(self) -> tuple[str, ...] | None:
        """Those that the data set declares, in its order."""
        names = self._declared()
        return super().label_names() if self.vocabulary is not None or names is None else names

    def _declared(self) -> tuple[str, ...] | None:
        mapping, features = self.prepared.mapping(), self.prepared.builder().info.features
        role = mapping.get("label") or mapping.get("tags")
        if role is None:
            return None
        feature = getattr(features[role], "feature", features[role])
        names = getattr(feature, "names", None)
        return None if names is None else tuple(names)

    def records(self, split: str, bad: Bad, meter: Meter) -> Iterator[Record]:
        mapping, names = self.prepared.mapping(), self._declared()

        def name(value: Any, place: Place) -> str | None:
            if names is None:
                return _text(value, mapping.get("label", "tags"), place, bad)
            if not 0 <= int(value) < len(names):
                bad(place, f"it has no label ({int(value)})")
                return None
            return names[int(value)]

        fields = {"text": "text", "text2": "second", "target": "target"}
        for place, example in self.prepared.elements(split, meter):
            if "tags" in mapping:
                words = [_text(w, mapping["text"], place, bad) for w in example[mapping["text"]]]
                tags = [name(tag, place) for tag in example[mapping["tags"]]]
                if words and None not in words and None not in tags and len(words) == len(tags):
                    yield Record(place, list(map(str, words)), tags=list(map(str, tags)))
                elif len(words) != len(tags) or not words:
                    bad(place, f"{len(words)} words and {len(tags)} tags")
                continue
            found = {
                field: _text(example[mapping[role]], mapping[role], place, bad)
                for role, field in fields.items()
                if role in mapping
            }
            if "label" in mapping:
                found["label"] = name(example[mapping["label"]], place)
            if None not in found.values():
                yield Record(place, **found)  # type: ignore[arg-type]


ROLES = {"tags": "tags", "label": "labels", "target": "pairs"}  # which form they make


def tfds(
    name: str,
    data_dir: str | None = None,
    train: str = "",
    valid: str = "",
    test: str = "",
    text: str | None = None,
    text2: str | None = None,
    label: str | None = None,
    target: str | None = None,
    tags: str | None = None,
    length: int | None = None,
    stride: int = 1,
) -> Source:
    """A data set of TensorFlow Datasets: tfds(name='wmt14_translate/de-en').

    `data_dir` is where it was prepared; without it $TFDS_DATA_DIR or ~/tensorflow_datasets. `text`,
    `text2`, `label`, `target` and `tags` name its features, where they are not known. `train`,
    `valid` and `test` are splits as TFDS spells them: 'train[:90%]'. Without a split for
    validation, the last 5 % of the training split are held out. A text without label or target is
    one stream of tokens, in windows of `length`.
    """
    roles = {"text": text, "text2": text2, "label": label, "target": target, "tags": tags}
    own = {role: feature for role, feature in roles.items() if feature is not None}
    splits = {"train": train, "valid": valid, "test": test}
    prepared = Prepared(name, data_dir, splits, own)
    known = MAPPINGS.get(name.partition(":")[0]) or MAPPINGS.get(re.split("[/:]", name)[0]) or {}
    mapping = own if text is not None else {**known, **own}
    translates = not mapping and re.split("[/:]", name)[0] in TRANSLATIONS
    if mapping and not translates and not set(mapping) & set(ROLES):
        if length is None:
            raise UserError(f"tfds: {name!r} is text: write length=… for its windows")
        return TfdsText(prepared, length, stride)
    if length is not None or stride != 1:
        raise UserError(f"tfds: length=… and stride=… are for windows of text, not for {name!r}")
    return TfdsRecords(prepared)


DATASETS: dict[str, Callable[..., Source]] = {"tfds": tfds}
