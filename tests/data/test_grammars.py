"""The grammars: translated again by hand-written rules, aligned by a dictionary, split apart."""

import collections
import itertools
import math
import re

import numpy as np
import pytest

from tfm.config.names import UserError
from tfm.data.datasets import open_dataset
from tfm.data.plan.order import Epochs
from tfm.data.reader import of_data

FRENCH = dict(
    cat="chat", dog="chien", cow="vache", girl="fille", boy="garçon", woman="femme", king="roi",
    queen="reine", car="voiture", book="livre", apple="pomme", flower="fleur", garden="jardin",
    house="maison", city="ville", forest="forêt", station="gare", bridge="pont",
    sees="voit", wants="veut", takes="prend", finds="trouve", draws="dessine", follows="suit",
    sleeps="dort", runs="court", sings="chante", falls="tombe",
    behind="derrière", before="devant", under="sous",
) | {"in": "dans"}  # fmt: skip
FEMININE = [
    "vache",
    "fille",
    "femme",
    "reine",
    "voiture",
    "pomme",
    "fleur",
    "maison",
    "ville",
    "forêt",
    "gare",
]
AFTER = dict(red="rouge", black="noir(e)", green="vert(e)", strange="bizarre")
FIRST = dict(small="petit(e)", big="grand(e)", young="jeune", beautiful="beau|belle")
CHINESE = dict(
    the="那", a="一", cat="猫", dog="狗", cow="牛", girl="女孩", boy="男孩", woman="女人",
    king="国王", queen="女王", car="车", book="书", apple="苹果", flower="花", garden="花园",
    house="房子", city="城市", forest="森林", station="车站", bridge="桥", red="红", black="黑",
    green="绿", strange="奇怪", small="小", big="大", young="年轻", beautiful="美丽",
    sees="看见", wants="要", takes="拿", finds="找到", draws="画", follows="跟着",
    sleeps="睡觉", runs="跑步", sings="唱歌", falls="跌倒",
)  # fmt: skip
MEASURE = dict(
    猫="只", 狗="只", 牛="头", 车="辆", 书="本", 花="朵", 花园="座", 房子="座", 城市="座",
    森林="片", 桥="座",
)  # fmt: skip
SIDE = dict(behind="后面", before="前面", under="下面") | {"in": "里"}


def pairs(task, split="train", count=400):
    dataset = open_dataset(task, split, count)
    found = dataset.take(np.arange(count))
    cut = lambda x: np.split(x.ids, np.cumsum(x.lengths)[:-1])
    target = np.cumsum(found.target.lengths)[:-1]
    rows = zip(cut(found.tokens), cut(found.target), np.split(found.alignment, target), strict=True)
    words = lambda ids: of_data(dataset, None).decode(ids).split()
    return [(words(source), words(target), at.tolist()) for source, target, at in rows]


def test_french():
    for source, target, _ in pairs("english_french"):
        text = " ".join(source)
        text = re.sub(r"does not (\w+)", r"ne \1s pas", text)
        out = []
        for article, adjective, noun, other in re.findall(
            r"\b(the|a) (?:(\w+) )??(\w+)(?= (?:ne|in|behind|before|under|\w+s\b)|$)|(\S+)", text
        ):
            if other:
                out.append(FRENCH.get(other, other))
                continue
            own, she = FRENCH[noun], FRENCH[noun] in FEMININE
            out.append({"the": ("le", "la"), "a": ("un", "une")}[article][she])
            form = AFTER.get(adjective) or FIRST.get(adjective) or ""
            form = form.split("|")[she] if "|" in form else re.sub(r"\((\w)\)", r"\1" * she, form)
            out += [form, own] if adjective in FIRST else [own, form] if form else [own]
        assert out == target, text


def test_chinese():
    for source, target, _ in pairs("english_chinese"):
        place = next((i for i, word in enumerate(source) if word in SIDE), len(source))
        verb = next(
            i for i, w in enumerate(source) if w == "does" or (w in CHINESE and w[-1] == "s")
        )
        negated = source[verb] == "does"
        action = f"{source[verb + 2]}s" if negated else source[verb]
        out = phrase(source[:verb])
        if place < len(source):
            out += ["在", *phrase(source[place + 1 :]), SIDE[source[place]]]
        out += ["不"] * negated + [CHINESE[action]] + phrase(source[verb + 1 + 2 * negated : place])
        assert out == target


def phrase(words):
    if not words:
        return []
    article, *adjective, noun = (CHINESE[word] for word in words)
    return [article, MEASURE.get(noun, "个"), *adjective, *(["的"] * len(adjective)), noun]


@pytest.mark.parametrize(
    ("task", "words"), [("english_french", FRENCH), ("english_chinese", CHINESE)]
)
def test_words_are_aligned_with_those_they_translate(task, words):
    back = {target: source for source, target in words.items()}
    moved = 0
    for source, target, at in pairs(task):
        assert len(at) == len(target)
        moved += any(a > b for a, b in itertools.pairwise(at))
        for word, place in zip(target, at, strict=True):
            if word in back:
                assert source[place] in (back[word], back[word].removesuffix("s"))
            if word in ("ne", "pas", "不"):
                assert source[place] == "not"
            if word in MEASURE.values():
                assert source[place] in words
    assert moved > 100  # the order differs: copying positions is not enough


