"""From run folders to a table: means, intervals, costs, and runs that diverged or are missing."""

import csv
import io
import json
import math
import subprocess
import sys

import pytest
from scipy import stats

from tfm.config.names import UserError
from tfm.evaluate.metric import HIGH, Metric
from tfm.report import results
from tfm.run import library_code

KEY = "valid:loss.accuracy"


def compared(runs, **options):
    metric = Metric("accuracy", HIGH, most=1.0)
    return results.Results("s", "Why?", metric, "accuracy", KEY, runs, **options)


@pytest.fixture
def sweep(tmp_path):
    """Variants on one task: all done; one not begun; one diverged; one not finite; one failed."""
    runs = []
    cells = {"a|b": [0.5, 0.7, 0.9], "c": [0.25, ...], "d": [0.25, None], "e": [0.5, "nan"],
             "f": ["failed"]}  # fmt: skip
    for variant, values in cells.items():
        for seed, value in enumerate(values):
            name = f"{'ab' if '|' in variant else variant}{seed}"
            runs.append(
                {"id": name, "variant": variant, "task": "copy", "seed": seed, "point": {"x.y": 1}}
            )
            if value is ...:
                continue
            folder = tmp_path / name
            folder.mkdir()
            if value == "failed":
                (folder / "failure.json").write_text('{"error": "it broke"}')
                continue
            number = None if value == "nan" else value
            valid = None if value is None else {"step": 30, "accuracy": number, "loss": 1.0}
            config = {"id": name, "model": {}, "objective": "seq2seq", "data": {}, "train": {}}
            (folder / "config.json").write_text(json.dumps(config))
            summary = {"id": name, "status": "diverged" if value is None else "done", "steps": 30,
                       "skipped": 0, "parameters": 1234, "flops": 3 * 10**9, "valid": valid,
                       "best": valid, "tests": {"copy(length=9)": {"accuracy": 0.125}}}  # fmt: skip
            made_by = {"tfm": "another"} if variant == "c" else library_code.made_by({})
            profile = {"entries": {}, "made_by": made_by}
            (folder / "profile.json").write_text(json.dumps({"profiles": [profile]}))
            (folder / "summary.json").write_text(json.dumps(summary))
            lines = [(10, 60.0), (20, 2.0), (30, 3.0)]  # the first has the compilation in it
            (folder / "metrics.jsonl").write_text(
                "".join(
                    json.dumps({"step": step, "split": "train", "seconds": seconds}) + "\n"
                    for step, seconds in lines
                )
            )
    declaration = {"name": "accuracy", "better": "high", "most": 1.0}
    sweep = {"study": "s", "question": "Why?", "metric": "accuracy", "runs": runs, "key": KEY}
    sweep["declaration"] = declaration
    (tmp_path / "sweep.json").write_text(json.dumps(sweep))
    return results.read(str(tmp_path))


