"""The registry of evaluators.

A config names them at `evaluate.during` and `evaluate.after`, with their options:
`generation(beams=4, split='test', rows=200)`. A user's file adds its own by defining `EVALUATORS`:
subclasses of `Evaluator`, or functions with options that return one.
"""

from collections.abc import Callable

from tfm.evaluate.alignment import Alignment
from tfm.evaluate.baselines import Baselines
from tfm.evaluate.entities import Entities
from tfm.evaluate.evaluator import Evaluator
from tfm.evaluate.generation import Generation
from tfm.evaluate.internals import Internals
from tfm.evaluate.leaks import Leaks
from tfm.evaluate.loss import Floors, Loss
from tfm.evaluate.word_vectors import WordVectors

EVALUATORS: dict[str, Callable[..., Evaluator]] = {
    "loss": Loss,
    "generation": Generation,
    "entities": Entities,
    "alignment": Alignment,
    "word_vectors": WordVectors,
    "baselines": Baselines,
    "floors": Floors,
    "leaks": Leaks,
    "internals": Internals,
}
