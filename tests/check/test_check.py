"""Broken ideas are refused with the check that they fail; others pass."""

import json
import pathlib
import textwrap

import pytest

from tfm.check import entries
from tfm.check.results import TOLERANCE
from tfm.cli import check as main
from tfm.cli import main as cli
from tfm.config import files as config
from tfm.config.names import UserError, read
from tfm.config.spec import Named
from tfm.models.spec import model_spec
from tfm.run import library_code
from tfm.run import spec as runs
from tfm.run.library_code import reached
from tfm.sweep import study
from tfm.sweep.plan import expand

IDEAS = """
    import jax, numpy as np
    from flax import linen as nn
    from jax import numpy as jnp
    from jax.nn import initializers, relu
    from tfm.layers.context import Auxiliary
    from tfm.layers.context import Mixer
    from tfm.layers.norm import Norm
    from tfm.ops.mask import Mask, mask_dataclass
    from tfm.ops.masks import predicate
    from tfm.ops.normalizers import Normalizer
    from tfm.ops.positions import Position
    from tfm.ops.scores import Score, dot, scaled_dot

    def topk(q, k, **at):
        s = scaled_dot(q, k)
        least = jax.lax.top_k(s, min(3, s.shape[-1]))[0][..., -1:]
        return jnp.where(s >= least, s, -1e9)

    def centred(q, k, **at):
        return dot(q, k - jnp.mean(k, axis=0, keepdims=True))

    def loud(q, k, *, gain_H, **at):
        return jnp.sqrt(dot(q, k)) * gain_H[None, :, None, None]

    def random(q, k, **at):
        return scaled_dot(q, k) * np.random.normal()

    def talking(q, k, *, w_HX, **at):
        return jnp.einsum("BHTS,HX->BXTS", scaled_dot(q, k), w_HX)

    def share(x):
        return relu(x) / (jnp.sum(relu(x), -1, keepdims=True) + 1e-6)

    @mask_dataclass()
    class Evens(Mask):
        def visible(self, at):
            return (at.back_BTS % 2 == 0)[:, None]

        def hides(self, span):
            return span.rows[0] > span.cols[0]

    def bias(q_pos, k_pos, heads):
        return -jnp.abs(q_pos - q_pos[:, :1])[:, None, :, None] * jnp.ones((1, heads, 1, 1))

    class Module(nn.Module):
        fn: object
        spec: object = None
        dims: object = None

        def __call__(self, x, context=None, cache=None):
            return self.fn(x), cache, Auxiliary()

        def init_cache(self, batch, length):
            return None

    def mixer(fn, **declared):
        return lambda: Mixer(lambda spec, dims, position, **o: Module(fn, **o), **declared)

    before = lambda x: jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]
    mean = lambda x: jnp.broadcast_to(jnp.mean(x, 1, keepdims=True), x.shape)
    next_one = lambda x: jax.lax.stop_gradient(before(x[:, ::-1])[:, ::-1])

    class Peek(nn.Module):
        spec: object
        dims: object

        def __call__(self, x, dropouts=None):
            return next_one(x), {}

    class Doubled(nn.Module):
        spec: object
        dims: object

        def __call__(self, x, dropouts=None):
            return 2 * x, {}

    SCORES = {
        "topk": Score(topk), "centred": Score(centred), "random": Score(random),
        "loud": Score(loud, params={"gain_H": initializers.ones}),
        "talking": Score(talking, params={"w_HX": initializers.orthogonal()}),
    }
    NORMALIZERS = {
        "share": Normalizer(each=share), "share_row": Normalizer(row=share),
        "mean_row": Normalizer(row=lambda x: relu(x - jnp.maximum(x, -9).mean(-1, keepdims=True))),
    }
    MASKS = {"evens": Evens(), "odd": predicate(lambda t, s: (t - s) % 2 == 1)}
    POSITIONS = {"first": Position(bias=bias), "reversed": Position(
        table=lambda pos, width: jnp.repeat((jnp.max(pos) - pos)[..., None], width, -1) * 1.0)}
    JOINS = {"subtract": lambda x, table: x - table, "sum": lambda x, table: x + mean(x)}
    NORMS = {"halved": Norm(lambda spec, dtype, name, x, valid, train: x / 2),
             "whole": Norm(lambda spec, dtype, name, x, valid, train: x - mean(x))}
    MIXERS = {
        "before": mixer(before, cacheable=False), "forgetful": mixer(before),
        "mean": mixer(mean, cacheable=False), "peek": mixer(next_one, cacheable=False),
        "honest": mixer(mean, causal=False, padding=False),
    }
    FEEDFORWARDS = {"peek": Peek, "doubled": Doubled}
"""
# What each entry fails; the others fail nothing.
FAILS = {
    "SCORES.topk": {"pairs", "tiles", "hidden keys", "padding"},
    "SCORES.centred": {"pairs", "hidden keys"},
    "SCORES.random": {"pairs", "tiles", "padding", "compiled"},
    "SCORES.loud": {"gradients"},
    "NORMALIZERS.share": {"tiles", "hidden keys", "causality", "padding"},
    "NORMALIZERS.mean_row": {"padding"},
    "MASKS.evens": {"tiles"},
    "POSITIONS.first": {"pairs"},  # the softmax forgives it, other normalizers would not
    "POSITIONS.reversed": {"padding"},
    "JOINS.sum": {"causality", "padding"},
    "NORMS.whole": {"causality", "padding"},
    "MIXERS.forgetful": {"cache"},
    "MIXERS.mean": {"causality", "padding"},
    "MIXERS.peek": {"causality", "padding"},
    "FEEDFORWARDS.peek": {"causality", "padding"},
}


