"""What vectors of words know: similarity as people see it, analogies, and how the two matrices of
Word2Vec relate."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfm.config.names import UserError
from tfm.data.dataset import Dataset
from tfm.data.files import find
from tfm.objectives.scores import correlations

BLOCK = 1000  # rows of a product that are held at a time


def word_ids(dataset: Dataset) -> dict[str, int]:
    """The id of each word in lower case; of those that differ only in case, the first one's."""
    if dataset.decode is None:
        raise UserError("the data have no words: their ids cannot be decoded")
    found: dict[str, int] = {}
    for id_ in range(dataset.vocab):
        found.setdefault(dataset.decode([id_]).strip().lower(), id_)
    return found


def measured(vectors_VD: np.ndarray, ids: Mapping[str, int], path: str) -> dict[str, Any]:
    """What the vectors reach on a file: of pairs with a number (WordSim-353, SimLex-999), or of
    analogies in sections (": capital-common-countries")."""
    file = find("--words", path)
    lines = file.read_text(encoding="utf-8").splitlines()
    if any(line.startswith(": ") for line in lines):
        return analogies(vectors_VD, ids, lines)
    return similarity(vectors_VD, ids, lines, str(file))


def similarity(
    vectors_VD: np.ndarray, ids: Mapping[str, int], lines: Sequence[str], name: str = "file"
) -> dict[str, Any]:
    """Spearman's correlation of the cosine with what people said; pairs with an unknown word are
    left out, and counted.  Finkelstein et al. 2002."""
    pairs, said = [], []
    count = 0
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = line.split("\t") if "\t" in line else line.split()
        try:
            value = float(parts[2])
        except (IndexError, ValueError):
            if count == 0:  # a header
                continue
            raise UserError(
                f"{name}, line {number}: not two words and a number: {line!r}"
            ) from None
        count += 1
        one, other = (ids.get(word.strip().lower()) for word in parts[:2])
        if one is not None and other is not None:
            pairs.append((one, other))
            said.append(value)
    if len(pairs) < 3:
        raise UserError(f"{name}: of {count} pairs of words {len(pairs)} are known, too few")
    unit_VD = _unit(vectors_VD)
    one_N, other_N = np.array(pairs).T
    cosine_N = np.sum(unit_VD[one_N] * unit_VD[other_N], 1)
    rho = correlations(np.array(said), cosine_N)["spearman"]
    return {"spearman": rho, "pairs": len(pairs), "unknown": count - len(pairs)}


def analogies(
    vectors_VD: np.ndarray, ids: Mapping[str, int], lines: Sequence[str]
) -> dict[str, Any]:
    """a is to b as c is to …: the word nearest to b − a + c, those three left out.  Mikolov et al.
    2013a, §4.1."""
    asked, count = [], 0
    for line in lines:
        if line.startswith(":") or not line.strip():
            continue
        count += 1
        found = [ids.get(word.lower()) for word in line.split()]
        if len(found) == 4 and None not in found:
            asked.append(found)
    if not asked:
        raise UserError(f"of {count} analogies none has only known words")
    unit_VD = _unit(vectors_VD)
    right = 0
    question_N4 = np.array(asked)
    for begin in range(0, len(question_N4), BLOCK):
        a_N, b_N, c_N, d_N = question_N4[begin : begin + BLOCK].T
        score_NV = (unit_VD[b_N] - unit_VD[a_N] + unit_VD[c_N]) @ unit_VD.T
        for own_N in (a_N, b_N, c_N):
            score_NV[np.arange(len(own_N)), own_N] = -np.inf
        right += int(np.sum(score_NV.argmax(1) == d_N))
    return {"accuracy": right / len(asked), "asked": len(asked), "unknown": count - len(asked)}


def nearest(
    vectors_VD: np.ndarray, ids: Sequence[int], signs: Sequence[float], top: int
) -> list[tuple[int, float]]:
    """The words nearest to the sum of some words' unit vectors, each with its sign: those words
    left out, with their cosines, the nearest first."""
    unit_VD = _unit(vectors_VD)
    asked_D = np.sum([sign * unit_VD[id_] for id_, sign in zip(ids, signs, strict=True)], 0)
    cosine_V = unit_VD @ (asked_D / max(float(np.linalg.norm(asked_D)), 1e-12))
    cosine_V[list(ids)] = -np.inf
    order = np.argsort(-cosine_V, kind="stable")[: min(top, len(cosine_V) - len(set(ids)))]
    return [(int(id_), float(cosine_V[id_])) for id_ in order]


def near_identity(input_VD: np.ndarray, output_VD: np.ndarray) -> dict[str, float]:
    """How near the product of both matrices, A = W·W′ (V × V), is to the identity.

    `distance` is min over α of ‖αA − I‖ / ‖I‖, which is at least `least`, √(1 − D/V), since the
    rank of A is at most D. `own_word` is the share of words that give themselves the highest logit.
    `pseudo_inverse` is the cosine between W′ and the pseudo-inverse of W.
    """
    w_VD, o_VD = np.asarray(input_VD, np.float64), np.asarray(output_VD, np.float64)
    vocab, width = w_VD.shape
    trace = float(np.sum(w_VD * o_VD))
    square = float(np.sum((w_VD.T @ w_VD) * (o_VD.T @ o_VD)))  # ‖A‖², without A
    share = trace**2 / (vocab * square) if square and trace > 0 else 0.0
    own = 0
    for begin in range(0, vocab, BLOCK):
        best = (w_VD[begin : begin + BLOCK] @ o_VD.T).argmax(1)
        own += int(np.sum(best == np.arange(begin, begin + len(best))))
    inverse_DV = np.linalg.pinv(w_VD)
    norms = float(np.linalg.norm(inverse_DV) * np.linalg.norm(o_VD))
    return {
        "distance": float(np.sqrt(max(1 - share, 0.0))),
        "least": float(np.sqrt(max(1 - width / vocab, 0.0))),
        "own_word": own / vocab,
        "pseudo_inverse": float(np.sum(inverse_DV * o_VD.T)) / norms if norms else 0.0,
    }


def _unit(vectors_VD: np.ndarray) -> np.ndarray:
    vectors_VD = np.asarray(vectors_VD, np.float32)
    return vectors_VD / np.maximum(np.linalg.norm(vectors_VD, axis=1, keepdims=True), 1e-12)
