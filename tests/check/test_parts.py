"""Optimizers, schedules, cells, families and evaluators of a file: each mistake has its message."""

import textwrap

import pytest

from tfm.check import entries
from tfm.config.files import from_command_line, run_file
from tfm.config.names import UserError
from tfm.evaluate.table import EVALUATORS
from tfm.run import spec as runs

IDEAS = """
    import dataclasses, jax, optax
    from flax import linen as nn
    from jax import numpy as jnp
    from ml_collections import ConfigDict
    from tfm.evaluate.evaluator import Evaluator, Result
    from tfm.layers.recurrent import Cell
    from tfm.evaluate.metric import HIGH, Metric
    from tfm.models.spec import Family, ModelSpec

    def evaluator(evaluate, **more):
        fields = {"computes": (Metric("m", HIGH),), "evaluate": evaluate, **more}
        made = type("Mine", (Evaluator,), fields)
        return dataclasses.dataclass(frozen=True, kw_only=True)(made)

    def growing(spec):
        return optax.GradientTransformation(
            lambda params: jnp.zeros(1), lambda grads, state, params=None: (grads, jnp.zeros(2)))

    def family(fn, arguments="valid_BT=None, dropouts=None, train=False, capture=()", **spec):
        def call(self, tokens_BT, **options):
            logits = nn.Embed(self.spec.vocab, self.spec.vocab, name="table")(tokens_BT)
            return fn(logits, options.get("capture", ()), options.get("valid_BT"))
        names = {"call": nn.compact(call)}
        exec(f"def __call__(self, tokens_BT, *, {arguments}):\\n"
             "    return call(self, tokens_BT, **{k: v for k, v in locals().items()"
             " if k not in ('self', 'tokens_BT')})", names)
        fields = {"__annotations__": {"spec": object}, "__call__": nn.compact(names["__call__"])}
        cls = type("Mine", (ModelSpec,), {**LIKE, **spec})
        decorated = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
        return Family(decorated, type("Module", (nn.Module,), fields))

    LIKE = {"like": "decoder", "decodes": True, "uncacheable": "no"}

    def pair(y, capture, valid=None):
        return (y, {"losses": {}}) if capture else y

    def mean(y, valid=None):
        shown = jnp.ones(y.shape[:2], bool) if valid is None else valid
        count = jnp.sum(shown, 1)[:, None, None]
        return y + jnp.sum(y, 1, where=shown[..., None], keepdims=True) / count

    def cell(step, carry=("hidden",)):
        return Cell(step, ("",), ("i",), carry)

    EVALUATORS = {
        "good": evaluator(lambda self, context, dataset: Result({"m": float(len(dataset))})),
        "no_method": evaluator(Evaluator.evaluate),
        "arity": evaluator(lambda self, context: Result({"m": 1.0})),
        "plain": evaluator(lambda self, context, dataset: {"m": 1.0}),
        "typo": evaluator(lambda self, context, dataset: Result({"m": lenn(dataset)})),
        "array": evaluator(lambda self, context, dataset: Result({"m": jnp.ones(())})),
        "silent": evaluator(lambda self, context, dataset: Result({})),
        "pairs": evaluator(None, refuses=lambda self, spec, objective, dataset: "needs pairs"),
        "options": lambda count: None,
    }
    OPTIMIZERS = {
        "good": lambda spec, scale=1.0: optax.scale(scale),
        "no_spec": lambda: optax.identity(),
        "nothing": lambda spec: None,
        "up": lambda spec: optax.scale(-1.0),
        "growing": growing,
        "typo": lambda spec: optax.scale_by_adm(spec.b1),
    }
    SCHEDULES = {
        "good": lambda: lambda step, steps: 0.5,
        "step": lambda: lambda step: 1.0,
        "number": lambda: 0.5,
        "vector": lambda: lambda step, steps: jnp.ones(2),
        "down": lambda: lambda step, steps: 1 - 2 * step / steps,
        "nan": lambda: lambda step, steps: (step - 1) / (step - 1),
    }
    CELLS = {
        "good": cell(lambda x, h, carry: jnp.tanh(x + h)),
        "two": cell(lambda x, h: x),
        "tuple": cell(lambda x, h, carry: (x, h)),
        "batch": cell(lambda x, h, carry: jnp.tanh(x + h) + jnp.mean(carry)),
    }
    FAMILIES = {
        "good": family(lambda y, capture, valid: pair(mean(y, valid), capture)),
        "no_train": family(pair, "valid_BT=None, dropouts=None, capture=()"),
        "no_valid": family(pair, "dropouts=None, train=False, capture=()"),
        "no_pair": family(lambda y, capture, valid: y),
        "no_losses": family(lambda y, capture, valid: (y, {}) if capture else y),
        "short": family(lambda y, capture, valid: pair(y[:, 1:], capture)),
        "pads": family(lambda y, capture, valid: pair(mean(y), capture)),
        "batch": family(lambda y, capture, valid: pair(y + jnp.mean(y), capture)),
        "no_decode": family(pair, uncacheable=None),
    }

    def get_config():
        return ConfigDict({
            "objective": "next_token",
            "data": {"dataset": "copy(length=3, vocab=8)", "examples": 8, "valid_examples": 8},
            "train": {"steps": 1},
            "model": {"family": "recurrent", "width": 4, "hidden": 4},
        })
"""
# The check that each entry fails and a part of what is said; the others fail none.
FAILS = {
    "EVALUATORS.no_method": ("runs", "must define evaluate(self, context, dataset)"),
    "EVALUATORS.arity": ("runs", "takes 2 positional arguments but 3 were given"),
    "EVALUATORS.plain": ("runs", "must return Result({'name': number}), not {'m': 1.0}"),
    "EVALUATORS.typo": ("runs", "name 'lenn' is not defined"),
    "EVALUATORS.array": ("runs", "m=float(…), not Array(1."),
    "EVALUATORS.silent": ("metrics", "['m'], not []"),
    "OPTIMIZERS.no_spec": ("runs", "takes 0 positional arguments but 1 was given"),
    "OPTIMIZERS.nothing": ("transformation", "optax.GradientTransformation, not None"),
    "OPTIMIZERS.up": ("descent", "lower a loss"),
    "OPTIMIZERS.growing": ("state", "keep their shapes"),
    "OPTIMIZERS.typo": ("runs", "no attribute 'scale_by_adm'"),
    "SCHEDULES.step": ("runs", "takes 1 positional argument but 2 were given"),
    "SCHEDULES.number": ("function", "a function of (step, steps), not 0.5"),
    "SCHEDULES.vector": ("number", "one number, not (2,)"),
    "SCHEDULES.down": ("sign", "at least 0, not -0.93"),
    "SCHEDULES.nan": ("finite", "are finite"),
    "CELLS.two": ("runs", "takes 2 positional arguments but 3 were given"),
    "CELLS.tuple": ("runs", "must have the same pytree structure"),
    "CELLS.batch": ("examples", "does not depend on the rest of its batch"),
    "FAMILIES.no_train": ("runs", "unexpected keyword argument 'train'"),
    "FAMILIES.no_valid": ("runs", "unexpected keyword argument 'valid_BT'"),
    "FAMILIES.no_pair": ("capture", "returns (logits, {'losses': {…}}), not ShapeDtypeStruct"),
    "FAMILIES.no_losses": ("capture", "returns (logits, {'losses': {…}}), not (Shape"),
    "FAMILIES.short": ("shape", "(2, 6, 8), not (2, 5, 8)"),
    "FAMILIES.pads": ("padding", "tokens that valid_BT hides"),
    "FAMILIES.batch": ("examples", "does not depend on the rest of its batch"),
    "FAMILIES.no_decode": (
        "runs",
        "declares decodes=True, but Module has no init_cache and no",
    ),
}
NOT_TRIED = {
    "EVALUATORS.pairs": "refuses the small decoder that it is tried with: needs pairs",
    "EVALUATORS.options": "has no default for count",
}


