"""Describes the data of a run: its splits, its training batches and some examples."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from tfm.data.dataset import Dataset, Source
from tfm.data.datasets import open_dataset, open_splits
from tfm.data.reader import Reader, of_data
from tfm.objectives.batches import BESIDE, each_shape, eval_batches, read_of, train_batch
from tfm.run.spec import RunSpec, plan_of

SAMPLE = 5000  # examples
STEPS = 100  # batches whose padding is counted


def describe_data(run: RunSpec, rows: int = 3) -> Iterator[str]:
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
    reader = of_data(dataset, source, objective.added(dataset))
    for row in range(rows):
        out: dict[str, str] = {}
        for name, x in batch.inputs.items():
            if x.dtype.kind not in "iu" or x.ndim != 2:
                continue
            axis = name.rpartition("_")[2]
            valid = [v for k, v in batch.inputs.items() if "valid" in k and k.endswith(axis)]
            ids = x[row][valid[0][row]] if valid else x[row]
            beside = name.rpartition("_")[0].endswith(BESIDE)
            out[name] = " ".join(map(str, ids)) if beside else _text(reader, ids)
        labels, weights = np.asarray(batch.labels)[row], np.asarray(batch.weights)[row]
        scored = np.atleast_1d(labels)[np.atleast_1d(weights) > 0]
        is_class = labels.ndim == 0 or (dataset.form == "tags" and dataset.tags is not None)
        if dataset.form == "labels" and dataset.classes is None:
            out["labels"] = " ".join(map(str, scored))
        elif names is not None and is_class:
            out["labels"] = " ".join(names[i] if i < len(names) else str(i) for i in scored)
        else:
            out["labels"] = _text(reader, scored)
        yield out


def _text(reader: Reader, ids: Any) -> str:
    """Returns ids as text; tokens that include their spaces are separated by |."""
    if reader.kind in ("bytes", "pieces"):
        return reader.decode(ids)
    spaced = reader.tokenizer is not None and reader.tokenizer.spaced
    return ("|" if spaced else " ").join(reader.names(ids))
