"""The verbs that use a model agree with what `tfm eval` measures on the same examples, whose
batches are made by other code."""

import io
import json
import pathlib
import random
import re
import shutil
import types

import jax
import numpy as np
import pytest

import tfm
from tests.helpers.runs import Silent
from tests.helpers.tiers import first_tier
from tfm.cli import main as cli
from tfm.config.names import UserError
from tfm.data.reader import Reader
from tfm.evaluate import word_vectors
from tfm.explain.explain import explain
from tfm.run.evaluation import evaluate
from tfm.run.predict import TextWriter
from tfm.run.spec import read
from tfm.train import loop

WORDS = ["the", "a", "cat", "dog", "mat", "sat", "ran", "on", "to"]
GERMAN_WORDS = ["die", "ein", "katze", "hund", "matte", "sass", "lief", "auf", "zu"]
GERMAN = dict(zip(WORDS, GERMAN_WORDS, strict=True))
RNG = random.Random(0)
LINES = [" ".join(RNG.choices(WORDS, k=RNG.randint(2, 6))) for _ in range(120)]
SMALL = {"width": 8, "layers": 1, "max_length": 24, "attention": {"heads": 2},
         "feedforward": {"width": 8}, "position": {"scheme": "learned"}}  # fmt: skip
TO_ENGLISH = "parallel(train='p', valid='v', source='de', target='en')"
TO_GERMAN = "parallel(train='p', valid='v', source='en', target='de')"
RUNS = {
    "both": (
        "seq2seq",
        {"family": "seq2seq", "width": 8, "hidden": 8},
        f"mixture(parts=({TO_ENGLISH!r}, {TO_GERMAN!r}), prefixes=('to English: ', 'to German: '))",
        "bpe(vocab=300)",
    ),
    "ids": (
        "seq2seq",
        {"family": "encoder_decoder", **SMALL},
        "reverse(length=6, vocab=8)",
        None,
    ),
    "pairs": (
        "seq2seq",
        {"family": "encoder_decoder", **SMALL},
        TO_ENGLISH,
        "words",
    ),
    "joined": (
        "prefix_lm",
        {"family": "decoder", **SMALL},
        TO_ENGLISH,
        "words",
    ),
    "text": (
        "next_token",
        {"family": "decoder", **SMALL},
        "text(train='t.txt', length=8)",
        "bytes",
    ),
    "labels": (
        "classify",
        {"family": "bag", "width": 8},
        "table(train='l.tsv', valid='l.tsv', text='s', label='l')",
        "wordpiece(vocab=60)",
    ),
    "two": (
        "pair",
        {"family": "bag", "width": 8},
        "table(train='l.tsv', valid='l.tsv', text='s', text2='s', label='l')",
        "words",
    ),
    "tags": (
        "tag",
        {"family": "recurrent", "cell": "gru", "width": 8, "hidden": 8},
        "bio(train='b.txt', valid='b.txt')",
        "bpe(vocab=270)",
    ),
    "masked": (
        "masked_lm",
        {"family": "encoder", **SMALL},
        "text(train='t.txt', length=8)",
        "words",
    ),
    "spans": (
        "span_corruption(sentinels=5)",
        {"family": "encoder_decoder", **SMALL},
        "text(train='t.txt', length=8)",
        "words",
    ),
    "ul2": (
        "ul2(sentinels=9)",
        {"family": "seq2seq", "width": 8, "hidden": 8},
        "text(train='t.txt', length=8)",
        "bytes",
    ),
    "spelled": (
        "vector_to_sequence",
        {"family": "recurrent", "width": 8, "hidden": 8},
        "spell(length=3, vocab=7)",
        None,
    ),
    "leaky": (
        "next_token",
        {"family": "decoder", **SMALL, "mask": "everything"},
        "text(train='t.txt', length=8)",
        "bytes",
    ),
    "vectors": (
        "word2vec",
        {"family": "word2vec", "width": 8},
        "text(train='t.txt', length=8)",
        "words",
    ),
}


