"""Workloads to measure: a workload is a list of cases, and a case is one computation.

A case is found by name in every process, so only names are sent to a worker. The data of a case are
drawn from its seed, and are the same in every process.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from caldera.nn.layer import Layer

Array = np.ndarray[Any, np.dtype[Any]]
BATCHES = 8
FEW_BATCHES = 2
"""Number of batches for large networks, whose batches are large as well."""
_COARSE = 8
"""Length of each axis of a class's picture before it is enlarged."""


@dataclass(frozen=True)
class UpdateRule:
    """Update rule of parameters, with settings that every framework supports.

    >>> UpdateRule("sgd", 0.05, weight_decay=0.001).momentum
    0.0
    """

    name: str
    """sgd, adam, adamw or rmsprop."""
    learning_rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0


@dataclass(frozen=True)
class Case:
    """A computation to measure.

    `part_of` names the whole that several cases make up together (the passes of a convolution), and
    `group` the cases whose ratios are averaged.
    """

    name: str
    part_of: str = ""
    group: str = ""

    @property
    def flops(self) -> float:
        """Floating-point operations of the computation; 0 if unknown."""
        return 0.0

    @property
    def level(self) -> str:
        """operator, network, training or distributed: the levels of Deep500."""
        return "operator"

    def generator(self) -> np.random.Generator:
        """Return a random generator that depends only on the case's name."""
        return np.random.default_rng(zlib.crc32(self.name.encode()))


