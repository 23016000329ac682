"""From run folders to a table: means, intervals, costs, and runs that diverged or are missing."""

import csv
import io
import json
import math

import pytest
from scipy import stats

from tfm.names import UserError
from tfm.report import results
from tfm.train import identity


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
            made_by = {"tfm": "another"} if variant == "c" else identity.made_by()
            (folder / "profile.json").write_text(json.dumps({"profiles": [{"made_by": made_by}]}))
            (folder / "summary.json").write_text(json.dumps(summary))
            lines = [(10, 60.0), (20, 2.0), (30, 3.0)]  # the first has the compilation in it
            (folder / "metrics.jsonl").write_text(
                "".join(
                    json.dumps({"step": step, "split": "train", "seconds": seconds}) + "\n"
                    for step, seconds in lines
                )
            )
    sweep = {"study": "s", "question": "Why?", "metric": "accuracy", "runs": runs}
    (tmp_path / "sweep.json").write_text(json.dumps(sweep))
    return results.read(str(tmp_path))


def test_a_cell_is_a_mean_with_students_interval(sweep):
    cell = sweep.cell("a|b", "copy")
    low, high = stats.t.interval(0.95, 2, loc=0.7, scale=stats.sem([0.5, 0.7, 0.9]))
    assert cell.mean == pytest.approx(0.7)
    assert (cell.mean - cell.half, cell.mean + cell.half) == pytest.approx((low, high))
    assert (cell.parameters, cell.flops, cell.runs) == (1234, 3 * 10**9, 3)
    assert cell.seconds == pytest.approx(30 * 0.25)  # without the first line


def test_missing_runs_are_shown_and_a_diverged_seed_leaves_no_mean(sweep):
    shown = {variant: results.text(sweep.cell(variant, "copy")) for variant in sweep.variants}
    assert shown == {
        "a|b": "0.700 ± 0.497",
        "c": "0.250 (1 unfinished) (1 stale)",
        "d": "— (1 diverged)",
        "e": "— (1 diverged)",
        "f": "— (1 failed)",
    }
    assert results.text(None) == ""
    assert sweep.cell("nobody", "copy") is None


def test_markdown_and_csv_say_the_same(sweep):
    text = results.markdown(sweep)
    assert "| a\\|b | 0.700 ± 0.497 |" in text
    assert "| copy | c | 1,234 | 3e+09 | 7.5 | 1 |" in text
    rows = list(csv.DictReader(io.StringIO(results.table_csv(sweep))))
    assert [row["mean"] for row in rows[1:]] == ["0.25", "", "", ""]
    assert math.isclose(float(rows[0]["half"]), 0.49682, rel_tol=1e-4)
    runs = list(csv.DictReader(io.StringIO(results.runs_csv(sweep))))
    statuses = "done done done done unfinished done diverged done done failed"
    assert [run["status"] for run in runs] == statuses.split()
    assert runs[-1]["error"] == "it broke"
    assert runs[0]["x.y"] == "1"
    assert runs[0]["accuracy on copy(length=9)"] == "0.125"
    assert json.loads(json.dumps(results.to_json(sweep)))["table"][0]["variant"] == "a|b"


def test_no_sweep_is_named(tmp_path):
    with pytest.raises(UserError, match=r"it has no sweep\.json"):
        results.read(str(tmp_path))
    with pytest.raises(UserError, match="no folder"):
        results.read(str(tmp_path / "nowhere"))