@pytest.fixture(scope="module")
def runs(shared):
    """Tiny runs of every kind, each trained once, for a few steps, when it is first asked for."""
    patch = pytest.MonkeyPatch()
    with shared("verbs") as folder:
        if not folder.exists():
            folder.mkdir()
            _write_data(folder)
    patch.setenv("TFM_CACHE", str(folder / "cache"))
    patch.chdir(folder)

    def run(name):
        objective, model, dataset, tokenizer = RUNS[name]
        with shared("verbs"):
            if not (folder / name / "summary.json").exists():
                data = {"dataset": dataset, "tokenizer": tokenizer, "batch": 16, "eval_batch": 32}
                if tokenizer is None:
                    data |= {"examples": 64, "valid_examples": 16}
                tree = {
                    "objective": objective, "model": model, "data": data,
                    "optimizer": {"learning_rate": 0.03},
                    "train": {"steps": 12, "save_every": 12, "allow_leak": name == "leaky"},
                }  # fmt: skip
                loop.train(read(tree), str(folder / name), Silent())
        return str(folder / name)

    yield run
    patch.undo()


def _write_data(folder):
    german = [" ".join(GERMAN[word] for word in line.split()) for line in LINES]
    for name, rows in {"p": slice(None, 100), "v": slice(100, None)}.items():
        (folder / f"{name}.en").write_text("\n".join(LINES[rows]) + "\n")
        (folder / f"{name}.de").write_text("\n".join(german[rows]) + "\n")
    (folder / "t.txt").write_text("\n".join(LINES))
    (folder / "lines.txt").write_text("\n".join(LINES) + "\n")
    labels = [f"{line}\t{'cat' if 'cat' in line else 'none'}" for line in LINES]
    (folder / "l.tsv").write_text("s\tl\n" + "\n".join(labels) + "\n")
    tagged = [
        "\n".join(f"{w} {'B-X' if w in 'cat dog' else 'O'}" for w in x.split()) for x in LINES
    ]
    (folder / "b.txt").write_text("\n\n".join(tagged) + "\n")


def output(capsys, *argv):
    code = cli.main(list(argv))
    out, err = capsys.readouterr()
    assert code == 0, err
    return out


def test_eval_measures_what_translate_writes(runs, capsys, monkeypatch):
    """BLEU of the lines that are printed, by sacrebleu itself."""
    sacrebleu = pytest.importorskip("sacrebleu")
    for name in ("pairs", "joined"):
        folder = runs(name)
        lines = output(capsys, "translate", folder, "--file=v.de", "--max_new=8").splitlines()
        wanted = pathlib.Path("v.en").read_text().splitlines()
        assert len(lines) == len(wanted) == 20
        monkeypatch.setattr("sys.stdin", io.StringIO(pathlib.Path("v.de").read_text()))
        assert output(capsys, "translate", folder, "--max_new=8", "--batch=3").splitlines() == lines
        argv = ["eval", folder, "--generate", "--max_new=8", "--lower"]
        found = json.loads(output(capsys, *argv))["generation"]
        bleu = sacrebleu.corpus_bleu(lines, [wanted], lowercase=True)
        assert found["bleu"] == pytest.approx(bleu.score)
        assert found["chrf"] == pytest.approx(
            sacrebleu.corpus_chrf(lines, [wanted]).score, abs=1e-6
        )
        assert found["exact"] == np.mean([a == b for a, b in zip(lines, wanted, strict=True)])
        assert "case:lc" in found["signatures"]["bleu"]
        assert "tok:13a" in found["signatures"]["bleu"]
        lengths = {name: x for name, x in found.items() if name.endswith(" tokens")}
        assert sum(part["examples"] for part in lengths.values()) == 20
        assert next(iter(lengths)) == "1–10 tokens"
    beams = json.loads(
        output(
            capsys, "translate", folder, "katze", "--beams=3", "--n_best=2", "--max_new=6", "--json"
        )
    )
    scores = [one["score"] for one in beams[0]["sequences"]]
    assert len(scores) == 2
    assert scores[0] >= scores[1]


