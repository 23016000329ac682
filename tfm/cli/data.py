"""Describes the data of a config; lists and clears the cache of tokenized data.

With a config, prints for each split the number of examples, their lengths, how many were truncated
or left out, unknown tokens, labels, and some examples as the model sees them: its inputs, and the
labels that count. Lengths and unknown tokens are estimated from 5,000 examples spread over the
split. For the training split it also prints the shapes of the batches, and the padding in the first
100. Without a config, lists the cache in $TFM_CACHE/data.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tfm.cli.main import Parser, whole
from tfm.config.files import from_command_line
from tfm.config.names import UserError
from tfm.data import cache
from tfm.data.dataset import Dataset
from tfm.data.datasets import open_dataset
from tfm.data.formats import tfds
from tfm.data.tokenizers.tokenizer import tokenizer_of
from tfm.objectives.batches import BESIDE, each_shape, eval_batches, read_of, train_batch
from tfm.run.plan import plan_of
from tfm.run.spec import RunSpec, read
from tfm.terminal import console, plain, table

SAMPLE = 5000
STEPS = 100


def main(argv: Sequence[str]) -> None:
    parser = Parser("data", __doc__, config=RunSpec)
    parser.add_argument(
        "--rows", metavar="N", type=whole(), default=3, help="examples that are shown (3)"
    )
    parser.add_argument(
        "--verify", action="store_true", help="compare the checksums of the whole cache"
    )
    parser.add_argument(
        "--clear", metavar="KEY", help="remove entries whose key starts with KEY, or all"
    )
    parser.add_argument(
        "--prepare", metavar="NAME", help="download a data set of TensorFlow Datasets"
    )
    parser.add_argument("--data_dir", metavar="FOLDER", help="where --prepare writes to")
    parser.add_argument("--trust", action="store_true", help="run the code in a run folder")
    args = parser.parse(argv)
    if args.config and (args.clear or args.prepare or args.verify):
        raise UserError("--clear, --verify and --prepare are not for one config: write no --config")
    if args.data_dir and not args.prepare:
        raise UserError("--data_dir is where --prepare=NAME writes to")
    if args.config:
        run = read(from_command_line(args.config, RunSpec, trust=args.trust))
        for line in describe(run, args.rows):
            print(plain(line))
    elif args.clear:
        print(_clear(args.clear))
    elif args.prepare:
        print(tfds.prepare(args.prepare, args.data_dir or tfds.home()))
    elif args.verify:
        _verify()
    else:
        _list()


def _list() -> None:
    shown = table("key", "what", "data set", "split", "tokenizer", ">tokens", ">MB")
    total = count = 0
    for path, meta in cache.entries():
        if meta is None:
            shown.add_row(path.name[:12], "damaged; it is built again when it is needed")
            continue
        about, tokens = meta["about"], meta["facts"].get("tokens")
        size = sum(column["size"] for column in meta["columns"].values())
        shown.add_row(
            path.name[:12],
            *(str(about.get(key, "")) for key in ("what", "dataset", "split", "tokenizer")),
            "" if tokens is None else f"{tokens:,}",
            f"{size / 1e6:,.1f}",
        )
        total, count = total + size, count + 1
    if shown.row_count:
        console(120).print(shown)
    print(f"{cache.folder()}: {count} entries, {total / 1e6:,.1f} MB")


def _verify() -> None:
    wrong, count = [], 0
    for path, meta in cache.entries():
        count += 1
        found = f"{path} has damaged meta data" if meta is None else cache.damage(path, meta, True)
        wrong += [found] if found else []
    print("\n".join([*wrong, f"{count} entries, {len(wrong)} damaged"]))
    if wrong:
        raise UserError("damaged entries are built again when they are needed")


def _clear(key: str) -> str:
    if key != "all" and not any(path.name.startswith(key) for path, _ in cache.entries()):
        raise UserError(f"--clear={key}: no entry's key begins so; `tfm data` lists them")
    return f"{cache.clear('' if key == 'all' else key) / 1e6:,.1f} MB are free"


def describe(run: RunSpec, rows: int = 3) -> Iterator[str]:
    """The data of a run, in lines of text."""
    data, vocabulary = run.data, None
    wanted: list[tuple[str, str, int | None]] = [
        (data.dataset, "train", data.examples),
        (data.dataset, "valid", data.valid_examples),
        *((text, "test", data.valid_examples) for text in data.tests),
    ]
    for spelled, split, count in wanted:
        dataset = open_dataset(spelled, split, count, data.seed, vocabulary, data.reading)
        vocabulary = dataset.vocabulary if vocabulary is None else vocabulary
        yield f"{spelled}, {split}"
        for name, value in facts(dataset).items():
            yield f"  {name:<10} {value}"
        for note in dataset.notes:
            yield f"  note       {note}"
        reason = run.objective.entry.refuses(dataset)
        if reason is not None:
            yield f"  note       objective {str(run.objective)!r} {reason}"
            continue
        if split == "train":
            yield f"  batches    {batches(run, dataset)}"
        for number, example in enumerate(examples(run, dataset, rows)):
            for place, (name, text) in enumerate(example.items()):
                yield f"  {'' if place else f'example {number}':<10} {name}: {text}"
        yield ""


def facts(dataset: Dataset) -> dict[str, str]:
    """What there is to know of a split, by name."""
    rows = np.linspace(0, len(dataset) - 1, min(len(dataset), SAMPLE)).astype(np.int64)
    some = dataset.take(rows)  # from all over: a file may be sorted by length
    found = {
        "examples": f"{len(dataset):,}, {dataset.form}",
        "ids": f"{dataset.vocab:,}",
        "lengths": _lengths(some.tokens.lengths) + f"; at most {dataset.max_length}",
    }
    if some.target is not None:
        found["targets"] = _lengths(some.target.lengths) + f"; at most {dataset.max_target}"
    unk = dataset.special.unk
    if unk is not None:
        parts = [part.ids for part in (some.tokens, some.target) if part is not None]
        share = np.mean(np.concatenate(parts) == unk)
        found["unknown"] = f"{share:.2%} of the tokens"
    if dataset.counts is not None:
        counts = dataset.counts()
        unused = int(np.sum(counts == 0))
        found["training"] = f"{counts.sum():,} tokens; {unused:,} ids are not among them"
    if dataset.bytes_per_token is not None:
        words = dataset.words_per_token
        more = "" if words is None else f", {words:.3f} words"
        found["token"] = f"{dataset.bytes_per_token:.3f} bytes{more}"
    if some.labels is not None and dataset.classes is None:
        low, high = some.labels.min(), some.labels.max()
        found["labels"] = f"mean {some.labels.mean():.3f}, from {low:g} to {high:g}"
    elif some.labels is not None or (some.tags is not None and dataset.label_names is not None):
        labels = some.labels
        if labels is None and some.tags is not None:
            labels = some.tags if some.scored is None else some.tags[some.scored]
        names = dataset.label_names or [str(i) for i in range(dataset.classes or 0)]
        often = Counter(np.asarray(labels).tolist()).most_common(20)
        total = len(np.asarray(labels))
        found["labels"] = ", ".join(f"{names[i]} {n / total:.1%}" for i, n in often)
    return found


def batches(run: RunSpec, dataset: Dataset) -> str:
    """The shapes of training batches, how often each comes, and how much of them is padding."""
    objective, plan = run.objective.entry, plan_of(run, dataset)
    kinds = each_shape(objective, dataset, plan)
    shown = []
    for share, batch in kinds:
        tokens = [x for name, x in batch.inputs.items() if "valid" in name]
        sizes = " + ".join(str(x.shape[1]) for x in tokens or [batch.labels] if x.ndim > 1)
        often = f" ({share:.0%})" if len(kinds) > 1 else ""
        shown.append(f"{len(batch.weights)} × {sizes}{often}" if sizes else f"{len(batch.weights)}")
    batches = (train_batch(objective, dataset, plan, run.seed, step) for step in range(STEPS))
    read = np.sum([read_of(batch) for batch in batches], 0)
    return f"{', '.join(shown)}; {read[1] / max(read[0], 1):.1%} of the tokens are padding"


def _lengths(lengths: np.ndarray) -> str:
    middle, most = np.percentile(lengths, [50, 95])
    return f"mean {lengths.mean():.1f}, median {middle:.0f}, 95 % up to {most:.0f}"


def examples(run: RunSpec, dataset: Dataset, rows: int) -> Iterator[dict[str, str]]:
    """The first examples as the model sees them, by the names of its inputs."""
    objective, rows = run.objective.entry, min(rows, len(dataset))
    batch = next(eval_batches(objective, dataset, rows))
    show = _tokens(dataset)
    for row in range(rows):
        shown: dict[str, str] = {}
        for name, x in batch.inputs.items():
            if x.dtype.kind not in "iu" or x.ndim != 2:
                continue
            axis = name.rpartition("_")[2]
            valid = [v for k, v in batch.inputs.items() if "valid" in k and k.endswith(axis)]
            ids = x[row][valid[0][row]] if valid else x[row]
            beside = name.rpartition("_")[0].endswith(BESIDE)
            shown[name] = " ".join(map(str, ids)) if beside else show(ids)
        labels, weights = np.asarray(batch.labels)[row], np.asarray(batch.weights)[row]
        wanted = np.atleast_1d(labels)[np.atleast_1d(weights) > 0]
        if dataset.form == "labels" and dataset.classes is None:
            yield {**shown, "labels": " ".join(map(str, wanted))}
            continue
        names = dataset.label_names
        plain_label = labels.ndim == 0 or (dataset.form == "tags" and dataset.tags is not None)
        shown["labels"] = (
            " ".join(names[i] if i < len(names) else str(i) for i in wanted)
            if names is not None and plain_label
            else show(wanted)
        )
        yield shown


def _tokens(dataset: Dataset) -> Callable[[Any], str]:
    """How ids are shown: token by token where spaces are a part of tokens."""
    tokenizer = tokenizer_of(dataset.vocabulary)
    if tokenizer is not None:
        between = "|" if tokenizer.spaced else " "
        return lambda ids: between.join(
            f"<task {id_ - tokenizer.vocab}>"
            if id_ >= tokenizer.vocab
            else tokenizer.tokens([id_])[0]
            for id_ in ids
        )
    if dataset.decode is not None:
        return dataset.decode
    return lambda ids: " ".join(map(str, ids))
