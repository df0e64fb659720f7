"""Layers, losses, metrics and the model zoo.

    from caldera import nn

A network is a list of layers, or a class that calls layers; `nn.Layer` says how to write your own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from caldera.base.arguments import guard as _guard
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
from caldera.nn.attention import (
    Embedding,
    MultiHeadAttention,
    PositionalEmbedding,
    TransformerBlock,
)
from caldera.nn.basic import (
    Activation,
    Dense,
    Dropout,
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
from caldera.nn.composite import Add, Branches, Cell, Concat, Residual
from caldera.nn.config import from_config, to_config
from caldera.nn.convolution import Conv1D, Conv2D, Conv3D, ConvTranspose2D, DepthwiseConv2D
from caldera.nn.ctc import CTCLoss, ctc_targets
from caldera.nn.ensemble import EnsembleDense, EnsembleLoss
from caldera.nn.initialisers import fillers
from caldera.nn.inspection import count_parameters, network
from caldera.nn.layer import Layer
from caldera.nn.normalisation import (
    BatchNorm,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    LocalResponseNorm,
    RMSNorm,
)
from caldera.nn.penalty import gradient_penalty
from caldera.nn.pooling import (
    AdaptiveAveragePool2D,
    AveragePool1D,
    AveragePool2D,
    AveragePool3D,
    GlobalAveragePool,
    MaxPool1D,
    MaxPool2D,
    MaxPool3D,
    MeanPooling,
    Pooling2D,
    UpSampling2D,
)
from caldera.nn.preprocessing import ColumnEmbedding, NumberEmbedding, Rescale
from caldera.nn.recurrent import GRU, LSTM, RNN, Bidirectional
from caldera.nn.tracing import Context, LayerCall, context, trace

if TYPE_CHECKING:
    from caldera.code.skip_gram import SkipGram

__getattr__ = _provided_attributes("nn")

__all__ = [
    "ELU",
    "GELU",
    "GRU",
    "LSTM",
    "RBF",
    "RNN",
    "SELU",
    "Activation",
    "AdaptiveAveragePool2D",
    "Add",
    "AveragePool1D",
    "AveragePool2D",
    "AveragePool3D",
    "BatchNorm",
    "Bidirectional",
    "Branches",
    "CTCLoss",
    "Cell",
    "ColumnEmbedding",
    "Concat",
    "Context",
    "Conv1D",
    "Conv2D",
    "Conv3D",
    "ConvTranspose2D",
    "Dense",
    "DepthwiseConv2D",
    "Dropout",
    "Embedding",
    "EnsembleDense",
    "EnsembleLoss",
    "Flatten",
    "FullyConnected",
    "GlobalAveragePool",
    "GroupNorm",
    "HardSigmoid",
    "HardSwish",
    "Input",
    "InstanceNorm",
    "Layer",
    "LayerCall",
    "LayerNorm",
    "LeakyReLU",
    "LocalResponseNorm",
    "LogSoftmax",
    "MaxPool1D",
    "MaxPool2D",
    "MaxPool3D",
    "MeanPooling",
    "Mish",
    "MultiHeadAttention",
    "NumberEmbedding",
    "Output",
    "PReLU",
    "Pooling2D",
    "PositionalEmbedding",
    "RMSNorm",
    "ReLU",
    "Rescale",
    "Reshape",
    "Residual",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SkipGram",
    "Softmax",
    "Softplus",
    "Softsign",
    "Tanh",
    "TransformerBlock",
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