@pytest.mark.ci
def test_data_without_a_tokenizer_are_numbers(runs, capsys):
    folder = runs("ids")
    run = tfm.load(folder)
    said = output(capsys, "translate", folder, "5 3 7 4", "--max_new=5").strip()
    special = run.data["train"].special
    written = [special.bos]
    for _ in range(5):  # greedily, without a cache; what stands behind the last token is not seen
        padded = np.array([written + [0] * (6 - len(written))])
        logits = run(source_BS=np.array([[5, 3, 7, 4]]), decoder_input_BT=padded)
        written.append(int(logits[0, len(written) - 1].argmax()))
        if written[-1] == special.eos:
            break
    assert said == " ".join(str(id_) for id_ in written[1:] if id_ != special.eos)
    assert cli.main(["translate", folder, "five"]) == 2
    assert "write numbers: '5 3 8'" in capsys.readouterr().err


@pytest.mark.ci
def test_a_task_of_a_mixture_is_read_as_in_training(runs, capsys):
    """The prefix and the source have the ids that the data have."""
    folder = runs("both")
    run = tfm.load(folder)
    for number, part in enumerate(run.data["valid"].parts.values()):
        source = pathlib.Path("v.de" if number == 0 else "v.en").read_text().splitlines()
        tokens = part.take(np.arange(20)).tokens
        rows = np.split(tokens.ids, np.cumsum(tokens.lengths)[:-1])
        writer = TextWriter(run, number)
        for line, row in zip(source, rows, strict=True):
            assert writer.prompt(line).source == row.tolist()
    lines = [
        output(capsys, "translate", folder, f"--file=v.{side}", f"--part={part}", "--max_new=5")
        for part, side in enumerate(("de", "en"))
    ]
    found = json.loads(output(capsys, "eval", folder, "--generate", "--max_new=5"))["generation"][
        "parts"
    ]
    assert len(found) == 2
    for said, own, side in zip(lines, found.values(), ("en", "de"), strict=True):
        wanted = pathlib.Path(f"v.{side}").read_text().splitlines()
        pairs = zip(said.splitlines(), wanted, strict=True)
        assert own["exact"] == np.mean([one.strip() == other for one, other in pairs])
        assert own["settings"]["max_new"] == 5
    assert cli.main(["translate", folder, "katze"]) == 2
    assert "which task? --part=N, one of" in capsys.readouterr().err


