"""Data sets of TensorFlow Datasets, by name; read without TensorFlow.

They must have been prepared as ArrayRecord files:

  pip install 'tfm[prepare]'      (in a separate environment, if versions clash)
  tfm data --prepare=wmt14_translate/de-en --data_dir=FOLDER

(The library's command, `tfds build`, does not start without Apache Beam.)
"""

import contextlib
import functools
import os
import pathlib
import re
import socket
import threading
import urllib.parse
import urllib.request
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tfm.config.names import UserError, suggest
from tfm.data.corpus import Corpus, Split
from tfm.data.dataset import Source, whole
from tfm.data.files import Place, ReadLog, digest, find
from tfm.data.records import Layout, Record
from tfm.data.windows import Windows

VALID = ("validation", "valid", "dev", "validation_matched")
EXTRA = "pip install 'tfm[prepare]' installs TensorFlow, which most of them need"
HELD_OUT = "95%"  # where the held-out part of the training split begins, without a `valid` split
FORM_OF = {"tags": "tags", "label": "labels", "target": "pairs"}  # the form that a role implies
SENTENCE = {"text": "sentence", "label": "label"}
PAIR = {"text": "sentence1", "text2": "sentence2", "label": "label"}
PREMISE = {"text": "premise", "text2": "hypothesis", "label": "label"}
# The features of known data sets by role; keys are names, with or without a config.
MAPPINGS: dict[str, Mapping[str, str]] = {
    "lm1b": {"text": "text"},
    "wiki40b": {"text": "text"},
    "imdb_reviews": {"text": "text", "label": "label"},
    "ag_news_subset": {"text": "description", "label": "label"},
    "conll2003": {"text": "tokens", "tags": "ner"},
    "glue/qqp": {"text": "question1", "text2": "question2", "label": "label"},
    "glue/qnli": {"text": "question", "text2": "sentence", "label": "label"},
    **dict.fromkeys(("glue/cola", "glue/sst2"), SENTENCE),
    **dict.fromkeys(("glue/mrpc", "glue/stsb", "glue/rte", "glue/wnli"), PAIR),
    **dict.fromkeys(("snli", "glue/mnli", "glue/mnli_matched"), PREMISE),
    **dict.fromkeys(("glue/mnli_mismatched", "glue/ax"), PREMISE),
}
TRANSLATIONS = ("wmt14_translate", "wmt16_translate", "wmt19_translate", "ted_hrlr_translate")
NAME = re.compile(r"[a-z]\w*(/[\w.+-]+)?(:[\w.*]+)?", re.ASCII | re.IGNORECASE)
_LOOKUP = threading.Lock()
WIKI40B = re.compile(r"\n?_(?:START_(?:ARTICLE|SECTION|PARAGRAPH)|NEWLINE)_\n?")


