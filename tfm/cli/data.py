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
from tfm.data.dataset import Dataset, Source
from tfm.data.datasets import open_dataset, open_splits
from tfm.data.formats import tfds
from tfm.data.reader import Reader, of_data
from tfm.objectives.batches import BESIDE, each_shape, eval_batches, read_of, train_batch
from tfm.run.plan import plan_of
from tfm.run.spec import RunSpec, read
from tfm.terminal import console, plain, table

SAMPLE = 5000  # examples
STEPS = 100  # batches whose padding is counted


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
        raise UserError("--clear, --verify and --prepare do not apply to a config: remove --config")
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
    """Prints a table of the cache's entries."""
    rows = table("key", "what", "data set", "split", "tokenizer", ">tokens", ">MB")
    total = count = 0
    for path, meta in cache.entries():
        if meta is None:
            rows.add_row(path.name[:12], "damaged; rebuilt when it is needed")
            continue
        about, tokens = meta["about"], meta["facts"].get("tokens")
        size = sum(column["size"] for column in meta["columns"].values())
        rows.add_row(
            path.name[:12],
            *(str(about.get(key, "")) for key in ("what", "dataset", "split", "tokenizer")),
            "" if tokens is None else f"{tokens:,}",
            f"{size / 1e6:,.1f}",
        )
        total, count = total + size, count + 1
    if rows.row_count:
        console(120).print(rows)
    print(f"{cache.folder()}: {count} entries, {total / 1e6:,.1f} MB")


def _verify() -> None:
    """Prints the damaged entries of the cache; raises if there are any."""
    reports = [
        f"{path} has damaged meta data" if meta is None else cache.damage(path, meta, whole=True)
        for path, meta in cache.entries()
    ]
    damaged = [report for report in reports if report]
    print("\n".join([*damaged, f"{len(reports)} entries, {len(damaged)} damaged"]))
    if damaged:
        raise UserError("damaged entries are rebuilt when they are needed")


def _clear(key: str) -> str:
    if key != "all" and not any(path.name.startswith(key) for path, _ in cache.entries()):
        raise UserError(f"--clear={key}: no key begins with it; `tfm data` lists the keys")
    return f"{cache.clear('' if key == 'all' else key) / 1e6:,.1f} MB freed"


def describe(run: RunSpec, rows: int = 3) -> Iterator[str]:
    """Yields a description of a run's data, line by line."""
    data = run.data
    counts = {"train": data.examples, "valid": data.valid_examples}
    splits = open_splits(data.dataset, counts, data.seed, None, data.reading)
    vocabulary = splits["train"].vocabulary
    datasets = [(data.dataset, split, dataset) for split, dataset in splits.items()]
    for name in data.tests:
        count = data.valid_examples
        test = open_dataset(name, "test", count, data.seed, vocabulary, data.reading)
        datasets.append((name, "test", test))
    for name, split, dataset in datasets:
        yield f"{name}, {split}"
        for fact, value in facts(dataset).items():
            yield f"  {fact:<10} {value}"
        for note in dataset.notes:
            yield f"  note       {note}"
        reason = run.objective.entry.refuses(dataset)
        if reason is not None:
            yield f"  note       objective {str(run.objective)!r} {reason}"
            continue
        if split == "train":
            yield f"  batches    {batches(run, dataset)}"
        for number, example in enumerate(examples(run, name.entry, dataset, rows)):
            for place, (field, text) in enumerate(example.items()):
                yield f"  {'' if place else f'example {number}':<10} {field}: {text}"
        yield ""