def test_generate_tells_the_log_probabilities_of_the_model(runs, capsys):
    folder = runs("text")
    (found,) = json.loads(output(capsys, "generate", folder, "the cat", "--max_new=6", "--json"))
    (one,) = found["sequences"]
    assert one["text"].startswith("the cat")
    run = tfm.load(folder)
    assert run.generate("the cat", max_new=6) == one["text"]
    assert output(capsys, "generate", folder, "the cat", "--max_new=6") == one["text"] + "\n"
    ids = [*run.reader.ids("the cat"), *(token["id"] for token in one["tokens"])]
    logp = jax.nn.log_softmax(run(tokens_BT=np.array([ids]))[0])
    first = len(run.reader.ids("the cat"))
    for place, token in enumerate(one["tokens"], first):
        assert token["logprob"] == pytest.approx(float(logp[place - 1, ids[place]]), abs=1e-4)
        assert token["id"] == int(logp[place - 1].argmax())
    both = run.generate(["the cat", "a dog ran"], max_new=6)
    assert both == [run.generate(text, max_new=6) for text in ("the cat", "a dog ran")]
    rows = json.loads(output(capsys, "generate", folder, "the cat", "--distribution", "--json"))
    at_one = np.exp(np.asarray(logp[first - 1]))
    for row in rows:
        assert row["probability"]["1.0"] == pytest.approx(float(at_one[row["id"]]), abs=1e-5)
        squared = at_one**2 / np.sum(at_one**2)  # temperature ½
        assert row["probability"]["0.5"] == pytest.approx(float(squared[row["id"]]), abs=1e-5)
    assert "█" in output(capsys, "generate", folder, "the cat", "--distribution")
    # The filters act as the page says: the two most likely tokens alone, renormalised.
    rows = json.loads(
        output(capsys, "generate", folder, "the cat", "--distribution", "--top_k=2", "--json")
    )
    two = np.sort(at_one)[-2:]
    shown = [row["probability"]["1.0"] for row in rows]
    assert shown[:2] == pytest.approx((two[::-1] / two.sum()).tolist(), abs=1e-5)
    assert shown[2:] == [0.0] * (len(rows) - 2)
    # A penalty of 2 on what is in the prompt: logits above 0 are halved, others doubled.
    logits = np.array(run(tokens_BT=np.array([ids[:first]]))[0, -1], np.float64)
    seen = np.unique(ids[:first])
    logits[seen] = np.where(logits[seen] > 0, logits[seen] / 2, logits[seen] * 2)
    wanted = np.exp(logits - logits.max()) / np.sum(np.exp(logits - logits.max()))
    rows = json.loads(
        output(capsys, "generate", folder, "the cat", "--distribution", "--repetition_penalty=2",
               "--json")
    )  # fmt: skip
    for row in rows:
        assert row["probability"]["1.0"] == pytest.approx(wanted[row["id"]], abs=1e-5)


def test_generate_from_python(runs):
    run = tfm.load(runs("text"))
    best = run.generate("the cat", max_new=4, beams=3, n_best=2)
    assert len(best) == 2
    assert best[0] == run.generate("the cat", max_new=4, beams=3)
    assert run.generate(["the cat"], max_new=4, beams=3, n_best=2) == [best]
    assert "array" not in repr(run).lower()
    with pytest.raises(UserError, match=r"generate\(5\): give a text"):
        run.generate(5)
    with pytest.raises(UserError, match=r"generate\(\) without a text"):
        run.generate("")


def test_classify_is_as_often_right_as_eval_says(runs, capsys):
    folder = runs("labels")
    found = json.loads(output(capsys, "classify", folder, "--file=lines.txt", "--json"))
    right = [one["class"] == ("cat" if "cat" in one["text"] else "none") for one in found]
    assert np.mean(right) == pytest.approx(evaluate(folder)[0]["accuracy"])
    assert all(sum(one["classes"].values()) == pytest.approx(1) for one in found)
    shown = output(capsys, "classify", folder, LINES[0]).split("\t")
    assert (shown[0], shown[2]) == (found[0]["class"], LINES[0] + "\n")


def test_tag_is_as_often_right_as_eval_says(runs, capsys):
    folder = runs("tags")
    found = json.loads(output(capsys, "tag", folder, "--file=lines.txt", "--json"))
    words = [word for line in found for word in line]
    assert [word["word"] for word in words] == " ".join(LINES).split()
    right = [word["tag"] == ("B-X" if word["word"] in "cat dog" else "O") for word in words]
    assert np.mean(right) == pytest.approx(evaluate(folder)[0]["accuracy"])


def test_unknown_words_are_counted(runs, capsys, monkeypatch):
    assert cli.main(["classify", runs("labels"), "the zebra sat on the xylophone"]) == 0
    error = capsys.readouterr().err
    assert "2 of 6 words are unknown to the vocabulary: zebra, xylophone" in error
    assert cli.main(["classify", runs("labels"), "the cat sat"]) == 0
    assert "unknown" not in capsys.readouterr().err
    assert cli.main(["tag", runs("tags"), "the zebra sat"]) == 0  # its pieces are bytes
    assert "unknown" not in capsys.readouterr().err
    monkeypatch.setattr(Reader, "unknown", lambda self, text: ["zebra"])
    assert cli.main(["tag", runs("tags"), "the zebra sat"]) == 0
    assert "1 of 3 words are unknown to the vocabulary: zebra" in capsys.readouterr().err


