"""Record of a finished run as JSON-serialisable values, with its machine and software.

`caldera info` shows the machine and software part.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec

import llvmlite

import caldera
from caldera.base.config import settings
from caldera.base.formatting import bytes_text
from caldera.base.machine import available_memory, this_machine, usable_cores
from caldera.base.registry import optional_import
from caldera.core.memory.gpus import card_count
from caldera.data.datasets.dataset_cache import ENVIRONMENT, cache_folder
from caldera.kernels.native.codegen.matrix_multiply import blas
from caldera.kernels.native.codegen.target import host_target
from caldera.kernels.tuning.database import all_records

FORMAT = "caldera-run-1"

Setting = bool | int | float | str | list[int] | list[str] | None


@dataclass(frozen=True)
class DataRecord:
    """The data set."""

    name: str
    train: int
    test: int
    shape: list[int]
    class_names: list[str]
    faults: list[str] = field(default_factory=list)
    """Faults of the table that the data doctor found."""
    remarks: list[str] = field(default_factory=list)
    """The remaining findings of the data doctor."""


@dataclass(frozen=True)
class LayerRecord:
    """Record of a layer, for one sample."""

    path: str
    kind: str
    shape: list[int]
    parameters: int
    flops: int
    nbytes: int


@dataclass(frozen=True)
class BlockRecord:
    """A layer with all that is inside it, and the numbers of those it reads; -1 is the input."""

    path: str
    kind: str
    shape: list[int]
    parameters: int
    reads: list[int]


@dataclass(frozen=True)
class NetworkRecord:
    """Record of the network, for one sample."""

    layers: list[LayerRecord]
    parameters: int
    trainable: int
    flops: int
    blocks: list[BlockRecord] | None = None
    """The layers folded into blocks, with the data flow between them."""


@dataclass(frozen=True)
class KernelRecord:
    """One kernel call of a training step; see `Row` of `Plan.explain`."""

    op: str
    kernel: str
    beaten: dict[str, float]
    source: str
    shapes: str
    target: str
    nbytes: int
    flops: int
    seconds: float
    roofline: float | None


@dataclass(frozen=True)
class ProfileRecord:
    """Time and memory of a training step."""

    batch_size: int
    device: str
    precision: list[str]
    steps: list[KernelRecord]
    seconds: float
    flops: int
    nodes_as_written: int
    nodes_optimised: int
    in_place: int
    arena_bytes: int
    naive_bytes: int
    arena_in_use: list[int]
    """Used bytes of the arena at each step."""
    memory: dict[str, int]
    """Bytes by purpose."""


@dataclass(frozen=True)
class MistakeRecord:
    """A sample of the test data that was taken for another class."""

    sample: int
    true: int
    predicted: int
    confidence: float
    """The probability of the class that was predicted."""
    probability: float
    """Probability of the true class."""
    picture: str
    """A PNG file in base64, if the sample is an image."""
    row: dict[str, str] = field(default_factory=dict)
    """Line, identifiers and values of the sample, if it is a row of a table."""


@dataclass(frozen=True)
class RocRecord:
    """ROC curve of a class against the rest, and the area under it."""

    area: float
    false_positive: list[float]
    true_positive: list[float]


@dataclass(frozen=True)
class CalibrationRecord:
    """Bin of samples with similar confidence."""

    confidence: float
    accuracy: float
    samples: int


@dataclass(frozen=True)
class ColumnRecord:
    """Loss of accuracy or of R2 when the values of a column are shuffled."""

    name: str
    loss: float
    deviation: float


@dataclass(frozen=True)
class ClassesRecord:
    """Results of a classifier on the test data, in addition to its confusion matrix."""

    train: list[int]
    """Samples of each class to train with; none where that is not known."""
    mistakes: list[MistakeRecord]
    """Most confident mistakes."""
    roc: list[RocRecord]
    """ROC curve of each class; with two classes only of the second."""
    calibration: list[CalibrationRecord]
    columns: list[ColumnRecord]


@dataclass(frozen=True)
class ValuesRecord:
    """Results on the test data of a network that predicts values."""

    name: str
    """Name of the predicted quantity, or empty."""
    r2: float
    mean_absolute: float
    root_mean_square: float
    columns: list[ColumnRecord]


@dataclass(frozen=True)
class LeaderRecord:
    """Results of a model on the test rows, in comparison with simple models."""

    name: str
    loss: float
    """Log-loss, or root mean squared error."""
    score: float
    """Accuracy, or R2."""
    calibration: float
    """Expected calibration error; or mean error of values over their standard deviation."""


@dataclass(frozen=True)
class RunRecord:
    """Record of a run: its definition and its results."""

    name: str
    started: str
    """The time in ISO's form, with the distance from UTC."""
    seconds: float
    stopped: str
    settings: dict[str, Setting]
    seeds: dict[str, int]
    machine: dict[str, dict[str, int | str]]
    data: DataRecord
    network: NetworkRecord
    results: dict[str, float]
    """Metrics on the test data; empty if not requested."""
    confusion: list[list[int]] | None
    """Confusion matrix: true classes in rows, predicted classes in columns."""
    predictions: list[list[float]] | None
    """Pairs of a true and a predicted value, where values are predicted."""
    profile: ProfileRecord | None
    selection: str = ""
    """Description of the data that selected the epoch or ended the run."""
    classes: ClassesRecord | None = None
    values: ValuesRecord | None = None
    held_out: dict[str, float] = field(default_factory=dict)
    """Metrics on the held-out part of the training data, by which the epoch was selected."""
    leaderboard: list[LeaderRecord] = field(default_factory=list)
    """Results on the test rows of simple models, and of this one."""
    format: str = FORMAT


