"""The command line, from the outside."""

import importlib
import json
import os
import pathlib
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tfm.cli import main as cli
from tfm.cli.bench import BENCHES
from tfm.config.names import UserError
from tfm.config.spec import Spec

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def tfm(capsys, monkeypatch, own_tables):
    """Runs a command in this process; returns its exit code, output and errors."""
    monkeypatch.chdir(ROOT)

    def run(*argv):
        try:
            code = cli.main(argv)
        except SystemExit as e:
            code = e.code
        return SimpleNamespace(returncode=code, **capsys.readouterr()._asdict())

    return run


def test_a_closed_pipe_is_not_an_error(tmp_path):
    """`tfm describe … | head` closes it."""
    (tmp_path / "lines.py").write_text("def main(argv):\n    print('a line\\n' * 100_000)")
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "tfm", str(tmp_path / "lines.py")]
    run = subprocess.run(command, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (run.returncode, run.stderr) == (141, b"")


def test_a_file_is_a_verb(tmp_path, capsys):
    mine = tmp_path / "mine.py"
    mine.write_text("def main(argv):\n    print(argv)\n    return 7\n")
    assert cli.main([str(mine), "--a", "b"]) == 7
    assert capsys.readouterr().out == "['--a', 'b']\n"
    mine.write_text("x = 1\n")
    assert cli.main([str(mine)]) == 2
    assert "mine.py defines no main(argv)" in capsys.readouterr().err


def test_help_imports_nothing_heavy():
    code = "import sys; from tfm.cli.main import main; main(['--help']); print(sorted(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "verbs" in out.stdout
    for heavy in ("jax", "flax", "numpy", "absl", "rich"):
        assert f"'{heavy}'" not in out.stdout


VERBS = [[verb] for verb in cli.verbs()] + [["bench", name] for name in BENCHES]


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_verb_helps(tfm, verb):
    result = tfm(*verb, "--help")
    assert result.returncode == 0
    assert f"tfm {' '.join(verb)}" in result.out
    assert tfm("--help").out.count(f"  {verb[0]} ") == 1


@pytest.mark.parametrize("verb", ["train", "sweep", "describe"])
def test_help_lists_the_keys_of_a_run(tfm, verb):
    text = " ".join(tfm(verb, "--help").out.split())
    assert "data.batch 64 int, at least 1" in text
    assert "train.steps needed int" in text
    assert "optimizer.schedule constant name(option=value): constant, cosine" in text
    assert "model.family needed one of encoder, decoder, encoder_decoder" in text


def test_help_lists_the_keys_of_a_config_with_its_values(tfm):
    text = " ".join(tfm("describe", "--config=configs/gpt2.py:tiny", "--help").out.split())
    assert "model.attention.score scaled_dot name: dot, scaled_dot, additive" in text
    assert "model.family decoder one of encoder" in text
    assert "model.width 128 int, at least 1" in text
    assert "model.dropout.feedforward None float, at least 0, below 1, or None" in text
    missing = tfm("train", "--config=configs/nowhere.py", "--help")
    assert missing.returncode == 2
    assert "no Python file" in missing.err
    assert "Traceback" not in missing.err


def test_describe_prints_a_tree_or_json(tfm):
    text = tfm("describe", "--config=configs/llama.py:260k").out
    assert "260,032" in text
    assert "cache for decoding, per token" in text
    off = ["--config.model.attention.score=none", "--config.model.norm.kind=none"]
    description = json.loads(tfm("describe", "--config=configs/gpt2.py:tiny", "--json", *off).out)
    assert description["family"] == "decoder"


def test_every_verb_and_bench_has_its_functions():
    for name, file in cli.verbs().items():
        assert callable(importlib.import_module(f"tfm.cli.{file.stem}").main)
        assert f"  {name} " in cli.usage()
    for name in BENCHES:
        bench = importlib.import_module(f"tfm.bench.{name}")
        assert issubclass(bench.Bench, Spec)
        assert callable(bench.measure)
        assert callable(bench.report)


def test_version(tfm):
    assert tfm("version").out.startswith("tfm ")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["bnech"], "unknown verb 'bnech'; did you mean 'bench'?"),
        (["bench", "atention"], "unknown bench 'atention'; did you mean 'attention'?"),
        (["bench"], "which bench? One of: attention"),
        (["bench", "attention", "--config.kv_heads=0"], "must be at least 1"),
        (["bench", "attention", "--config.lengths=()"], "must not be empty"),
        (["bench", "attention", "--config.implementations=('fused',)"], "cannot do scores other"),
        (["bench", "attention", "--config.lenths=3"], "did you mean 'lengths'?"),
        (["bench", "attention", "--config=nowhere.py"], "no Python file"),
        (["describe"], "which config? Write --config=FILE.py"),
        (
            ["describe", "--config=configs/gpt2.py:smal"],
            "unknown size 'smal'; did you mean 'small'?",
        ),
        (
            ["describe", "--config=configs/gpt2.py:tiny", "--config.model.num_layer=3"],
            "unknown key 'model.num_layer'; did you mean 'model.layers'? (configs/gpt2.py:tiny)",
        ),
        (
            ["describe", "--config=configs/gpt2.py:tiny", "--config.model.feedforward.kind=swigul"],
            "'swigul'; did you mean 'swiglu'? (configs/gpt2.py:tiny)",
        ),
        (
            ["describe", "--config=configs/gpt2.py:tiny", "--config.model.attention.heads=5"],
            "model.attention.heads=5 does not divide width=128; did you mean heads=4?",
        ),
    ],
)
def test_mistakes_are_named_without_a_traceback(tfm, args, message):
    result = tfm(*args)
    assert result.returncode != 0
    assert message in result.err
    assert "Traceback" not in result.err


def test_bench_attention_with_a_user_score(tfm):
    small = ["--config.lengths=(32, 48)", "--config.rounds=2", "--config.head_width=8"]
    result = tfm("bench", "attention", "--config=configs/new_score.py", *small, "--json")
    assert result.returncode == 0, result.err
    rows = json.loads(result.out)
    assert {(r["length"], r["score"], r["implementation"]) for r in rows} == {
        (length, score, implementation)
        for length in (32, 48)
        for score in ("scaled_dot", "loud")
        for implementation in ("reference", "blockwise")
    }
    assert all(r["forward_ms"] > 0 and r["training_speed"] > 0 and r["memory_mb"] > 0 for r in rows)


def test_bench_attention_skips_rows_that_exceed_memory(tfm):
    result = tfm(
        "bench", "attention", "--config.lengths=(64,)", "--config.scores=('additive',)",
        "--config.rounds=2", "--config.max_gigabytes=0.000001",
    )  # fmt: skip
    assert result.returncode == 0, result.err
    assert "additive" in result.out
    assert "—" in result.out


def test_control_characters_are_escaped(capsys):
    assert cli.main(["train", "--config=\x1b[2Jno.py", "--workdir=x"]) == 2
    error = capsys.readouterr().err
    assert "\x1b" not in error
    assert "\\x1b[2Jno.py" in error


def test_an_option_may_be_repeated_if_it_collects_values():
    parser = cli.Parser("verb", "A verb.")
    parser.add_argument("--one")
    parser.add_argument("--many", action="append", default=[])
    assert parser.parse(["--many=a", "--many", "b", "--one=c"]).many == ["a", "b"]
    with pytest.raises(UserError, match="--one is given more than once"):
        parser.parse(["--one=a", "--one=b"])
