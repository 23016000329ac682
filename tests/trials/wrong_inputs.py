"""Wrong inputs, one after another: each must be refused with exit code 2 and a message that names
what is wrong, without a traceback, and nothing may be written.

  python -m tests.trials.wrong_inputs

Not part of the tests: they check the most telling of these, this tries many.
"""

import contextlib
import io
import itertools
import json
import pathlib
import sys
import tempfile
import traceback

from tfm.cli import main as cli

REVERSE = "--config=configs/tasks/reverse.py"
DECODER = "--config=configs/tasks/recall.py"
VALUES = {  # overrides of a good config, and what the message must contain
    "model.width=0": "model.width",
    "model.width=-3": "model.width",
    "model.width=2.5": "model.width",
    "model.width=wide": "model.width",
    "model.layers=0": "model.layers",
    "model.attention.heads=0": "heads",
    "model.attention.heads=3": "heads",
    "model.attention.kv_heads=5": "kv_heads",
    "model.attention.score=scaled_dott": "scaled_dot",
    "model.attention.score=scaled_dot(": "score",
    "model.attention.score=__import__('os')": "score",
    "model.attention.normalizer=softmx": "softmax",
    "model.attention.implementation=flash": "implementation",
    "model.mixer=atention": "attention",
    "model.mixer=convolution(window=0)": "window",
    "model.mixer=convolution(size=3)": "size",
    "model.norm.kind=layr": "layer",
    "model.norm.placement=middle": "placement",
    "model.norm.eps=0": "eps",
    "model.position.scheme=rotery": "rotary",
    "model.position.scheme=rotary(base=x)": "rotary",
    "model.feedforward.kind=swigluu": "swiglu",
    "model.feedforward.width=0": "feedforward.width",
    "model.dropout.residual=1.0": "dropout.residual",
    "model.dropout.residual=-0.1": "dropout.residual",
    "model.dropout.head=0.1": "dropout.head",
    "model.dtype=float8": "dtype",
    "model.remat=some": "remat",
    "model.family=decoderr": "decoder",
    "model.vocab=3": "vocab",
    "model.mask=causal &": "mask",
    "model.mask=window(left=-1)": "left",
    "modle.width=3": "modle",
    "model.attention.hedas=2": "heads",
    "model=3": "model",
    "data.dataset=revers": "reverse",
    "data.dataset=reverse(length=0)": "length",
    "data.dataset=reverse(size=3)": "size",
    "data.dataset=characters(path='nowhere.txt', length=8)": "nowhere.txt",
    "data.dataset=characters(length=8)": "path",
    "data.examples=0": "data.examples",
    "data.batch=0": "data.batch",
    "data.eval_batch=-1": "data.eval_batch",
    "data.tests=reverse(length=0),": "length",
    "data.seed=-1": "data.seed",
    "objective=next_tokn": "next_token",
    "objective=classify": "classify",
    "objective=masked_lm(rate=2.0)": "rate",
    "optimizer.name=adamm": "adam",
    "optimizer.learning_rate=0": "learning_rate",
    "optimizer.learning_rate=nan": "learning_rate",
    "optimizer.schedule=cosine(warmup=99999)": "warm-up",
    "optimizer.schedule=cosine(final=2.0)": "final",
    "optimizer.momentum=0.9": "momentum",
    "optimizer.decay_mask=(": "decay_mask",
    "optimizer.b2=1.0": "b2",
    "train.steps=0": "train.steps",
    "train.steps=1e3": "train.steps",
    "train.accumulate=7": "accumulate",
    "train.ema=1.0": "train.ema",
    "train.label_smoothing=2": "label_smoothing",
    "train.on_nonfinite=ignore": "on_nonfinite",
    "train.log_every=0": "log_every",
    "train.init_from=nowhere": "nowhere",
    "train.init_pattern=x": "init_from",
    "train.allow_leak=perhaps": "allow_leak",
    "seed=-1": "seed",
    "seed=4294967296": "seed",
    f"seed={2**64}": "seed",
    f"data.seed={2**70}": "64 bits",
    f"train.steps={2**31}": "train.steps",
    f"train.log_every={2**70}": "64 bits",
    f"model.width={10**18}": "GB",
    f"model.mask={'~' * 50_000}causal": "too deeply",
    f"model.mask={'causal & ' * 5000}causal": "too deeply",
    f"model.mask={'~' * 60}causal": "operators",
    f"data.batch={'-' * 50_000}1": "data.batch",
    f"data.batch={'9' * 9000}": "data.batch",
    "data.dataset=copy(8)": "length=8",
    "data.dataset=copy(length={[]: 1})": "length",
    "data.dataset=text(train='tests', length=8)": "is a folder",
    "data.dataset=table(train='README.md', text=1.5)": "text=1.5",
    "train.log_evry=3": "train.log_every",
    "model.dropuot.residual=0": "model.dropout",
    **{
        f"data.tokenizer={name}(vocab=1000000000)": "vocab"
        for name in ("bpe", "unigram", "wordpiece", "words")
    },
}