def environment() -> dict[str, dict[str, int | str]]:
    """Return the machine, the software and Caldera itself, as what JSON can hold."""
    here, target, products = this_machine(), host_target(), blas()
    return {
        **_cards(),
        "machine": {
            "system": here.system,
            "cpu": here.cpu,
            "vectors": f"{target.registers} registers of {8 * target.width} bits ({target.cpu})",
            "cores": here.cores,
            "cores this process may use": usable_cores(),
            "memory": _bytes(here.memory),
            "memory available": _bytes(available_memory()),
        },
        "software": {
            "python": here.libraries["python"],
            "numpy": here.libraries["numpy"],
            "llvmlite": llvmlite.__version__,
            # One that only NumPy can call is named by NumPy.
            "blas": products.name if products else f"{here.libraries['blas']}, through NumPy",
            "blas threads": _blas_threads(),
        },
        "caldera": {
            "version": caldera.__version__,
            "threads": settings.threads,
            "cache folder": str(settings.cache_dir),
            "kernel choices remembered": sum(1 for _ in all_records()),
            "data folder": os.environ.get(ENVIRONMENT) or str(cache_folder()),
        },
    }


def _cards() -> dict[str, dict[str, int | str]]:
    """Return the properties of each GPU; the CUDA modules are imported only if there is one."""
    if not card_count():
        return {}
    facts = import_module("caldera.kernels.cuda.runtime.device").facts
    properties_of = import_module("caldera.kernels.cuda.runtime.driver").properties_of
    return {
        f"card {index}": {**facts(index), **properties_of(index).rows()}
        for index in range(card_count())
    }


def _bytes(amount: int) -> str:
    return bytes_text(amount) if amount else "unknown"


def _blas_threads() -> int | str:
    if find_spec("threadpoolctl") is None:
        return os.environ.get("OMP_NUM_THREADS", "unknown")
    pools = optional_import("threadpoolctl", "threadpoolctl", "info").threadpool_info()
    return max((pool["num_threads"] for pool in pools if pool["user_api"] == "blas"), default=1)
