"""Sentences of small grammars with known answers: translations with their word alignment, stories
about one subject, and pronouns whose referent a later word determines. The ids are words."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfm.config.names import UserError
from tfm.data.dataset import BOS, EOS, FIRST, Examples, Generated, Ragged, Source
from tfm.data.draws import Draws
from tfm.data.synthetic import ALL, most_frequent

# English, French, its gender, Chinese, the measure word between a number or 那 and the noun
NOUNS = """
cat chat m 猫 只, dog chien m 狗 只, cow vache f 牛 头, girl fille f 女孩 个, boy garçon m 男孩 个,
woman femme f 女人 个, king roi m 国王 个, queen reine f 女王 个, car voiture f 车 辆,
book livre m 书 本, apple pomme f 苹果 个, flower fleur f 花 朵"""
PLACES = """
garden jardin m 花园 座, house maison f 房子 座, city ville f 城市 座, forest forêt f 森林 片,
station gare f 车站 个, bridge pont m 桥 座"""
# English, French masculine and feminine, whether it stands before or after its noun, Chinese
ADJECTIVES = """
red rouge rouge after 红, black noir noire after 黑, green vert verte after 绿,
strange bizarre bizarre after 奇怪, small petit petite before 小, big grand grande before 大,
young jeune jeune before 年轻, beautiful beau belle before 美丽"""
# English without and with "does not", French, Chinese
TRANSITIVE = """
sees see voit 看见, wants want veut 要, takes take prend 拿, finds find trouve 找到,
draws draw dessine 画, follows follow suit 跟着"""
INTRANSITIVE = """
sleeps sleep dort 睡觉, runs run court 跑步, sings sing chante 唱歌, falls fall tombe 跌倒"""
# English, French, the Chinese word after the place, which follows 在
PREPOSITIONS = "in dans 里, behind derrière 后面, before devant 前面, under sous 下面"
Words = list[tuple[str, int]]  # words, and the position of the English word that each comes from


@functools.cache
def word_list(*tables: str) -> list[list[str]]:
    """Returns the entries of word lists; each is a list of words."""
    return [entry.split() for table in tables for entry in table.split(",")]


class _Choices:
    """The random bits of one row, each used once."""

    def __init__(self, bits: np.ndarray):
        self.bits = iter(bits.tolist())

    def of(self, options: Sequence[Any]) -> Any:
        return options[(next(self.bits) >> 32) * len(options) >> 32]

    def happens(self, one_in: int) -> bool:
        return self.of(range(one_in)) == 0


def _phrase(choices: _Choices, nouns: str, english: list[str]) -> dict[str, Words]:
    """Appends an article, perhaps an adjective, and a noun; returns their translations."""
    definite = choices.of((True, False))
    noun, french_noun, gender, chinese_noun, measure = choices.of(word_list(nouns))
    adjective = choices.of(word_list(ADJECTIVES)) if choices.happens(2) else None
    at, feminine = len(english), gender == "f"
    english += ["the" if definite else "a", *(adjective[:1] if adjective else []), noun]
    last = len(english) - 1
    article = ("le", "la") if definite else ("un", "une")
    french: Words = [(article[feminine], at), (french_noun, last)]
    chinese: Words = [("那" if definite else "一", at), (measure, last), (chinese_noun, last)]
    if adjective:
        french.insert(1 if adjective[3] == "before" else 2, (adjective[1 + feminine], at + 1))
        chinese[2:2] = [(adjective[4], at + 1), ("的", at + 1)]
    return {"french": french, "chinese": chinese}


def _sentence(choices: _Choices) -> tuple[list[str], dict[str, Words]]:
    """Returns an English sentence and its translations."""
    english: list[str] = []
    subject = _phrase(choices, NOUNS, english)
    negated, transitive = choices.happens(3), choices.happens(2)
    verb = choices.of(word_list(TRANSITIVE if transitive else INTRANSITIVE))
    negation = len(english) + 1
    english += ["does", "not", verb[1]] if negated else [verb[0]]
    at = len(english) - 1
    direct_object = _phrase(choices, NOUNS, english) if transitive else {}
    preposition = choices.of(word_list(PREPOSITIONS)) if choices.happens(2) else None
    french = [*subject["french"], (verb[2], at), *direct_object.get("french", ())]
    chinese = [(verb[3], at), *direct_object.get("chinese", ())]
    if negated:  # ne … pas; 不
        after = len(subject["french"])
        french[after : after + 1] = [("ne", negation), (verb[2], at), ("pas", negation)]
        chinese.insert(0, ("不", negation))
    if preposition:  # in Chinese the place stands before the verb
        before = len(english)
        english.append(preposition[0])
        place = _phrase(choices, PLACES, english)
        french += [(preposition[1], before), *place["french"]]
        chinese = [("在", before), *place["chinese"], (preposition[2], before), *chinese]
    return english, {"french": french, "chinese": [*subject["chinese"], *chinese]}


CHOICES = 32  # draws for a sentence, more than any sentence needs
MOST_ENGLISH = 13  # the red cat does not see the red dog in the red garden
MOST_TARGET = {"french": 13, "chinese": 19}


def _words(language: str) -> list[str]:
    """Lists the words of English, then those of another language."""
    nouns, adjectives = word_list(NOUNS, PLACES), word_list(ADJECTIVES)
    verbs, prepositions = word_list(TRANSITIVE, INTRANSITIVE), word_list(PREPOSITIONS)
    words = ["the", "a", "does", "not", *(entry[0] for entry in [*adjectives, *nouns])]
    words += [form for verb in verbs for form in verb[:2]] + [entry[0] for entry in prepositions]
    if language == "french":
        words += ["le", "la", "un", "une", "ne", "pas", *(noun[1] for noun in nouns)]
        words += [form for adjective in adjectives for form in adjective[1:3]]
        return words + [verb[2] for verb in verbs] + [entry[1] for entry in prepositions]
    words += ["那", "一", "的", "不", "在", *(noun[3] for noun in nouns)]
    words += [noun[4] for noun in nouns] + [adjective[4] for adjective in adjectives]
    return words + [verb[3] for verb in verbs] + [entry[2] for entry in prepositions]


class _Vocabulary:
    """Words by their ids, from FIRST on."""

    def __init__(self, words: Sequence[str]):
        pieces = ("",) * FIRST + tuple(dict.fromkeys(words))
        self.ids = {word: id_ for id_, word in enumerate(pieces)}
        self.facts: dict[str, Any] = {"vocab": len(pieces), "pieces": pieces}

    def ragged(self, sentences: Sequence[Sequence[str]]) -> Ragged:
        ids = [self.ids[word] for words in sentences for word in words]
        return Ragged(np.array(ids, np.int32), np.array([len(words) for words in sentences]))


def english_french() -> Source:
    """the black cat does not see a dog → le chat noir ne voit pas un chien.  Best: 1.

    Most adjectives follow their noun, articles and adjectives agree with its gender, and a negation
    surrounds the verb. `Examples.alignment` is the English word that each word comes from.
    """
    return _translation("french")


def english_chinese() -> Source:
    """the cat sleeps in a garden → 那 只 猫 在 一 座 花园 里 睡觉.  Best: 1.

    A measure word precedes each noun, and the place precedes the verb. `Examples.alignment` is the
    English word that each word comes from.
    """
    return _translation("chinese")


def _translation(language: str) -> Source:
    vocabulary = _Vocabulary(_words(language))

    def make(draws: Draws) -> Examples:
        sentences = [_sentence(_Choices(bits)) for bits in draws.bits((CHOICES,))]
        targets = [translations[language] for _, translations in sentences]
        return Examples(
            tokens=vocabulary.ragged([english for english, _ in sentences]),
            target=vocabulary.ragged([[word for word, _ in target] for target in targets]),
            alignment=np.array([at for target in targets for _, at in target], np.int32),
        )

    lengths = {"max_length": MOST_ENGLISH, "max_target": MOST_TARGET[language]}
    return Generated(make, form="pairs", best=ALL, **lengths, **vocabulary.facts)


SENTENCES = 3  # of a story
MOST_STORY = 9  # words of a sentence: the cat sees a dog in the garden .


def stories(pairs: bool = False) -> Source:
    """a cat sleeps . the cat sees a dog in the garden . the cat runs . — a story has one subject.

    The first noun determines two later ones; all other words are drawn. The lowest possible loss
    is 1.021 nats per word, that of the 19.5 words after the first of a story on average.

    With `pairs`, the examples are two sentences, and the label tells whether they have the same
    subject, so that the second may follow the first.  After Devlin et al. 2019, §3.1.  Best: 1.
    """
    nouns, places = ([entry[0] for entry in word_list(table)] for table in (NOUNS, PLACES))
    prepositions = [entry[0] for entry in word_list(PREPOSITIONS)]
    verbs = {kind: [verb[0] for verb in word_list(kind)] for kind in (TRANSITIVE, INTRANSITIVE)}
    vocabulary = _Vocabulary(
        [
            "the",
            "a",
            ".",
            *nouns,
            *places,
            *prepositions,
            *(x for kind in verbs.values() for x in kind),
        ]
    )

    def sentence(choices: _Choices, article: str, subject: str) -> list[str]:
        kind = choices.of((TRANSITIVE, INTRANSITIVE))
        words = [article, subject, choices.of(verbs[kind])]
        words += ["a", choices.of(nouns)] if kind == TRANSITIVE else []
        if choices.happens(2):
            words += [choices.of(prepositions), "the", choices.of(places)]
        return [*words, "."]

    def make(draws: Draws) -> Examples:
        rows, labels, segments = list[list[int]](), list[int](), list[int]()
        for bits in draws.bits((CHOICES,)):
            choices = _Choices(bits)
            number, same = choices.of(range(len(nouns))), choices.happens(2)
            other = choices.of(range(1, len(nouns))) if pairs and not same else 0
            subjects = [number] + [(number + other) % len(nouns)] * (1 if pairs else SENTENCES - 1)
            ids = [
                [vocabulary.ids[word] for word in sentence(choices, article, nouns[subject])]
                for article, subject in zip(["a", "the", "the"], subjects, strict=False)
            ]
            if pairs:
                ids = [[*part, BOS] for part in ids]  # which separates, too
                segments += [0] * len(ids[0]) + [1] * len(ids[1])
                labels.append(int(same))
            rows.append([id_ for part in ids for id_ in part] + [EOS] * (not pairs))
        lengths = np.array([len(row) for row in rows])
        tokens = Ragged(np.array([id_ for row in rows for id_ in row], np.int32), lengths)
        if not pairs:
            return Examples(tokens=tokens)
        label_N, segment_N = np.array(labels, np.int32), np.array(segments, np.int32)
        return Examples(tokens=tokens, labels=label_N, segments=segment_N)

    if not pairs:
        length = SENTENCES * MOST_STORY + 1
        return Generated(make, form="text", max_length=length, **vocabulary.facts)
    facts = {"max_length": 2 * (MOST_STORY + 1), "classes": 2, "label_names": ("other", "next")}
    return Generated(make, form="labels", best=ALL, **facts, **vocabulary.facts)


OPENINGS = [(), ("yesterday",), ("today",), ("in", "the", "morning"), ("last", "night")]
KINDS = ["old", "small", "big", "white", "famous"]
ANIMALS = ["animal", "dog", "horse", "cat", "sheep", "donkey", "robot", "elephant"]
WAYS = ["street", "river", "bridge", "field", "road", "valley", "lake", "square"]
VERBS = [("cross", "crossed"), ("enter", "entered"), ("leave", "left"), ("reach", "reached")]
OF_ANIMALS = ["tired", "lazy", "afraid", "sick", "hungry", "weak"]
OF_WAYS = ["wide", "deep", "long", "muddy", "crowded", "steep"]
MOST_PRONOUN = 18  # the passive with two adjectives


def pronoun(at: str | None = None) -> Source:
    """the animal did not cross the street because it was too tired: who was?  Best: 1.

    The label is the noun that "it" stands for: the first of the sentence, or the second. The last
    word determines whether it is the animal or the place; either may come first, as in "the street
    was not crossed by the animal because it was too wide".  After Levesque et al. 2012 (Winograd).

    With at="it" or at="last" there is no label, but a tag, the noun itself, at "it" or at the last
    word. Before the last word both nouns are equally likely.
    """
    if at not in (None, "it", "last"):
        raise UserError(f"pronoun: at={at!r} must be None, 'it' or 'last'")
    words = ["the", "did", "was", "not", "by", "because", "it", "too"]
    words += [*KINDS, *ANIMALS, *WAYS, *(word for start in OPENINGS for word in start)]
    words += [form for forms in VERBS for form in forms] + OF_ANIMALS + OF_WAYS
    vocabulary = _Vocabulary(words)

    def sentence(choices: _Choices) -> tuple[list[str], int]:
        opening, forms = choices.of(OPENINGS), choices.of(VERBS)
        animal, way = (
            ["the", *([choices.of(KINDS)] if choices.happens(2) else []), choices.of(nouns)]
            for nouns in (ANIMALS, WAYS)
        )
        passive, of_way = choices.happens(2), choices.happens(2)
        clause = [*animal, "did", "not", forms[0], *way]
        if passive:
            clause = [*way, "was", "not", forms[1], "by", *animal]
        why = choices.of(OF_WAYS if of_way else OF_ANIMALS)
        return [*opening, *clause, "because", "it", "was", "too", why], int(passive != of_way)

    def make(draws: Draws) -> Examples:
        sentences = [sentence(_Choices(bits)) for bits in draws.bits((CHOICES,))]
        tokens = vocabulary.ragged([words for words, _ in sentences])
        if at is None:
            return Examples(tokens=tokens, labels=np.array([n for _, n in sentences], np.int32))
        tags, scored = list[int](), list[bool]()
        for words, label in sentences:
            nouns = [word for word in words if word in ANIMALS or word in WAYS]
            tags += [vocabulary.ids[nouns[label]]] * len(words)
            asked = words.index("it") if at == "it" else len(words) - 1
            scored += [place == asked for place in range(len(words))]
        return Examples(tokens=tokens, tags=np.array(tags, np.int32), scored=np.array(scored))

    def last_word(examples: Examples) -> float:
        """Returns the accuracy of the most frequent label of sentences with the same last word."""
        last_N = examples.tokens.ids[np.cumsum(examples.tokens.lengths) - 1]
        return most_frequent(last_N, examples.labels)

    facts = {"max_length": MOST_PRONOUN, "best": ALL, **vocabulary.facts}
    if at is not None:
        return Generated(make, form="tags", shortcuts={"either noun": lambda _: 0.5}, **facts)
    facts |= {"classes": 2, "label_names": ("first", "second")}
    return Generated(make, form="labels", shortcuts={"last word": last_word}, **facts)


DATASETS: dict[str, Callable[..., Source]] = {
    "english_french": english_french,
    "english_chinese": english_chinese,
    "pronoun": pronoun,
    "stories": stories,
}