class Prepared(NamedTuple):
    """A prepared data set, the splits to read (as TFDS names them) and the features to use."""

    name: str
    data_dir: str | None
    splits: Mapping[str, str]
    features: Mapping[str, str]  # by role, as the config names them

    def folder(self) -> pathlib.Path:
        """Finds the newest version, or the one in the name: wmt14_translate/de-en:1.0.0."""
        name, _, version = self.name.partition(":")
        place = self.data_dir or home()
        command = f"`tfm data --prepare={self.name} --data_dir={place}` prepares it ({EXTRA})"
        try:
            folder = find("tfds", str(pathlib.Path(place, name)), folder=True)
        except UserError as e:
            raise UserError(f"{e}. {command}") from None
        prepared = [path for path in folder.iterdir() if (path / "dataset_info.json").is_file()]
        versions = [path for path in prepared if version in ("", path.name)]
        if not versions:
            there = ", ".join(sorted(p.name for p in folder.iterdir() if p.is_dir()))
            raise UserError(
                f"tfds: {folder} holds no prepared version {version}{' ' * bool(version)}but "
                f"{there or 'nothing'}; write name='{name}/CONFIG', or {command}"
            )
        newest = max(versions, key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)])
        if not list(newest.glob("*.array_record*")):
            raise UserError(
                f"tfds: {newest} holds no ArrayRecord files; other files need TensorFlow. "
                f"In another folder, {command}"
            )
        return newest

    def builder(self) -> Any:
        folder = self.folder()
        return _builder(folder, (folder / "dataset_info.json").stat().st_mtime_ns)

    def mapping(self) -> dict[str, str]:
        """Returns the feature of each role: text, text2, label, target, tags."""
        features = self.builder().info.features
        dataset, _, config = self.name.partition(":")[0].partition("/")
        known = _known_mapping(self.name)
        if not known and dataset in TRANSLATIONS:
            languages = list(features)  # sorted by name
            if languages[-1].replace("_", "") == re.split(r"[-_]", config)[0]:
                languages.reverse()
            known = dict(zip(("text", "target"), languages, strict=False))
        mapping = dict(self.features) if "text" in self.features else {**known, **self.features}
        if "text" not in mapping:
            raise UserError(
                f"tfds: the roles of the features of {self.name!r} are unknown; it has "
                f"{', '.join(sorted(features))}: write text='…', and label=, text2=, target= or "
                "tags="
            )
        for role, feature in mapping.items():
            if feature not in features:
                wrong = f"tfds: {role}={feature!r}: {self.name} has no such feature"
                raise UserError(wrong + suggest(feature, features))
        return mapping

    def layout(self) -> Layout:
        mapping, features = self.mapping(), self.builder().info.features
        form = next((form for role, form in FORM_OF.items() if role in mapping), "text")
        numeric, names = False, None
        role = mapping.get("label") or mapping.get("tags")
        if role is not None:
            numeric = "label" in mapping and "float" in str(features[role].np_dtype)
            names = getattr(getattr(features[role], "feature", features[role]), "names", None)
        return Layout(
            form,
            {"name": self.name, "mapping": mapping},
            two_texts="text2" in mapping,
            numeric=numeric,
            label_names=None if names is None else tuple(names),
        )

    def split_name(self, split: str) -> str:
        """Returns a split as TFDS spells it."""
        if self.splits[split]:
            return self.splits[split]
        there = list(self.builder().info.splits)
        valid = next((name for name in VALID if name in there), f"train[{HELD_OUT}:]")
        if split == "train" and valid not in there and not self.splits["valid"]:
            return f"train[:{HELD_OUT}]"
        name = valid if split == "valid" else split
        if name.partition("[")[0] not in there:
            raise UserError(
                f"tfds: {self.name} has no split {name!r}, but {', '.join(there)}: {split}='…'"
            )
        return name

    def split(self, split: str) -> Split:
        folder, name = self.folder(), self.split_name(split)
        parts = re.findall(r"(?:^|\+)\s*(\w+)", name)
        files = [path for part in parts for path in folder.glob(f"*-{part}.array_record*")]
        hashes = [digest(path) for path in (folder / "features.json", *sorted(files))]
        size = sum(path.stat().st_size for path in files)
        read = functools.partial(self._records, name, size)
        return Split(" ".join([name, *hashes]), size, read)

    def digests(self) -> dict[str, str]:
        """Returns hashes of the content in place of the options that name it."""
        return {"name": self.split("train").digest, "data_dir": self.split("valid").digest}

    def _records(self, split: str, size: int, log: ReadLog) -> Iterator[Record]:
        """Yields the examples of a split, in order."""
        with warnings.catch_warnings(action="ignore"):
            source = self.builder().as_data_source(split=split)
        layout, mapping, reported = self.layout(), self.mapping(), 0
        for number in range(len(source)):
            place = Place(f"{self.name} {split}", number + 1)
            example = source[number]
            try:
                record = _record(example, mapping, layout, place)
            except ValueError as e:
                log.bad(place, str(e))
            else:
                if layout.form == "text":
                    text, wiki = str(record.text), self.name.startswith("wiki40b")
                    text = WIKI40B.sub("\n", text).strip() if wiki else text
                    record = Record(place, f"{text}\n")
                yield record
            if number % 256 == 0:
                log.advance(size * number // len(source) - reported)
                reported = size * number // len(source)
        log.advance(size - reported)


def _record(
    example: Mapping[str, Any], mapping: Mapping[str, str], layout: Layout, place: Place
) -> Record:
    """Returns an example as text; raises ValueError for a bad one."""

    def text(value: Any, feature: str) -> str:
        try:
            decoded = value.decode() if isinstance(value, bytes) else str(value)
        except UnicodeDecodeError as e:
            raise ValueError(f"{feature!r} is not UTF-8 text: {e}") from e
        if not decoded.strip():
            raise ValueError(f"{feature!r} is empty")
        return decoded

    def name(value: Any, feature: str) -> str:
        names = layout.label_names
        if names is None:
            return text(value, feature)
        if not 0 <= int(value) < len(names):
            raise ValueError(f"it has no label ({int(value)})")
        return names[int(value)]

    if layout.form == "tags":
        words = [text(word, mapping["text"]) for word in example[mapping["text"]]]
        tags = [name(tag, mapping["tags"]) for tag in example[mapping["tags"]]]
        if len(words) != len(tags) or not words:
            raise ValueError(f"{len(words)} words and {len(tags)} tags")
        return Record(place, words, tags=tags)
    fields = {
        field: text(example[mapping[role]], mapping[role])
        for role, field in {"text": "text", "text2": "second", "target": "target"}.items()
        if role in mapping
    }
    if "label" in mapping:
        fields["label"] = name(example[mapping["label"]], mapping["label"])
    return Record(place, **fields)


def _known_mapping(name: str) -> Mapping[str, str]:
    name = name.partition(":")[0]
    return MAPPINGS.get(name) or MAPPINGS.get(name.partition("/")[0]) or {}


@functools.lru_cache(maxsize=16)
def _builder(folder: pathlib.Path, changed: int) -> Any:
    with warnings.catch_warnings(action="ignore"):
        import tensorflow_datasets as tfds

        with _known_features(tfds.features):
            try:
                return tfds.builder_from_directory(str(folder), file_format="array_record")
            except UserError as e:
                raise UserError(f"tfds: {folder / 'features.json'}: {e}") from None
            except Exception as e:  # of any type, as the parts of TFDS that read files raise
                raise UserError(f"tfds: {folder} cannot be read: {type(e).__name__}: {e}") from e


@contextlib.contextmanager
def _known_features(features: Any) -> Iterator[None]:
    """Makes TFDS build features of its own classes only.

    It imports the module of any other class that a features.json names, which runs its code. The
    name may be anywhere in the file, even in JSON within a string, so the lookup is replaced.
    """
    connector = features.FeatureConnector
    classes = [c for c in vars(features).values() if isinstance(c, type)]
    known = {
        name: c
        for c in classes
        if issubclass(c, connector)
        for name in (f"{c.__module__}.{c.__name__}", *vars(c).get("ALIASES", ()))
    }

    def class_of(name: str) -> Any:
        if name not in known:
            raise UserError(f"{name!r} is no feature of TensorFlow Datasets; its code is not run")
        return known[name]

    with _LOOKUP:
        before = vars(connector)["cls_from_name"]
        connector.cls_from_name = staticmethod(class_of)
        try:
            yield
        finally:
            connector.cls_from_name = before


def home() -> str:
    """Returns the default folder of prepared data sets."""
    return os.environ.get("TFDS_DATA_DIR", str(pathlib.Path.home() / "tensorflow_datasets"))


def prepare(name: str, data_dir: str) -> str:
    """Downloads a data set, writes it as ArrayRecord files and returns their folder."""
    import tensorflow_datasets as tfds

    if not NAME.fullmatch(name):
        raise UserError(f"--prepare={name}: write NAME, NAME/CONFIG or NAME/CONFIG:VERSION")
    try:
        builder = tfds.builder(name, data_dir=data_dir, file_format="array_record")
        hosts = {urllib.parse.urlsplit(url).hostname for url in builder.url_infos or ()}
        if hosts and not pathlib.Path(data_dir, "downloads").exists() and not _online(hosts):
            raise UserError(f"--prepare={name}: there is no network: cannot find {min(hosts)}")
        builder.download_and_prepare()
    except tfds.core.DatasetNotFoundError as e:
        raise UserError(f"tfds: no data set {name!r}: {str(e).splitlines()[0]} ({EXTRA})") from e
    except ImportError as e:
        raise UserError(f"tfds: {name} cannot be prepared: {e}. {EXTRA}") from e
    except OSError as e:  # also of the network
        raise UserError(f"--prepare={name}: it cannot be downloaded to {data_dir}: {e}") from e
    return str(builder.data_dir)


def _online(hosts: Iterable[str]) -> bool:
    """Returns whether one of some hosts can be found; TFDS would try for minutes."""
    if urllib.request.getproxies():
        return True
    for host in sorted(hosts)[:5]:
        with contextlib.suppress(OSError):
            return bool(socket.getaddrinfo(host, None))
    return False


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

    `data_dir` is where it was prepared; by default $TFDS_DATA_DIR or ~/tensorflow_datasets. `text`,
    `text2`, `label`, `target` and `tags` name its features, if they are not known. `train`,
    `valid` and `test` are splits as TFDS spells them: 'train[:90%]'. Without a validation split,
    the last 5 % of the training split are held out. A text without label or target is one stream
    of tokens, in windows of `length`.
    """
    roles = {"text": text, "text2": text2, "label": label, "target": target, "tags": tags}
    features = {role: feature for role, feature in roles.items() if feature is not None}
    prepared = Prepared(name, data_dir, {"train": train, "valid": valid, "test": test}, features)
    mapping = features if text is not None else {**_known_mapping(name), **features}
    is_text = bool(mapping) and not set(mapping) & set(FORM_OF)
    if is_text and length is None:
        raise UserError(f"tfds: {name!r} is text: write length=… for its windows")
    if not is_text and (length is not None or stride != 1):
        raise UserError(f"tfds: length=… and stride=… are for windows of text, not for {name!r}")
    windows = None
    if length is not None:
        whole("tfds", "length", length, 1)
        windows = Windows(length, whole("tfds", "stride", stride, 1), eos=True)
    return Corpus(
        kind="tfds",
        layout=prepared.layout,
        split=prepared.split,
        files=prepared.digests,
        windows=windows,
    )


DATASETS: dict[str, Callable[..., Source]] = {"tfds": tfds}
