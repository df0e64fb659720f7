"""Caldera: deep learning for scientists, from a laptop to a GPU to a cluster.

    import caldera as cd
    from caldera import op, optim

A `Tensor` is concrete data. An expression (`op.*`, or arithmetic on a tensor or variable) is lazy:
it runs only when `eval()`, `numpy()`, `float()` or printing requires its value.
"""

import os
import sys

if "-m caldera " in f"{' '.join(sys.orig_argv[:8])} " and sys.argv[0] == "-m":
    # `python -m caldera` puts the current folder first, where a file may be called random.py.
    sys.path[:1] = [each for each in sys.path[:1] if each != os.getcwd() or sys.flags.safe_path]

from caldera.base.import_path import remove_hiding_folder as _remove_hiding_folder
from caldera.base.import_path import restore as _restore

if sys.flags.safe_path:
    _removed = []
else:
    _removed = _remove_hiding_folder()

from importlib import import_module
from typing import TYPE_CHECKING, Any

from caldera import errors, op
from caldera.base.config import settings
from caldera.base.foreign_names import answer_foreign as _answer_foreign
from caldera.base.registry import provide as _provide
from caldera.compiler.lazy import Expr, Variable, compile, forget_plans, pinned
from caldera.compiler.plan.plan import Plan
from caldera.core.memory import (
    CUDA_MANAGED,
    DEVICE,
    HOST,
    MANAGED,
    MemoryManager,
    device,
    empty_cache,
    memory_report,
)
from caldera.core.tensor import (
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
from caldera.errors import (
    CalderaError,
    CheckpointError,
    CommError,
    ConfigError,
    DataError,
    DeviceError,
    DtypeError,
    FileWriteError,
    GradientError,
    IndexingError,
    NonFiniteError,
    OutOfMemoryError,
    ShapeError,
)
from caldera.kernels.tuning.choose import choices
from caldera.op import seed

if TYPE_CHECKING:
    from caldera import (
        audio,
        bench,
        cli,
        code,
        comm,
        compress,
        data,
        dmath,
        export,
        io,
        nn,
        onnx,
        optim,
        parallel,
        search,
        serve,
        sklearn,
        testing,
        train,
    )
    from caldera.train.callbacks import (
        Callback,
        EarlyStopping,
        KeepBest,
        RoundWeights,
        Target,
        TimeLimit,
    )
    from caldera.train.custom_model import CustomModel
    from caldera.train.debug.gradient_check import check_model_gradients
    from caldera.train.lr_find import LearningRates
    from caldera.train.model import Model
    from caldera.train.neural_network import NeuralNetwork
    from caldera.train.neural_network import load_model as load
    from caldera.train.run import Run
    from caldera.train.saving.checkpointer import Checkpointer
    from caldera.train.tables.training import TableRun, train_table
    from caldera.train.tracking.history import History
    from caldera.train.tracking.run_folder import RunFolder
    from caldera.train.tracking.trackers import CSVLogger, MLflow, TensorBoard, WandB
    from caldera.train.weight_average import WeightAverage

__version__ = "0.1.0"

# Imported on first use: a script that only computes starts sooner.
_PACKAGES = {
    "audio",
    "bench",
    "cli",
    "code",
    "comm",
    "compress",
    "data",
    "dmath",
    "export",
    "io",
    "nn",
    "onnx",
    "optim",
    "parallel",
    "search",
    "serve",
    "sklearn",
    "testing",
    "train",
}
_LATER = {
    "CSVLogger": ("caldera.train.tracking.trackers", "CSVLogger"),
    "Callback": ("caldera.train.callbacks", "Callback"),
    "Checkpointer": ("caldera.train.saving.checkpointer", "Checkpointer"),
    "CustomModel": ("caldera.train.custom_model", "CustomModel"),
    "EarlyStopping": ("caldera.train.callbacks", "EarlyStopping"),
    "History": ("caldera.train.tracking.history", "History"),
    "KeepBest": ("caldera.train.callbacks", "KeepBest"),
    "LearningRates": ("caldera.train.lr_find", "LearningRates"),
    "MLflow": ("caldera.train.tracking.trackers", "MLflow"),
    "Model": ("caldera.train.model", "Model"),
    "NeuralNetwork": ("caldera.train.neural_network", "NeuralNetwork"),
    "RoundWeights": ("caldera.train.callbacks", "RoundWeights"),
    "Run": ("caldera.train.run", "Run"),
    "RunFolder": ("caldera.train.tracking.run_folder", "RunFolder"),
    "TableRun": ("caldera.train.tables.training", "TableRun"),
    "Target": ("caldera.train.callbacks", "Target"),
    "TensorBoard": ("caldera.train.tracking.trackers", "TensorBoard"),
    "TimeLimit": ("caldera.train.callbacks", "TimeLimit"),
    "WandB": ("caldera.train.tracking.trackers", "WandB"),
    "WeightAverage": ("caldera.train.weight_average", "WeightAverage"),
    "check_model_gradients": ("caldera.train.debug.gradient_check", "check_model_gradients"),
    "load": ("caldera.train.neural_network", "load_model"),
    "train_table": ("caldera.train.tables.training", "train_table"),
}

# Training on several processes without a given strategy uses this one, which caldera.train cannot
# import.
_provide("default strategy", "caldera.parallel.data.data_parallel", "DataParallel")
# Where a launcher does not export the index of a rank on its machine, the ranks count it.
_provide("rank on machine", "caldera.comm.ranks", "rank_on_machine")
# A file with layers of sound is read without an import of their module.
for _name in ("ConformerBlock", "FilterBank", "Splice", "StatisticsPooling", "TimeDelay"):
    _provide(f"layer {_name}", "caldera.audio.models", _name)
# Skip-gram serves learning from programs; its public names are older than that package.
_provide("op.skip_gram", "caldera.code.skip_gram", "skip_gram")
_provide("nn.SkipGram", "caldera.code.skip_gram", "SkipGram")


def _found(name: str) -> Any:
    value: Any
    removed = _remove_hiding_folder()
    try:
        if name in _PACKAGES:
            value = import_module(f"caldera.{name}")
        else:
            module, attribute = _LATER[name]
            value = getattr(import_module(module), attribute)
    finally:
        _restore(removed)
    globals()[name] = value
    return value


_answer_foreign(globals(), _found)
_restore(_removed)


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "CUDA_MANAGED",
    "DEVICE",
    "HOST",
    "MANAGED",
    "CSVLogger",
    "CalderaError",
    "Callback",
    "CheckpointError",
    "Checkpointer",
    "CommError",
    "ConfigError",
    "CustomModel",
    "DataError",
    "DeviceError",
    "DtypeError",
    "EarlyStopping",
    "Expr",
    "FileWriteError",
    "Filler",
    "GradientError",
    "History",
    "IndexingError",
    "KeepBest",
    "LearningRates",
    "MLflow",
    "MemoryManager",
    "Model",
    "NeuralNetwork",
    "NonFiniteError",
    "OutOfMemoryError",
    "Plan",
    "RoundWeights",
    "Run",
    "RunFolder",
    "ShapeError",
    "TableRun",
    "Target",
    "Tensor",
    "TensorBoard",
    "TimeLimit",
    "Variable",
    "WandB",
    "WeightAverage",
    "audio",
    "bench",
    "check_model_gradients",
    "choices",
    "cli",
    "code",
    "comm",
    "compile",
    "compress",
    "constant",
    "data",
    "device",
    "diagonal",
    "dmath",
    "empty_cache",
    "errors",
    "export",
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
    "onnx",
    "op",
    "optim",
    "orthogonal",
    "parallel",
    "pinned",
    "search",
    "seed",
    "serve",
    "settings",
    "sklearn",
    "tensor",
    "testing",
    "train",
    "train_table",
    "uniform",
    "zero",
]