def test_fill_gives_the_probabilities_of_the_model(runs, capsys):
    folder = runs("masked")
    (found,) = json.loads(output(capsys, "fill", folder, "the [MASK] sat on", "--top=3", "--json"))
    run = tfm.load(folder)
    mask, ids = run.reader.mask, run.reader.ids("the cat sat on")
    p = jax.nn.softmax(run(tokens_BT=np.array([[ids[0], mask, *ids[2:]]]))[0, 1])
    best = np.argsort(-np.asarray(p))[:3]
    assert [one["id"] for one in found["masks"][0]] == best.tolist()
    wanted = [float(p[id_]) for id_ in best]
    assert [one["probability"] for one in found["masks"][0]] == pytest.approx(wanted, abs=1e-5)
    assert "probability" in output(capsys, "fill", folder, "the [MASK] sat on")


def greedy(run, begin, count, end, **inputs):
    """Tokens by full passes over the tokens so far; `inputs` are what else the model reads."""
    written, name = list(begin), "decoder_input_BT" if run.spec.has_source else "tokens_BT"
    for _ in range(count):
        written.append(int(run(**{name: np.array([written])}, **inputs)[0, -1].argmax()))
        if written[-1] == end:
            break
    return written[len(begin) :]


@pytest.mark.parametrize("name", first_tier(["spans", "ul2"], ["spans"]))
def test_a_denoiser_continues_a_text_and_fills_its_masks(runs, capsys, name):
    """A text is continued by a span at its end, in mode S; each mask is a span, in mode R."""
    folder = runs(name)
    run = tfm.load(folder)
    reader = run.reader
    first, mode_s, mode_r = (
        [reader.vocab + reader.added.index(x)] if x in reader.added else []
        for x in ("<0>", "[S]", "[R]")
    )
    (first,) = first
    source = [*mode_s, *reader.ids("the cat"), first]
    written = greedy(run, [reader.decoder_start], 6, first + 1, source_BS=np.array([source]))
    many = sum(name.strip("<>").isdecimal() for name in reader.added)
    sentinels = [place for place, id_ in enumerate(written) if first <= id_ < first + many]
    begin = written.index(first) + 1 if first in written else len(written)
    end = next((place for place in sentinels if place >= begin), len(written))
    span = [id_ for id_ in written[begin:end] if id_ < reader.vocab]  # without mode tokens
    wanted = reader.decode([*reader.ids("the cat"), *span])
    assert run.generate("the cat", max_new=6) == wanted
    assert output(capsys, "generate", folder, "the cat", "--max_new=6").rstrip("\n") == wanted
    text = "the [MASK] sat [MASK]"
    prompt = run.objective.prompt(reader, text)
    marks = [id_ for id_ in prompt.source if first <= id_ < first + 5]
    assert marks == [first, first + 1]
    assert list(prompt.source[:1]) == (mode_r or reader.ids("the"))
    assert run.objective.ends(reader, prompt) == (first + 2,)
    found = json.loads(output(capsys, "fill", folder, text, "--top=2", "--json"))[0]["masks"]
    assert len(found) == 2
    for mask in found:
        chances = [one["probability"] for one in mask]
        assert chances == sorted(chances, reverse=True)
        assert 0 < sum(chances) <= 1 + 1e-6
        assert all(one["token"] == reader.decode(one["ids"]) for one in mask)
    page = explain(run, "the cat")
    assert page.sequences["source"][-1] == ("<0>", first)


