"""What a model says about a text is the same here, in transformers, and after an import.

Weights are random and large, so that answers differ; every case is written, exported, asked in
transformers, imported again and evaluated.
"""

import json

import jax
import numpy as np
import pytest
import tokenizers
from safetensors.numpy import load_file, save_file

import tfm
from tests.helpers import huggingface
from tests.helpers.huggingface import weights
from tests.helpers.tiers import first_tier
from tests.parity import parity_cases as cases
from tfm.config.names import UserError
from tfm.config.spec import to_tree
from tfm.data.datasets import open_dataset
from tfm.data.reader import of_data
from tfm.data.tokenizers.trained import bert_rules
from tfm.interop.convert import from_huggingface
from tfm.interop.folder import export_folder, import_folder
from tfm.run.checkpoint import Checkpoints
from tfm.run.evaluation import evaluate
from tfm.run.folder import Folder
from tfm.run.spec import open_data, read

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
SAID = "the cat sat on a mat and dogs ran home by night while old birds sang"
LINES = [
    " ".join(np.random.default_rng(n).permutation(SAID.split())[: 5 + n % 4]) for n in range(24)
]
LABELS = ("neg", "neutral", "pos")
TEXT = "old dogs sat by the mat"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Data of every form, of the same lines."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "text.txt").write_text("\n".join(LINES * 4) + "\n")
    for name in ("train", "valid"):
        both = zip(LINES, reversed(LINES), strict=True)
        rows = [f"{a}\t{b}\t{LABELS[n % 3]}\t{n / 7:.3f}" for n, (a, b) in enumerate(both)]
        (folder / f"{name}.tsv").write_text("\n".join(["a\tb\tlabel\tnumber", *rows]) + "\n")
        tags = ["\n".join(f"{w}\t{'B-X' if 'a' in w else 'O'}" for w in x.split()) for x in LINES]
        (folder / f"{name}.bio").write_text("\n\n".join(tags) + "\n")
    return folder


def table(files, **options):
    named = {"train": f"{files}/train.tsv", "valid": f"{files}/valid.tsv", "text": "a", **options}
    return f"table({', '.join(f'{key}={value!r}' for key, value in named.items())})"


def model(name, **changes):
    spec = from_huggingface(cases.CASES[name][1], weights(name))[0]
    return {**to_tree(spec), "vocab": None, "max_length": 60, **changes}


BERT = {"outputs": (), "classes": None, "pooler": True}


def untrained(workdir, objective, model, dataset, tokenizer=None):
    """Writes a run folder with random weights."""
    tree = {
        "objective": objective,
        "model": model,
        "data": {"dataset": dataset, "tokenizer": tokenizer, "valid_examples": 8},
        "train": {"steps": 1},
    }
    run, data = open_data(read(tree))
    train, module = data["train"], run.model.build()
    shapes = jax.eval_shape(
        lambda **inputs: module.init(jax.random.key(0), **inputs), **run.model.example(1, 1)
    )["params"]
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: rng.normal(0.0, 0.7, x.shape).astype(np.float32), shapes)
    folder = Folder(workdir).make()
    folder.write("config.json", {"id": "0", "entries": [], **to_tree(run)})
    reader = of_data(train, run.data.dataset.entry, run.objective.entry.added(train))
    known = {name: getattr(train, name) for name in ("fingerprint", "vocab", "vocabulary")}
    folder.write("data.json", {**known, "reader": reader.to_tree()})
    checkpoints = Checkpoints(folder.path)
    checkpoints.save(0, {"variables": {"params": params}})
    checkpoints.close()
    return folder.path


def abroad(tmp_path, *run):
    """Returns the run, the folder of its export, and the run that its import is."""
    path = untrained(tmp_path / "run", *run)
    export_folder(str(path), f"{tmp_path}/out")
    import_folder(f"{tmp_path}/out", f"{tmp_path}/again")
    return tfm.load(path), f"{tmp_path}/out", tfm.load(f"{tmp_path}/again")


def asked(task, folder, **options):
    return transformers.pipeline(task, folder, device="cpu", **options)


