"""Word vectors: similarity as people judge it, analogies, and the two matrices of Word2Vec."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict

from tfm.config.names import UserError, suggest
from tfm.data.dataset import Dataset
from tfm.data.files import find
from tfm.data.reader import Reader
from tfm.evaluate.evaluator import EvalContext, Evaluator, Result
from tfm.evaluate.metric import HIGH, LOW, Metric
from tfm.objectives.base import Objective
from tfm.objectives.scores import correlations

BLOCK = 1000  # rows of a product that are held at a time


@dataclasses.dataclass(frozen=True, kw_only=True)
class WordVectors(Evaluator):
    """Measures how close the product of both matrices is to the identity, and `files` of word pairs
    or analogies; each file is a slice."""

    computes = (
        Metric("distance", LOW, most=1.0),
        Metric("least", LOW, most=1.0),
        Metric("own_word", HIGH, most=1.0),
        Metric("pseudo_inverse", HIGH, -1.0, 1.0),
    )
    files: tuple = ()

    def refuses(self, spec: Any, objective: Objective, dataset: Dataset) -> str | None:
        return None if spec.word_vectors else "measures the vectors of Word2Vec models only"

    def evaluate(self, context: EvalContext, dataset: Dataset) -> Result:
        params = context.variables["params"]
        input_VD = np.asarray(params["input"])
        output_VD = np.asarray(params.get("output", input_VD))
        ids = word_ids(context.reader) if self.files else {}
        vocab = slice(0, dataset.vocab)
        identity = near_identity(input_VD[vocab], output_VD[vocab])
        return Result(identity, {path: measured(input_VD, ids, path) for path in self.files})


def word_ids(reader: Reader) -> dict[str, int]:
    """Returns the id of each word in lower case; of words that differ in case only, the first."""
    if reader.numbers:
        raise UserError("the data have no words: their ids cannot be decoded")
    ids: dict[str, int] = {}
    for id_ in range(reader.vocab):
        ids.setdefault(reader.decode([id_]).strip().lower(), id_)
    return ids


def measured(vectors_VD: np.ndarray, ids: Mapping[str, int], path: str) -> dict[str, Any]:
    """Evaluates vectors on a file: of pairs with a number (WordSim-353, SimLex-999), or of
    analogies in sections (": capital-common-countries")."""
    file = find("--words", path)
    lines = file.read_text(encoding="utf-8").splitlines()
    if any(line.startswith(": ") for line in lines):
        return analogies(vectors_VD, ids, lines)
    return similarity(vectors_VD, ids, lines, str(file))


def similarity(
    vectors_VD: np.ndarray, ids: Mapping[str, int], lines: Sequence[str], name: str = "file"
) -> dict[str, Any]:
    """Computes Spearman's correlation of cosines with people's ratings.  Finkelstein et al. 2002.

    Pairs with an unknown word are left out, and counted.
    """
    pairs, ratings, count = [], [], 0
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = line.split("\t") if "\t" in line else line.split()
        try:
            value = float(parts[2])
        except (IndexError, ValueError):
            if count == 0:  # a header
                continue
            where = f"{name}, line {number}"
            raise UserError(f"{where}: not two words and a number: {line!r}") from None
        count += 1
        first, second = (ids.get(word.strip().lower()) for word in parts[:2])
        if first is not None and second is not None:
            pairs.append((first, second))
            ratings.append(value)
    if len(pairs) < 3:
        raise UserError(f"{name}: of {count} pairs of words {len(pairs)} are known, too few")
    unit_VD = _unit(vectors_VD)
    first_N, second_N = np.array(pairs).T
    cosine_N = np.sum(unit_VD[first_N] * unit_VD[second_N], 1)
    rho = correlations(np.array(ratings), cosine_N)["spearman"]
    return {"spearman": rho, "pairs": len(pairs), "unknown": count - len(pairs)}


def analogies(
    vectors_VD: np.ndarray, ids: Mapping[str, int], lines: Sequence[str]
) -> dict[str, Any]:
    """Computes how often the word nearest to b − a + c, other than these, is right.  Mikolov et
    al. 2013a, §4.1."""
    rows = [line.lower().split() for line in lines if line.strip() and not line.startswith(":")]
    questions = [[ids[w] for w in row] for row in rows if len(row) == 4 and ids.keys() >= {*row}]
    if not questions:
        raise UserError(f"of {len(rows)} analogies none has only known words")
    unit_VD, question_N4, right = _unit(vectors_VD), np.array(questions), 0
    for begin in range(0, len(question_N4), BLOCK):
        a_N, b_N, c_N, d_N = question_N4[begin : begin + BLOCK].T
        score_NV = (unit_VD[b_N] - unit_VD[a_N] + unit_VD[c_N]) @ unit_VD.T
        for word_N in (a_N, b_N, c_N):
            score_NV[np.arange(len(word_N)), word_N] = -np.inf
        right += int(np.sum(score_NV.argmax(1) == d_N))
    asked = len(questions)
    return {"accuracy": right / asked, "asked": asked, "unknown": len(rows) - asked}


def vectors_of(loaded: Any) -> np.ndarray:
    """Returns the vectors of a model's tokens (VD)."""
    tables = flatten_dict(loaded.params, sep="/")
    for path in ("input", "embed/token/embedding", "source_embed/token/embedding"):
        if path in tables:
            return np.asarray(tables[path], np.float32)
    raise UserError(f"{loaded.folder}: its model has no vectors of tokens")