@dataclass(frozen=True)
class TrainingCase(Case):
    """Training steps of a network on batches in memory, dropout off."""

    layers: Callable[[], list[Layer]] = list
    batch: int = 1
    rule: UpdateRule = UpdateRule("sgd", 0.01)
    shape: tuple[int, ...] = ()
    """Shape of a sample."""
    classes: int = 10
    words: int = 0
    """The size of the vocabulary, if samples are words; else they are real numbers."""
    size: str = "small"
    """small, medium or large: determines the extent of checks and the number of kept processes."""
    depth: int = 0
    """The number of layers, where a figure is drawn over it."""
    dataset: str = ""
    """Data set for `--test-accuracy`."""
    card_batch: int = 0
    """Batch size on a GPU, if it differs."""
    card_epoch: int = BATCHES
    """Batches of an epoch of data resident on a GPU."""
    attention: bool = False
    """True if the network has attention, for which a GPU has several kernels."""
    precisions: tuple[str, ...] = ("tf32",)
    """Default precisions on a GPU."""
    on_card: bool = False

    @property
    def level(self) -> str:
        return "network"

    def on(self, device: str) -> TrainingCase:
        """Return the case with its settings for a device.

        >>> case = TrainingCase("example", batch=16, card_batch=256)
        >>> case.on("cpu").batch, case.on("cuda").batch
        (16, 256)
        """
        if device == "cpu" or self.on_card:
            return self
        return replace(self, batch=self.card_batch or self.batch, on_card=True)

    @property
    def is_small(self) -> bool:
        """True if everything is checked and compiled loops over steps are measured."""
        return self.size == "small"

    @property
    def is_large(self) -> bool:
        """True if only one process at a time fits into memory."""
        return self.size == "large"

    @property
    def has_images(self) -> bool:
        """True if the order of an image's axes in memory can be chosen."""
        return len(self.shape) == 3

    @property
    def batches(self) -> int:
        """Number of different batches."""
        return BATCHES if self.is_small or self.on_card else FEW_BATCHES

    def data(self, dtype: str = "float32", batch: int | None = None) -> list[tuple[Array, Array]]:
        """Return the batches: inputs and classes.

        The data can be learnt, as real data: a sample is the picture of its class plus noise of the
        same size; each word depends only on the word before. On pure noise training is chaotic, and
        the curves of two correct frameworks would diverge.
        """
        draw = self.generator()
        count = self.batch if batch is None else batch
        pictures = draw.standard_normal((self.classes, *(min(n, _COARSE) for n in self.shape)))
        found = []
        for _ in range(self.batches):
            x: Array
            if self.words:
                x = draw.integers(0, self.words, (self.batch, *self.shape))
                y = (x + 1) % self.classes
            else:
                y = draw.integers(0, self.classes, self.batch)
                x = self._enlarged(pictures[y])
                x += draw.standard_normal((self.batch, *self.shape), np.float32)
                # Rounded before: every precision has the same numbers.
                x = x.astype(dtype)
            found.append((x[:count], y[:count]))
        return found

    def _enlarged(self, pictures: Array) -> Array:
        """Return coarse pictures in the size of samples."""
        for axis, length in enumerate(self.shape, start=1):
            pictures = pictures.take(np.arange(length) * pictures.shape[axis] // length, axis=axis)
        return pictures.astype(np.float32)


@dataclass(frozen=True)
class ConvolutionCase(Case):
    """One pass of a 2-D convolution: forward, input gradient or filter gradient."""

    images: int = 1
    channels: int = 1
    height: int = 1
    width: int = 1
    filters: int = 1
    kernel: tuple[int, int] = (1, 1)
    stride: int = 1
    padding: tuple[int, int] = (0, 0)
    what: str = "forward"

    @property
    def out(self) -> tuple[int, int]:
        """Height and width of the result."""
        rows = (self.height + 2 * self.padding[0] - self.kernel[0]) // self.stride + 1
        return rows, (self.width + 2 * self.padding[1] - self.kernel[1]) // self.stride + 1

    @property
    def flops(self) -> float:
        rows, columns = self.out
        window = self.channels * self.kernel[0] * self.kernel[1]
        return 2.0 * self.images * self.filters * rows * columns * window

    def arrays(self) -> dict[str, Array]:
        """Return images x, filters w, and the gradient g of the result."""
        draw = self.generator()
        shapes = {
            "x": (self.images, self.channels, self.height, self.width),
            "w": (self.filters, self.channels, *self.kernel),
            "g": (self.images, self.filters, *self.out),
        }
        return {name: draw.standard_normal(shape, np.float32) for name, shape in shapes.items()}


@dataclass(frozen=True)
class ProductCase(Case):
    """A matrix product (m, k) x (k, n), either matrix perhaps stored transposed."""

    m: int = 1
    n: int = 1
    k: int = 1
    transpose_a: bool = False
    transpose_b: bool = False

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k

    @property
    def nbytes(self) -> int:
        """Bytes of all three matrices."""
        return 4 * (self.m * self.k + self.k * self.n + self.m * self.n)

    def arrays(self) -> dict[str, Array]:
        """Return the matrices in their stored form."""
        draw = self.generator()
        a = (self.k, self.m) if self.transpose_a else (self.m, self.k)
        b = (self.n, self.k) if self.transpose_b else (self.k, self.n)
        return {"a": draw.standard_normal(a, np.float32), "b": draw.standard_normal(b, np.float32)}


@dataclass(frozen=True)
class FormulaCase(Case):
    """An element-wise formula or a reduction; `formula` takes functions by name, and arrays."""

    formula: Callable[..., Any] = max
    shapes: tuple[tuple[int, ...], ...] = ()

    def arrays(self) -> list[Array]:
        """Return the inputs of the formula."""
        draw = self.generator()
        return [draw.standard_normal(shape, np.float32) for shape in self.shapes]


@dataclass(frozen=True)
class UpdateCase(Case):
    """An optimizer's update of parameters from given gradients."""

    rule: UpdateRule = UpdateRule("sgd", 0.01)
    shapes: tuple[tuple[int, ...], ...] = ()

    def arrays(self) -> tuple[list[Array], list[Array]]:
        """Return parameters and gradients."""
        draw = self.generator()
        parameters = [draw.standard_normal(shape, np.float32) for shape in self.shapes]
        return parameters, [draw.standard_normal(shape, np.float32) for shape in self.shapes]


@dataclass(frozen=True)
class InputCase(Case):
    """Shuffled batches from arrays in memory."""

    samples: int = 60_000
    width: int = 784
    batch: int = 128

    def arrays(self) -> tuple[Array, Array]:
        """Return samples and classes."""
        draw = self.generator()
        x = draw.random((self.samples, self.width), np.float32)
        return x, draw.integers(0, 10, self.samples)


@dataclass(frozen=True)
class LearningCase(Case):
    """Training to a test accuracy, on one process or (with a scheme) as several ranks."""

    network: TrainingCase = TrainingCase("nothing")
    dataset: str = "digits"
    epochs: int = 1
    """Maximum number of epochs if the target accuracy is not reached."""
    target: float = 1.0
    ranks: int = 1
    scheme: str = ""
    """Communication scheme of the ranks."""

    @property
    def level(self) -> str:
        return "distributed" if self.scheme else "training"


@dataclass(frozen=True)
class BenchWorkload:
    """A workload that can be named on the command line.

    `quick` contains the cases of a quick run. `left_out` describes omitted measurements with the
    reason.
    """

    name: str
    summary: str
    cases: Sequence[Case]
    quick: Sequence[Case]
    left_out: str = ""

    def case(self, name: str) -> Case:
        """Return the case of this name."""
        return next(case for case in self.cases if case.name == name)

    @property
    def is_training(self) -> bool:
        """True if its cases are steps of networks, which are measured on a GPU as well."""
        return all(isinstance(case, TrainingCase) for case in self.cases)

    def description(self, device: str) -> str:
        """Return the summary, and the batch sizes on a device."""
        sizes = {case.on(device).batch for case in self.cases if isinstance(case, TrainingCase)}
        return ", ".join([self.summary, *(f"batch {size}" for size in sorted(sizes))])


def write_batches(case: TrainingCase, folder: Path) -> None:
    """Draw the batches of a case and write them."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (x, y) in enumerate(case.data()):
        np.save(folder / f"x{number}.npy", x, allow_pickle=False)
        np.save(folder / f"y{number}.npy", y, allow_pickle=False)


def read_batches(
    case: TrainingCase, folder: Path, dtype: str, batch: int | None = None
) -> list[tuple[Array, Array]]:
    """Read the result of `case.data(dtype, batch)` from files."""
    found = []
    for number in range(case.batches):
        x, y = (
            np.load(folder / f"{name}{number}.npy", mmap_mode="r", allow_pickle=False)[:batch]
            for name in "xy"
        )
        # Copied: memory-mapped arrays are read-only, and some frameworks require writable arrays.
        found.append((np.array(x, x.dtype if case.words else dtype), np.array(y)))
    return found