def test_who_it_is():
    places = ["street", "river", "bridge", "field", "road", "valley", "lake", "square"]
    animals = ["animal", "dog", "horse", "cat", "sheep", "donkey", "robot", "elephant"]
    of_places = ["wide", "deep", "long", "muddy", "crowded", "steep"]
    dataset = open_dataset("pronoun", "train", 4000)
    found = dataset.take(np.arange(4000))
    seen = set()
    rows = np.split(found.tokens.ids, np.cumsum(found.tokens.lengths)[:-1])
    for ids, label in zip(rows, found.labels.tolist(), strict=True):
        text = of_data(dataset, None).decode(ids)
        said = text.partition(" because ")[0].split()
        nouns = [word for word in said if word in (*places, *animals)]
        assert len(nouns) == 2
        assert (nouns[label] in places) == (text.split()[-1] in of_places)
        seen.add((nouns[0] in places, label))
    assert len(seen) == 4  # the last word alone does not tell, nor does the order
    assert abs(dataset.shortcuts["last word"](found) - 0.5) < 0.05
    assert dataset.label_names == ("first", "second")


@pytest.mark.parametrize(("at", "word"), [("it", "it"), ("last", None)])
def test_the_noun_that_a_pronoun_stands_for(at, word):
    """The same sentences as with labels; one word of each is scored."""
    dataset = open_dataset(f"pronoun(at={at!r})", "train", 500)
    labelled = open_dataset("pronoun", "train", 500).take(np.arange(500))
    found = dataset.take(np.arange(500))
    assert np.array_equal(found.tokens.ids, labelled.tokens.ids)
    begin = 0
    for length, label in zip(found.tokens.lengths, labelled.labels, strict=True):
        own = slice(begin, begin + length)
        words = of_data(dataset, None).decode(found.tokens.ids[own]).split()
        (place,) = np.flatnonzero(found.scored[own])
        assert words[place] == (word or words[-1])
        # Before "because", the nouns stand after "the" or an adjective: the last words of phrases.
        said = " ".join(words[: words.index("because")])
        first, second = re.fullmatch(
            r"(?:.*?)the(?: \w+)? (\w+) (?:did not \w+|was not \w+ by) the(?: \w+)? (\w+)", said
        ).groups()
        answer = of_data(dataset, None).decode(found.tags[own][place : place + 1])
        assert answer == (second if label else first)
        begin += length
    assert dataset.shortcuts["either noun"](found) == 0.5


def test_a_place_that_a_pronoun_cannot_be_asked_at():
    with pytest.raises(UserError, match="at='end' must be None, 'it' or 'last'"):
        open_dataset("pronoun(at='end')", "train", 5)


@pytest.mark.parametrize("task", ["english_french", "english_chinese", "pronoun"])
def test_no_sentence_is_in_two_splits(task):
    hashes = {}
    for split in ("train", "valid", "test"):
        dataset = open_dataset(task, split, 2000)
        found = dataset.take(Epochs(2000, 500, 0).draw(0).rows)
        hashes[split] = set(found.tokens.hashes().tolist())
        reader = of_data(dataset, None)
        assert reader.ids(reader.decode(found.tokens.ids)) == found.tokens.ids.tolist()
    assert not hashes["train"] & hashes["valid"]
    assert not hashes["valid"] & hashes["test"]
    assert not hashes["train"] & hashes["test"]


def test_a_story_has_one_subject_and_the_stated_entropy():
    """The entropy is counted: of the first noun, and of a sentence after its subject."""
    dataset = open_dataset("stories", "train", 6000)
    reader = of_data(dataset, None)
    rows = dataset.take(np.arange(len(dataset))).tokens
    assert set(rows.ids[np.cumsum(rows.lengths) - 1]) == {dataset.special.eos}
    nouns, rest, words = collections.Counter(), collections.Counter(), 0
    for ids in rows.sequences():
        text = reader.decode(ids)
        sentences = [
            sentence.split(maxsplit=2) for sentence in text.removesuffix(" .").split(" . ")
        ]
        assert [article for article, _, _ in sentences] == ["a", "the", "the"]
        assert len({subject for _, subject, _ in sentences}) == 1
        nouns[sentences[0][1]] += 1
        # a verb, perhaps an object, perhaps a place: independent of one another
        for _, _, tail in sentences:
            verb = tail.split()[0]
            thing = re.search(r" a (\w+)", tail)
            where = re.search(r" (\w+) the (\w+)$", tail)
            for part in (("verb", verb), ("where", where and where[0])):
                rest[part] += 1
            if thing:
                rest["object", thing[1]] += 1
        words += len(ids) - 1

    def entropy(kind, counts):
        counts = np.array([n for (name, _), n in counts.items() if name == kind])
        return -float(np.sum(counts / counts.sum() * np.log(counts / counts.sum()))), counts.sum()

    total = 0.0
    for kind in ("verb", "where", "object"):
        nats, count = entropy(kind, rest)
        total += nats * count
    nats, count = entropy("noun", {("noun", noun): n for noun, n in nouns.items()})
    assert (total + nats * count) / words == pytest.approx(1.021, abs=0.01)
    assert nats == pytest.approx(math.log(12), abs=0.01)


def test_the_second_sentence_of_a_pair_follows_if_it_has_the_same_subject():
    dataset = open_dataset("stories(pairs=True)", "valid", 300)
    examples, reader = dataset.take(np.arange(300)), of_data(dataset, None)
    assert 0.4 < np.mean(examples.labels) < 0.6
    begin = 0
    for ids, label in zip(examples.tokens.sequences(), examples.labels, strict=True):
        segments = examples.segments[begin : begin + len(ids)]
        begin += len(ids)
        first, second = (reader.decode(ids[segments == n]) for n in (0, 1))
        assert (first.split()[1] == second.split()[1]) == label
        sentences = reader.sentences(first, second)  # as `tfm classify --second` reads them
        assert sentences == (ids.tolist(), segments.tolist())