def test_a_vector_is_spelled_measured_and_explained(runs, capsys):
    folder = runs("spelled")
    run = tfm.load(folder)
    data = run.data["valid"].take(np.arange(16))
    said = []
    for vector in data.vectors:
        text = " ".join(str(x) for x in vector)
        ids = greedy(run, [1], 9, 2, vector_BD=np.array([vector]))
        said.append(" ".join(str(id_) for id_ in ids if id_ != 2))
        assert run.generate(text, max_new=9) == said[-1]
    wanted = [" ".join(map(str, row)) for row in data.tokens.sequences()]
    found = json.loads(output(capsys, "eval", folder, "--generate", "--max_new=9"))["generation"]
    assert found["exact"] == np.mean([a == b for a, b in zip(said, wanted, strict=True)])
    page = explain(run, text)
    assert [id_ for _, id_ in page.sequences["tokens"]][1:] == ids[: len(ids) - (ids[-1] == 2)]
    assert cli.main(["generate", folder, "1 0"]) == 2
    assert "the vector has 2 numbers, and the model reads 12" in capsys.readouterr().err


@pytest.mark.ci
def test_a_model_that_sees_later_tokens_writes_without_a_cache(runs, capsys):
    run = tfm.load(runs("leaky"))
    ids = run.reader.ids("the cat")
    wanted = run.reader.decode([*ids, *greedy(run, ids, 4, None)])
    assert run.generate("the cat", max_new=4) == wanted
    assert len(explain(run, "the cat").next.continuations[0].ids) == 8


def test_a_reader_needs_no_data_files(runs, tmp_path, monkeypatch):
    """Data by tokenizer, ids, and texts with labels: the run folder says what the data say."""
    texts = {"pairs": "die katze", "ids": "5 3", "labels": "a cat", "text": "ab"}
    data = {name: tfm.load(runs(name)).data["train"] for name in texts}
    folders = {name: runs(name) for name in texts}
    monkeypatch.chdir(tmp_path)  # where the files of the data are not
    for name, text in texts.items():
        reader = tfm.load(folders[name]).reader
        assert reader.vocab == data[name].vocab
        assert reader.labels == data[name].label_names
        assert reader.decode(reader.ids(text)) == text
    with pytest.raises(UserError):
        _ = tfm.load(folders["labels"]).data


def test_neighbors_by_definition(runs, capsys):
    folder = runs("vectors")
    found = json.loads(output(capsys, "neighbors", folder, "Cat", "--top=4", "--json"))
    run = tfm.load(folder)
    vectors = np.asarray(run.params["input"], np.float64)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    (cat,) = run.reader.ids("cat")
    cosine = unit[: run.reader.vocab] @ unit[cat]
    order = [i for i in np.argsort(-cosine) if i != cat][:4]
    assert [one["id"] for one in found] == order
    assert [one["cosine"] for one in found] == pytest.approx(cosine[order].tolist(), abs=1e-5)
    found = json.loads(output(capsys, "neighbors", folder, "cat the dog", "--analogy", "--json"))
    the, dog = run.reader.ids("the dog")
    asked = unit[the] - unit[cat] + unit[dog]
    cosine = unit[: run.reader.vocab] @ asked / np.linalg.norm(asked)
    order = [i for i in np.argsort(-cosine) if i not in (cat, the, dog)][:10]
    assert [one["id"] for one in found] == order


