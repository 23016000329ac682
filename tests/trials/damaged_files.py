"""Damage the files of a finished run and of a finished sweep in many ways; nothing may be silent.

  python tests/trials/damaged_files.py [--keep=FOLDER] [--only=hostile|run|sweep]

A trial makes a copy of a small run or sweep, damages one file, and runs commands on it. Each must
end in one of two ways: `repaired` (exit code 0, and the results of the undamaged one), or `named`
(another exit code, or for `tfm ls` the status damaged, and a message that has the file's name in
it). A traceback, or a result that differs, is reported, and the exit code is then 1. It takes some
minutes, and is not a part of the test suite.

`hostile` makes folders as a stranger would: links out of the folder, FIFOs, devices, huge files and
deep JSON in the place of each file. No command may hang, or touch a file outside of the folder.
"""

import contextlib
import io
import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

import jax

jax.config.update("jax_platforms", "cpu")
sys.unraisablehook = lambda _: None  # Orbax leaves coroutines behind, which a later trial drops

from tfm.cli import main as cli  # noqa: E402

SMALL = pathlib.Path(__file__).parents[1] / "train" / "small.py"
RUN = [f"--config={SMALL}:recurrent", "--config.train.steps=20", "--config.train.keep=9", "--quiet"]
STUDY = f'''"""Which seed is better?"""
from tfm.sweep.space import product, seeds
BASE = "{SMALL}:recurrent"
METRIC = "accuracy"
def sweep():
    return product({{"train.steps": [20]}}, seeds(3))
'''


def cut(share):
    return lambda raw: raw[: int(len(raw) * share)]


def flip(share):
    def change(raw):
        out = bytearray(raw)
        out[int(len(raw) * share)] ^= 4
        return bytes(out)

    return change


def edit(**changes):
    """Set top-level values of a JSON file; ... removes one."""

    def change(raw):
        tree = json.loads(raw) | changes
        return json.dumps({k: v for k, v in tree.items() if v is not ...}).encode()

    return change


def lines(change):
    return lambda raw: b"".join(change(raw.splitlines(keepends=True)))


GONE, FOLDER = "gone", "folder"
ANY = {  # of every JSON file
    "empty": lambda raw: b"",
    "{}": lambda raw: b"{}",
    "null": lambda raw: b"null",
    "list": lambda raw: b"[1, 2]",
    "text": lambda raw: b"nonsense",
    "half": cut(0.5),
    "not UTF-8": lambda raw: raw[:9] + b"\xfe\xff" + raw[9:],
    "zeros": lambda raw: b"\0" * len(raw),
    "directory": FOLDER,
}
OWN = {
    "config.json": {
        "no id": edit(id=...),
        "id of a number": edit(id=5),
        "another id": edit(id="0" * 16),
        "model is a list": edit(model=[]),
        "no data": edit(data=...),
        "gone": GONE,
    },
    "summary.json": {
        "no status": edit(status=...),
        "odd status": edit(status="fine"),
        "another id": edit(id="0" * 16),
        "no valid": edit(valid=...),
        "valid is null": edit(valid=None),
        "valid is empty": edit(valid={}),
        "steps is a text": edit(steps="20"),
        "more steps": edit(steps=21),
        "tests is a list": edit(tests=[]),
        "NaN": lambda raw: raw.replace(b'"flops": ', b'"flops": NaN, "x": '),
    },
    "profile.json": {
        "no profiles": edit(profiles=...),
        "profiles are numbers": edit(profiles=[1]),
        "no profile": edit(profiles=[]),
        "gone": GONE,
    },
}
LOG = {
    "torn": cut(0.97),
    "half": cut(0.5),
    "empty": lambda raw: b"",
    "gone": GONE,
    "directory": FOLDER,
    "text in the middle": lines(lambda x: [*x[:3], b"nonsense\n", *x[4:]]),
    "a number in the middle": lines(lambda x: [*x[:3], b"7\n", *x[4:]]),
    "a line less in the middle": lines(lambda x: [*x[:3], *x[4:]]),
    "a line twice": lines(lambda x: [*x[:3], x[2], *x[3:]]),
    "not UTF-8 in the middle": lines(lambda x: [*x[:2], b"\xff" + x[2], *x[3:]]),
    "another digit in the middle": lines(
        lambda x: [*x[:3], x[3].replace(b": 0.", b": 1."), *x[4:]]
    ),
    "not UTF-8 at the end": lambda raw: raw + b"\xff\xfe",
    "torn JSON at the end": lambda raw: raw + b'{"step": 24, "spl',
}
CHECKPOINT = {"empty": lambda raw: b"", "half": cut(0.5), "flipped": flip(0.5), "gone": GONE}


