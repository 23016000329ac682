"""What is computed from measurements of growth; and that each axis can be measured."""

import json
import xml.etree.ElementTree as ET

import pytest

from tfm.bench import growth, plans, series
from tfm.bench.cases import our_step
from tfm.bench.series import Found
from tfm.config.names import UserError

SMALL = growth.GrowthBench(
    lengths=(8, 16), window=4, depths=(1, 2), batches=(1, 2), vocabs=(16, 32), loss_chunk=4,
    width=8, heads=2, length=8, batch=2, vocab=16, layers=1, rounds=2, seconds=0.001,
)  # fmt: skip


def found():
    """A series that grows with the square of its size, and one that grows in proportion."""
    for size in (10, 20, 40):
        yield Found("slow", size, 1e-5 * size**2, 3.0 * size**2, 1.0)
        yield Found("fast", size, 1e-4 * size, 6.0, None)


def test_exponents_of_known_series():
    rows = series.rows_of("length", list(found()))
    slopes = {(e.series, e.measure): (e.whole, e.last) for e in series.exponents(rows)}
    assert slopes["slow", "ms"] == pytest.approx((2, 2))
    assert slopes["slow", "memory_mb"] == pytest.approx((2, 2))
    assert slopes["slow", "compile_s"] == pytest.approx((0, 0))
    assert slopes["fast", "ms"] == pytest.approx((1, 1))
    assert ("fast", "compile_s") not in slopes


def test_the_last_rows_have_an_exponent_of_their_own():
    rows = series.rows_of("x", [Found("s", n, 1.0 + n**2, 0.0, None) for n in (1, 1000, 2000)])
    time = series.exponents(rows)[0]
    assert time.last == pytest.approx(2, abs=1e-4)
    assert time.whole < 2
    assert len(series.exponents(rows)) == 1  # memory of zero has no logarithm


def test_rows_are_relative_to_the_first_and_to_their_rival():
    rows = {(row.series, row.size): row for row in series.rows_of("length", list(found()))}
    assert rows["slow", 10].growth == rows["slow", 10].rival == 1
    assert rows["slow", 40].growth == pytest.approx(16)
    assert rows["fast", 40].growth == pytest.approx(4)
    assert rows["fast", 40].rival == pytest.approx(0.25)
    assert rows["fast", 40].memory_rival == pytest.approx(6 / 4800)


def test_what_was_not_timed_has_no_ratio():
    rows = series.rows_of("x", [Found("a", 1, 1.0, 1.0, None), Found("a", 2, None, 4.0, None)])
    assert rows[1].ms is rows[1].growth is rows[1].rival is None
    assert [e.measure for e in series.exponents(rows)] == ["memory_mb"]


def test_a_picture_and_a_table_of_all_axes(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    rows = [r for axis in ("length", "depth") for r in series.rows_of(axis, list(found()))]
    file = tmp_path / "growth.svg"
    series.draw(rows, str(file))
    assert ET.parse(file).getroot().tag.endswith("svg")
    series.show("a title", rows)
    assert "2.00" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["growth.mp3", "nowhere/growth.svg"])
def test_a_picture_that_cannot_be_written_is_refused_at_once(name, tmp_path):
    pytest.importorskip("matplotlib")
    with pytest.raises(UserError, match="--picture"):
        growth.main([f"--picture={tmp_path / name}"])


def test_cells_differ_in_what_their_axis_says():
    lengths = list(growth.by_length(SMALL))
    assert [cell.case.length for cell in lengths] == [8, 8, 8, 16, 16, 16]
    assert lengths[2].changes["model.mask"] == "window(left=3)"
    assert [c.case.layers for c in growth.by_depth(SMALL)] == [1, 1, 2, 2]
    assert [c.case.batch for c in growth.by_batch(SMALL)] == [1, 2]
    assert [(c.case.vocab, c.loss_chunk) for c in growth.by_vocab(SMALL)] == [
        *((16, None), (16, 4), (32, None), (32, 4))
    ]


def test_unrolled_layers_have_their_own_parameters():
    scanned, unrolled = (our_step(cell.case, cell.changes)[1].params
                         for cell in list(growth.by_depth(SMALL))[2:])  # fmt: skip
    assert "layers" in scanned["decoder"]
    assert "layers" not in unrolled["decoder"]


def test_steps_are_measured(capsys):
    options = {"axes": "('vocab',)", "vocabs": "(64, 4096)", "loss_chunk": 1, "width": 8,
               "heads": 2, "layers": 1, "length": 16, "rounds": 1, "seconds": 0.001}  # fmt: skip
    growth.main(["--json", *(f"--config.{key}={value}" for key, value in options.items())])
    out = json.loads(capsys.readouterr().out)
    rows = {(row["series"], row["size"]): row for row in out["rows"]}
    assert all(row["ms"] > 0 and row["compile_s"] > 0 for row in rows.values())
    # All logits of 8 × 16 tokens are held, or those of 8 at a time.
    logits_mb = 4 * 8 * 16 * 4096 / 1e6
    assert rows["all logits", 4096]["memory_mb"] >= logits_mb
    assert rows["loss_chunk=1", 4096]["memory_mb"] < rows["all logits", 4096]["memory_mb"]


def test_a_plan_is_measured():
    plan = plans.measure(10)
    assert plan.seconds > 0
    assert plan.memory_mb >= 0
