"""Caldera: deep learning for scientists, from a laptop to a GPU to a cluster.

    import caldera as cd
    from caldera import op, optim

A `Tensor` is concrete data. An expression (`op.*`, or arithmetic on a tensor or variable) is lazy:
nothing runs until `eval()`, `numpy()`, `float()` or printing asks for its value.
"""

from __future__ import annotations

from caldera import data, errors, io, nn, op, optim, testing
from caldera.config import settings
from caldera.errors import (
    CalderaError,
    CheckpointError,
    CommError,
    ConfigError,
    DataError,
    DeviceError,
    DtypeError,
    GradientError,
    IndexingError,
    NonFiniteError,
    OutOfMemoryError,
    ShapeError,
)
from caldera.kernels.choose import choices
from caldera.lazy import Expr, Variable, compile, forget_plans
from caldera.memory import (
    CUDA_MANAGED,
    DEVICE,
    HOST,
    MANAGED,
    MemoryManager,
    device,
    memory_report,
)
from caldera.op.random import seed
from caldera.plan.plan import Plan
from caldera.tensor import (
    Filler,
    Tensor,
    constant,
    diagonal,
    from_array,
    from_dlpack,
    glorot_normal,
    glorot_uniform,
    he_normal,
    he_uniform,
    identity,
    normal,
    one,
    orthogonal,
    tensor,
    uniform,
    zero,
)
from caldera.train.callbacks import Callback, EarlyStopping, KeepBest, Target, TimeLimit
from caldera.train.checkpoint import Checkpointer
from caldera.train.gradient_check import check_model_gradients
from caldera.train.history import History
from caldera.train.load import load_model as load
from caldera.train.lr_find import LearningRates
from caldera.train.model import Model, NeuralNetwork
from caldera.train.run import Run

__version__ = "0.1.0"

__all__ = [
    "CUDA_MANAGED",
    "DEVICE",
    "HOST",
    "MANAGED",
    "CalderaError",
    "Callback",
    "CheckpointError",
    "Checkpointer",
    "CommError",
    "ConfigError",
    "DataError",
    "DeviceError",
    "DtypeError",
    "EarlyStopping",
    "Expr",
    "Filler",
    "GradientError",
    "History",
    "IndexingError",
    "KeepBest",
    "LearningRates",
    "MemoryManager",
    "Model",
    "NeuralNetwork",
    "NonFiniteError",
    "OutOfMemoryError",
    "Plan",
    "Run",
    "ShapeError",
    "Target",
    "Tensor",
    "TimeLimit",
    "Variable",
    "check_model_gradients",
    "choices",
    "compile",
    "constant",
    "data",
    "device",
    "diagonal",
    "errors",
    "forget_plans",
    "from_array",
    "from_dlpack",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "identity",
    "io",
    "load",
    "memory_report",
    "nn",
    "normal",
    "one",
    "op",
    "optim",
    "orthogonal",
    "seed",
    "settings",
    "tensor",
    "testing",
    "uniform",
    "zero",
]