def neighbors(loaded: Any, words: Sequence[str], top: int = 10) -> list[dict[str, Any]]:
    """Returns the words nearest to one word, or to b − a + c of three, with their cosines.

    Words are unit vectors; those that were given are left out.
    """
    reader, vectors_VD = loaded.reader, vectors_of(loaded)
    count = min(reader.vocab, len(vectors_VD))
    spelled = [name.strip() for name in reader.names(range(count))]
    ids: dict[str, int] = {}
    for spelling in (spelled, [word.lower() for word in spelled]):
        for id_, word in enumerate(spelling):
            ids.setdefault(word, id_)
    asked = [ids.get(word, ids.get(word.lower(), -1)) for word in words]
    if -1 in asked:
        word = words[asked.index(-1)]
        near = suggest(word, ids).partition("; known")[0]
        raise UserError(f"the run has no vector for {word!r}{near}")
    signs = [1.0] if len(asked) == 1 else [-1.0, 1.0, 1.0]
    unit_VD = _unit(vectors_VD[:count])
    sum_D = np.sum([sign * unit_VD[id_] for id_, sign in zip(asked, signs, strict=True)], 0)
    cosine_V = unit_VD @ (sum_D / max(float(np.linalg.norm(sum_D)), 1e-12))
    cosine_V[asked] = -np.inf
    order = np.argsort(-cosine_V, kind="stable")[: min(top, count - len(set(asked)))].tolist()
    return [{"word": spelled[x], "id": x, "cosine": float(cosine_V[x])} for x in order]


def near_identity(input_VD: np.ndarray, output_VD: np.ndarray) -> dict[str, float]:
    """Measures how close the product of both matrices, A = W·W′ (V × V), is to the identity.

    `distance` is min over α of ‖αA − I‖ / ‖I‖. It is at least `least`, √(1 − D/V), since the rank
    of A is at most D. `own_word` is the share of words that give themselves the highest logit.
    `pseudo_inverse` is the cosine between W′ and the pseudo-inverse of W.
    """
    w_VD, o_VD = np.asarray(input_VD, np.float64), np.asarray(output_VD, np.float64)
    vocab, width = w_VD.shape
    trace = float(np.sum(w_VD * o_VD))
    square = float(np.sum((w_VD.T @ w_VD) * (o_VD.T @ o_VD)))  # ‖A‖², without A
    share = trace**2 / (vocab * square) if square and trace > 0 else 0.0
    own_word = 0
    for begin in range(0, vocab, BLOCK):
        best = (w_VD[begin : begin + BLOCK] @ o_VD.T).argmax(1)
        own_word += int(np.sum(best == np.arange(begin, begin + len(best))))
    inverse_DV = np.linalg.pinv(w_VD)
    norms = float(np.linalg.norm(inverse_DV) * np.linalg.norm(o_VD))
    return {
        "distance": float(np.sqrt(max(1 - share, 0.0))),
        "least": float(np.sqrt(max(1 - width / vocab, 0.0))),
        "own_word": own_word / vocab,
        "pseudo_inverse": float(np.sum(inverse_DV * o_VD.T)) / norms if norms else 0.0,
    }


def _unit(vectors_VD: np.ndarray) -> np.ndarray:
    vectors_VD = np.asarray(vectors_VD, np.float32)
    return vectors_VD / np.maximum(np.linalg.norm(vectors_VD, axis=1, keepdims=True), 1e-12)
