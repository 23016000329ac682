"""The page of `tfm explain` as text: its size, what is in it, and that nothing in it is run."""

import base64
import dataclasses
import io
import json
import os
import pathlib
import zlib

import numpy as np
import pytest

from tests.explain.explained import loaded
from tfm.cli import main as cli
from tfm.config.names import UserError
from tfm.data.reader import Reader
from tfm.explain import page
from tfm.explain.explain import explain
from tfm.explain.pack import Blobs, coarser, narrower
from tfm.interop.folder import import_folder
from tfm.run.load import load

EVIL = '</script><script>window.ran = 1</script>"\u2028<img src=x onerror="window.ran = 1">'


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return explain(loaded(tmp_path_factory.mktemp("runs"), "decoder"), "3 7 5 3 9 4")


def data(made):
    return json.loads(made.split('id="data">')[1].split("</script>")[0])


def unpacked(tree, about):
    raw = zlib.decompress(base64.b64decode(tree["blobs"][about["blob"]]))
    if about["type"] == "f4":
        return np.frombuffer(raw, "<f4").reshape(about["shape"])
    share = np.frombuffer(raw, np.uint8).reshape(about["shape"]) / 255
    return about["base"] + share ** about["power"] * (about["high"] - about["base"])


def test_small_arrays_are_exact_and_large_ones_are_within_half_a_step():
    rng = np.random.default_rng(0)
    for size, error in ((64, 0), (100, 0.5 / 255)):
        x = rng.normal(size=(size, size)).astype(np.float32)
        blobs = Blobs()
        about = blobs.add(x)
        back = unpacked({"blobs": blobs.texts}, about)
        assert np.abs(back - x).max() <= error * np.ptp(x) * 1.001
        hidden = np.tril(np.ones((size, size), bool))
        about = blobs.add(np.where(hidden, x, -1e38), hidden)  # what is hidden is no part of it
        assert (about["low"], about["high"]) == (x[hidden].min(), x[hidden].max())


def test_small_weights_are_within_a_few_percent():
    """In 8 bits of their range they would all be 0."""
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.full(100, 0.1), 100).astype(np.float32)
    blobs = Blobs()
    back = unpacked({"blobs": blobs.texts}, blobs.add(weights))
    assert blobs.coarse
    np.testing.assert_allclose(back, weights, rtol=0.06, atol=5e-4)
    np.testing.assert_allclose(back.sum(1), 1, atol=0.02)


def test_coarser_maps_are_means():
    x = np.arange(15.0).reshape(3, 5)
    wanted = [[3, 5, 6.5], [10.5, 12.5, 14]]
    np.testing.assert_allclose(coarser(x, 2), wanted)
    where = x != 6
    np.testing.assert_allclose(coarser(x, 2, where)[0, 0], (0 + 1 + 5) / 3)
    y, group = narrower(np.arange(64.0).reshape(2, 32), 16)
    assert group == 4
    np.testing.assert_allclose(y[0], np.arange(32).reshape(8, 4).mean(1))


def test_the_page_holds_the_numbers(found):
    tree = data(page.page([found])[0])
    (site,) = tree["runs"][0]["sites"]
    weights = unpacked(tree, site["maps"]["weights"][1][0])
    np.testing.assert_array_equal(weights, found.looks[0].site.arrays["weights_NHTS"][1, 0])
    ((q, *_),) = [
        s["pictures"] for s in tree["runs"][0]["walks"][0]["stages"] if s["name"] == "qkv"
    ]
    wanted = found.forward.sides["decoder"]["q_NTHK"][1, :, 1]
    np.testing.assert_array_equal(unpacked(tree, q["data"][1][1]), wanted)
    assert "score" not in site["maps"]  # without a bias they are the logits
    logits = unpacked(tree, tree["runs"][0]["next"]["logits"][-1])
    np.testing.assert_array_equal(logits[0], found.forward.logits[-1])


def test_text_is_never_markup(found):
    pieces = [(EVIL, 1), *found.sequences["tokens"][1:]]
    evil = dataclasses.replace(found, text=EVIL, name=EVIL, sequences={"tokens": pieces})
    made, _ = page.page([evil])
    assert made.count("<script") == 2 + made.count("<script>\n(() =>") - 1
    assert "window.ran = 1</script>" not in made
    assert "<img" not in made
    assert data(made)["text"] == EVIL
    assert "{{" not in made.split('id="data">')[0]


def test_nothing_is_fetched(found):
    made, _ = page.page([found])
    assert "default-src 'none'" in made
    for sign in ("http://", "https://", "src=", "import(", "fetch("):
        assert sign not in made.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.ci
def test_a_long_text_stays_below_ten_megabytes(tmp_path):
    run = loaded(
        tmp_path, "encoder", outputs=("masked_lm",), width=64, layers=4, max_length=512,
        attention={"heads": 4}, position={"scheme": "learned"}, feedforward={"width": 256},
    )  # fmt: skip
    text = " ".join(map(str, np.random.default_rng(0).integers(3, 13, 512)))
    made, notes = page.page([explain(run, text)])
    assert len(made.encode()) < 10_000_000
    assert [note for note in notes if "coarser" in note] == []  # all pairs, without a mask too
    assert any("8 bits" in note for note in notes)
    smaller, notes = page.page([explain(run, text, layers=[1, 3])], most=2_000_000)
    assert len(smaller.encode()) < 2_000_000
    assert "coarser: a cell is the mean of" in notes[0]
    tree = data(smaller)
    assert "--layers" in tree["notes"][0]
    assert tree["runs"][0]["sites"][0]["layers"] == [1, 3]


