"""From a study to its runs: names, checks, and what each costs."""

import dataclasses
import pathlib

import pytest

from tfm.config import files as config
from tfm.config.names import UserError
from tfm.run import spec
from tfm.run.identity import digests, identity
from tfm.sweep import cost, plan, study

SMALL = pathlib.Path(__file__).parent.parent / "train" / "small.py"
HEAD = f'''"""Which is better?"""
from tfm.sweep.space import chain, product, seeds, when, zipped
BASE = "{SMALL}:decoder"
'''


@pytest.fixture
def expand(tmp_path, own_tables):
    def expand(body, *overrides):
        folder = tmp_path / "which"
        folder.mkdir(exist_ok=True)
        (folder / "study.py").write_text(HEAD + body)
        return plan.expand(study.load(str(folder)), overrides)

    return expand


def sweep(text):
    return f"def sweep():\n    return {text}\n"


def test_a_point_is_the_run_that_the_command_line_would_make(expand):
    (job,) = expand(
        sweep(
            "[{'model.attention.score': 'additive', 'optimizer.weight_decay': None, 'seed': 9,"
            " 'optimizer.learning_rate': 1, 'data.tests': ['copy(length=3, vocab=8)']}]"
        )
    )
    argv = ["model.attention.score=additive", "optimizer.weight_decay=None", "seed=9",
            "optimizer.learning_rate=1", "data.tests=('copy(length=3, vocab=8)',)"]  # fmt: skip
    tree = config.from_command_line(
        [f"--config={SMALL}:decoder", *(f"--config.{text}" for text in argv)], spec.RunSpec
    )
    run, data = spec.open_data(spec.read(tree))
    assert job.run == run
    assert job.id == identity(run, [dataset.fingerprint for dataset in data.values()], digests(run))


def test_variants_and_tasks_are_named_by_what_varies(expand):
    jobs = expand(
        sweep(
            "product({'model.attention.score': ['dot', 'additive']},"
            f" {{'config': ['{SMALL}:decoder']}}, {{'data.dataset': ['copy(length=4, vocab=8)',"
            " 'reverse(length=4, vocab=8)']}, seeds(2))"
        )
    )
    assert {job.variant for job in jobs} == {"dot", "additive"}
    assert {job.task for job in jobs} == {"copy(length=4, vocab=8)", "reverse(length=4, vocab=8)"}
    assert len({job.id for job in jobs}) == len(jobs) == 8


@pytest.mark.parametrize(
    ("points", "names"),
    [
        ("[{'model.width': 8}, {'model.width': 16}]", ["8", "16"]),
        ("chain({'model.width': [16]}, {'model.feedforward.width': [16]})",
         ["model.width=16", "feedforward.width=16"]),
        ("chain([{}], {'optimizer.weight_decay': [None]})", ["base", "None"]),
        ("product({'model.layers': [1]}, {'train.ema': [0.5, None], 'model.width': [8, 16]})",
         ["ema=0.5, width=8", "ema=0.5, width=16", "ema=None, width=8", "ema=None, width=16"]),
    ],
)  # fmt: skip
def test_names_are_short_and_tell_apart(points, names, expand):
    assert [job.variant for job in expand(sweep(points))] == names


def test_a_point_may_change_the_family(expand):
    """What the new family does not have is dropped, and the vocabulary comes from the data."""
    gru = "'model.family': 'recurrent', 'model.cell': 'gru', 'model.hidden': 8"
    tagger = "'model.family': 'encoder', 'objective': 'tag'"
    sort = "'data.dataset': 'sort(length=4, vocab=9)', 'data.tests': ()"
    jobs = expand(sweep(f"[{{}}, {{{gru}}}, {{{tagger}, {sort}}}]"))
    assert [job.run.model.family for job in jobs] == ["decoder", "recurrent", "encoder"]
    assert [job.run.model.vocab for job in jobs] == [8, 8, 9]
    assert jobs[1].run.model.width == jobs[0].run.model.width
    assert jobs[2].run.model.attention == jobs[0].run.model.attention
    argv = [f"--config={SMALL}:recurrent", "--config.model.dropout.residual=0.1"]
    direct = config.from_command_line(argv, spec.RunSpec)
    run, data = spec.open_data(spec.read(direct))
    assert jobs[1].id == identity(
        run, [dataset.fingerprint for dataset in data.values()], digests(run)
    )


def test_numbers_may_be_numpys(expand):
    body = "import numpy as np\n" + sweep(
        "product({'optimizer.learning_rate': np.logspace(-3, -2, 2), 'model.width': np.array([8])})"
    )
    assert [job.run.optimizer.learning_rate for job in expand(body)] == pytest.approx([1e-3, 1e-2])


