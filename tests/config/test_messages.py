"""Messages about mistakes: one line with the mistake, its place and a remedy, no traceback."""

import json
import pathlib

import pytest

from tests.helpers.runs import Silent
from tfm.cli import main as cli
from tfm.config import files as config
from tfm.config.names import UserError
from tfm.config.spec import parse
from tfm.run import spec
from tfm.runtime import check_memory
from tfm.train import loop

SMALL = str(pathlib.Path(__file__).parents[1] / "train" / "small.py")


def said(capsys, *argv, code=2):
    assert cli.main([str(arg) for arg in argv]) == code
    output = capsys.readouterr()
    assert "Traceback" not in output.err
    return output.err


def test_option_values_may_follow_a_space(tmp_path, capsys):
    """Users of absl expect this."""
    argv = ["train", "--config", f"{SMALL}:recurrent", "--config.train.steps", "4", "--workdir",
            str(tmp_path / "run"), "--quiet"]  # fmt: skip
    assert cli.main(argv) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 4
    known = json.loads((tmp_path / "run" / "profile.json").read_text())["starts"][0]
    assert known["host"]
    assert known["time"].startswith("20")
    assert "jax" in known["packages"]
    assert isinstance(known["command"], list)
    assert "--config=" in said(capsys, "train", "--workdir", "x", "--config")


def test_a_config_without_its_option_is_named(capsys):
    assert "write --config=configs/gpt2.py:small" in said(
        capsys, "describe", "configs/gpt2.py:small"
    )


def test_a_model_without_a_run_is_reported(tmp_path, capsys):
    text = said(capsys, "train", "--config=configs/gpt2.py:small", f"--workdir={tmp_path}/a")
    assert "the config is a model without a run" in text
    assert "missing keys 'objective'; 'data.dataset'; 'train.steps'" in text
    assert "tfm describe" in text


def test_all_missing_keys_are_reported_together(tmp_path):
    (tmp_path / "empty.py").write_text(
        "from ml_collections import ConfigDict\n"
        "def get_config():\n"
        "    return ConfigDict({'data': {'batch': 2}, 'model': {'family': 'bag', 'width': 3}})\n"
    )
    tree = config.load(f"{tmp_path}/empty.py").to_dict()
    with pytest.raises(UserError) as error:
        spec.read(tree)
    keys = "'objective'; 'data.dataset'; 'train.steps'"
    assert str(error.value) == f"missing keys {keys}"
    del tree["model"]["family"]
    with pytest.raises(UserError, match="'objective'; 'model.family', one of: .*; 'data.dataset'"):
        spec.read(tree)


def test_another_run_is_reported_with_the_keys_that_differ(tmp_path):
    argv = [f"--config={SMALL}:recurrent", "--config.train.steps=2"]
    run = lambda *more: spec.read(config.from_command_line([*argv, *more], spec.RunSpec))
    loop.train(run(), str(tmp_path / "run"), Silent())
    with pytest.raises(UserError, match="holds another run: seed is 3 there and 9 here, model.hid"):
        loop.train(
            run("--config.model.hidden=4", "--config.seed=9"), str(tmp_path / "run"), Silent()
        )


def test_values_in_a_list_may_contain_commas():
    value = parse(spec.RunSpec, {}, "data.tests", "sort(length=20, vocab=19),copy(length=3)")
    assert value == ("sort(length=20, vocab=19)", "copy(length=3)")
    one = parse(spec.RunSpec, {}, "data.tests", "bytes(path='a,b', length=3)")
    assert one == ("bytes(path='a,b', length=3)",)


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e999"])
def test_numbers_are_finite(number, capsys, tmp_path):
    key = "--config.optimizer.weight_decay="
    text = said(capsys, "train", f"--config={SMALL}", key + number, f"--workdir={tmp_path}/a")
    assert "optimizer.weight_decay" in text


@pytest.mark.usefixtures("own_tables")
def test_an_error_in_user_code_is_reported_with_its_line(tmp_path, capsys):
    idea = tmp_path / "idea.py"
    idea.write_text(f"""
from tfm.config import files
from tfm.objectives.next_token import NextToken

class Mine(NextToken):
    def prepare(self, examples, dataset, rng):
        if examples.tokens.ids.size > 100:
            return examples.nothing
        return super().prepare(examples, dataset, rng)

OBJECTIVES = {{"mine": Mine()}}

def get_config():
    config = files.load("{SMALL}:recurrent").unlock()
    config.objective = "mine"
    return config
""")
    text = said(capsys, "train", f"--config={idea}", f"--workdir={tmp_path}/run", "--quiet")
    assert f"{idea}, line 8: AttributeError: 'Examples' object has no attribute 'nothing'" in text
    assert text.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\x00\xff\xfe", "x.py"), (b"\xff\xfe\x00a", "x.py"), (b"x = 1\x00", "null bytes")],
)
def test_a_binary_config(content, message, tmp_path, capsys):
    (tmp_path / "x.py").write_bytes(content)
    text = said(capsys, "train", f"--config={tmp_path}/x.py", f"--workdir={tmp_path}/a")
    assert message in text


def test_divergence_is_reported_and_has_its_own_exit_code(tmp_path, capsys):
    argv = ["train", f"--config={SMALL}:recurrent", f"--workdir={tmp_path}/run", "--quiet",
            "--config.optimizer.learning_rate=1e38", "--config.optimizer.clip=None"]  # fmt: skip
    assert cli.main(argv) == 3
    assert "diverged at step" in capsys.readouterr().err


def test_sizes_beyond_memory_are_reported():
    import jax
    from jax import numpy as jnp

    with pytest.raises(UserError, match="need 4,000,000 GB, and this machine has"):
        check_memory({"w": jax.ShapeDtypeStruct((10**9, 10**6), jnp.float32)})
    check_memory({"w": jax.ShapeDtypeStruct((10, 10), jnp.float32)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("batch=1000000000000", "data set 'train': the batches of data.batch=1000000000000, with"),
        ("batch_tokens=100000000000000", "the batches of data.batch_tokens=100000000000000, with"),
        ("eval_batch=1000000000000", "data set 'valid': the batches of data.eval_batch=10000000"),
    ],
)
def test_a_batch_beyond_memory_is_refused_before_it_is_made(
    change, message, tmp_path, capsys, monkeypatch
):
    def prepare(*args):
        raise AssertionError("a batch was made")

    monkeypatch.setattr("tfm.objectives.next_token.NextToken.prepare", prepare)
    argv = ["train", f"--config={SMALL}", f"--workdir={tmp_path}/a", f"--config.data.{change}"]
    text = said(capsys, *argv)
    assert message in text
    assert "GB, and this machine has" in text
    assert not (tmp_path / "a").exists()


def test_no_progress_is_left_before_an_error(tmp_path, capsys):
    text = said(capsys, "train", f"--config={SMALL}", "--config.model.mask=everything",
                f"--workdir={tmp_path}/a")  # fmt: skip
    assert "compiling" not in text.rpartition("tfm: ")[2]
    assert "sees the answer" in text


def test_help_explains_each_key(capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(["train", "--help"])
    out = " ".join(capsys.readouterr().out.split())
    assert "train.ema None float, at least 0, below 1, or None. Decay of the running mean" in out
    assert "data.batch 64 int, at least 1" in out
