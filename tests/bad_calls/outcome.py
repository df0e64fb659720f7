"""What becomes of a call: an error of Caldera's, a value that can be computed, or something raw."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import caldera as cd
from caldera import dmath, nn, op, optim
from caldera.compiler.lazy import Expr
from caldera.core.graph.program import Program
from caldera.errors import CalderaError
from caldera.kernels.reference import interpret
from caldera.nn import Layer

SMALL = 100_000
"""Elements that a value may have to be computed here."""
PATIENCE = 5.0


class Hung(Exception):
    """A call that took longer than anybody waits."""


@contextmanager
def alarm(seconds: float = PATIENCE) -> Iterator[None]:
    """Interrupt what hangs."""

    def ring(*_: object) -> None:
        raise Hung(f"no answer within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def raw_exception(call: Callable[[], Any]) -> BaseException | None:
    """What a call raised, or the use of what it gave, if that is no error of Caldera's.

    An error of Caldera's must say what was expected or what came.
    """
    try:
        with alarm(), np.errstate(all="ignore"):
            used(call())
    except CalderaError as error:
        says = "expected" in str(error) or "got" in str(error)
        return None if says else error
    except Exception as error:
        return None if _from_the_caller(error) else error
    return None


def _from_the_caller(error: Exception) -> bool:
    """Whether a function that the call passed raised it, and no alarm."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    passed = "bad_calls" in last.filename or "relative error" in str(error)
    return passed and not isinstance(error, Hung)


def used(value: Any) -> None:
    """Compute expressions by the oracle, if they are small: what was accepted must work."""
    if isinstance(value, Layer):
        value = _of_layer(value)
    elif isinstance(value, optim.Schedule):
        value = value.rate(op.var("step", (), fill=cd.constant(3.0)))
    elif isinstance(value, optim.Optimizer):
        x = op.var("x", (2,), fill=cd.constant(3.0))
        value.train(op.sum(x * x), [x])
        return
    elif isinstance(value, Iterator):
        next(value, None)
        return
    parts = value if isinstance(value, list | tuple) else [value]
    for each in parts:
        if isinstance(each, dmath.Array) and each.size <= SMALL:
            each.numpy()
    if any(isinstance(each, dmath.Array) for each in parts):
        return
    nodes = tuple(each.node for each in parts if isinstance(each, Expr))
    order = Program(nodes).order()
    if any(node.op.name in ("input", "all_sum", "all_gather", "sum_scatter") for node in order):
        return
    sizes = [np.prod(spec.shape, dtype=float) for node in order for spec in node.outputs]
    if sum(sizes) > SMALL or any("collective" in node.op.name for node in order):
        return
    if any(node.op.name == "scan" and node.attrs["length"] > SMALL for node in order):
        return
    leaves = {
        node: node.attrs["symbol"].value.numpy()
        for node in order
        if node.op.name in ("array", "tensor", "variable")
    }
    interpret(nodes, leaves)


def _of_layer(layer: Layer) -> Any:
    """A layer on inputs of a shape that suits its kind, without memory for its parameters."""
    with nn.trace(allocate=False):
        return layer(*inputs_of(type(layer).__name__))


def inputs_of(name: str) -> list[Expr]:
    """Inputs of a shape that suits this kind of layer."""
    shape = next((shape for kind, shape in SHAPES.items() if kind in name), (2, 4))
    dtype = "int64" if name in ("Embedding", "GPT") else "float32"
    return [op.input(f"x{i}", shape, dtype) for i in range(2 if name in PAIRS else 1)]


PAIRS = ("Add", "Bilinear", "Concat", "Dot", "Subtract", "TransformerDecoderBlock")
SHAPES = {
    "ConvLSTM1D": (2, 3, 4, 8),
    "ConvLSTM2D": (2, 3, 4, 8, 8),
    "ConvLSTM3D": (2, 3, 4, 4, 4, 4),
    "1D": (2, 4, 8),
    "2D": (2, 4, 8, 8),
    "3D": (2, 4, 4, 4, 4),
    "Cell": (2, 4),
    "RNN": (2, 3, 4),
    "GRU": (2, 3, 4),
    "LSTM": (2, 3, 4),
    "Attention": (2, 3, 4),
    "Transformer": (2, 3, 4),
    "Positional": (2, 3, 4),
    "MeanPooling": (2, 3, 4),
    "Conformer": (2, 3, 4),
    "Splice": (2, 3, 4),
    "TimeDelay": (2, 3, 4),
    "StatisticsPooling": (2, 3, 4),
    "FilterBank": (2, 800),
    "LocalResponse": (2, 4, 5, 5),
    "InstanceNorm": (2, 4, 5),
    "GlobalAverage": (2, 4, 5, 5),
    "Inception": (1, 3, 299, 299),
    "GoogLeNet": (1, 3, 224, 224),
    "PaddedShortcut": (2, 4, 8, 8),
    "Branches": (2, 4),
    "GlobalMaxPool": (2, 4, 5, 5),
    "UpSampling": (2, 4, 5, 5),
    "Adaptive": (2, 4, 5, 5),
    "Cropping": (2, 4, 5, 5),
    "Padding": (2, 4, 5, 5),
    "Pixel": (2, 4, 6, 6),
    "Unfold": (2, 4, 5, 5),
    "Fold": (2, 4, 16),
    "LPPool": (2, 4, 5, 5),
    "Permute": (2, 3, 4),
    "TimeDistributed": (2, 3, 4),
}
