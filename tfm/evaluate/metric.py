"""Metrics: which values of a number are better, which are possible, and in which unit they are.

The objective or evaluator that computes a metric declares it once. The declaration is written with
the results, so tables, progress bars and verdicts need no other source.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

HIGH, LOW, NEITHER = "high", "low", "neither"


@dataclasses.dataclass(frozen=True)
class Metric:
    """The declaration of a metric."""

    name: str
    better: str  # HIGH, LOW or NEITHER; see `objectives.base.check_declared`
    least: float = 0.0
    most: float = math.inf
    unit: str = ""
    headline: bool = False  # progress bars show it

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> "Metric":
        """Reads a declaration from a JSON file, where None stands for no bound."""
        bounds: dict[str, Any] = {"least": -math.inf, "most": math.inf}
        return cls(**{key: bounds[key] if x is None else x for key, x in tree.items()})
