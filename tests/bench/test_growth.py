"""Growth computed from measurements, and a measurement of each axis."""

import json

import pytest

from tfm.bench import growth
from tfm.bench.cases import our_step
from tfm.cli import main as cli

SMALL = growth.Bench(
    lengths=(8, 16), window=4, depths=(1, 2), batches=(1, 2), vocabs=(16, 32), loss_chunk=4,
    width=8, heads=2, length=8, batch=2, vocab=16, layers=1, rounds=2, seconds=0.001,
)  # fmt: skip


def test_growth_of_known_series():
    """One series grows with the square of its size, one in proportion; one was not timed."""
    rows = []
    for size in (10, 20, 40):
        rows.append(growth.Row("length", "square", size, 1e-2 * size**2, 3.0, 1.0))
        rows.append(growth.Row("length", "linear", size, 0.1 * size, 6.0, 1.0))
        rows.append(growth.Row("length", "large", size, None if size == 40 else 1.0, 6.0, 1.0))
    grown = {(row.series, row.size): row for row in growth.with_growth(rows)}
    assert [grown["square", n].growth for n in (10, 20, 40)] == pytest.approx([1, 4, 16])
    assert [grown["linear", n].growth for n in (10, 20, 40)] == pytest.approx([1, 2, 4])
    assert grown["square", 10].exponent is None
    assert grown["square", 40].exponent == pytest.approx(2)
    assert grown["linear", 40].exponent == pytest.approx(1)
    assert grown["large", 20].exponent == pytest.approx(0)
    assert grown["large", 40].growth is grown["large", 40].exponent is None


def test_settings_differ_along_their_axis():
    lengths = list(growth.by_length(SMALL))
    assert [cell.case.length for cell in lengths] == [8, 8, 8, 16, 16, 16]
    assert lengths[0].changes == {"model.attention.implementation": "reference"}
    assert lengths[2].changes["model.attention.implementation"] == "blockwise"
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


@pytest.mark.ci
def test_steps_are_measured(capsys):
    options = {"axes": "('vocab',)", "vocabs": "(64, 4096)", "loss_chunk": 1, "width": 8,
               "heads": 2, "layers": 1, "length": 16, "rounds": 1, "seconds": 0.001}  # fmt: skip
    argv = [f"--config.{key}={value}" for key, value in options.items()]
    assert cli.main(["bench", "growth", "--json", *argv]) == 0
    rows = {(row["series"], row["size"]): row for row in json.loads(capsys.readouterr().out)}
    assert all(row["ms"] > 0 and row["compile_s"] > 0 for row in rows.values())
    # All logits of 8 × 16 tokens are held, or those of 8 at a time.
    logits_mb = 4 * 8 * 16 * 4096 / 1e6
    assert rows["all logits", 4096]["memory_mb"] >= logits_mb
    assert rows["loss_chunk=1", 4096]["memory_mb"] < rows["all logits", 4096]["memory_mb"]
