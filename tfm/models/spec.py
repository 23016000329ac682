"""Model families: the spec of each, its capabilities, and the registry that pairs it with a module.

`model.family` names an entry of FAMILIES; the other keys of `model` are the fields of its spec.
Where `vocab` or `classes` is None, the data supplies it.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, cast

import jax
from flax import linen as nn
from jax import numpy as jnp
from ml_collections import ConfigDict

from tfm.config.names import UserError, pick
from tfm.config.spec import (
    MissingKeysError,
    Named,
    Spec,
    SpecError,
    call,
    choice,
    field,
    size,
    to_spec,
)
from tfm.layers.attention import AttentionSpec
from tfm.layers.block import ACTIVATIONS, BlockSpec, DropoutSpec
from tfm.layers.dims import CODINGS, DTYPES, Dims, InitSpec
from tfm.layers.recurrent import CELLS
from tfm.models.baselines import Bag, Convolution
from tfm.models.decoder import Decoder
from tfm.models.encoder import Encoder
from tfm.models.encoder_decoder import EncoderDecoder
from tfm.models.recurrent import Recurrent
from tfm.models.seq2seq import SeqToSeq
from tfm.models.word2vec import Word2Vec
from tfm.ops.masks import MASKS
from tfm.ops.positions import POSITIONS


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSpec(Spec):
    """The fields and capabilities that all families have.

    A family overrides the capabilities that it has, as class attributes or properties.
    """

    family: str = ""
    vocab: int | None = size(None)  # number of token ids

    # Capabilities. Code outside of tfm/models asks for these, never for the name of the family.
    like = ""  # a family with the same inputs and outputs, whose objectives it can be trained with
    has_source = False  # reads a source and predicts a target
    word_vectors = False  # its parameters are one or two matrices of word vectors
    decodes = False  # predicts next tokens: its module decodes, unless it is `uncacheable`
    from_vector = False  # starts from a vector (1:N)
    classifies = False  # predicts classes, for the whole input or for each token
    fills = False  # predicts hidden tokens of its input
    attends = False  # has attention between tokens, or to a source
    packs = False  # accepts segments, so one row may hold several examples
    max_length = cast(Any, None)  # longest input that it accepts; None: any
    needed: ClassVar[tuple[str, ...]] = ("vocab",)  # sizes that must be known to build it
    uncacheable = cast("str | None", None)  # why it cannot decode with a cache; None: it can

    @classmethod
    def families(cls) -> Iterable[str]:
        return FAMILIES

    @classmethod
    def variant(cls, tree: Any, prefix: str = "") -> Any:
        if cls is not ModelSpec and not tree.get("family"):
            return cls
        if not isinstance(tree.get("family"), str):
            raise MissingKeysError([f"'{prefix}family', one of: {', '.join(FAMILIES)}"])
        return pick(FAMILIES, tree["family"], f"{prefix}family").spec

    def check(self) -> None:
        names = [name for name, family in FAMILIES.items() if family.spec is type(self)]
        if names and self.family not in names:
            raise SpecError("family", f"{{key}}={self.family!r} is not {names[0]!r}")
        shares = getattr(self, "share_embedding", False)
        if shares and getattr(self, "decoder_vocab", None) is not None:
            raise SpecError("decoder_vocab", "{key} needs share_embedding=False")

    @property
    def uses(self) -> tuple[Any, ...]:
        """The entries of registries that no field names: (registry, Named)."""
        family = FAMILIES.get(self.family)
        return () if family is None else ((FAMILIES, Named.of(self.family, family)),)

    @property
    def rates(self) -> dict[str, float]:
        """The dropout rate of each site that is on."""
        dropout = getattr(self, "dropout", None)
        sites = {} if dropout is None else dataclasses.asdict(dropout)
        return {site: rate for site, rate in sites.items() if rate is not None}

    def example(self, batch: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns the shapes of the inputs that the module must be called with."""
        text = jax.ShapeDtypeStruct((batch, length), jnp.int32)
        if self.has_source:
            return {"source_BS": text, "decoder_input_BT": text}
        return {"tokens_BT": text}

    def build(self) -> nn.Module:
        """Returns the module. Raises before anything is compiled if the model cannot work."""
        for name in self.needed:
            if getattr(self, name) is None:
                raise UserError(
                    f"model.{name} is missing, and there is no data set to take it from"
                )
        module = FAMILIES[self.family].module(self)
        missing = [name for name in ("init_cache", "decode") if not hasattr(module, name)]
        if self.decodes and self.uncacheable is None and missing:
            raise UserError(
                f"model.family={self.family!r} declares decodes=True, but {type(module).__name__} "
                f"has no {' and no '.join(missing)}: define both, or set uncacheable='the reason'"
            )
        inputs = self.example(1, min(self.max_length or 4, 4))
        try:
            jax.eval_shape(lambda **inputs: module.init(jax.random.key(0), **inputs), **inputs)
        except UserError as e:
            raise UserError(f"model: {e}") from e
        except (OverflowError, MemoryError) as e:
            raise UserError(f"model: a size is beyond what arrays can have: {e}") from e
        return module


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerSpec(BlockSpec, ModelSpec):  # type: ignore[override]
    """The fields that the three Transformer families share."""

    scale_embedding: bool = False  # by √width
    coding: Named = choice(lambda: CODINGS, "learned")  # from token ids to vectors

    def check(self) -> None:
        ModelSpec.check(self)
        BlockSpec.check(self)
        for name in ("attention", "cross"):
            attention: AttentionSpec | None = getattr(self, name, None)
            if attention is not None:
                attention.check_width(self.width, name)
                attention.check_out(self.width, name)
        self.position.check_joins(self.position.scheme, "position.scheme")
        width = self.position.width or 0
        if width >= self.width:
            text = f"{{key}}={width} must be less than width={self.width}"
            raise SpecError("position.width", text)
        if width and (self.fills or getattr(self, "tied", False)):
            text = "{key}: a tied head cannot be used with concatenated positions"
            raise SpecError("position.width", text)
        sites = ["embedding", "attention", "residual", "feedforward", "output"]
        self.dropout.check_sites(*sites, *(["head"] if self.drops_head else []))

    packs = True
    drops_head = False

    def why_uncacheable(self, mask: Named, length: int = 64) -> str | None:
        """Returns why tokens under this mask cannot be decoded with a cache, or None."""
        mixer, norm = self.used_mixer, self.norm.kind.entry
        if mixer is not None and not mixer.cacheable:
            return f"mixer={self.mixer!r} mixes the whole sequence at once"
        if norm is not None and not norm.causal:
            return f"norm.kind={self.norm.kind!r} sees later tokens"
        if self.attends and not mask.entry.is_causal(max(length, 64)):
            return f"mask={mask!r} shows later tokens"
        if self.attends and self.attention and not self.attention.score.entry.cacheable:
            return f"attention.score={self.attention.score!r} is not cacheable"
        return None

    @property
    def embed_dims(self) -> Dims:
        """Dims of the embeddings, without concatenated positions."""
        width = self.width - (self.position.width or 0)
        return Dims(width, init=self.init, dtype=self.dtype.entry, coding=self.coding)