@pytest.fixture
def file(tmp_path, own_tables, monkeypatch):
    monkeypatch.setenv("TFM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(entries, "_passed", set())
    path = tmp_path / "ideas.py"
    path.write_text(textwrap.dedent(IDEAS))
    return str(path)


def read(file, *settings):
    argv = [f"--config={file}", *(f"--config.{setting}" for setting in settings)]
    return runs.read(from_command_line(argv, runs.RunSpec))


def test_each_mistake_fails_its_check(file):
    failed, not_tried, names = {}, {}, set()
    for table, name, result in entries.check_file(file):
        names.add(f"{table}.{name}")
        if result.passed is None:
            not_tried[f"{table}.{name}"] = result.says
        elif not result.passed:
            failed.setdefault(f"{table}.{name}", (result.check, result.says))
    assert failed.keys() == FAILS.keys()
    assert {f"{table}.good" for table in ("CELLS", "FAMILIES", "EVALUATORS")} <= names
    for name, (check, part) in FAILS.items():
        assert failed[name][0] == check, name
        assert part in failed[name][1], name
    assert not_tried.keys() == NOT_TRIED.keys()
    assert all(NOT_TRIED[name] in says for name, says in not_tried.items())
    assert f"({file}, line " in failed["OPTIMIZERS.typo"][1]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("optimizer.name=nothing", r"OPTIMIZERS\['nothing'\] fails the check 'transformation'"),
        ("optimizer.name=no_spec", r"OPTIMIZERS\['no_spec'\] cannot be run.*function of the Opt"),
        ("optimizer.schedule=step", r"SCHEDULES\['step'\] cannot be run.*function of \(step, ste"),
        ("model.cell=two", r"CELLS\['two'\] cannot be run.*step\(x, h, carry\) returns"),
        ("model.family=no_losses", r"FAMILIES\['no_losses'\] fails the check 'capture'"),
        ("model.family=no_train", r"FAMILIES\['no_train'\] cannot be run.*train=…"),
    ],
)
def test_a_run_is_refused_before_it_starts(file, setting, message):
    """In one line that names the file, the entry, and what is expected of it."""
    run = read(file, setting)
    with pytest.raises(UserError, match=message) as error:
        entries.check_entries(run)
    assert str(error.value).startswith(f"{file}: ")
    assert "\n" not in str(error.value)


def test_a_run_with_good_entries_starts(file):
    settings = "optimizer.name=good(scale=2.0)", "optimizer.schedule=good", "model.cell=good"
    entries.check_entries(read(file, *settings))
    entries.check_entries(read(file, "model.family=good"))


@pytest.mark.parametrize("name", EVALUATORS)
def test_built_in_evaluators_pass(name):
    text = entries._default("EVALUATORS", name)
    for result in entries._evaluator(text):
        assert result.passed is not False
        if result.passed is None:
            assert "refuses the small decoder" in result.says


def test_a_family_without_the_decorator_is_told_so(tmp_path, own_tables):
    path = tmp_path / "family.py"
    path.write_text(
        "from tfm.models.spec import Family, ModelSpec\n"
        "class Mine(ModelSpec):\n    width: int = 3\n"
        "FAMILIES = {'mine': Family(Mine, None)}\n"
    )
    with pytest.raises(UserError, match=r"Mine must be a subclass.*@dataclasses.dataclass\(frozen"):
        run_file(path)
