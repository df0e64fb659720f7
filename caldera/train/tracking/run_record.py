"""What is known of a run once it is over: plain values that JSON can hold."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class LayerRecord:
    """A layer, for one sample."""

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
    """The network, for one sample."""

    layers: list[LayerRecord]
    parameters: int
    trainable: int
    flops: int
    blocks: list[BlockRecord] | None = None
    """The same folded into blocks, with what flows between them."""


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
    """Where time and memory of a training step go."""

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
    """Bytes of the arena that hold something, step by step."""
    memory: dict[str, int]
    """Bytes by what they are for."""


@dataclass(frozen=True)
class MistakeRecord:
    """A sample of the test data that was taken for another class."""

    sample: int
    true: int
    predicted: int
    confidence: float
    """The probability of the class that was predicted."""
    probability: float
    """That of the true one."""
    picture: str
    """A PNG file in base64, if the sample is an image."""


@dataclass(frozen=True)
class RocRecord:
    """The ROC curve of a class against all others, and the area under it."""

    area: float
    false_positive: list[float]
    true_positive: list[float]


@dataclass(frozen=True)
class CalibrationRecord:
    """Samples of which the model was about as sure."""

    confidence: float
    accuracy: float
    samples: int


@dataclass(frozen=True)
class ColumnRecord:
    """What is lost if the values of a column are dealt out anew: accuracy, or of R2."""

    name: str
    loss: float
    deviation: float


@dataclass(frozen=True)
class ClassesRecord:
    """What a classifier makes of the test data, beside its confusion matrix."""

    train: list[int]
    """Samples of each class to train with; none where that is not known."""
    mistakes: list[MistakeRecord]
    """The most confident ones."""
    roc: list[RocRecord]
    """Of each class; of two, only of the second."""
    calibration: list[CalibrationRecord]
    columns: list[ColumnRecord]


@dataclass(frozen=True)
class ValuesRecord:
    """What a network that predicts values makes of the test data."""

    name: str
    """What is predicted, where that has a name."""
    r2: float
    mean_absolute: float
    root_mean_square: float
    columns: list[ColumnRecord]


@dataclass(frozen=True)
class RunRecord:
    """A run: what it was made of, and what came of it."""

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
    """On the test data; empty if they were not asked for."""
    confusion: list[list[int]] | None
    """How often each class (row) was taken for each class (column)."""
    predictions: list[list[float]] | None
    """Pairs of a true and a predicted value, where values are predicted."""
    profile: ProfileRecord | None
    selection: str = ""
    """Which data chose the epoch or ended the run, in words."""
    classes: ClassesRecord | None = None
    values: ValuesRecord | None = None
    format: str = FORMAT