def test_a_report_needs_no_training_code(sweep, tmp_path):
    """Neither to be imported nor to find out which runs are stale."""
    stale = [run.stale for run in sweep.runs]
    code = f"""
import sys
from tfm.report import results
assert [run.stale for run in results.read({str(tmp_path)!r}).runs] == {stale}
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert not {"jax", "flax", "tfm.train", "tfm.models", "tfm.objectives"} & set(loaded)
    assert sum(name.partition(".")[0] == "tfm" for name in loaded) < 20


def test_a_cell_is_a_mean_with_students_interval(sweep):
    cell = sweep.cell("a|b", "copy")
    low, high = stats.t.interval(0.95, 2, loc=0.7, scale=stats.sem([0.5, 0.7, 0.9]))
    assert cell.mean == pytest.approx(0.7)
    assert high > 1
    assert (cell.low, cell.high) == pytest.approx((low, 1.0))  # accuracy ends at 1
    assert (cell.parameters, cell.flops, cell.runs) == (1234, 3 * 10**9, 3)
    assert cell.seconds == pytest.approx(30 * 0.25)  # without the first line


def test_missing_runs_are_shown_and_a_diverged_seed_leaves_no_mean(sweep):
    shown = {variant: results.text(sweep.cell(variant, "copy")) for variant in sweep.variants}
    assert shown == {
        "a|b": "0.700 [0.203, 1.000]",
        "c": "0.250 (1 unfinished) (1 stale)",
        "d": "— (1 diverged)",
        "e": "— (1 diverged)",
        "f": "— (1 failed)",
    }
    assert results.text(None) == ""
    assert sweep.cell("nobody", "copy") is None


def test_markdown_and_csv_say_the_same(sweep):
    text = results.markdown(sweep)
    assert "| a\\|b | 0.700 [0.203, 1.000] |" in text
    assert "| copy | c | 1,234 | 3e+09 | 7.5 | 1 | — |" in text
    rows = list(csv.DictReader(io.StringIO(results.table_csv(sweep))))
    assert [row["mean"] for row in rows[1:]] == ["0.25", "", "", ""]
    assert math.isclose(float(rows[0]["low"]), 0.7 - 0.49682, rel_tol=1e-4)
    runs = list(csv.DictReader(io.StringIO(results.runs_csv(sweep))))
    statuses = "done done done done unfinished done diverged done done failed"
    assert [run["status"] for run in runs] == statuses.split()
    assert runs[-1]["error"] == "it broke"
    assert runs[0]["x.y"] == "1"
    assert runs[0]["accuracy on copy(length=9)"] == "0.125"
    assert json.loads(json.dumps(results.to_json(sweep)))["table"][0]["variant"] == "a|b"


def run(variant, seed, accuracy, **more):
    return results.Run(
        id=f"{variant}{seed}", variant=variant, task="copy", seed=seed, point={}, status="done",
        metrics={KEY: accuracy}, **more,
    )  # fmt: skip


def test_variants_are_compared_with_the_baseline_seed_by_seed():
    base = [0.10, 0.12, 0.14, 0.11, 0.13]
    facts = {"best": 1.0, "floors": {"most frequent answer": 0.05}}
    runs = [run("old", seed, x, **facts) for seed, x in enumerate(base)]
    runs += [run("new", seed, x + 0.005 + seed / 1e4) for seed, x in reversed([*enumerate(base)])]
    runs += [run("one", 0, 0.995, **facts)]
    found = compared(runs, baseline="old")
    comparison = found.comparisons["copy", "new"]
    assert comparison.difference == pytest.approx(0.0052)
    assert comparison.verdict == "better"
    assert found.comparisons["copy", "one"].verdict == "no verdict: fewer than 5 seeds"
    assert ("copy", "old") not in found.comparisons
    assert found.cell("one", "copy").solved == 1
    assert found.cell("old", "copy").solved == 0
    text = results.markdown(found)
    assert "| new | copy | +0.0052 ± 0.0002 | 5 |" in text
    assert "| floor: most frequent answer | 0.050 |" in text
    (row,) = [
        r for r in csv.DictReader(io.StringIO(results.table_csv(found))) if r["variant"] == "new"
    ]
    assert row["verdict to old"] == "better"
    assert json.loads(json.dumps(results.to_json(found)))["table"][1]["comparison"]["pairs"] == 5


def test_a_seed_without_a_number_leaves_no_verdict():
    runs = [
        run(v, seed, None if (v, seed) == ("new", 3) else 0.5)
        for v in ("old", "new")
        for seed in range(6)
    ]
    found = compared(runs, baseline="old")
    assert found.comparisons["copy", "new"].verdict == "no verdict: 1 of 6 seeds have no number"


def test_mixed_profiles_are_marked():
    runs = [run("a", seed, 0.5, profiles=[str(seed % 2)]) for seed in range(4)]
    found = compared(runs)
    assert results.text(found.cell("a", "copy")) == "0.500 ± 0.000 (2 profiles)"


def test_names_cannot_break_a_table():
    runs = [run("evil\n| x |\x1b[2J", 0, 0.5)]
    text = results.markdown(compared(runs))
    assert "| evil\\n\\| x \\|\\x1b[2J | 0.500 |" in text
    assert "\x1b" not in text


def test_rows_that_may_see_the_answer_are_marked():
    found = compared([run("a", 0, 0.5, leaks=True), run("b", 0, 0.5)])
    assert results.text(found.cell("a", "copy")) == "0.500 (may see the answer)"
    assert results.text(found.cell("b", "copy")) == "0.500"


def test_values_of_every_split_and_evaluator():
    bleu = {"name": "generation", "split": "test", "metrics": {"bleu": 7.5}, "slices": {}}
    summary = {
        "valid": {"step": 3, "loss": 1.0},
        "tests": {"copy(length=9)": {"exact": 0.5}, "valid, a": {"exact": 0.25}},
        "evaluations": [bleu],
    }
    assert results.values(summary) == {
        "valid:loss.loss": 1.0,
        "copy(length=9):loss.exact": 0.5,
        "tests:loss.exact": 0.5,  # its only test set; a part of a mixture is none
        "valid, a:loss.exact": 0.25,
        "test:generation.bleu": 7.5,
    }


def test_a_sweep_of_an_earlier_version_names_the_command(tmp_path):
    run = {"id": "a", "variant": "a", "task": "b", "seed": 0, "point": {}}
    sweep = {"study": "s", "question": "Why?", "metric": "accuracy", "runs": [run]}
    (tmp_path / "sweep.json").write_text(json.dumps(sweep))
    with pytest.raises(UserError, match="earlier version. `tfm sweep STUDY --workdir="):
        results.read(str(tmp_path))


def test_no_sweep_is_named(tmp_path):
    with pytest.raises(UserError, match=r"it has no sweep\.json"):
        results.read(str(tmp_path))
    with pytest.raises(UserError, match="no folder"):
        results.read(str(tmp_path / "nowhere"))