def commands(folder: pathlib.Path):
    """Whole command lines, and what the message must contain."""
    work = f"--workdir={folder / 'run'}"
    for text, wanted in VALUES.items():
        yield ["train", REVERSE, f"--config.{text}", work, "--quiet"], wanted
    yield ["train", DECODER, "--config.model.mask=everything", "--config.data.dataset=dyck",
           "--config.objective=next_token", work, "--quiet"], "sees the answer"  # fmt: skip
    (folder / "bad.json").write_text("{")
    (folder / "list.json").write_text("[1]")
    (folder / "syntax.py").write_text("def get_config(:\n")
    (folder / "empty.py").write_text("")
    (folder / "raises.py").write_text("1 / 0\n")
    (folder / "score.py").write_text("SCORES = {'dot': 3}\ndef get_config(): pass\n")
    (folder / "file").write_text("x")
    for name, wanted in {
        "bad.json": "not JSON", "list.json": "not a config", "syntax.py": "line 1",
        "empty.py": "get_config", "raises.py": "ZeroDivisionError", "score.py": "SCORES",
        "missing.py": "missing.py",
    }.items():  # fmt: skip
        yield ["train", f"--config={folder / name}", work], wanted
    yield ["train", REVERSE], "--workdir"
    yield ["train", work], "--config"
    yield ["train", REVERSE, "--config.seed", work], "--config.seed"
    yield ["train", REVERSE, work, "--fast"], "--fast"
    yield ["train", REVERSE, f"--workdir={folder / 'file'}"], "file"
    yield ["train", REVERSE, f"--workdir={folder / 'a[b]'}"], "["
    (folder / "foreign").mkdir()
    (folder / "foreign" / "metrics.jsonl").write_text("mine\n")
    yield ["train", REVERSE, f"--workdir={folder / 'foreign'}"], "foreign"
    yield ["eval", str(folder / "nowhere")], "nowhere"
    yield ["eval"], "RUN"
    yield ["eval", str(folder / "foreign")], "config.json"
    yield ["export", str(folder / "nowhere"), str(folder / "out")], "nowhere"
    yield ["import", str(folder / "nowhere"), f"{work}2"], "nowhere"
    yield ["import", str(folder / "foreign"), f"{work}2"], "config.json"
    yield ["ls", str(folder / "nowhere")], "nowhere"
    yield ["describe", REVERSE, "--batch=0"], "batch"
    yield ["describe", REVERSE, "--batch=many"], "batch"
    yield ["sweep", str(folder / "nowhere")], "nowhere"
    yield ["sweep", "experiments/quickstrat"], "quickstart"
    yield ["sweep", "experiments/quickstart", "--jobs=0", "--dry-run"], "jobs"
    yield ["sweep", "experiments/quickstart", "--stale=maybe"], "stale"
    yield ["sweep", "experiments/quickstart", "--config.seed=3"], "seed"
    yield ["bench", "atention"], "attention"
    yield ["verdict-of-nobody"], "verb"
    for name, body in {
        "no_question": "def sweep(): return [{}]\n",
        "no_sweep": '"""Why?"""\n',
        "no_points": '"""Why?"""\nBASE = "x.py"\ndef sweep(): return []\n',
        "no_base": '"""Why?"""\ndef sweep(): return [{"seed": 1}]\n',
        "bad_key": '"""Why?"""\nBASE = "configs/tasks/reverse.py"\n'
        'def sweep(): return [{"model.widht": 1}]\n',
        "bad_baseline": '"""Why?"""\nBASE = "configs/tasks/reverse.py"\nBASELINE = "nobody"\n'
        'def sweep(): return [{"model.layers": n} for n in (1, 2)]\n',
        "bad_metric": '"""Why?"""\nBASE = "configs/tasks/reverse.py"\nMETRIC = "accurcy"\n'
        'def sweep(): return [{}]\n',
    }.items():  # fmt: skip
        study = pathlib.Path("experiments") / f".trial_{name}"
        yield ["sweep", str(study), f"--workdir={folder / 'sweep'}", "--quiet"], name, body


