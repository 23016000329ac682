"""What a model is: frozen dataclasses, one value for each choice.

`model.family` names one of FAMILIES; its other keys are the fields of that class. Names are looked
up in the tables of `tfm.ops` and `tfm.layers`.
"""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionSpec:
    """One kind of attention layer. With the score "none" there is none, whatever else is said."""

    heads: int
    head_width: int | None = None  # None: the model's width / heads
    kv_heads: int | None = None  # None: as many as heads
    score: str = "scaled_dot"
    normalizer: str = "softmax"
    cap: float | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    share_qk: bool = False
    implementation: str = "auto"


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeedForwardSpec:
    width: int
    kind: str = "gelu"  # "none" leaves the feed-forward out
    bias: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class NormSpec:
    kind: str = "layer"
    place: str = "pre"
    eps: float = 1e-5
    bias: bool = True  # of a LayerNorm
    embedding: bool = False  # also after the embeddings (BERT)
    final: bool | None = None  # also after the last layer; None: unless place is "post"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PositionSpec:
    scheme: str = "none"
    join: str = "add"  # how a table joins the embeddings
    amplitude: float = 1.0
    learn_amplitude: bool = False
    width: int | None = None  # of a table that is concatenated; taken from the model's width
    share: bool = True  # layers share the parameters of a bias or rotation (T5)


@dataclasses.dataclass(frozen=True, kw_only=True)
class InitialSpec:
    kernel: str = "lecun_normal"  # but for a cell's own recurrence, which begins orthogonal
    embedding: str = "normal(stddev=0.02)"
    by_depth: bool = False  # what joins the residual path starts 1/√(number of sums) as large
    small_query: bool = False  # queries start 1/√head_width as large (T5)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DropoutSpec:
    """Rates. None is off, which is another model; a rate of 0 is on, and drops nothing."""

    embedding: float | None = None
    attention: float | None = None  # of the weights
    residual: float | None = None  # of what joins the residual path
    feedforward: float | None = None  # of the hidden layer
    output: float | None = None  # of the last states (T5)
    head: float | None = None  # of what a classifier reads


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerSpec:
    """What the three Transformer families share."""

    vocab: int
    width: int
    layers: int
    max_length: int  # of learned tables, and of scores with a weight for each position
    attention: AttentionSpec
    feedforward: FeedForwardSpec
    norm: NormSpec = NormSpec()
    position: PositionSpec = PositionSpec()
    mask: str = "everything"  # joined with what the batch says: padding, segments
    residual: bool = True
    parallel: bool = False  # attention and feed-forward side by side
    scale_embedding: bool = False  # by √width
    initial: InitialSpec = InitialSpec()
    dropout: DropoutSpec = DropoutSpec()
    scan: bool = True
    remat: str = "none"
    dtype: str = "float32"  # of the computation; parameters are float32


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderSpec(TransformerSpec):
    """Sees both sides: BERT."""

    family: str = "encoder"
    types: int = 0  # kinds of token, as first and second sentence
    heads: tuple[str, ...] = ()  # none: the states themselves
    pooler: bool = False  # tanh(W · first state) for classify and pair
    classes: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderSpec(TransformerSpec):
    """Sees what came before: GPT-2, LLaMA."""

    family: str = "decoder"
    mask: str = "causal"
    tied: bool = True  # the head is the embedding


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderDecoderSpec(TransformerSpec):
    """Reads one sequence, writes another: the 2017 Transformer, T5, UL2.

    `layers`, `position` and `mask` are the encoder's; `attention` is that of all three places
    unless `cross` says otherwise. Both sides share the embedding.
    """

    family: str = "encoder_decoder"
    decoder_layers: int | None = None  # None: as many as layers
    decoder_scheme: str | None = None  # None: position.scheme
    decoder_mask: str = "causal"
    cross: AttentionSpec | None = None  # None: as attention
    tied: bool = True  # the head is the embedding
    scale_head: bool = False  # states by 1/√width before the head (T5 v1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecurrentSpec:
    """One label for each token (N:N), one for all (N:1), or a sequence from one vector (1:N)."""

    family: str = "recurrent"
    shape: str = "N:N"
    cell: str = "lstm"
    vocab: int
    width: int  # of the embedding
    hidden: int
    layers: int = 1
    bidirectional: bool = False
    classes: int | None = None  # None: the vocabulary
    vector: int | None = None  # width of the vector that 1:N begins from
    tied: bool = False  # the head is the embedding
    initial: InitialSpec = InitialSpec()
    dropout: DropoutSpec = DropoutSpec()
    dtype: str = "float32"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeqToSeqSpec:
    """N:M. The context is the encoder's last state, or all its states through an attention."""

    family: str = "seq2seq"
    cell: str = "gru"
    vocab: int
    width: int  # of the embeddings
    hidden: int
    layers: int = 1
    bidirectional: bool = True  # the encoder
    attention: AttentionSpec | None = None  # None: the last state
    look: str = "before"  # the cell steps, as Bahdanau's; or "after", as Luong's
    max_length: int | None = None  # for scores with a weight for each position
    initial: InitialSpec = InitialSpec()
    dropout: DropoutSpec = DropoutSpec()
    dtype: str = "float32"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Word2VecSpec:
    """Two matrices, no bias, no activation."""

    family: str = "word2vec"
    kind: str = "skip_gram"  # or "cbow"
    vocab: int
    width: int
    average: bool = False  # CBOW's context vectors are summed, or averaged


@dataclasses.dataclass(frozen=True, kw_only=True)
class BagSpec:
    """An MLP on the mean of the embeddings: blind to order."""

    family: str = "bag"
    vocab: int
    width: int
    hidden: tuple[int, ...] = ()
    classes: int
    activation: str = "relu"
    initial: InitialSpec = InitialSpec()
    dropout: DropoutSpec = DropoutSpec()
    dtype: str = "float32"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvolutionSpec:
    """Blocks of convolution, batch norm, activation, pooling and dropout; then a classifier."""

    family: str = "convolution"
    vocab: int
    width: int
    channels: tuple[int, ...]  # of each block
    window: int = 3
    pool: int = 2
    batch_norm: bool = True
    activation: str = "relu"
    classes: int
    initial: InitialSpec = InitialSpec()
    dropout: DropoutSpec = DropoutSpec()
    dtype: str = "float32"


ModelSpec = (
    EncoderSpec
    | DecoderSpec
    | EncoderDecoderSpec
    | RecurrentSpec
    | SeqToSeqSpec
    | Word2VecSpec
    | BagSpec
    | ConvolutionSpec
)
FAMILIES: dict[str, type] = {
    "encoder": EncoderSpec,
    "decoder": DecoderSpec,
    "encoder_decoder": EncoderDecoderSpec,
    "recurrent": RecurrentSpec,
    "seq2seq": SeqToSeqSpec,
    "word2vec": Word2VecSpec,
    "bag": BagSpec,
    "convolution": ConvolutionSpec,
}
