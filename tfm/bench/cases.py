"""Models whose training steps are timed, and the steps that tfm takes."""

import dataclasses
from typing import Any

import numpy as np

from tfm.bench.turns import Run, timed
from tfm.config.names import read
from tfm.models.spec import model_spec
from tfm.objectives.base import Batch
from tfm.objectives.table import OBJECTIVES
from tfm.optim.optimizer import OptimizerSpec
from tfm.run.spec import TrainSpec
from tfm.runtime import keep_memory
from tfm.train import step as steps

LEARNING_RATE, CLIP = 1e-3, 1.0  # AdamW and gradient clipping, in all implementations


@dataclasses.dataclass(frozen=True)
class Case:
    """A model and its batch. There is no dropout, as in nanoGPT's settings for a CPU."""

    kind: str
    layers: int
    heads: int
    width: int
    length: int
    batch: int
    vocab: int

    def __str__(self) -> str:
        sizes = self.layers, self.heads, self.width, self.length, self.batch, self.vocab
        return "/".join(map(str, sizes))

    @property
    def model(self) -> dict[str, Any]:
        """Returns the model's config."""
        wide = {"width": 4 * self.width}
        transformer = {
            "layers": self.layers,
            "max_length": self.length,
            "attention": {"heads": self.heads},
            "feedforward": {**wide, "bias": False},
            "norm": {"bias": False},
            "position": {"scheme": "learned"},
        }
        biases = {"heads": self.heads, "qkv_bias": True, "out_bias": True}
        biased = {**transformer, "attention": biases}
        post = {"placement": "post"}
        attention = {"heads": 1, "score": "additive", "projections": ("query", "key")}
        lstm = {"cell": "lstm", "hidden": self.width}
        kinds: dict[str, dict[str, Any]] = {
            "decoder": {"family": "decoder", **transformer},
            "encoder": {
                **{"family": "encoder", "outputs": ("masked_lm",), **biased},
                **{"feedforward": wide, "norm": {**post, "embedding": True}},
            },
            "encoder_decoder": {
                **{"family": "encoder_decoder", **biased},
                **{"feedforward": {**wide, "kind": "relu"}, "norm": post},
            },
            "lstm": {"family": "recurrent", **lstm},
            "lstm_attention": {"family": "seq2seq", **lstm, "attention": attention},
        }
        return {**kinds[self.kind], "vocab": self.vocab, "width": self.width}

    @property
    def data(self) -> Batch:
        """Returns random tokens; a quarter of each encoder input is padding."""
        rng = np.random.default_rng(0)
        shape = self.batch, self.length

        def tokens() -> np.ndarray:
            return rng.integers(0, self.vocab, shape, np.int32)

        labels, weights = tokens(), np.ones(shape, np.float32)
        valid = np.tile(np.arange(self.length) < 3 * self.length // 4, (self.batch, 1))
        match self.kind:
            case "decoder" | "lstm":
                return Batch({"tokens_BT": tokens()}, labels, weights)
            case "encoder":
                return Batch({"tokens_BT": tokens(), "valid_BT": valid}, labels, weights)
        inputs = {"source_BS": tokens(), "decoder_input_BT": tokens(), "source_valid_BS": valid}
        return Batch(inputs, labels, weights)


CASES = {
    "tiny": Case("decoder", 2, 2, 64, 32, 64, 64),
    "small": Case("decoder", 4, 4, 128, 64, 12, 65),  # nanoGPT's settings for a CPU
    "medium": Case("decoder", 6, 6, 384, 256, 8, 65),
    "large": Case("decoder", 4, 8, 512, 512, 4, 8192),
    "bert": Case("encoder", 4, 4, 256, 128, 8, 8192),
    "translation": Case("encoder_decoder", 3, 8, 256, 32, 32, 8000),
    "lstm": Case("lstm", 1, 1, 256, 64, 32, 1000),
    "lstm_attention": Case("lstm_attention", 1, 1, 256, 24, 32, 1000),
}
OBJECTIVE = {"decoder": "next_token", "encoder": "masked_lm", "lstm": "next_token"}  # else seq2seq


def ours(case: Case) -> Run:
    """Takes the steps of `tfm train`."""
    keep_memory()
    module = model_spec({"model": case.model}).build()
    opt = OptimizerSpec(learning_rate=LEARNING_RATE, clip=CLIP, weight_decay=0.01)
    train = TrainSpec(steps=1_000_000)
    objective = read(OBJECTIVE.get(case.kind, "seq2seq"), OBJECTIVES, "objective")
    init, train_step, _ = steps.compiled(module, objective, opt, train)
    numbers = steps.numbers_of(opt, train, {}, seed=0)
    batch = case.data
    return timed(lambda state: train_step(state, batch, numbers), init(batch, np.uint32(0)))