@pytest.mark.parametrize(
    ("name", "argv", "message"),
    [
        ("text", ["generate", "RUN", ""], "the prompt is empty; --start"),
        ("text", ["generate", "RUN", "a", "--tempreature=1"], "did you mean '--temperature'"),
        ("text", ["generate", "RUN", "a", "--temperature=hot"], "--temperature must be"),
        ("text", ["generate", "RUN", "a", "--top_k=5"], "--top_k=5: nothing is drawn"),
        (
            "text",
            ["generate", "RUN", "a", "b"],
            "unexpected argument 'b'; write a text in quotes",
        ),
        ("text", ["generate", "RUN", "a" * 30], "has 30 tokens, and the model was made for 24"),
        ("text", ["generate", "RUN", "aaaa", "--max_new=30"], "at most 21 can follow"),
        ("text", ["generate", "RUN", "a", "--start"], "--start writes without a prompt"),
        ("text", ["generate", "RUN", "--file=nowhere.txt"], "--file=nowhere.txt: cannot read it"),
        ("text", ["generate", "RUN", "a", "--part=1"], "not on a mixture"),
        ("text", ["translate", "RUN", "a"], "was not trained on pairs of texts: tfm generate"),
        ("text", ["classify", "RUN", "a"], "objective='next_token', not by classify"),
        ("text", ["tag", "RUN", "a"], "objective='next_token', not by tag"),
        ("text", ["fill", "RUN", "a [MASK]"], "objective='next_token', not by masked_lm"),
        ("text", ["eval", "RUN", "--generate"], "generation needs pairs of texts"),
        ("text", ["eval", "RUN", "--beams=3"], "--beams is for what a model writes: --generate"),
        ("labels", ["generate", "RUN", "a"], "objective='classify', which does not teach it"),
        (
            "text",
            ["generate", "RUN", "a", "--distribution", "--beams=2"],
            "--beams=2: beam search draws",
        ),
        (
            "text",
            ["generate", "RUN", "a", "--distribution", "--max_new=2"],
            "--max_new: it does not",
        ),
        ("labels", ["classify", "RUN", "a cat", "--second=b"], "trained on single sentences"),
        (
            "labels",
            ["explain", "RUN", "a cat", "--second=b"],
            "--second is for models that classify",
        ),
        ("two", ["classify", "RUN", "a cat"], "trained on two sentences: give the second"),
        ("two", ["explain", "RUN", "a cat"], "trained on two sentences: give the second"),
        ("masked", ["fill", "RUN", "the cat"], r"has no \[MASK\]"),
        ("vectors", ["neighbors", "RUN", "catt"], "no vector for 'catt'; did you mean 'cat'"),
        ("vectors", ["neighbors", "RUN", "cat dog"], "2 word.s. given, 1 wanted"),
    ],
)
def test_what_cannot_be_is_told(runs, capsys, name, argv, message):
    folder = runs(name)
    assert cli.main([folder if arg == "RUN" else arg for arg in argv]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_a_run_without_a_checkpoint(runs, tmp_path, capsys):
    shutil.copy(f"{runs('text')}/config.json", tmp_path)
    assert cli.main(["generate", str(tmp_path), "a"]) == 2
    assert f"{tmp_path} has no checkpoint" in capsys.readouterr().err


def test_a_page_opens_where_something_is_asked(runs):
    """Of tags at the first piece of a word, of masked words at the mask."""
    run = tfm.load(runs("tags"))
    found = explain(run, "the cat sat")
    pieces = [name for name, _ in found.sequences["tokens"]]
    begins = [t for t, name in enumerate(pieces) if t == 0 or name.startswith(" ")]
    assert len(begins) < len(pieces)
    assert (found.next.rows, found.next.start, found.next.follows) == (begins, 0, False)
    best = run.tag("the cat sat")[1]["tag"]
    assert found.next.names[int(found.next.logits[1].argmax())] == best
    found = explain(tfm.load(runs("masked")), "the [MASK] sat on")
    assert (found.next.start, found.next.follows) == (1, False)
    found = explain(tfm.load(runs("text")), "the cat")
    assert found.next.follows
    assert found.next.start == len(found.sequences["tokens"]) - 1


def test_a_word_is_looked_up_as_it_is_written():
    """And without regard to case, if it is not known so."""
    known = ["King", "king", "Cat", "dog"]
    run = types.SimpleNamespace(
        reader=Reader(kind="pieces", vocab=4, pieces=tuple(known), separator=" "),
        params={"input": np.eye(4, dtype=np.float32)},
    )
    for given, meant in {"King": "King", "king": "king", "cat": "Cat", "DOG": "dog"}.items():
        others = [one["word"] for one in word_vectors.neighbors(run, [given], top=4)]
        assert sorted(others) == sorted(set(known) - {meant})