def test_entries_of_another_file_do_not_matter_to_a_point(expand, tmp_path):
    """Files that were loaded before change no id, and their scores are refused."""
    (tmp_path / "a.py").write_text(f"""
import importlib.util
from tfm.ops.normalizers import NORMALIZERS as THEIRS
from tfm.ops.scores import Score, dot
NORMALIZERS = {{"copy": THEIRS["softmax"]}}
SCORES = {{"strange": Score(dot)}}
spec = importlib.util.spec_from_file_location("small", "{SMALL}")
small = importlib.util.module_from_spec(spec)
spec.loader.exec_module(small)
get_config = small.get_config
""")
    a, b = (
        f"{{'config': '{tmp_path / 'a.py'}:decoder'}}",
        f"{{'config': '{SMALL}:decoder', 'seed': 9}}",
    )
    (alone,) = expand(sweep(f"[{b}]"))
    first, second = expand(sweep(f"[{a}, {b}]"))
    assert second.id == alone.id
    assert first.files == second.files == ()
    with pytest.raises(UserError, match="SCORES.strange comes from .*a.py, not from this point"):
        expand(sweep(f"[{a}, {{**{b}, 'model.attention.score': 'strange'}}]"))


def test_runs_that_differ_in_numbers_share_a_compilation(expand):
    jobs = expand(sweep("product({'optimizer.learning_rate': [0.1, 0.2]}, seeds(2))"))
    assert len({job.compiles for job in jobs}) == 1
    jobs = expand(sweep("[{'model.width': 8}, {'model.width': 16}]"))
    assert len({job.compiles for job in jobs}) == 2


def test_points_that_are_one_run_count_once(expand):
    """Ablations are written so: each axis names the value of the base as well."""
    jobs = expand(
        sweep("[{}, {'optimizer.b1': 0.9}, {'optimizer.b1': 0.5}, {'optimizer.b2': 0.5}]")
    )
    assert [job.point for job in jobs] == [{}, {"optimizer.b1": 0.5}, {"optimizer.b2": 0.5}]


def test_the_command_line_changes_every_base(expand):
    body = sweep("product({'model.width': [8, 16]}, seeds(1))")
    jobs = expand(body, "--config.train.steps=7")
    assert {job.run.train.steps for job in jobs} == {7}
    with pytest.raises(UserError, match="'model.width' is swept"):
        expand(body, "--config.model.width=4")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", r"defines no sweep\(\)"),
        (sweep("[]"), r"sweep\(\) yields nothing"),
        (sweep("[3]"), r"sweep\(\) must yield dicts of dotted keys and values, not 3"),
        (sweep("[{'model.attention.scor': 'dot'}]"),
         "point 0, .*unknown key 'model.attention.scor'; did you mean 'model.attention.score'"),
        (sweep("[{}, {'modle.width': 8}]"), "point 1, .*unknown key 'modle.width'; did you mean"),
        (sweep("[{'model.width': 'wide'}]"), "model.width must be int, not 'wide'"),
        (sweep("[{'model': 3}]"), "'model' is a group; set one of"),
        (sweep("[{'seed': 0.5}]"), "seed must be int, not 0.5"),
        (sweep("[{'seed': -1}]"), r"seed=-1 must be in \[0, "),
        (sweep("[{'model.attention.score': 'dto'}]"), "'dto'; did you mean 'dot'"),
        (sweep("[{'model.attention.heads': 3}]"), "model.attention.heads=3 does not divide"),
        (sweep("[{'model.family': 'encoder'}]"), "objective='next_token' is for"),
        (sweep("[{'model.family': 'decodr'}]"), "'decodr'; did you mean 'decoder'"),
        (sweep("[{'model.family': 'recurrent'}]"), "missing key 'model.hidden'"),
        (sweep("[{'model.vocab': 8, 'data.dataset': 'copy(length=4, vocab=99)'}]"),
         "model.vocab=8: the data need at least 99"),
        (sweep("[{'seed.x': 1}]"), "unknown key 'seed.x': 'seed' is a value, not a group"),
        (sweep("[{'config': 'nowhere.py'}]"), "no config nowhere.py"),
        (sweep("None"), "sweep.. returns nothing: does it end without `return`"),
        ("VARIANT = 'model.width'\n" + sweep("[{'model.width': 8, 'model.layers': 1},"
         " {'model.width': 8, 'model.layers': 2}]"),
         "differ in model.layers: add it to VARIANT or TASK"),
        ("VARIANT = 'model.widht'\n" + sweep("[{'model.width': 8}]"),
         "VARIANT names 'model.widht'; did you mean 'model.width'"),
        ("VARIANT = 'model.width'\n" + sweep("[{'model.width': 8, 'seed': 1},"
         " {'model.width': 8, 'seed': 2, 'model.layers': 2}]"), "both '8' on 'copy', but differ"),
        (sweep("[{'model.dropout': None, 'model.dropout.residual': 0.3}]"),
         "sets 'model.dropout' and 'model.dropout.residual'"),
        (sweep("[{'data.tests': ['copy(length=4, vocab=8)'] * 2}]"), "data.tests=.* one twice"),
        ("METRIC = 'bits_per_byte'\n" + sweep("[{}]"),
         "'bits_per_byte' is not computed for this config"),
        ("METRIC = ['loss']\n" + sweep("[{}]"), "METRIC must be the name of a metric"),
        ("from tfm.ops.scores import Score, dot\nSCORES = {'a-b': Score(dot)}\n" + sweep("[{}]"),
         "its name must be a word"),
        ("METRIC = 'acuracy'\n" + sweep("[{}]"),
         "'acuracy' is not computed for this config; did you mean 'accuracy'"),
        ("METRC = 'accuracy'\n" + sweep("[{}]"), "METRC is not read; did you mean 'METRIC'"),
        ("def swep():\n    return [{}]\n", r"defines no sweep\(\); did you mean 'swep'"),
        ("def sweep(:\n", "line 4: invalid syntax"),
        ("import nowhere_at_all\n", "cannot be run: ModuleNotFoundError"),
        (sweep("[{}][1]"), r"sweep\(\) cannot be run: IndexError.*line 5"),
    ],
)  # fmt: skip
def test_mistakes_are_named_before_any_run(body, message, expand):
    with pytest.raises(UserError, match=message):
        expand(body)


