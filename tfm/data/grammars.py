"""Sentences of small grammars, of which the truth is known: translations with their word alignment,
and pronouns whose referent a later word decides. The ids are words."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfm.config.names import UserError
from tfm.data.dataset import FIRST, Examples, Generated, Ragged, Source
from tfm.data.draws import Draws
from tfm.data.synthetic import ALL


class Noun(NamedTuple):
    english: str
    french: str
    feminine: bool
    chinese: str
    measure: str  # the Chinese word that stands between a number or 那 and the noun


NOUNS = [
    Noun("cat", "chat", False, "猫", "只"),
    Noun("dog", "chien", False, "狗", "只"),
    Noun("cow", "vache", True, "牛", "头"),
    Noun("girl", "fille", True, "女孩", "个"),
    Noun("boy", "garçon", False, "男孩", "个"),
    Noun("woman", "femme", True, "女人", "个"),
    Noun("king", "roi", False, "国王", "个"),
    Noun("queen", "reine", True, "女王", "个"),
    Noun("car", "voiture", True, "车", "辆"),
    Noun("book", "livre", False, "书", "本"),
    Noun("apple", "pomme", True, "苹果", "个"),
    Noun("flower", "fleur", True, "花", "朵"),
]
PLACES = [
    Noun("garden", "jardin", False, "花园", "座"),
    Noun("house", "maison", True, "房子", "座"),
    Noun("city", "ville", True, "城市", "座"),
    Noun("forest", "forêt", True, "森林", "片"),
    Noun("station", "gare", True, "车站", "个"),
    Noun("bridge", "pont", False, "桥", "座"),
]
# English; French masculine, feminine, whether it stands before its noun; Chinese
ADJECTIVES = [
    ("red", ("rouge", "rouge"), False, "红"),
    ("black", ("noir", "noire"), False, "黑"),
    ("green", ("vert", "verte"), False, "绿"),
    ("strange", ("bizarre", "bizarre"), False, "奇怪"),
    ("small", ("petit", "petite"), True, "小"),
    ("big", ("grand", "grande"), True, "大"),
    ("young", ("jeune", "jeune"), True, "年轻"),
    ("beautiful", ("beau", "belle"), True, "美丽"),
]
# English with and without "does not"; French; Chinese
TRANSITIVE = [
    ("sees", "see", "voit", "看见"),
    ("wants", "want", "veut", "要"),
    ("takes", "take", "prend", "拿"),
    ("finds", "find", "trouve", "找到"),
    ("draws", "draw", "dessine", "画"),
    ("follows", "follow", "suit", "跟着"),
]
INTRANSITIVE = [
    ("sleeps", "sleep", "dort", "睡觉"),
    ("runs", "run", "court", "跑步"),
    ("sings", "sing", "chante", "唱歌"),
    ("falls", "fall", "tombe", "跌倒"),
]
# English; French; the Chinese word after the place, which 在 stands before
PREPOSITIONS = [
    ("in", "dans", "里"),
    ("behind", "derrière", "后面"),
    ("before", "devant", "前面"),
    ("under", "sous", "下面"),
]
Words = list[tuple[str, int]]  # words, and where in the English sentence each comes from


class _Choices:
    """The draws of one row, each used once."""

    def __init__(self, bits: np.ndarray):
        self.bits = iter(bits.tolist())

    def of(self, options: Sequence[Any]) -> Any:
        return options[(next(self.bits) >> 32) * len(options) >> 32]

    def happens(self, one_in: int) -> bool:
        return self.of(range(one_in)) == 0


def _phrase(choices: _Choices, nouns: Sequence[Noun], english: list[str]) -> dict[str, Words]:
    """Article, perhaps an adjective, and a noun: added to the English, and in the others."""
    definite, noun = choices.of((True, False)), choices.of(nouns)
    adjective = choices.of(ADJECTIVES) if choices.happens(2) else None
    at = len(english)
    english += [
        "the" if definite else "a",
        *([adjective[0]] if adjective else []),
        noun.english,
    ]
    last = len(english) - 1
    article = ("le", "la") if definite else ("un", "une")
    french: Words = [(article[noun.feminine], at), (noun.french, last)]
    chinese: Words = [("那" if definite else "一", at), (noun.measure, last), (noun.chinese, last)]
    if adjective:
        _, forms, before, sign = adjective
        form = forms[noun.feminine]
        french.insert(1 if before else 2, (form, at + 1))
        chinese[2:2] = [(sign, at + 1), ("的", at + 1)]
    return {"french": french, "chinese": chinese}


def _sentence(choices: _Choices) -> tuple[list[str], dict[str, Words]]:
    """An English sentence, and its translations."""
    english: list[str] = []
    subject = _phrase(choices, NOUNS, english)
    negated, transitive = choices.happens(3), choices.happens(2)
    verb = choices.of(TRANSITIVE if transitive else INTRANSITIVE)
    denied = len(english) + 1
    english += ["does", "not", verb[1]] if negated else [verb[0]]
    at = len(english) - 1
    thing = _phrase(choices, NOUNS, english) if transitive else {}
    place, before = {}, None
    where = choices.of(PREPOSITIONS) if choices.happens(2) else None
    if where:
        before = len(english)
        english.append(where[0])
        place = _phrase(choices, PLACES, english)
    french = [*subject["french"], (verb[2], at), *thing.get("french", ())]
    chinese = [(verb[3], at), *thing.get("chinese", ())]
    if negated:  # ne … pas; 不
        after = len(subject["french"])
        french[after : after + 1] = [("ne", denied), (verb[2], at), ("pas", denied)]
        chinese.insert(0, ("不", denied))
    if where and before is not None:  # in Chinese the place stands before the verb
        french += [(where[1], before), *place["french"]]
        chinese = [("在", before), *place["chinese"], (where[2], before), *chinese]
    return english, {"french": french, "chinese": [*subject["chinese"], *chinese]}


CHOICES = 32  # draws for a sentence, which is more than any needs
MOST_ENGLISH = 13  # the red cat does not see the red dog in the red garden
MOST_TARGET = {"french": 13, "chinese": 19}


def _english_words() -> list[str]:
    words = [adjective[0] for adjective in ADJECTIVES] + [noun.english for noun in NOUNS + PLACES]
    words += [form for verb in TRANSITIVE + INTRANSITIVE for form in verb[:2]]
    return ["the", "a", "does", "not", *words, *(where[0] for where in PREPOSITIONS)]


def _target_words(language: str) -> list[str]:
    if language == "french":
        words = ["le", "la", "un", "une", "ne", "pas"]
        words += [noun.french for noun in NOUNS + PLACES]
        words += [form for adjective in ADJECTIVES for form in adjective[1]]
        words += [verb[2] for verb in TRANSITIVE + INTRANSITIVE]
        return words + [where[1] for where in PREPOSITIONS]
    words = ["那", "一", "的", "不", "在", *(noun.chinese for noun in NOUNS + PLACES)]
    words += [noun.measure for noun in NOUNS + PLACES]
    words += [adjective[3] for adjective in ADJECTIVES]
    words += [verb[3] for verb in TRANSITIVE + INTRANSITIVE]
    return words + [where[2] for where in PREPOSITIONS]


class _Vocabulary:
    """Words by their ids, from FIRST on."""

    def __init__(self, words: Sequence[str]):
        self.words = list(dict.fromkeys(words))
        self.ids = {word: id_ for id_, word in enumerate(self.words, FIRST)}

    def encode(self, text: str) -> list[int]:
        unknown = next((word for word in text.split() if word not in self.ids), None)
        if unknown is not None:
            raise UserError(f"{unknown!r} is not a word of this grammar")
        return [self.ids[word] for word in text.split()]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        return " ".join(self.words[id_ - FIRST] for id_ in ids if id_ >= FIRST)

    def facts(self) -> dict[str, Any]:
        vocab = FIRST + len(self.words)
        return {"vocab": vocab, "encode": self.encode, "decode": self.decode}

    def ragged(self, rows: Sequence[Sequence[str]]) -> Ragged:
        ids = [self.ids[word] for row in rows for word in row]
        return Ragged(np.array(ids, np.int32), np.array([len(row) for row in rows]))


def english_french() -> Source:
    """the black cat does not see a dog → le chat noir ne voit pas un chien.  Best: 1.

    Most adjectives follow their noun, articles and adjectives agree with its gender, and a negation
    stands around the verb. `Examples.alignment` is the English word that each word comes from.
    """
    return _translation("french")


def english_chinese() -> Source:
    """the cat sleeps in a garden → 那 只 猫 在 一 座 花园 里 睡觉.  Best: 1.

    A measure word stands before each noun, and the place before the verb. `Examples.alignment` is
    the English word that each word comes from.
    """
    return _translation("chinese")


def _translation(language: str) -> Source:
    vocabulary = _Vocabulary([*_english_words(), *_target_words(language)])

    def make(draws: Draws) -> Examples:
        sentences = [_sentence(_Choices(bits)) for bits in draws.bits((CHOICES,))]
        targets = [translations[language] for _, translations in sentences]
        return Examples(
            tokens=vocabulary.ragged([english for english, _ in sentences]),
            target=vocabulary.ragged([[word for word, _ in target] for target in targets]),
            alignment=np.array([at for target in targets for _, at in target], np.int32),
        )

    return Generated(
        make,
        form="pairs",
        max_length=MOST_ENGLISH,
        max_target=MOST_TARGET[language],
        best=ALL,
        **vocabulary.facts(),
    )


OPENINGS = [(), ("yesterday",), ("today",), ("in", "the", "morning"), ("last", "night")]
KINDS_OF = ["old", "small", "big", "white", "famous"]
ANIMALS = ["animal", "dog", "horse", "cat", "sheep", "donkey", "robot", "elephant"]
WAYS = ["street", "river", "bridge", "field", "road", "valley", "lake", "square"]
DONE = [("cross", "crossed"), ("enter", "entered"), ("leave", "left"), ("reach", "reached")]
OF_ANIMALS = ["tired", "lazy", "afraid", "sick", "hungry", "weak"]
OF_WAYS = ["wide", "deep", "long", "muddy", "crowded", "steep"]


def pronoun(at: str | None = None) -> Source:
    """the animal did not cross the street because it was too tired: who was?  Best: 1.

    The label is the noun that "it" stands for: the first of the sentence, or the second. The last
    word decides whether it is the animal or the place; either may come first, as in "the street was
    not crossed by the animal because it was too wide".  After Levesque et al. 2012 (Winograd).

    With at="it" or at="last" there is no label, but a tag, the noun itself, which is wanted at "it"
    or at the last word. Before that word both nouns are as likely.
    """
    if at not in (None, "it", "last"):
        raise UserError(f"pronoun: at={at!r} must be None, 'it' or 'last'")
    words = ["the", "did", "was", "not", "by", "because", "it", "too", *KINDS_OF, *ANIMALS, *WAYS]
    words += [word for opening in OPENINGS for word in opening]
    words += [form for forms in DONE for form in forms] + OF_ANIMALS + OF_WAYS
    vocabulary = _Vocabulary(words)

    def sentence(choices: _Choices) -> tuple[list[str], int]:
        opening, forms = choices.of(OPENINGS), choices.of(DONE)
        animal, way = (
            ["the", *([choices.of(KINDS_OF)] if choices.happens(2) else []), choices.of(nouns)]
            for nouns in (ANIMALS, WAYS)
        )
        passive, of_way = choices.happens(2), choices.happens(2)
        said = (
            [*way, "was", "not", forms[1], "by", *animal]
            if passive
            else [*animal, "did", "not", forms[0], *way]
        )
        why = choices.of(OF_WAYS if of_way else OF_ANIMALS)
        return [*opening, *said, "because", "it", "was", "too", why], int(passive != of_way)

    def make(draws: Draws) -> Examples:
        sentences = [sentence(_Choices(bits)) for bits in draws.bits((CHOICES,))]
        labels = np.array([label for _, label in sentences], np.int32)
        return Examples(tokens=vocabulary.ragged([words for words, _ in sentences]), labels=labels)

    def tagged(draws: Draws) -> Examples:
        tags: list[int] = []
        scored: list[bool] = []
        sentences = [sentence(_Choices(bits)) for bits in draws.bits((CHOICES,))]
        for words, label in sentences:
            nouns = [word for word in words if word in ANIMALS or word in WAYS]
            tags += [vocabulary.ids[nouns[label]]] * len(words)
            asked = words.index("it") if at == "it" else len(words) - 1
            scored += [place == asked for place in range(len(words))]
        return Examples(
            tokens=vocabulary.ragged([words for words, _ in sentences]),
            tags=np.array(tags, np.int32),
            scored=np.array(scored),
        )

    def last_word(examples: Examples) -> float:
        """Name the more frequent label of sentences that end alike."""
        assert examples.labels is not None
        last_N = examples.tokens.ids[np.cumsum(examples.tokens.lengths) - 1]
        count_VC = np.zeros((FIRST + len(vocabulary.words), 2))
        np.add.at(count_VC, (last_N, examples.labels), 1)
        return float(count_VC.max(1).sum() / count_VC.sum())

    more = {"max_length": 18, "best": ALL, **vocabulary.facts()}  # the passive with two adjectives
    if at is not None:
        return Generated(tagged, form="tags", shortcuts={"either noun": lambda _: 0.5}, **more)
    return Generated(
        make,
        form="labels",
        classes=2,
        label_names=("first", "second"),
        shortcuts={"last word": last_word},
        **more,
    )


DATASETS: dict[str, Callable[..., Source]] = {
    "english_french": english_french,
    "english_chinese": english_chinese,
    "pronoun": pronoun,
}
