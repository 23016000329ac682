"""The studies of the repository: they expand, their budgets are equal, their tasks work."""

import csv
import pathlib

import pytest

from tests.helpers.runs import Silent
from tfm.config import files as config
from tfm.run import spec
from tfm.sweep import cost, plan, study
from tfm.train import loop

ROOT = pathlib.Path(__file__).parent.parent
STUDIES = sorted(path.parent.name for path in (ROOT / "experiments").glob("*/study.py"))


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_expands_to_the_runs_of_its_results(name):
    folder = ROOT / "experiments" / name
    jobs = plan.expand(study.load(str(folder)))
    text = (folder / "README.md").read_text()
    assert f"tfm sweep experiments/{name}" in text
    rows = csv.DictReader((folder / "results" / "runs.csv").read_text().splitlines())
    found = {(row["id"], row["variant"], row["task"], row["status"]) for row in rows}
    assert found == {(job.id, job.variant, job.task, "done") for job in jobs}


@pytest.mark.ci
def test_the_quickstart_compares_equal_parameters():
    jobs = plan.expand(study.load(str(ROOT / "experiments/quickstart")))
    jobs = [job for job in jobs if job.run.seed == 0]
    assert len(jobs) == 12
    sizes: dict[str, list[int]] = {}
    for job, one in zip(jobs, cost.costs(jobs), strict=True):
        sizes.setdefault(job.task, []).append(one.parameters)
    for task, parameters in sizes.items():
        assert max(parameters) <= 1.003 * min(parameters), task


@pytest.mark.ci
@pytest.mark.usefixtures("optimising")
@pytest.mark.parametrize(
    ("task", "steps", "blind"),
    [
        ("reverse", 300, "model.position.scheme=none"),
        ("recall", 300, "model.attention.score=none"),
    ],
)
def test_a_task_is_learned_by_a_model_that_can_and_by_none_that_cannot(
    task, steps, blind, tmp_path
):
    for change, learns in (("seed=1", True), (blind, False)):
        argv = [f"--config={ROOT}/configs/tasks/{task}.py", f"--config.{change}",
                f"--config.train.steps={steps}", "--config.data.examples=20000"]  # fmt: skip
        run = spec.read(config.from_command_line(argv, spec.RunSpec))
        found = loop.train(run, str(tmp_path / change), Silent())["valid"]
        assert found["accuracy"] > 0.97 if learns else found["exact"] < 0.02, (change, found)
