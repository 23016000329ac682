"""Registries that a user's file may extend, and the types that their entries may have."""

import types
from collections.abc import MutableMapping
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

TABLES: dict[str, MutableMapping[str, Any]] = {
    "SCORES": SCORES,
    "MASKS": MASKS,
    "NORMALIZERS": NORMALIZERS,
    "POSITIONS": POSITIONS,
    "JOINS": JOINS,
    "NORMS": NORMS,
    "MIXERS": MIXERS,
    "FEEDFORWARDS": FEEDFORWARDS,
    "CELLS": CELLS,
    "FAMILIES": FAMILIES,
    "DATASETS": DATASETS,
    "TOKENIZERS": TOKENIZERS,
    "OBJECTIVES": OBJECTIVES,
    "EVALUATORS": EVALUATORS,
    "OPTIMIZERS": OPTIMIZERS,
    "SCHEDULES": SCHEDULES,
}
ENTRIES: dict[str, tuple[type, ...]] = {
    "SCORES": (Score,),
    "MASKS": (Mask, types.FunctionType),
    "NORMALIZERS": (Normalizer, types.FunctionType),
    "POSITIONS": (Position, types.FunctionType),
    "JOINS": (types.FunctionType,),
    "NORMS": (Norm,),
    "MIXERS": (Mixer, types.FunctionType),
    "FEEDFORWARDS": (type,),
    "CELLS": (Cell,),
    "FAMILIES": (Family,),
    "DATASETS": (types.FunctionType,),
    "TOKENIZERS": (types.FunctionType,),
    "OBJECTIVES": (Objective, types.FunctionType, type),
    "EVALUATORS": (types.FunctionType, type),
    "OPTIMIZERS": (types.FunctionType,),
    "SCHEDULES": (types.FunctionType, type),
}