@pytest.mark.ci
def test_ten_thousand_points_open_their_data_once(expand, monkeypatch):
    opened = []
    monkeypatch.setattr(plan, "open_data", lambda run: opened.append(run) or spec.open_data(run))
    rates = "[1e-3 * 1.01**i for i in range(1000)]"
    jobs = expand(sweep(f"product({{'optimizer.learning_rate': {rates}}}, seeds(10))"))
    assert len({job.id for job in jobs}) == 10_000
    assert len(opened) == 1


def test_an_edited_score_is_a_new_run_and_an_edited_neighbour_is_not(expand):
    mine = '''
from tfm.ops.scores import Score, dot
HALF = 0.5
def mine(q_BTHK, k_BSHK, **at):
    """Half as much."""
    return HALF * dot(q_BTHK, k_BSHK)
def other(q_BTHK, k_BSHK, **at):
    return dot(q_BTHK, k_BSHK)
SCORES = {"mine": Score(mine), "other": Score(other)}
''' + sweep("[{'model.attention.score': 'mine'}]")
    (before,) = expand(mine)
    for edit in (
        ("Half as much.", "By half."),
        ("return dot", "return 2 * dot"),
        ("def sweep", "#\ndef sweep"),
    ):
        (after,) = expand(mine.replace(*edit))
        assert after.id == before.id, edit
    for edit in (("HALF = 0.5", "HALF = 0.25"), ("return HALF *", "return -HALF *")):
        (after,) = expand(mine.replace(*edit))
        assert after.id != before.id, edit


def test_costs_are_those_of_describe(expand):
    from tfm.describe.description import describe

    jobs = expand(
        sweep("[{'model.layers': 1}, {'model.layers': 3}, {'model.layers': 3, 'seed': 1}]")
    )
    found = cost.costs(jobs)
    for job, one in zip(jobs, found, strict=True):
        # copy(length=4) as one sequence: the source, then BOS and the copy
        found_by_describe = describe(job.run.model, batch=16, length=4 + 5)
        assert one.parameters == found_by_describe.tree.parameters
        masked = one.flops / (40 * found_by_describe.training.total)  # padding is masked, besides
        assert 1 <= masked < 1.005
    assert found[1] == found[2]


def test_an_estimate_is_work_and_compilation_over_the_cores(expand):
    jobs = expand(sweep("product({'model.layers': [2, 1]}, seeds(2))"))
    each = cost.costs(jobs)
    timed = cost.cheapest(jobs, each)
    assert timed.run.model.layers == 1
    speed = cost.speed(timed.run)
    assert min(dataclasses.astuple(speed)) > 0
    work = sum(one.flops for one in each) / speed.flops_per_second
    alone = cost.seconds(jobs, each, speed, workers=1, cores=4)
    assert alone == pytest.approx(work + 2 * speed.compile_seconds + 4 * speed.data_seconds)
    assert cost.seconds(jobs, each, speed, workers=8, cores=2) == pytest.approx(alone / 2)