def test_two_runs_need_the_same_tokens(tmp_path, found):
    other = explain(loaded(tmp_path, "decoder"), "3 7 6 3 9 4")
    with pytest.raises(UserError, match="the tokens of the two runs differ, from token 2"):
        page.page([found, other])
    shorter = explain(loaded(tmp_path, "decoder"), "3 7 5")
    with pytest.raises(UserError, match="from token 3"):
        page.page([found, shorter])
    assert len(data(page.page([found, found])[0])["runs"]) == 2


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["RUN"], "the text is empty"),  # standard input
        (["RUN", "--file=nowhere.txt"], "--file=nowhere.txt: cannot read it: No such file"),
        (["RUN", "3 4", "5"], "unexpected argument '5'; write a text in quotes"),
        (["RUN", ""], "the text is empty"),
        (["RUN", "3 4", "--layer=1"], "unknown option '--layer=1'; did you mean '--layers'?"),
        (["RUN", "3 4", "--layers=0-99999999999"], "as --layers=0,2-4; the largest is 9999"),
        (["RUN", "3 4", f"--layers={'9' * 5000}"], "as --layers=0,2-4; the largest is 9999"),
        (["RUN", "3 4", "--layers=a"], "--layers=a: write numbers from 0 on, as --layers=0,2-4"),
        (["nowhere", "3 4"], "nowhere"),
    ],
)
def test_a_wrong_command_is_told(tmp_path, capsys, monkeypatch, argv, said):
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    run = loaded(tmp_path, "decoder").folder
    assert cli.main(["explain", *(str(run) if arg == "RUN" else arg for arg in argv)]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.ci
def test_a_trained_run_from_the_command_line(tmp_path, capsys):
    config = tmp_path / "config.py"
    config.write_text("""
from ml_collections import ConfigDict

def get_config():
    return ConfigDict({
        "objective": "seq2seq",
        "model": {"family": "encoder_decoder", "width": 8, "layers": 2, "max_length": 24,
                  "attention": {"heads": 2}, "feedforward": {"width": 8}},
        "data": {"dataset": "english_french", "examples": 64, "valid_examples": 16, "batch": 8},
        "train": {"steps": 2},
    })
""")
    folder, out, npz = (tmp_path / name for name in ("run", "page.html", "numbers.npz"))
    assert cli.main(["train", f"--config={config}", f"--workdir={folder}", "--quiet"]) == 0
    argv = ["explain", str(folder), "the black cat sleeps", f"--out={out}"]
    capsys.readouterr()
    assert cli.main([*argv, f"--npz={npz}", "--layers=1"]) == 0
    said = capsys.readouterr()
    assert "open" in said.out
    assert "written by the model itself" in said.err
    (run,) = data(out.read_text())["runs"]
    assert [text for text, _ in run["sequences"]["source"]] == ["the", "black", "cat", "sleeps"]
    assert run["sequences"]["target"][0] == ["<bos>", 1]
    with np.load(npz) as arrays:
        assert arrays["encoder.weights_NHTS"].shape == (1, 2, 4, 4)
        length = len(run["sequences"]["target"])
        assert arrays["decoder.cross_weights_NHTS"].shape == (1, 2, length, 4)
    assert cli.main([*argv, "--target=le chat dort", f"--with={folder}"]) == 0
    one, other = data(out.read_text())["runs"]
    assert [text for text, _ in one["sequences"]["target"]] == ["<bos>", "le", "chat", "dort"]
    assert one["name"] == other["name"] == str(folder)
    capsys.readouterr()
    for wrong, why in {
        "the purple cat sleeps": "'purple' has no id: it is not in the training data",
        "the cat " * 20: "has 40 tokens, and the model was made for 24",
    }.items():
        assert cli.main(["explain", str(folder), wrong]) == 2
        assert why in capsys.readouterr().err
    assert cli.main([*argv[:3], f"--out={tmp_path}/no/page.html"]) == 2
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.ci
@pytest.mark.skipif("TFM_DATA" not in os.environ, reason="needs stories260K in $TFM_DATA")
def test_a_published_model(tmp_path):
    source = pathlib.Path(os.environ["TFM_DATA"]) / "stories260K"
    run = load(import_folder(str(source), str(tmp_path / "run")))
    found = explain(run, "Once upon a time, there was a little girl")
    assert found.sequences["tokens"][:3] == [("<bos>", 1), (" Once", 403), (" upon", 407)]
    best = found.next.continuations[0]
    told = found.text + "".join(found.next.names[id_] for id_ in best.ids)
    assert (source / "greedy.txt").read_text().startswith(told)


def test_a_mask_stands_for_a_word():
    reader = Reader(kind="pieces", vocab=6, pieces=("", "", "", "a", "b", "c"), added=("[MASK]",))
    assert reader.mask == 6
    assert reader.with_marks("a[MASK]b[MASK]", lambda _: 6) == ([3, 6, 4, 6], [1, 3])
    assert reader.with_marks("<mask>c", lambda _: 6) == ([6, 5], [0])
    assert reader.with_marks("abc", lambda _: 6) == ([3, 4, 5], [])