def tfm(*argv):
    """Exit code, output and errors of a command."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            code = cli.main([str(arg) for arg in argv])
        except SystemExit as e:
            code = e.code
        except Exception as e:
            return "traceback", out.getvalue(), f"{type(e).__name__}: {e}"
    return code, out.getvalue(), errors.getvalue()


def damage(path, change):
    raw = path.read_bytes() if path.is_file() else b"{}"
    path.unlink(missing_ok=True)
    if change == FOLDER:
        path.mkdir()
    elif change != GONE:
        path.write_bytes(change(raw))


class Trials:
    def __init__(self):
        self.count = {"repaired": 0, "named": 0, "unharmed": 0}
        self.wrong = []

    def fail(self, text):
        print(f"WRONG {text}", flush=True)
        self.wrong.append(text)

    def judge(self, what, ended, wanted, name, same):
        """`same` is whether what was printed is what the undamaged one prints; `name` is a name
        that an error must have in it."""
        code, out, errors = ended
        if code == "traceback" or "Traceback" in errors:
            self.fail(f"{what}: a traceback: {errors.strip()[-200:]}")
        elif code == 0 and same(out):
            self.count[wanted if wanted == "unharmed" else "repaired"] += 1
        elif name in errors if code else "is damaged" in errors:
            self.count["named"] += 1
        else:
            self.fail(f"{what}: exit code {code}, {(errors or out).strip()[-200:]!r}")


def run_trials(root, trials):
    whole = root / "whole"
    code, wanted, errors = tfm("train", *RUN, f"--workdir={whole}")
    assert code == 0, errors
    _, scores, _ = tfm("eval", whole)
    files = {name: ANY | own for name, own in OWN.items()} | {"metrics.jsonl": LOG}
    for name, kinds in files.items():
        for kind, change in kinds.items():
            for finished in (True, False):  # or killed just before its end
                if name == "summary.json" and not finished:
                    continue
                where = root / "run"
                shutil.copytree(whole, where)
                if not finished:
                    (where / "summary.json").unlink()
                damage(where / name, change)
                what = f"{name}: {kind}, {'finished' if finished else 'unfinished'}"
                listed = json.loads(tfm("ls", where, "--json")[1])[0]
                if finished and listed["status"] != "damaged":
                    trials.fail(f"{what}: tfm ls says {listed['status']}")
                elif finished and str(where) not in listed["reason"]:
                    trials.fail(f"{what}: tfm ls does not name it: {listed['reason']}")
                again = tfm("train", *RUN, f"--workdir={where}")
                same = lambda out, finished=finished: not finished and out == wanted
                trials.judge(f"train, {what}", again, "repaired", str(where), same)
                shutil.rmtree(where)
    newest = [p for p in sorted((whole / "checkpoints" / "20").rglob("*")) if p.is_file()]
    for path in newest:
        for kind, change in CHECKPOINT.items():
            where = root / "run"
            shutil.copytree(whole, where)
            damage(where / path.relative_to(whole), change)
            what = f"{path.relative_to(whole)}: {kind}"
            # A file that Orbax does not need to read changes nothing.
            for command in (["eval", where], ["eval", where, "--checkpoint=last"]):
                said = tfm(*command)
                same = lambda out: out == scores
                trials.judge(f"{command[0]}, {what}", said, "unharmed", "checkpoint", same)
            (where / "summary.json").unlink()
            again = tfm("train", *RUN, f"--workdir={where}")
            trials.judge(f"train, {what}", again, "repaired", "checkpoint", lambda o: o == wanted)
            shutil.rmtree(where)


def sweep_trials(root, trials):
    study, whole = root / "seeds", root / "sweep"
    study.mkdir()
    (study / "study.py").write_text(STUDY)
    code, out, errors = tfm("sweep", study, f"--workdir={whole}", "--json", "--jobs=1")
    assert code == 0, errors
    wanted = json.loads(out)
    first = wanted["runs"][0]["id"]
    files = {f"{first}/{name}": ANY for name in (*OWN, "failure.json")}
    files |= {f"{first}/metrics.jsonl": LOG, "sweep.json": ANY | {"gone": GONE}}
    for name, kinds in files.items():
        for kind, change in kinds.items():
            where = root / "copy"
            shutil.copytree(whole, where)
            damage(where / name, change)
            before = set((where / first).rglob("*"))
            ended = tfm("sweep", study, f"--workdir={where}", "--json", "--jobs=1")
            what = f"sweep, {name}: {kind}"
            last = pathlib.PurePath(name).name
            same = lambda out: json.loads(out)["table"] == wanted["table"]
            trials.judge(what, ended, "repaired", last, same)
            if ended[0] == 1:
                found = json.loads(ended[1])
                states = [run["status"] for run in found["runs"]]
                if states != ["damaged", "done", "done"]:
                    trials.fail(f"{what}: the table says {states}")
                if set((where / first).rglob("*")) != before:
                    trials.fail(f"{what}: the run's folder was changed")
            shutil.rmtree(where)


OUTSIDE = "what another program has written"
PLACES = ("lock", "config.json", "data.json", "summary.json", "profile.json", "metrics.jsonl",
          "failure.json", "checkpoints", "checkpoints/20", "checkpoints/20/variables/_METADATA",
          "checkpoints/20/note/metadata", "tensorboard", "source", ".config.json.1")  # fmt: skip


def plant(path, kind, outside):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "huge":
        path.touch()
        os.truncate(path, 1 << 40)
    elif kind == "deep":
        path.write_text('{"a":' * 5000 + "1" + "}" * 5000)
    else:
        targets = {"file": outside / "file", "folder": outside, "zeros": "/dev/zero"}
        path.symlink_to(targets[kind])


def hostile_trials(root, trials):
    def late(*_):
        raise TimeoutError("it hangs")

    signal.signal(signal.SIGALRM, late)
    whole, outside, where = root / "whole", root / "outside", root / "run"
    if not whole.exists():
        assert tfm("train", *RUN, f"--workdir={whole}")[0] == 0
    outside.mkdir()
    (outside / "file").write_text(OUTSIDE)
    wanted = {verb: tfm(verb, *rest)[1] for verb, *rest in commands(whole)}
    for place, kind in itertools.product(
        PLACES, ("file", "folder", "zeros", "FIFO", "huge", "deep")
    ):
        shutil.copytree(whole, where)
        plant(where / place, kind, outside)
        what = f"{place}: {kind}"
        signal.alarm(120)
        try:
            for verb, *rest in commands(where):
                ended = tfm(verb, *rest)
                same = lambda out, verb=verb: verb == "ls" or out == wanted[verb]
                name = "checkpoint" if place.startswith("checkpoints/20/") else str(where)
                trials.judge(f"{verb}, {what}", ended, "unharmed", name, same)
        except TimeoutError:
            trials.fail(f"{what}: it hangs")
        signal.alarm(0)
        files = [path.name for path in outside.iterdir()]
        if files != ["file"] or (outside / "file").read_text() != OUTSIDE:
            trials.fail(f"{what}: a file outside of the folder was changed")
        subprocess.run(["rm", "-rf", where], check=True)


def commands(folder):
    yield "ls", folder
    yield "train", f"--config={folder}/config.json", "--quiet", f"--workdir={folder}"
    yield "eval", folder


def main(argv):
    only = [arg.partition("=")[2] for arg in argv if arg.startswith("--only=")]
    kept = [arg.partition("=")[2] for arg in argv if arg.startswith("--keep=")]
    with tempfile.TemporaryDirectory() as temporary:
        root, trials = pathlib.Path(kept[0] if kept else temporary), Trials()
        for kind, part in {
            "run": run_trials,
            "sweep": sweep_trials,
            "hostile": hostile_trials,
        }.items():
            if not only or kind in only:
                part(root, trials)
    print(", ".join(f"{number} {kind}" for kind, number in trials.count.items()), end="; ")
    print(f"{len(trials.wrong)} wrong, of {sum(trials.count.values()) + len(trials.wrong)}")
    return bool(trials.wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