@pytest.fixture
def write(tmp_path, own_tables, monkeypatch):
    monkeypatch.setenv("TFM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(entries, "_passed", set())

    def write(text):
        path = tmp_path / "idea.py"
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write


def test_each_broken_idea_fails_its_check(write):
    results = list(main.check_file(write(IDEAS)))
    failed = {}
    for table, name, result in results:
        failed.setdefault(f"{table}.{name}", set())
        if not result.passed:
            assert result.passed is False
            assert result.difference > TOLERANCE
            failed[f"{table}.{name}"].add(result.check)
    # Numbers that are not finite differ from everything.
    failed["SCORES.loud"] &= {"gradients"}
    assert {name: checks for name, checks in failed.items() if checks} == FAILS


OPTIONS = {
    "window": "window(left=2)",
    "strided": "strided(stride=3)",
    "global_tokens": "global_tokens(count=1)",
    "prefix": "prefix(length=3)",
}
VARIANTS = [
    ("MIXERS", "convolution(window=4, depthwise=True)"),
    ("MIXERS", "token_mlp(hidden=6)"),
    ("MIXERS", "recurrent(cell='lstm')"),
]
ATTENTION = {"width": 8, "layers": 1, "max_length": 16, "attention": {"heads": 2}}
ATTENTION |= {"feedforward": {"width": 8}}
FAMILIES = {
    "encoder": {**ATTENTION, "outputs": ("masked_lm",)},
    "decoder": ATTENTION,
    "encoder_decoder": ATTENTION,
    "recurrent": {"width": 8, "hidden": 8},
    "seq2seq": {"width": 8, "hidden": 8},
    "word2vec": {"width": 8},
    "bag": {"width": 8},
    "convolution": {"width": 8, "channels": (8,)},
}
NEED_ARRAYS = ("padding", "segments", "given", "concatenate")  # or a width
BUILT_IN = [
    (table, OPTIONS.get(name, name))
    for table in entries.CHECKS
    for name in config.TABLES[table]
    if name not in NEED_ARRAYS
]


@pytest.mark.parametrize(("table", "text"), BUILT_IN + VARIANTS)
def test_built_in_entries_pass(table, text):
    made = table in entries.CALLED
    entry = read(text, config.TABLES[table], table) if made else config.TABLES[table][text]
    if table == "FAMILIES":
        entry = model_spec({"model": {"family": text, **FAMILIES[text]}})
    failed = [
        result for result in entries.results(table, Named.of(text, entry)) if not result.passed
    ]
    assert not failed


def test_the_example_idea_passes(write):
    """A table that counts from the end passes too if it knows the padding."""
    new_score = pathlib.Path(__file__).parents[2] / "configs" / "new_score.py"
    assert all(result.passed for _, _, result in main.check_file(str(new_score)))
    unit = Named.of("unit", config.TABLES["POSITIONS"]["unit"]())
    assert all(result.passed for result in entries.results("POSITIONS", unit))


def test_the_verb(write, capsys):
    path = write("""
        from tfm.data.datasets import DATASETS as known
        from tfm.ops.scores import Score, dot
        SCORES = {"half": Score(lambda q, k, **at: dot(q, k) / 2),
                  "wide": Score(lambda q, k, **at: dot(q, k)[0])}
        DATASETS = {"mine": known["copy"]}
    """)
    assert cli.main(["check", path, "--json"]) == 1
    lines = json.loads(capsys.readouterr().out)
    assert {line["check"] for line in lines if line["entry"] == "half" and line["passed"]} == {
        "pairs", "tiles", "hidden keys", "causality", "padding", "gradients", "compiled",
    }  # fmt: skip
    (wrong,) = (line for line in lines if line["entry"] == "wide")
    assert (wrong["check"], wrong["passed"]) == ("runs", False)
    assert "the score returned shape" in wrong["says"]
    (data,) = (line for line in lines if line["entry"] == "mine")
    assert data["passed"] is None

    assert cli.main(["check", write('x = "no tables"')]) == 2
    assert "brings no entries: none of SCORES" in capsys.readouterr().err
    assert cli.main(["check"]) == 2


CONFIG = """
    import jax
    from jax import numpy as jnp
    from ml_collections import ConfigDict
    from tfm.ops.normalizers import Normalizer
    from tfm.ops.scores import Score, dot

    def share(scale: float = 1.0):
        def each(x):
            return jax.nn.relu(scale * x) / (jnp.sum(jax.nn.relu(x), -1, keepdims=True) + 1e-6)
        return Normalizer(each=each)

    SCORES = {"half": Score(lambda q, k, **at: dot(q, k) / 2)}
    NORMALIZERS = {"share": share}

    def get_config():
        return ConfigDict({
            "objective": "next_token",
            "data": {"dataset": "copy(length=3, vocab=8)", "examples": 64, "valid_examples": 64},
            "train": {"steps": 1},
            "model": {
                "family": "decoder", "width": 8, "layers": 1, "max_length": 16,
                "attention": {"heads": 2, "score": "half", "normalizer": "NORMALIZER"},
                "feedforward": {"width": 8}}})
"""


def test_a_run_is_refused_before_it_starts(write, tmp_path, capsys):
    path = write(CONFIG.replace('NORMALIZER"}', 'share(scale=2.0)"}'))
    argv = ["train", f"--config={path}", f"--workdir={tmp_path / 'run'}", "--quiet"]
    assert cli.main(argv) == 2
    error = capsys.readouterr().err
    assert f"{path}: NORMALIZERS['share(scale=2.0)'] fails the check 'tiles'" in error
    assert "off by " in error
    assert "each= may see one logit" in error
    assert not (tmp_path / "run").exists()


def test_an_entry_is_checked_again_only_after_an_edit(write, tmp_path, monkeypatch):
    text = CONFIG.replace('NORMALIZER"}', 'softmax"}')
    checked = []

    def count(text):
        checked.append(str(text))
        return iter(())

    monkeypatch.setitem(entries.CHECKS, "SCORES", count)

    def plan(text):
        entries.check_entries(runs.read(config.load(write(text)).to_dict()))

    plan(text)
    plan(text)
    assert checked == ["half"]
    entries._passed.clear()  # as in another process
    plan(text)
    assert checked == ["half"]
    assert len(list((tmp_path / "cache" / "checks").iterdir())) == 1
    plan(text.replace("dot(q, k) / 2", "dot(q, k) / 3"))
    assert checked == ["half", "half"]


def test_a_passed_check_depends_on_the_code_it_reaches(monkeypatch):
    modules = reached({}, entries.START)
    for module in ("check.attention", "check.layers", "ops.blockwise", "layers.block"):
        assert f"tfm.{module}" in modules
    for module in ("models.word2vec", "models.decoder", "train.loop", "data.synthetic"):
        assert f"tfm.{module}" not in modules
    before = entries._code()
    code = lambda names, start: f"code from {start[0]}:{start[1]}"
    monkeypatch.setattr(library_code, "digest", code)
    assert entries._code().startswith("code from tfm.check.entries:results ")
    assert before != entries._code()


def test_a_sweep_is_refused_when_it_is_planned(write, tmp_path):
    path = write(CONFIG.replace('NORMALIZER"}', 'softmax"}'))
    text = f"""
        '''Does it help?'''
        BASE = {path!r}
        def sweep():
            return [{{"model.attention.normalizer": "share"}}]
    """
    (tmp_path / "study.py").write_text(textwrap.dedent(text))
    with pytest.raises(UserError, match=r"point 0.*NORMALIZERS\['share'\] fails the check 'tiles'"):
        expand(study.load(str(tmp_path)))
