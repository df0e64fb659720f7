"""How kernels are checked: ways for arrays to lie in memory, and what is equal to the oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np

from caldera.compiler.passes.layout import IMAGES, layout
from caldera.core.graph.memory_format import NHWC, laid_out
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import parameter
from caldera.core.graph.ops.control import items
from caldera.core.graph.program import Program
from caldera.core.tensor.dtype import bool_, is_complex, is_inexact, is_integer, part_of
from caldera.kernels.reference import evaluate
from caldera.kernels.table import Call, Kernel
from tests.unit.kernels.guard_pages import guarded

TOLERANCE = {"float64": 1e-11, "float32": 2e-5, "float16": 2e-3, "bfloat16": 2e-2}
DTYPES = ("float32", "float64", "float16", "bfloat16")
ELSEWHERE = frozenset(
    {
        "fused",
        "scan",
        "all_sum",
        "collective_start",
        "collective_finish",
        "turn",
    }
)
"""Made by passes or plans, or in need of a communicator: no case has them as they run."""
OF_COMPLEX = frozenset(
    {
        "complex",
        "inverse",
        "solve",
        "slogdet",
        "cholesky",
        "qr",
        "svd",
        "eigh",
        "eig",
    }
)
"""Ops whose kernels meet complex numbers; a pass replaces those of all others by their parts."""
Arrange = Callable[[np.ndarray], np.ndarray]


def is_taken_apart(node: Node) -> bool:
    """True if passes replace a node of this dtype, so that it never comes to a kernel."""
    if node.op.name == "matmul" and is_integer(node.dtype):
        return True
    specs = [*node.outputs, *(given.outputs[0] for given in node.inputs)]
    return node.op.name not in OF_COMPLEX and any(is_complex(spec.dtype) for spec in specs)


# --- ways for an array to lie in memory


def _dense(array: np.ndarray) -> np.ndarray:
    """Row by row, in memory that nothing may be read or written beyond."""
    memory = guarded(array.nbytes).view(array.dtype).reshape(array.shape)
    memory[...] = array
    return memory


def _with_gaps(array: np.ndarray) -> np.ndarray:
    """Every second element of a larger array, along all axes."""
    large = np.empty([2 * n + 1 for n in array.shape], array.dtype)
    view = large[*[slice(1, None, 2) for _ in array.shape], ...]
    view[...] = array
    return view


def _columns_first(array: np.ndarray) -> np.ndarray:
    return np.array(array, order="F")


def _backwards(array: np.ndarray) -> np.ndarray:
    """A view with negative strides."""
    # NumPy flips what has no axes into a scalar, which has no memory.
    return np.flip(_dense(np.flip(array))) if array.ndim else _dense(array)


def _repeated(array: np.ndarray) -> np.ndarray:
    """The first entry of axis 0 instead of all of them: a view whose stride is 0."""
    return np.broadcast_to(array[:1], array.shape) if array.ndim else array


def _channels_last(array: np.ndarray) -> np.ndarray:
    if array.ndim != len(NHWC):
        return _dense(array)
    return laid_out(_dense(array.transpose(NHWC)), array.shape, NHWC)


LAYOUTS: dict[str, Arrange] = {
    "dense": _dense,
    "with gaps": _with_gaps,
    "columns first": _columns_first,
    "backwards": _backwards,
    "repeated": _repeated,
    "channels last": _channels_last,
}


# --- the check


def _spoiled(spec: Spec) -> np.ndarray:
    """Memory that holds nan, or the largest of numbers: what a run before it might have left."""
    memory = guarded(spec.nbytes)
    memory.fill(0x01 if spec.dtype == bool_ else 0xFF)
    return laid_out(memory.view(spec.dtype), spec.shape, spec.order)


def in_both_orders(node: Node) -> Iterator[Node]:
    """The node as it stands, and with its images channels last if it has any."""
    yield node
    if node.op.name in IMAGES:
        stand_ins = [parameter(i, given.spec) for i, given in enumerate(node.inputs)]
        plain = node.op.node(*stand_ins, **node.attrs)
        arranged = layout(Program(items(plain))).order()
        yield next(each for each in arranged if each.op is node.op)


_known: dict[object, tuple[np.ndarray, ...]] = {}
"""What the oracle has said of late: every kernel is asked the same in several layouts."""


def oracle(node: Node, given: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """What a node gives, by the reference; it is not to be written to."""
    key = (node, *(array.tobytes() for array in given))
    if key not in _known:
        if len(_known) >= 8:
            _known.clear()
        _known[key] = evaluate(node, given)
    return _known[key]


def check_kernel(kernel: Kernel, node: Node, inputs: tuple[np.ndarray, ...]) -> None:
    """The kernel must give what the oracle does, twice in a row, and neither write to its inputs
    nor depend on what was in its memory before."""
    given = tuple(LAYOUTS["dense"](array) for array in inputs)
    outputs = tuple(_spoiled(spec) for spec in node.outputs)
    needed = kernel.workspace(node)
    workspace = _spoiled(Spec((needed,), np.dtype(np.uint8))) if needed else None
    with np.errstate(all="ignore"):
        expected = oracle(node, given)
        run = kernel.bind(Call(node, outputs, inputs, workspace))
        for _ in range(2):
            run()
            for output, right in zip(outputs, expected, strict=True):
                compare(output, right)
        for array, before in zip(inputs, given, strict=True):
            assert array.tobytes() == before.tobytes()


def compare(output: np.ndarray, right: np.ndarray) -> None:
    """Equal up to rounding; integers and truth values exactly."""
    if not is_inexact(output.dtype):
        np.testing.assert_array_equal(output, right)
        return
    widest, tolerance = _precision(output.dtype)
    found, wide = output.astype(widest), right.astype(widest)
    size = np.abs(wide)
    # Most are, and NumPy takes five times as long to say so (nan is near nothing).
    nearest = tolerance * size.max(initial=0.0)
    if nearest < np.inf and np.abs(found - wide).max(initial=0.0) <= nearest:
        return
    # Where all results are next to nothing (the variance of equal numbers), they are rounding.
    scale = float(size[np.isfinite(wide)].max(initial=tolerance))
    np.testing.assert_allclose(found, wide, rtol=tolerance, atol=tolerance * scale)


@cache
def _precision(dtype: np.dtype) -> tuple[str, float]:
    """The widest dtype of its kind, and how far from the oracle a result may be."""
    return "complex128" if is_complex(dtype) else "float64", TOLERANCE[part_of(dtype).name]