def extremes(folder: pathlib.Path):
    """Numbers, texts and options beyond what is possible."""
    work = f"--workdir={folder / 'run'}"
    yield [
        *("train", REVERSE, work, "--config.model.max_length=2"),
        "--config.model.position.scheme=learned",
    ], "max_length=2"  # fmt: skip
    (folder / "vocab.txt").write_text("[PAD]\n[CLS]\n[SEP]\n[MASK]\nthe\n")
    yield [
        *("train", REVERSE, work, "--config.data.dataset=text(train='README.md', length=8)"),
        f"--config.data.tokenizer=bert(path='{folder / 'vocab.txt'}')",
    ], "UNK"  # fmt: skip
    (folder / "binary").write_bytes(b"\xff\xfe\x00")
    yield ["generate", str(folder), f"--file={folder / 'binary'}"], "UTF-8"
    yield ["classify", str(folder), "\udcff"], "UTF-8"
    yield ["generate", str(folder), "a", f"--seed={2**64}", "--temperature=1"], "--seed"
    yield ["generate", str(folder), "a", "--seed=3"], "temperature=0"
    yield ["generate", str(folder), "a", f"--max_new={2**70}"], "--max_new"
    yield ["generate", str(folder), "a", "--top_k=3"], "temperature=0"
    yield ["eval", str(folder / "bad.json")], "is a file"
    yield ["eval", str(folder), f"--examples={2**70}"], "--examples"
    yield ["describe", REVERSE, f"--batch={10**18}"], "--batch"
    yield ["describe", REVERSE, f"--batch={'9' * 9000}"], "--batch"
    yield ["data", "--prepare=../.."], "--prepare"
    yield ["data", "--clear=all", "--verify"], "one of them"
    yield ["data", "--rows=3"], "--rows"
    (folder / "table.py").write_text("def f(): pass\nOPTIMIZER = {'mine': f}\n")
    yield ["train", f"--config={folder / 'table.py'}", work], "OPTIMIZERS"


def main() -> None:
    wrong = tried = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for argv, wanted, *body in itertools.chain(commands(folder), extremes(folder)):
            study = pathlib.Path(argv[1]) if body else None
            if study is not None:
                study.mkdir(exist_ok=True)
                (study / "study.py").write_text(body[0])
            tried += 1
            out, err, code = io.StringIO(), io.StringIO(), None
            try:
                with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                    code = cli.main(argv)
            except SystemExit as e:
                code = e.code
            except BaseException:
                err.write(traceback.format_exc())
            finally:
                if study is not None:
                    for path in study.rglob("*.py"):
                        path.unlink()
                    study.rmdir()
            message = err.getvalue()
            named = body or wanted in message
            bad = code != 2 or "Traceback" in message or not named
            wrong += bad
            if bad or "--show" in sys.argv:
                print(json.dumps({"argv": argv, "code": code, "message": message[-600:]}, indent=1))
        if (folder / "foreign" / "metrics.jsonl").read_text() != "mine\n":
            print("a foreign file was changed")
            wrong += 1
        if (folder / "run" / "summary.json").exists():
            print("something was trained")
            wrong += 1
    print(f"{tried} wrong inputs, {wrong} not refused as they should be")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