def close(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert value == pytest.approx(theirs[name], abs=1e-5)


CLASSIFIERS = [
    ("classify(types=True)", "wordpiece(vocab=60)", "the birds sang"),
    ("classify", "wordpiece(vocab=60)", None),
    ("classify", "bpe(vocab=280)", "the birds sang"),
    ("classify", "words", None),
]


@pytest.mark.parametrize("case", first_tier(CLASSIFIERS, CLASSIFIERS[:1]))
def test_classes(case, files, tmp_path):
    objective, tokenizer, second = case
    two = {} if second is None else {"text2": "b"}
    data = table(files, label="label", **two)
    run, out, again = abroad(tmp_path, objective, model("bert_tag", **BERT), data, tokenizer)
    ours = run.classify(TEXT, second)["classes"]
    assert set(ours) == set(LABELS)
    pipe = asked("text-classification", out, top_k=None)
    said = pipe([TEXT if second is None else {"text": TEXT, "text_pair": second}])[0]
    close(ours, {answer["label"]: answer["score"] for answer in said})
    close(ours, again.classify(TEXT, second)["classes"])
    if objective != "classify" or second is None:
        mine, _ = evaluate(str(run.folder))
        other, _ = evaluate(str(again.folder), dataset=data, examples=8)
        for metric in ("loss", "accuracy"):
            assert other[metric] == pytest.approx(mine[metric], abs=1e-5)


def edited(folder, name, **changes):
    """Changes the keys of a JSON file."""
    tree = json.loads((folder / name).read_text()) | changes
    (folder / name).write_text(json.dumps(tree))


def test_classifiers_of_others(files, tmp_path):
    """Classes in another order, without names, independent of one another, or scores."""
    data, out = table(files, label="label"), tmp_path / "out"
    run, _, _ = abroad(tmp_path, "classify", model("bert_tag", **BERT), data, "wordpiece(vocab=60)")
    wanted, _ = evaluate(str(run.folder))

    def measured(name, data):
        import_folder(str(out), f"{tmp_path}/{name}")
        metrics, _ = evaluate(f"{tmp_path}/{name}", dataset=data, examples=8)
        return metrics["loss"], metrics["accuracy"]

    loss, accuracy = pytest.approx(wanted["loss"], abs=1e-5), pytest.approx(wanted["accuracy"])
    tensors, order = load_file(out / "model.safetensors"), [2, 0, 1]
    rows = {name: x[order] for name, x in tensors.items() if name.startswith("classifier.")}
    save_file({**tensors, **rows}, out / "model.safetensors", {"format": "pt"})
    edited(out, "config.json", id2label={str(n): LABELS[i] for n, i in enumerate(order)})
    assert measured("permuted", data) == (loss, accuracy)
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    edited(out, "config.json", id2label={str(n): f"LABEL_{n}" for n in range(3)})
    with pytest.raises(UserError, match="label 'neg' is not in .*, which has: 0, 1, 2"):
        measured("unnamed", data)
    for name in ("train", "valid"):
        lines = (files / f"{name}.tsv").read_text()
        for number, label in enumerate(LABELS):
            lines = lines.replace(f"\t{label}", f"\t{number}")
        (tmp_path / f"{name}.tsv").write_text(lines)
    assert measured("numbers", table(tmp_path, label="label")) == (loss, accuracy)
    edited(out, "config.json", problem_type="multi_label_classification")
    import_folder(str(out), f"{tmp_path}/several")
    answer = tfm.load(f"{tmp_path}/several").classify(TEXT)
    (said,) = asked("text-classification", str(out), top_k=None)([TEXT])
    close(answer["classes"], {x["label"]: x["score"] for x in said})
    export_folder(f"{tmp_path}/several", f"{tmp_path}/several_out")
    (said,) = asked("text-classification", f"{tmp_path}/several_out", top_k=None)([TEXT])
    close(answer["classes"], {x["label"]: x["score"] for x in said})
    with pytest.raises(UserError, match="is for independent classes, but the data have one class"):
        evaluate(f"{tmp_path}/several", dataset=table(tmp_path, label="label"))
    edited(out, "config.json", problem_type="regression")
    with pytest.raises(UserError, match="problem_type='regression' with 3 labels cannot be import"):
        import_folder(str(out), f"{tmp_path}/numbers_3")


def test_numbers(files, tmp_path):
    data = table(files, score="number")
    run, out, again = abroad(
        tmp_path, "regress", model("bert_tag", **BERT), data, "wordpiece(vocab=60)"
    )
    ours = run.classify(TEXT)["number"]
    assert ours == pytest.approx(asked("text-classification", out)(TEXT)[0]["score"], abs=1e-5)
    assert ours == pytest.approx(again.classify(TEXT)["number"], abs=1e-5)
    edited(tmp_path / "out", "config.json", problem_type=None)  # as cross-encoders have it
    import_folder(out, f"{tmp_path}/score")
    assert tfm.load(f"{tmp_path}/score").classify(TEXT)["number"] == pytest.approx(ours, abs=1e-5)


@pytest.mark.ci
def test_pairs_of_sentences(files, tmp_path):
    lines = (files / "train.tsv").read_text().replace("\tneutral", "\tpos")
    for name in ("train", "valid"):
        (tmp_path / f"{name}.tsv").write_text(lines)
    data = table(tmp_path, label="label", text2="b")
    run, out, again = abroad(
        tmp_path, "pair", model("bert_pair", **BERT), data, "wordpiece(vocab=60)"
    )
    ours = list(run.classify(TEXT, "the birds sang")["classes"].values())
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    theirs = transformers.AutoModelForNextSentencePrediction.from_pretrained(out)
    logits = theirs(**tokenizer(TEXT, "the birds sang", return_tensors="pt")).logits
    assert ours == pytest.approx(logits.softmax(-1)[0].tolist(), abs=1e-5)
    other = list(again.classify(TEXT, "the birds sang")["classes"].values())
    assert ours == pytest.approx(other, abs=1e-5)


def test_tags(files, tmp_path):
    data = f"bio(train='{files}/train.bio', valid='{files}/valid.bio')"
    run, out, again = abroad(
        tmp_path, "tag", model("bert_tag", **BERT), data, "wordpiece(vocab=60)"
    )
    ours = run.tag(TEXT)
    said = asked("token-classification", out, ignore_labels=[])(TEXT)
    first = {}  # the first piece of each word
    for piece in said:
        begin = TEXT.rfind(" ", 0, piece["start"] + 1) + 1
        first.setdefault(begin, piece)
    theirs = [(piece["entity"], float(piece["score"])) for _, piece in sorted(first.items())]
    for word, (tag, p), other in zip(ours, theirs, again.tag(TEXT), strict=True):
        assert word["tag"] == tag == other["tag"]
        assert word["probability"] == pytest.approx(p, abs=1e-5)
        assert word["probability"] == pytest.approx(other["probability"], abs=1e-5)
    mine, _ = evaluate(str(run.folder))
    other, _ = evaluate(str(again.folder), dataset=data, examples=8)
    assert other["loss"] == pytest.approx(mine["loss"], abs=1e-5)


TOKENIZERS = ["wordpiece(vocab=60)", "words", "characters"]


@pytest.mark.parametrize("tokenizer", first_tier(TOKENIZERS, ["words"]))
def test_masks(tokenizer, files, tmp_path):
    data = f"text(train='{files}/text.txt', valid='{files}/text.txt', length=8, eos=True)"
    spec = {**BERT, "pooler": False}
    run, out, again = abroad(
        tmp_path, "masked_lm", model("bert_masked_lm", **spec), data, tokenizer
    )
    asked_for = "c[MASK]t" if tokenizer == "characters" else "the [MASK] sat on"
    (ours,) = run.fill(asked_for)
    pipe = asked("fill-mask", out)
    said = pipe(asked_for.replace("[MASK]", pipe.tokenizer.mask_token))
    (other,) = again.fill(asked_for)
    assert [x["id"] for x in ours] == [x["token"] for x in said] == [x["id"] for x in other]
    for answers in (said, other):
        scores = [x.get("probability", x.get("score")) for x in answers]
        assert [x["probability"] for x in ours] == pytest.approx(scores, abs=1e-5)


WRITERS = [(n, k) for n in ("gpt2", "llama") for k in ("bpe(vocab=280)", "words", "signs", "pairs")]


@pytest.mark.parametrize(
    "case", first_tier(WRITERS, [("gpt2", "signs"), ("llama", "bpe(vocab=280)")])
)
def test_continuations(case, files, tmp_path):
    name, kind = case
    tokenizer = kind if kind != "pairs" else "bpe(vocab=280)"
    data = f"text(train='{files}/text.txt', valid='{files}/text.txt', length=8, eos=True)"
    if kind == "signs":
        data, tokenizer = f"characters(path='{files}/text.txt', length=8)", None
    if kind == "pairs":
        data = table(files, target="b")
    run, out, again = abroad(tmp_path, "next_token", model(name), data, tokenizer)
    ours = run.generate("the cat", max_new=12)
    pipe = asked("text-generation", out)
    (said,) = pipe("the cat", max_new_tokens=12, do_sample=False, return_full_text=kind != "pairs")
    if kind == "words":  # the pipeline drops the space before the continuation
        said["generated_text"] = said["generated_text"].replace("the cat", "the cat ")
    assert said["generated_text"] == ours
    text = again.generate("the cat", max_new=12)
    assert text.removeprefix("the cat" if kind == "pairs" else "") == ours
    ends = json.loads((tmp_path / "out/generation_config.json").read_text())["eos_token_id"]
    assert ends == (None if kind == "signs" else 2)


@pytest.mark.ci
@pytest.mark.parametrize("name", ["t5", "t5_v1_1"])
def test_targets(name, files, tmp_path):
    data = table(files, target="b")
    run, out, again = abroad(
        tmp_path, "seq2seq", model(name, decoder_layers=2), data, "bpe(vocab=280)"
    )
    ours = run.generate(TEXT, max_new=12)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(out)
    ids = theirs.generate(**tokenizer(TEXT, return_tensors="pt"), max_new_tokens=12)
    assert tokenizer.decode(ids[0], skip_special_tokens=True) == ours
    assert again.generate(TEXT, max_new=12) == ours
    mine, _ = evaluate(str(run.folder))
    other, _ = evaluate(str(again.folder), dataset=data, examples=8)
    assert other["loss"] == pytest.approx(mine["loss"], abs=1e-5)


def test_sources_end_as_the_tokenizer_says(files, tmp_path):
    """T5's tokenizer ends a source with </s>; `tfm eval` of an import gives transformers' loss."""
    data, out = table(files, target="b"), tmp_path / "out"
    abroad(tmp_path, "seq2seq", model("t5", decoder_layers=2), data, "bpe(vocab=280)")
    said = json.loads((out / "config.json").read_text())
    names = ("decoder_start_token_id", "eos_token_id", "pad_token_id")
    assert [said[name] for name in names] == [1, 2, 0]
    rules = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    rules.post_processor = tokenizers.processors.TemplateProcessing(
        single=["$A:0", "< eos >:0"], special_tokens=[("< eos >", 2)]
    )
    rules.save(str(out / "tokenizer.json"))
    edited(out, "config.json", decoder_start_token_id=0)
    edited(out, "generation_config.json", decoder_start_token_id=0)
    import_folder(str(out), f"{tmp_path}/ended")
    ours, _ = evaluate(f"{tmp_path}/ended", dataset=data, examples=4)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(out)
    losses = []
    for source, target in list(zip(LINES, reversed(LINES), strict=True))[:4]:
        labels = tokenizer(target, return_tensors="pt").input_ids
        logits = theirs(**tokenizer(source, return_tensors="pt"), labels=labels).logits[0]
        losses += torch.nn.functional.cross_entropy(logits, labels[0], reduction="none").tolist()
    assert ours["loss"] == pytest.approx(np.mean(losses), abs=1e-4)
    run, ids = tfm.load(f"{tmp_path}/ended"), tokenizer(TEXT, return_tensors="pt")
    said = tokenizer.decode(theirs.generate(**ids, max_new_tokens=9)[0], skip_special_tokens=True)
    assert run.generate(TEXT, max_new=9) == said


def test_settings_of_a_tokenizer_that_change_a_text_are_not_applied(tmp_path):
    """Padding and truncation are not; special tokens in a text are, if they are asked for."""
    source = huggingface.write(tmp_path / "hf", "bert_classify")
    vocab = {x: n for n, x in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"ab[]"])}
    rules = bert_rules(tokenizers.models.WordPiece(vocab, unk_token="[UNK]"), True)
    rules.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    rules.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    rules.enable_padding(length=9, pad_id=0, pad_token="[PAD]")
    rules.enable_truncation(6)
    rules.save(f"{source}/tokenizer.json")
    import_folder(source, f"{tmp_path}/run")
    reader = tfm.load(f"{tmp_path}/run").reader
    assert reader.encode("a b") == [2, 5, 6, 3]
    assert reader.encode("a b a b a b") == [2, 5, 6, 5, 6, 5, 6, 3]
    assert reader.encode("a [SEP] b") == [2, 5, 7, 1, 8, 6, 3]  # [, sep, ]
    rows = f"text\tlabel\na [SEP] b\t{'a'}\na b\tb\n"
    (tmp_path / "rows.tsv").write_text(rows)
    data = f"table(train='{tmp_path}/rows.tsv', text='text', label='label')"
    dataset = open_dataset(data, "train", vocabulary=reader.vocabulary)
    assert [x.tolist() for x in dataset.take(np.arange(2)).tokens.sequences()] == [
        reader.encode("a [SEP] b"),
        reader.encode("a b"),
    ]
    special = tfm.load(f"{tmp_path}/run", special=True)
    assert special.reader.encode("a [SEP] b") == [2, 5, 3, 6, 3]
    assert special.reader.words(["a", "[SEP]"])[0] == [2, 5, 3, 3]
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=f"{source}/tokenizer.json")
    assert theirs("a [SEP] b", truncation=False, padding=False).input_ids == [2, 5, 3, 6, 3]
