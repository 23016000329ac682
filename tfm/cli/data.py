"""Describes the data of a config; lists and clears the cache of tokenized data.

With a config, prints for each split the number of examples, their lengths, how many were truncated
or left out, unknown tokens, labels, and some examples as the model sees them: its inputs, and the
labels that count. Lengths and unknown tokens are estimated from 5,000 examples spread over the
split. For the training split it also prints the shapes of the batches, and the padding in the first
100. Without a config, lists the cache in $TFM_CACHE/data.
"""

from collections.abc import Sequence

from tfm.cli.main import Parser
from tfm.config.files import from_command_line
from tfm.config.names import UserError
from tfm.data import cache
from tfm.data.formats import tfds
from tfm.run.data_description import describe_data
from tfm.run.spec import RunSpec, read
from tfm.terminal import console, plain, table


def main(argv: Sequence[str]) -> None:
    parser = Parser("data", __doc__, config=RunSpec)
    parser.add_number("--rows", "examples that are shown (3)")
    parser.add_flag("--verify", "compare the checksums of the whole cache")
    parser.add_value("--clear", "KEY", "remove entries whose key starts with KEY, or all")
    parser.add_value("--prepare", "NAME", "download a data set of TensorFlow Datasets")
    parser.add_value("--data_dir", "FOLDER", "where --prepare writes to")
    parser.add_trust()
    args = parser.parse(argv)
    chosen = [f"--{n}" for n in ("config", "clear", "prepare", "verify") if getattr(args, n)]
    if len(chosen) > 1:
        raise UserError(f"{' and '.join(chosen)}: give one of them")
    if args.rows is not None and not args.config:
        raise UserError("--rows is the number of examples that are shown of a --config")
    if args.data_dir and not args.prepare:
        raise UserError("--data_dir is where --prepare=NAME writes to")
    if args.config:
        run = read(from_command_line(args.config, RunSpec, trust=args.trust))
        for line in describe_data(run, args.rows or 3):
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