OUTPUTS = {
    "masked_lm": "the vocabulary, for each token",
    "tag": "classes, for each token",
    "classify": "classes, for the whole input",
    "pair": "classes, for two sentences that differ in their types",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderSpec(TransformerSpec):
    """An encoder, whose tokens see both sides: BERT."""

    family: str = "encoder"
    types: int = field(0, least=0)  # kinds of token, such as first and second sentence
    outputs: tuple[Named, ...] = choice(lambda: OUTPUTS, ())  # empty: the states
    pooler: bool = False  # tanh(W · first state) for classify and pair
    classes: int | None = size(None)

    def check(self) -> None:
        super().check()
        if len(set(self.outputs)) < len(self.outputs):
            raise SpecError("outputs", f"{{key}}={tuple(map(str, self.outputs))}: each only once")
        if self.classes is not None and set(self.outputs) == {"masked_lm"}:
            raise SpecError("classes", f"{{key}}={self.classes}: no output has classes")

    @property
    def fills(self) -> bool:  # type: ignore[override]
        return "masked_lm" in self.outputs

    @property
    def classifies(self) -> bool:  # type: ignore[override]
        return bool(set(self.outputs) - {"masked_lm"})

    @property
    def needed(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("vocab", "classes") if self.classifies else ("vocab",)

    @property
    def drops_head(self) -> bool:  # type: ignore[override]
        return not self.outputs or bool({"classify", "tag"} & set(self.outputs))


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderSpec(TransformerSpec):
    """A decoder, whose tokens see earlier ones: GPT-2, LLaMA."""

    family: str = "decoder"
    decodes = True
    mask: Named = call(lambda: MASKS, "causal")
    tied: bool = True  # the head is the embedding

    @property
    def uncacheable(self) -> str | None:  # type: ignore[override]
        return self.why_uncacheable(self.mask)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderDecoderSpec(TransformerSpec):
    """From a source to a target: the 2017 Transformer, T5, UL2.

    `layers`, `position` and `mask` are those of the encoder. `cross` defaults to `attention`.
    """

    family: str = "encoder_decoder"
    has_source = decodes = crosses = True
    decoder_layers: int | None = size(None)  # None: layers
    decoder_scheme: Named | None = call(lambda: POSITIONS, None)  # None: position.scheme
    decoder_mask: Named = call(lambda: MASKS, "causal")
    cross: AttentionSpec | None = None  # None: attention
    share_embedding: bool = True  # one embedding for both sides
    decoder_vocab: int | None = size(None)  # of a decoder with its own embedding; None: vocab
    tied: bool = True  # the head is the (decoder's) embedding
    scale_head: bool = False  # states by 1/√width before the head (T5 v1.0)

    @property
    def uncacheable(self) -> str | None:  # type: ignore[override]
        return self.why_uncacheable(self.decoder_mask)

    def check(self) -> None:
        super().check()
        if self.decoder_scheme is not None:
            self.position.check_joins(self.decoder_scheme, "decoder_scheme")
        if self.cross is None and self.attention is None:
            raise SpecError("cross", "{key} is missing, and so is attention, its default")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlainSpec(ModelSpec):
    """The fields that families without a residual path share."""

    width: int = size()  # of the embeddings
    init: InitSpec = InitSpec()
    dropout: DropoutSpec = DropoutSpec()
    dtype: Named = choice(lambda: DTYPES, "float32")
    coding: Named = choice(lambda: CODINGS, "learned")  # from token ids to vectors

    sites = ("embedding", "feedforward", "head")  # of dropout

    def check(self) -> None:
        super().check()
        self.dropout.check_sites(*self.sites)
        if self.init.scale_by_depth:
            raise SpecError("init.scale_by_depth", "{key}: this model has no residual path")
        if self.init.small_query and getattr(self, "attention", None) is None:
            raise SpecError("init.small_query", "{key}: this model has no attention")

    def dims(self, width: int) -> Dims:
        return Dims(width, init=self.init, dtype=self.dtype.entry, coding=self.coding)


SHAPES = {
    "N:N": "classes (or the next token) for each token",
    "N:1": "classes for the whole input, from the last state",
    "1:N": "the next token for each token, starting from a vector",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecurrentSpec(PlainSpec):
    """One label for each token (N:N), one for all (N:1), or a sequence from a vector (1:N)."""

    family: str = "recurrent"
    shape: Named | None = choice(lambda: SHAPES, None)  # None: that of the objective, or N:N
    cell: Named = choice(lambda: CELLS, "lstm")
    hidden: int = size()
    layers: int = size(1)
    bidirectional: bool = False
    classes: int | None = size(None)  # None: that of the data, or the vocabulary
    vector: int | None = size(None)  # width of the initial vector of 1:N; None: that of the data
    tied: bool = False  # the head is the embedding

    sites = ("embedding", "residual", "head")

    @property
    def decodes(self) -> bool:  # type: ignore[override]
        return not self.classifies

    @property
    def uncacheable(self) -> str | None:  # type: ignore[override]
        return "it also reads backwards" if self.bidirectional else None

    @property
    def from_vector(self) -> bool:  # type: ignore[override]
        return self.shape == "1:N"

    @property
    def classifies(self) -> bool:  # type: ignore[override]
        return self.shape == "N:1" or self.classes is not None

    @property
    def needed(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("vocab", "vector") if self.from_vector else ("vocab",)

    def example(self, batch: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        inputs = super().example(batch, length)
        if self.from_vector and self.vector is not None:
            inputs["vector_BD"] = jax.ShapeDtypeStruct((batch, self.vector), jnp.float32)
        return inputs

    def check(self) -> None:
        super().check()
        if self.vector is not None and self.shape not in (None, "1:N"):
            raise SpecError("vector", f"{{key}}={self.vector}: shape={self.shape!r} has no vector")
        if self.shape == "1:N" and self.bidirectional:
            raise SpecError("bidirectional", "{key}: '1:N' cannot read backward what it predicts")
        width = self.hidden * (1 + self.bidirectional)
        if self.tied and (self.classes is not None or self.width != width):
            raise SpecError(
                "tied",
                f"{{key}}: the embedding is the head when classes is None (not {self.classes}) and "
                f"width={self.width} equals the states' width, {width}",
            )


CONTEXTS = {
    "last": "the encoder's last state: Sutskever et al. 2014",
    "tanh": "tanh(V · last state): Cho et al. 2014",
    "mean": "the mean of all states",
}
DECODERS = {
    "bahdanau": "the previous state attends, and the cell reads the context: Bahdanau et al. 2015",
    "luong": "the new state attends, and is joined with the context: Luong et al. 2015",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeqToSeqSpec(PlainSpec):
    """A recurrent encoder–decoder (N:M), with or without attention."""

    family: str = "seq2seq"
    has_source = decodes = True
    cell: Named = choice(lambda: CELLS, "gru")
    hidden: int = size()
    layers: int = size(1)
    bidirectional: bool = True  # the encoder
    attention: AttentionSpec | None = None  # None: the last state
    decoder: Named = choice(lambda: DECODERS, "bahdanau")
    context: Named = choice(lambda: CONTEXTS, "last")  # without attention
    share_embedding: bool = False  # one embedding for both sides
    decoder_vocab: int | None = size(None)  # of a decoder with its own embedding; None: vocab
    max_length: int | None = size(None)  # for scores with a weight for each position

    @property
    def attends(self) -> bool:  # type: ignore[override]
        return self.attention is not None and self.attention.attends

    @property
    def sites(self) -> tuple[str, ...]:  # type: ignore[override]
        attention = ("attention",) if self.attends else ()
        return ("embedding", "residual", *attention, "head", "scheduled_sampling")

    def check(self) -> None:
        super().check()
        if self.attends and self.context != "last":
            raise SpecError("context", f"{{key}}={self.context!r}: the decoder attends instead")
        if self.attention is None or not self.attends:
            return
        self.attention.check_width(self.hidden, "attention", "hidden")
        if self.attention.out_bias:
            text = "{key}: the decoder reads the heads without an output projection"
            raise SpecError("attention.out_bias", text)
        if self.attention.share_qk:
            text = "{key}: queries are decoder states, keys encoder states"
            raise SpecError("attention.share_qk", text)


KINDS = {
    "skip_gram": "one word predicts each word around it",
    "cbow": "the surrounding words predict the center word",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Word2VecSpec(ModelSpec):
    """Word2Vec: two matrices, no bias, no activation."""

    word_vectors = True

    family: str = "word2vec"
    kind: Named = choice(lambda: KINDS, "skip_gram")
    width: int = size()
    tied: bool = False  # the output matrix is the input matrix
    average: bool = False  # averages CBOW's context vectors instead of summing them

    def example(self, batch: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        words = batch, 1 if self.kind == "skip_gram" else length
        return {"words_BC": jax.ShapeDtypeStruct(words, jnp.int32)}

    def check(self) -> None:
        super().check()
        if self.average and self.kind == "skip_gram":
            raise SpecError("average", "{key}: skip-gram reads one word; 'cbow' averages several")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BagSpec(PlainSpec):
    """An MLP on the mean of the embeddings, which ignores order."""

    family: str = "bag"
    classifies, needed = True, ("vocab", "classes")
    hidden: tuple[int, ...] = size(())
    classes: int | None = size(None)
    activation: Named = choice(lambda: ACTIVATIONS, "relu")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvolutionSpec(PlainSpec):
    """Blocks of convolution, batch norm, activation, pooling and dropout; then a classifier."""

    family: str = "convolution"
    classifies, needed = True, ("vocab", "classes")
    channels: tuple[int, ...] = size()  # of each block
    window: int = size(3)
    pool: int = size(2)
    batch_norm: bool = True
    activation: Named = choice(lambda: ACTIVATIONS, "relu")
    classes: int | None = size(None)

    def check(self) -> None:
        super().check()
        if not self.channels:
            raise SpecError("channels", "{key} is empty: give the channels of each block")


@dataclasses.dataclass(frozen=True)
class Family:
    """A model family: the class of its spec, and the class of the module built from that spec.

    The module is made as `module(spec)`, and called with the inputs that the objective prepares:
    `tokens_BT` and `valid_BT` (True = a real token), or those of the family that `spec.like` names,
    whose objectives it can be trained with. It also takes `dropouts=None`, `train=False` and
    `capture=()`, and returns float32 logits: (batch, length, vocab) or (batch, classes). With
    `capture=("losses",)` it returns `(logits, {"losses": {name: number}})`; these losses are added
    to that of the objective. If `spec.decodes`, `init_cache(batch, length)` returns an empty cache
    and `decode(tokens_BT, cache, valid_BT=None, last=False)` the logits of these tokens (with
    `last`, of each row's last one) and the next cache; or `spec.uncacheable` says why it has none,
    and each token is written from all tokens before it.
    """

    spec: type[ModelSpec]
    module: Any

    def __post_init__(self) -> None:
        if not issubclass(self.spec, ModelSpec) or "__dataclass_fields__" not in vars(self.spec):
            raise UserError(
                f"Family: {self.spec.__name__} must be a subclass of ModelSpec below the line "
                "@dataclasses.dataclass(frozen=True, kw_only=True)"
            )


FAMILIES = {
    "encoder": Family(EncoderSpec, Encoder),
    "decoder": Family(DecoderSpec, Decoder),
    "encoder_decoder": Family(EncoderDecoderSpec, EncoderDecoder),
    "recurrent": Family(RecurrentSpec, Recurrent),
    "seq2seq": Family(SeqToSeqSpec, SeqToSeq),
    "word2vec": Family(Word2VecSpec, Word2Vec),
    "bag": Family(BagSpec, Bag),
    "convolution": Family(ConvolutionSpec, Convolution),
}


def model_spec(config: ConfigDict | Mapping[str, Any]) -> ModelSpec:
    """Returns the spec of a config's `model` group; checks every key and value."""
    group = (config.to_dict() if isinstance(config, ConfigDict) else config).get("model")
    if not isinstance(group, Mapping):
        raise UserError("the config has no group 'model': add model = dict(family=…)")
    return to_spec(ModelSpec, group, "model.")
