"""Layers, losses, metrics and the model zoo.

    from caldera import nn

A network is a list of layers, or a class that calls layers; `nn.Layer` explains how to write custom
layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from caldera.base.arguments import guard as _guard
from caldera.base.foreign_names import answer_foreign as _answer_foreign
from caldera.base.registry import provided_attributes as _provided_attributes
from caldera.nn import losses, metrics, models
from caldera.nn.activations import (
    ELU,
    GELU,
    RBF,
    SELU,
    HardSigmoid,
    HardSwish,
    LeakyReLU,
    LogSoftmax,
    Mish,
    PReLU,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Softsign,
    Tanh,
)
from caldera.nn.arranging import (
    ChannelShuffle,
    Cropping,
    Identity,
    Lambda,
    Padding,
    Permute,
    PixelShuffle,
    PixelUnshuffle,
    RepeatVector,
    TimeDistributed,
    Unfold,
    UpSampling,
    UpSampling2D,
)
from caldera.nn.attention import (
    Embedding,
    MultiHeadAttention,
    PositionalEmbedding,
    TransformerBlock,
    TransformerDecoderBlock,
)
from caldera.nn.basic import (
    Activation,
    Dense,
    Flatten,
    FullyConnected,
    Input,
    Output,
    Reshape,
    Sequential,
    activations,
    layers,
    register,
)
from caldera.nn.cells import GRUCell, LSTMCell, RNNCell
from caldera.nn.composite import Branches, Cell, Concat, Residual
from caldera.nn.config import count_parameters, from_config, network, to_config
from caldera.nn.convolution import (
    Conv1D,
    Conv2D,
    Conv3D,
    ConvLSTM1D,
    ConvLSTM2D,
    ConvLSTM3D,
    ConvTranspose1D,
    ConvTranspose2D,
    ConvTranspose3D,
    DepthwiseConv1D,
    DepthwiseConv2D,
    SeparableConv1D,
    SeparableConv2D,
)
from caldera.nn.ctc import CTCLoss, ctc_targets
from caldera.nn.ensemble import Blend, EnsembleDense, EnsembleLoss
from caldera.nn.initialisers import fillers
from caldera.nn.intervals import Interval, IntervalLoss
from caldera.nn.layer import Layer
from caldera.nn.merging import Add, Average, Dot, Maximum, Minimum, Multiply, Subtract, UnitNorm
from caldera.nn.noise import AlphaDropout, Dropout, GaussianDropout, GaussianNoise, SpatialDropout
from caldera.nn.normalisation import (
    BatchNorm,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    LocalResponseNorm,
    RMSNorm,
    SpectralNorm,
)
from caldera.nn.penalty import gradient_penalty
from caldera.nn.pooling import (
    AdaptiveAveragePool,
    AdaptiveAveragePool2D,
    AdaptiveMaxPool,
    AveragePool1D,
    AveragePool2D,
    AveragePool3D,
    GlobalAveragePool,
    GlobalMaxPool,
    MaxPool1D,
    MaxPool2D,
    MaxPool3D,
    MeanPooling,
    Pooling2D,
)
from caldera.nn.preprocessing import ColumnEmbedding, NumberEmbedding, Rescale
from caldera.nn.quantised import (
    BinaryConv2D,
    BinaryDense,
    Int8Conv2D,
    Int8Dense,
    PackedConv2D,
    PackedDense,
    TernaryConv2D,
    TernaryDense,
)
from caldera.nn.recurrent import GRU, LSTM, RNN, Bidirectional
from caldera.nn.tracing import Context, LayerCall, context, trace

if TYPE_CHECKING:
    from caldera.code.skip_gram import SkipGram

__all__ = [
    "ELU",
    "GELU",
    "GRU",
    "LSTM",
    "RBF",
    "RNN",
    "SELU",
    "Activation",
    "AdaptiveAveragePool",
    "AdaptiveAveragePool2D",
    "AdaptiveMaxPool",
    "Add",
    "AlphaDropout",
    "Average",
    "AveragePool1D",
    "AveragePool2D",
    "AveragePool3D",
    "BatchNorm",
    "Bidirectional",
    "BinaryConv2D",
    "BinaryDense",
    "Blend",
    "Branches",
    "CTCLoss",
    "Cell",
    "ChannelShuffle",
    "ColumnEmbedding",
    "Concat",
    "Context",
    "Conv1D",
    "Conv2D",
    "Conv3D",
    "ConvLSTM1D",
    "ConvLSTM2D",
    "ConvLSTM3D",
    "ConvTranspose1D",
    "ConvTranspose2D",
    "ConvTranspose3D",
    "Cropping",
    "Dense",
    "DepthwiseConv1D",
    "DepthwiseConv2D",
    "Dot",
    "Dropout",
    "Embedding",
    "EnsembleDense",
    "EnsembleLoss",
    "Flatten",
    "FullyConnected",
    "GRUCell",
    "GaussianDropout",
    "GaussianNoise",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "GroupNorm",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "Input",
    "InstanceNorm",
    "Int8Conv2D",
    "Int8Dense",
    "Interval",
    "IntervalLoss",
    "LSTMCell",
    "Lambda",
    "Layer",
    "LayerCall",
    "LayerNorm",
    "LeakyReLU",
    "LocalResponseNorm",
    "LogSoftmax",
    "MaxPool1D",
    "MaxPool2D",
    "MaxPool3D",
    "Maximum",
    "MeanPooling",
    "Minimum",
    "Mish",
    "MultiHeadAttention",
    "Multiply",
    "NumberEmbedding",
    "Output",
    "PReLU",
    "PackedConv2D",
    "PackedDense",
    "Padding",
    "Permute",
    "PixelShuffle",
    "PixelUnshuffle",
    "Pooling2D",
    "PositionalEmbedding",
    "RMSNorm",
    "RNNCell",
    "ReLU",
    "RepeatVector",
    "Rescale",
    "Reshape",
    "Residual",
    "SeparableConv1D",
    "SeparableConv2D",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SkipGram",
    "Softmax",
    "Softplus",
    "Softsign",
    "SpatialDropout",
    "SpectralNorm",
    "Subtract",
    "Tanh",
    "TernaryConv2D",
    "TernaryDense",
    "TimeDistributed",
    "TransformerBlock",
    "TransformerDecoderBlock",
    "Unfold",
    "UnitNorm",
    "UpSampling",
    "UpSampling2D",
    "activations",
    "context",
    "count_parameters",
    "ctc_targets",
    "fillers",
    "from_config",
    "gradient_penalty",
    "layers",
    "losses",
    "metrics",
    "models",
    "network",
    "register",
    "to_config",
    "trace",
]

_guard(globals(), "Context", "LayerCall")
_answer_foreign(globals(), _provided_attributes("nn"))