def facts(dataset: Dataset) -> dict[str, str]:
    """Returns the facts of a split by name; some are estimated from a sample."""
    rows = np.linspace(0, len(dataset) - 1, min(len(dataset), SAMPLE)).astype(np.int64)
    sample = dataset.take(rows)  # spread over the split: a file may be sorted by length
    target, labels = sample.target, sample.labels
    out = {
        "examples": f"{len(dataset):,}, {dataset.form}",
        "ids": f"{dataset.vocab:,}",
        "lengths": _lengths(sample.tokens.lengths) + f"; at most {dataset.max_length}",
    }
    if target is not None:
        out["targets"] = _lengths(target.lengths) + f"; at most {dataset.max_target}"
    if dataset.special.unk is not None:
        ids = [side.ids for side in (sample.tokens, target) if side is not None]
        share = np.mean(np.concatenate(ids) == dataset.special.unk)
        out["unknown"] = f"{share:.2%} of the tokens"
    if dataset.counts is not None:
        counts = dataset.counts()
        out["training"] = f"{counts.sum():,} tokens; {np.sum(counts == 0):,} ids do not occur"
    if dataset.bytes_per_token is not None:
        words = dataset.words_per_token
        out["token"] = f"{dataset.bytes_per_token:.3f} bytes"
        out["token"] += "" if words is None else f", {words:.3f} words"
    if labels is not None and dataset.classes is None:
        span = f"from {labels.min():g} to {labels.max():g}"
        return {**out, "labels": f"mean {labels.mean():.3f}, {span}"}
    if sample.tags is not None and dataset.label_names is not None:
        labels = sample.tags if sample.scored is None else sample.tags[sample.scored]
    if labels is not None:
        names = dataset.label_names or [str(i) for i in range(dataset.classes or 0)]
        frequent = Counter(labels.tolist()).most_common(20)
        out["labels"] = ", ".join(f"{names[i]} {n / len(labels):.1%}" for i, n in frequent)
    return out


def batches(run: RunSpec, dataset: Dataset) -> str:
    """Describes the shapes of training batches, their frequency, and the share of padding."""
    objective, plan = run.objective.entry, plan_of(run, dataset)
    kinds = each_shape(objective, dataset, plan)
    shapes = []
    for share, batch in kinds:
        tokens = [x for name, x in batch.inputs.items() if "valid" in name]
        sizes = " + ".join(str(x.shape[1]) for x in tokens or [batch.labels] if x.ndim > 1)
        percent = f" ({share:.0%})" if len(kinds) > 1 else ""
        rows = len(batch.weights)
        shapes.append(f"{rows} × {sizes}{percent}" if sizes else f"{rows}")
    first = (train_batch(objective, dataset, plan, run.seed, step) for step in range(STEPS))
    total, padding = np.sum([read_of(batch) for batch in first], 0)
    return f"{', '.join(shapes)}; {padding / max(total, 1):.1%} of the tokens are padding"


def _lengths(lengths: np.ndarray) -> str:
    median, most = np.percentile(lengths, [50, 95])
    return f"mean {lengths.mean():.1f}, median {median:.0f}, 95 % up to {most:.0f}"


def examples(run: RunSpec, source: Source, dataset: Dataset, rows: int) -> Iterator[dict[str, str]]:
    """Yields the first examples as the model sees them, by the names of its inputs."""
    objective, rows = run.objective.entry, min(rows, len(dataset))
    batch = next(eval_batches(objective, dataset, rows))
    names = dataset.label_names
    show = _tokens(of_data(dataset, source, objective.added(dataset)))
    for row in range(rows):
        out: dict[str, str] = {}
        for name, x in batch.inputs.items():
            if x.dtype.kind not in "iu" or x.ndim != 2:
                continue
            axis = name.rpartition("_")[2]
            valid = [v for k, v in batch.inputs.items() if "valid" in k and k.endswith(axis)]
            ids = x[row][valid[0][row]] if valid else x[row]
            beside = name.rpartition("_")[0].endswith(BESIDE)
            out[name] = " ".join(map(str, ids)) if beside else show(ids)
        labels, weights = np.asarray(batch.labels)[row], np.asarray(batch.weights)[row]
        scored = np.atleast_1d(labels)[np.atleast_1d(weights) > 0]
        is_class = labels.ndim == 0 or (dataset.form == "tags" and dataset.tags is not None)
        if dataset.form == "labels" and dataset.classes is None:
            out["labels"] = " ".join(map(str, scored))
        elif names is not None and is_class:
            out["labels"] = " ".join(names[i] if i < len(names) else str(i) for i in scored)
        else:
            out["labels"] = show(scored)
        yield out


def _tokens(reader: Reader) -> Callable[[Any], str]:
    """Returns a function that shows ids; it separates tokens that include their spaces by |."""
    if reader.kind in ("bytes", "pieces"):
        return reader.decode
    spaced = reader.tokenizer is not None and reader.tokenizer.spaced
    return lambda ids: ("|" if spaced else " ").join(reader.names(ids))
