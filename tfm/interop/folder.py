"""Reads Hugging Face folders into run folders, and writes run folders as Hugging Face folders."""

import collections
import contextlib
import glob
import hashlib
import json
import os
import pathlib
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import tokenizers

from tfm import disk
from tfm.config.names import UserError, pick
from tfm.config.spec import to_tree
from tfm.data.reader import Reader, of_huggingface
from tfm.data.tokenizers.published import of_rules
from tfm.data.tokenizers.tokenizer import Tokenizer
from tfm.interop.convert import MODEL_TYPES, changed, from_huggingface, to_huggingface, with_copies
from tfm.interop.text import text_settings, tokenizer_files
from tfm.run.checkpoint import Checkpoints
from tfm.run.folder import Folder, check_path, disk_errors
from tfm.run.load import load

TOKENIZER = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model",
    "chat_template.jinja", "generation_config.json",
)  # fmt: skip
DTYPES = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "stored": None,
}
SHARD = 5 * 10**9  # bytes in a file, about


def import_folder(
    source: str,
    workdir: str,
    dtype: str = "float32",
    warn: Callable[[str], None] = lambda text: None,
) -> pathlib.Path:
    """Imports a Hugging Face folder as a run folder, with an objective and a reader. `warn` is
    told of weights that are not numbers."""
    folder = pathlib.Path(source)
    check_path(workdir)
    _check_empty(workdir)
    wanted = pick(DTYPES, dtype, "dtype")
    config = _read_json(folder / "config.json")
    files = weight_files(folder)
    tensors = read_tensors(files)
    spec, params = from_huggingface(config, tensors, wanted)
    for name, x in tensors.items():
        if bad := int(np.sum(~np.isfinite(x))):
            warn(f"{folder}: {bad} of the {x.size} weights of {name} are NaN or infinite")
    tokenizer = _read_files(folder / name for name in TOKENIZER)
    read = _tokenizer(folder, tokenizer)
    objective, form = objective_of(spec, config, read)
    reader = _reader(folder, config, read, spec.vocab or 0, form)
    run = {
        "objective": objective,
        "model": to_tree(spec),
        "data": {
            "dataset": "none",
            "tokenizer": None if reader.numbers else "of_run(path='.')",
        },
        "train": {"steps": 1},
    }
    data = {"fingerprint": "", "vocab": reader.vocab, "vocabulary": reader.vocabulary}
    hashes = {name: _sha256(content) for name, content in tokenizer.items()}
    for path in (folder / "config.json", *files):
        with open(path, "rb") as file:
            hashes[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    with _new_folder(workdir) as new:
        written = Folder(new)  # with checksums, which are compared whenever a file is read
        written.write("config.json", run)
        written.write("data.json", {**data, "reader": reader.to_tree()})
        written.write("huggingface.json", config)
        written.write("imported.json", {"sha256": hashes})
        checkpoints = Checkpoints(new)
        checkpoints.save(0, {"variables": {"params": params}})
        checkpoints.close()
        if tokenizer:
            (new / "tokenizer").mkdir()
        for name, content in tokenizer.items():
            (new / "tokenizer" / name).write_bytes(content)
    return pathlib.Path(workdir)


def objective_of(
    spec: Any, config: Mapping[str, Any], tokenizer: Tokenizer | None
) -> tuple[str, str]:
    """Returns the objective by which an imported model reads texts, and the form of its data. Of
    several outputs, the first of these counts."""
    if spec.has_source:
        return "seq2seq", "pairs"
    if spec.decodes:
        return "next_token", "text"
    forms = {"masked_lm": "text", "tag": "tags", "classify": "labels", "pair": "labels"}
    outputs = [output for output in forms if output in getattr(spec, "outputs", ())]
    first = outputs[0] if outputs else "masked_lm"  # it has states and no output
    if first != "classify":
        return first, forms[first]
    typed = tokenizer is None or 1 in tokenizer.rules.encode("a", "b").type_ids
    options = ["types=True"] if typed and getattr(spec, "types", 0) > 1 else []
    problem = config.get("problem_type")
    if problem == "multi_label_classification":
        options.append("independent=True")
    elif spec.classes == 1:
        first = "regress"
    elif problem == "regression":
        raise UserError(
            f"problem_type='regression' with {spec.classes} labels cannot be imported, only with 1"
        )
    return first + (f"({', '.join(options)})" if options else ""), "labels"


def _tokenizer(folder: pathlib.Path, files: Mapping[str, bytes]) -> Tokenizer | None:
    """Reads tokenizer.json, and the names of special tokens from the files beside it."""
    if "tokenizer.json" not in files:
        return None
    named = {"tokenizer_config.json", "special_tokens_map.json"} & files.keys()
    tokens = {k: x for name in sorted(named) for k, x in _read_json(folder / name).items()}
    try:
        rules = tokenizers.Tokenizer.from_str(files["tokenizer.json"].decode())
        return of_rules(rules, tokens)
    except Exception as e:  # the library raises `Exception` itself
        raise UserError(f"{folder / 'tokenizer.json'} cannot be read: {e}") from e


def _reader(
    folder: pathlib.Path, config: dict[str, Any], tokenizer: Tokenizer | None, vocab: int, form: str
) -> Reader:
    """Builds the reader of a model from its tokenizer, config.json and generation_config.json."""
    config = {**MODEL_TYPES[config["model_type"]].ids, **config}
    if _exists(folder / "generation_config.json"):
        generation = _read_json(folder / "generation_config.json")
        config = config | {key: x for key, x in generation.items() if x is not None}
    try:
        return of_huggingface(tokenizer, config, vocab, form)
    except UserError as e:
        raise UserError(f"{folder}: {e}") from e


def export_folder(
    workdir: str, target: str, checkpoint: str = "best", trust: bool = False
) -> pathlib.Path:
    """Exports a run folder as one that transformers loads."""
    folder = pathlib.Path(workdir)
    _check_empty(target)
    run = load(folder, checkpoint, trust)
    config, tensors = to_huggingface(run.spec, run.params)
    before = Folder(folder).read("huggingface.json")
    if before is not None:
        if keys := changed(run.spec, before, tensors):
            raise UserError(
                f"{folder}: config.json and huggingface.json, from which it was made, differ in "
                f"model.{', model.'.join(keys)}; import it again"
            )
        config = _merged(config, before)
    sizes: collections.Counter[str] = collections.Counter()
    for tensor in tensors.values():
        sizes[str(tensor.dtype)] += tensor.size
    dtype = sizes.most_common(1)[0][0]
    tokenizer = _read_files(folder / "tokenizer" / name for name in TOKENIZER)
    _check_hashes(folder, tokenizer)
    if before is None:
        config |= text_settings(run.reader, run.objective, run.spec)
        tokenizer = tokenizer_files(run.reader, run.objective, run.spec)
        if run.spec.decodes:
            ids = {key: x for key, x in config.items() if key.endswith("_token_id")}
            tokenizer["generation_config.json"] = json.dumps(ids, indent=1).encode()
    with _new_folder(target) as new:
        _write_json(new / "config.json", {**config, "torch_dtype": dtype, "dtype": dtype})
        write_tensors(new, with_copies(run.spec, tensors))
        for name, content in tokenizer.items():
            (new / name).write_bytes(content)
    return pathlib.Path(target)


# Keys of the original config that the exported one replaces, or says in another way.
REWRITTEN = (
    "rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor",
    "original_max_position_embeddings", "scale_decoder_outputs", "num_labels",
)  # fmt: skip


def _merged(config: dict[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Adds to the config what else the original has: ids of special tokens, labels, …"""
    if before.get("model_type") != config["model_type"]:
        return config
    merged = {k: v for k, v in before.items() if k not in REWRITTEN} | config
    labels = before.get("id2label")
    if isinstance(labels, dict) and len(labels) == len(config.get("id2label", ())):
        merged |= {"id2label": labels, "label2id": before.get("label2id")}
    return merged


def weight_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns model.safetensors, or the files that its index names."""
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if _exists(whole):
        return [whole]
    if _exists(index):
        return _indexed(index)
    pickled = sorted(path.name for path in folder.glob("*.bin"))
    hint = f"; {pickled[0]} is a pickle, which is never read" if pickled else ""
    raise UserError(
        f"{folder} holds no model.safetensors{hint}. In transformers, "
        "model.save_pretrained(folder) writes one"
    )


def read_tensors(files: Iterable[pathlib.Path]) -> dict[str, np.ndarray]:
    """Reads all tensors of some files."""
    from safetensors import SafetensorError, safe_open

    tensors: dict[str, np.ndarray] = {}
    for file in files:
        try:
            with safe_open(file, "numpy") as opened:
                for name in opened.keys():  # noqa: SIM118
                    kind = opened.get_slice(name).get_dtype()
                    if kind.startswith("F") and kind not in ("F16", "F32", "F64"):
                        raise UserError(f"{file}: {name} is stored as {kind}, which we do not read")
                    if name in tensors:
                        raise UserError(f"{file} holds {name}, as another file does")
                    tensors[name] = opened.get_tensor(name)
        except OSError as e:
            raise UserError(f"cannot read {file}: {e}") from e
        except SafetensorError as e:
            raise UserError(f"{file} is damaged: {e}") from e
    return tensors


def _indexed(index: pathlib.Path) -> list[pathlib.Path]:
    """Returns the files that an index names; they must lie beside it."""
    named = _read_json(index).get("weight_map")
    if not isinstance(named, dict) or not named:
        raise UserError(f"{index} has no 'weight_map': a file's name for each tensor's")
    for file in named.values():
        if not isinstance(file, str) or pathlib.PurePath(file).name != file:
            raise UserError(f"{index}: weight_map names {file!r}, which is no file beside it")
    files = [index.parent / name for name in sorted(set(named.values()))]
    for file in files:
        if not _exists(file):
            raise UserError(f"{file} is missing, but {index.name} names it")
    return files


def write_tensors(folder: pathlib.Path, tensors: Mapping[str, np.ndarray]) -> None:
    from safetensors.numpy import save_file

    files: list[dict[str, np.ndarray]] = [{}]
    for name, tensor in tensors.items():
        if files[-1] and sum(x.nbytes for x in (*files[-1].values(), tensor)) > SHARD:
            files.append({})
        files[-1][name] = tensor
    weight_map: dict[str, str] = {}
    for n, part in enumerate(files, 1):
        number = f"-{n:05}-of-{len(files):05}" if len(files) > 1 else ""
        save_file(part, folder / f"model{number}.safetensors", {"format": "pt"})
        weight_map |= dict.fromkeys(part, f"model{number}.safetensors")
    if len(files) > 1:
        total = sum(tensor.nbytes for tensor in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        _write_json(folder / "model.safetensors.index.json", index)


def _check_empty(where: str) -> None:
    target = pathlib.Path(where)
    try:
        taken = target.exists() and (not target.is_dir() or any(target.iterdir()))
    except OSError as e:
        raise UserError(f"cannot write to {where}: {e.strerror}") from e
    if taken:
        raise UserError(f"{where} exists already, and is not empty")


@contextlib.contextmanager
def _new_folder(where: str) -> Iterator[pathlib.Path]:
    """Yields a folder that appears once everything is written to it, or not at all.

    It is locked meanwhile; those that killed processes have left are not, and are removed.
    """
    _check_empty(where)
    target = pathlib.Path(where).absolute()
    created = [parent for parent in target.parents if not parent.exists()]
    for old in target.parent.glob(f".{glob.escape(target.name)}-{'[0-9a-f]' * 8}"):
        with contextlib.suppress(OSError), disk.locked_folder(old):
            shutil.rmtree(old)
    new = target.parent / f".{target.name}-{secrets.token_hex(4)}"
    try:
        new.mkdir(parents=True)
        with disk.locked_folder(new), disk_errors(where, ""):
            yield new
        for path in new.glob("*.safetensors"):  # which its library lets only the owner read
            path.chmod((new / "config.json").stat().st_mode)
        os.rename(new, target)
        created = []
    except OSError as e:
        at = f" {where}" if new.exists() else f" to {target.parent}"
        raise UserError(f"cannot write{at}: {e.strerror or e}") from e
    finally:
        shutil.rmtree(new, ignore_errors=True)
        for parent in created:  # the innermost first
            with contextlib.suppress(OSError):
                parent.rmdir()


def _exists(path: pathlib.Path) -> bool:
    """Returns whether a file exists. Raises if it is no plain file or a link out of its folder; in
    Hugging Face's cache, snapshots/X may link to blobs."""
    if not os.path.lexists(path):
        return False
    try:
        disk.open_file(path, "rb", *_roots(path)).close()
    except disk.OutsideError as e:
        reason = str(e.strerror).removeprefix("it ")
        raise UserError(
            f"{path} {reason}; copy that file into the folder if it belongs there"
        ) from e
    except OSError as e:
        raise UserError(f"cannot read {path}: {e.strerror}") from e
    return True


def _roots(path: pathlib.Path) -> list[pathlib.Path]:
    home = pathlib.Path(os.path.realpath(path.parent))
    blobs = home.parent.parent / "blobs"
    in_cache = home.parent.name == "snapshots" and not blobs.is_symlink()
    return [home, blobs] if in_cache else [home]


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _check_hashes(folder: pathlib.Path, files: Mapping[str, bytes]) -> None:
    """Raises if copies in an imported folder differ from what was imported."""
    imported = Folder(folder).read("imported.json")
    if imported is None:
        return
    hashes = imported.get("sha256")
    if not isinstance(hashes, dict):
        raise UserError(f"{folder / 'imported.json'} has no 'sha256': a hash for each file")
    for name in TOKENIZER:
        if hashes.get(name) != (_sha256(files[name]) if name in files else None):
            raise UserError(
                f"{folder / 'tokenizer' / name} is not the file that was imported; import it again"
            )


def _read_json(path: pathlib.Path) -> dict[str, Any]:
    if not _exists(path):
        raise UserError(f"no file {path}")
    try:
        tree = disk.read_json(path, *_roots(path))
    except OSError as e:
        raise UserError(f"cannot read {path}: {e.strerror}") from e
    except ValueError as e:
        raise UserError(f"{path} is not JSON: {e}") from e
    if not isinstance(tree, dict):
        raise UserError(f"{path} must hold names and values, {{…}}, not {str(tree)[:40]}")
    return tree


def _read_files(paths: Iterable[pathlib.Path]) -> dict[str, bytes]:
    """Reads those files that exist, by name."""
    try:
        files = [path for path in paths if _exists(path)]
        return {path.name: disk.read_bytes(path, *_roots(path)) for path in files}
    except OSError as e:
        raise UserError(f"cannot read {e.filename}: {e.strerror}") from e


def _write_json(path: pathlib.Path, tree: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(tree, indent=1) + "\n")
