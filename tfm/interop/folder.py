"""`tfm import` and `tfm export`: a Hugging Face folder in, a run folder out, and back.

  tfm import HF_FOLDER --workdir=FOLDER [--dtype=float32]
  tfm export WORKDIR HF_FOLDER

import reads config.json and safetensors (in one file or several; never pickle) of GPT-2, LLaMA,
BERT, T5 and UL2, and writes config.json (for --config=FOLDER/config.json), params (Orbax) and the
tokenizer's files. export writes a folder that transformers loads. A tensor that is missing, left
over or misshapen is an error that lists it, and then nothing is written. --dtype is that of the
stored weights: float32, bfloat16, float16, or stored, which leaves it as it is.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np

from tfm import config as configs
from tfm.interop.convert import from_huggingface, to_huggingface
from tfm.models import build
from tfm.names import UserError, pick, suggest

TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tokenizer.model",
    "spiece.model",
    "chat_template.jinja",
    "generation_config.json",
)
DTYPES = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "stored": None,
}
SHARD = 5 * 10**9  # bytes in a file, about


def main_import(argv: Sequence[str]) -> None:
    if {"-h", "--help"} & set(argv):
        print(__doc__, end="")
        return
    words, options = _arguments(argv, 1, ("workdir", "dtype"))
    if "workdir" not in options:
        raise UserError("where to? Write --workdir=FOLDER")
    workdir = import_folder(words[0], options["workdir"], options.get("dtype", "float32"))
    print(f"imported to {workdir}; look at it with\n  tfm describe --config={workdir}/config.json")


def main_export(argv: Sequence[str]) -> None:
    if {"-h", "--help"} & set(argv):
        print(__doc__, end="")
        return
    (source, target), _ = _arguments(argv, 2, ())
    print(f"exported to {export_folder(source, target)}")


def _arguments(
    argv: Sequence[str], words: int, known: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    found = [arg for arg in argv if not arg.startswith("--")]
    options = {}
    for arg in argv:
        if arg.startswith("--"):
            name, equals, value = arg.removeprefix("--").partition("=")
            if name not in known or not equals:
                raise UserError(f"cannot read {arg!r}{suggest(name, known)}")
            options[name] = value
    if len(found) != words:
        raise UserError(f"{words} folder(s) wanted, {len(found)} given; see tfm VERB --help")
    return found, options


def import_folder(source: str, workdir: str, dtype: str = "float32") -> pathlib.Path:
    """A Hugging Face folder as a run folder: config.json, params, tokenizer."""
    folder = pathlib.Path(source)
    config = _read_json(folder / "config.json")
    wanted = pick(DTYPES, dtype, "dtype")
    with _new_folder(workdir) as new:
        spec, params = from_huggingface(config, read_tensors(folder))
        if wanted is not None:
            params = jax.tree.map(lambda x: x.astype(wanted), params)
        _write_json(new / "config.json", {"model": dataclasses.asdict(spec)})
        _write_json(new / "huggingface.json", config)
        save_params(new / "params", params)
        for name in TOKENIZER:
            if (folder / name).exists():
                (new / "tokenizer").mkdir(exist_ok=True)
                shutil.copyfile(folder / name, new / "tokenizer" / name)
    return pathlib.Path(workdir)


def export_folder(workdir: str, target: str) -> pathlib.Path:
    """A run folder as one that transformers loads."""
    folder = pathlib.Path(workdir)
    spec, params = load(folder)
    with _new_folder(target) as new:
        config, tensors = to_huggingface(spec, params)
        before = folder / "huggingface.json"
        if before.exists():  # what says nothing of the weights: the ids of special tokens…
            kept = {k: v for k, v in _read_json(before).items() if k not in ROPE}
            if kept.get("model_type") == config["model_type"]:
                config = {**kept, **config}
        (dtype,) = {str(tensor.dtype) for tensor in tensors.values()}
        _write_json(new / "config.json", {**config, "torch_dtype": dtype, "dtype": dtype})
        write_tensors(new, tensors)
        if (folder / "tokenizer").exists():
            for path in (folder / "tokenizer").iterdir():
                shutil.copyfile(path, new / path.name)
    return pathlib.Path(target)


ROPE = ("rope_parameters", "rope_scaling", "rope_theta", "scale_decoder_outputs")  # told anew


def load(workdir: str | pathlib.Path) -> tuple[Any, dict[str, Any]]:
    """The spec and the parameters of a run folder."""
    import orbax.checkpoint as ocp

    folder = pathlib.Path(workdir)
    spec = build.spec(build.fill(configs.load(str(folder / "config.json"))))
    if not (folder / "params").is_dir():
        raise UserError(f"{folder} has no params: it is not the folder of an import")
    with ocp.StandardCheckpointer() as checkpointer:
        return spec, checkpointer.restore((folder / "params").absolute())


def save_params(path: pathlib.Path, params: Mapping[str, Any]) -> None:
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path.absolute(), params)


def read_tensors(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """All tensors of model.safetensors, or of the files that its index names."""
    from safetensors import SafetensorError, safe_open

    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").exists():
        files = [folder / "model.safetensors"]
    elif index.exists():
        files = [folder / name for name in sorted(set(_read_json(index)["weight_map"].values()))]
    else:
        pickled = sorted(path.name for path in folder.glob("*.bin"))
        hint = f"; {pickled[0]} is a pickle, which is never read" if pickled else ""
        raise UserError(
            f"{folder} holds no model.safetensors{hint}. In transformers, "
            "model.save_pretrained(folder) writes one"
        )
    tensors: dict[str, np.ndarray] = {}
    for file in files:
        try:
            with safe_open(file, "numpy") as opened:
                tensors |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        except FileNotFoundError:
            raise UserError(f"{file} is missing, but {index.name} names it") from None
        except SafetensorError as e:
            raise UserError(f"{file} is damaged: {e}") from e
    return tensors


def write_tensors(folder: pathlib.Path, tensors: Mapping[str, np.ndarray]) -> None:
    from safetensors.numpy import save_file

    files: list[dict[str, np.ndarray]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if files[-1] and size + tensor.nbytes > SHARD:
            files.append({})
            size = 0
        files[-1][name] = tensor
        size += tensor.nbytes
    metadata = {"format": "pt"}
    if len(files) == 1:
        save_file(files[0], folder / "model.safetensors", metadata)
        return
    weight_map: dict[str, str] = {}
    for n, part in enumerate(files, 1):
        file = f"model-{n:05}-of-{len(files):05}.safetensors"
        save_file(part, folder / file, metadata)
        weight_map |= dict.fromkeys(part, file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    _write_json(folder / "model.safetensors.index.json", index)


@contextlib.contextmanager
def _new_folder(where: str) -> Iterator[pathlib.Path]:
    """A folder that appears whole, when all has been written to it, or not at all."""
    target = pathlib.Path(where).absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{where} exists already, and is not empty")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        new = pathlib.Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as e:
        raise UserError(f"cannot write to {target.parent}: {e.strerror}") from e
    try:
        yield new
        mask = _umask()
        new.chmod(0o777 & ~mask)
        for path in new.glob("*.safetensors"):
            path.chmod(0o666 & ~mask)
        os.rename(new, target)
    except OSError as e:
        raise UserError(f"cannot write {where}: {e}") from e
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _read_json(path: pathlib.Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"no file {path}") from None
    except ValueError as e:
        raise UserError(f"{path} is not JSON: {e}") from e


def _write_json(path: pathlib.Path, tree: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(tree, indent=1) + "\n")
