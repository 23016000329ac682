"""Registries that a user's file may extend, and the types that their entries may have."""

from collections.abc import MutableMapping
from types import FunctionType
from typing import Any

from tfm.data.datasets import DATASETS
from tfm.data.tokenizers import TOKENIZERS
from tfm.evaluate.table import EVALUATORS
from tfm.layers.block import FEEDFORWARDS, MIXERS
from tfm.layers.context import Mixer
from tfm.layers.norm import NORMS, Norm
from tfm.layers.recurrent import CELLS, Cell
from tfm.models.spec import FAMILIES, Family
from tfm.objectives.table import OBJECTIVES, Objective
from tfm.ops.mask import Mask
from tfm.ops.masks import MASKS
from tfm.ops.normalizers import NORMALIZERS, Normalizer
from tfm.ops.positions import JOINS, POSITIONS, Position
from tfm.ops.scores import SCORES, Score
from tfm.optim.optimizer import OPTIMIZERS, SCHEDULES

REGISTRIES: dict[str, tuple[MutableMapping[str, Any], *tuple[type, ...]]] = {
    "SCORES": (SCORES, Score),
    "MASKS": (MASKS, Mask, FunctionType),
    "NORMALIZERS": (NORMALIZERS, Normalizer, FunctionType),
    "POSITIONS": (POSITIONS, Position, FunctionType),
    "JOINS": (JOINS, FunctionType),
    "NORMS": (NORMS, Norm),
    "MIXERS": (MIXERS, Mixer, FunctionType),
    "FEEDFORWARDS": (FEEDFORWARDS, type),
    "CELLS": (CELLS, Cell),
    "FAMILIES": (FAMILIES, Family),
    "DATASETS": (DATASETS, FunctionType),
    "TOKENIZERS": (TOKENIZERS, FunctionType),
    "OBJECTIVES": (OBJECTIVES, Objective, FunctionType, type),
    "EVALUATORS": (EVALUATORS, FunctionType, type),
    "OPTIMIZERS": (OPTIMIZERS, FunctionType),
    "SCHEDULES": (SCHEDULES, FunctionType, type),
}
TABLES = {name: table for name, (table, *_) in REGISTRIES.items()}
ENTRIES = {name: tuple(kinds) for name, (_, *kinds) in REGISTRIES.items()}
