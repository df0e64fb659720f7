"""Panel factorisations on a GPU: products by cuBLASLt, and a custom kernel for diagonal blocks.

A panel is some columns of a matrix. cuSOLVER spends most of its time on dependent steps for single
columns. Here a small block takes these steps in a multiprocessor's registers, which produces the
inverse as well; all remaining work is products.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from caldera.core.graph.node import Node, Spec
from caldera.core.memory.software import address_of
from caldera.core.tensor.dtype import BY_NAME, DType, float32, float64
from caldera.core.tensor.shape import Shape
from caldera.kernels.common.binding import Scratch, workspace_bytes
from caldera.kernels.common.loops import LoopBody
from caldera.kernels.cuda.codegen import (
    CudaRunner,
    KernelSignature,
    Parameter,
    const_pointer,
    element_strides,
    header_launch,
    i64,
    pointer,
    real,
    type_of,
    u32,
)
from caldera.kernels.cuda.elementwise.loop import loop_calls
from caldera.kernels.cuda.movement import copy_calls
from caldera.kernels.cuda.product.cublas import MOST_WORKSPACE, WORKSPACE_ALIGNMENT
from caldera.kernels.cuda.product.problem import Multiplication
from caldera.kernels.cuda.runtime import device
from caldera.kernels.cuda.runtime.cublaslt import LtCall, algorithms, problem_of
from caldera.kernels.cuda.runtime.device import cupy_array
from caldera.kernels.cuda.runtime.driver import Size, driver
from caldera.kernels.table import Array, Call, Runner

PANEL = 128
"""Columns of a panel: BLOCK_SIDE of diagonal_block.cuh."""
GROUP = 4 * PANEL
"""Columns after which all later columns are updated together: deep products are faster.

Until then panels change only the columns of their group.
"""
SMALLEST = 1024
"""Rows and columns from which on this was measured, and ahead of the library."""
FAST_FLOAT64 = {(8, 0), (9, 0), (10, 0)}
"""Cards whose tensor cores multiply float64."""
_CALL_SECONDS = 2e-4
_HEADER = "panels.cuh"
_THREADS = 256
_TILE = 32
"""Rows and columns of a tile of `block_symmetric_part`."""


def panels(begin: int, end: int, width: int = PANEL) -> list[tuple[int, int]]:
    """Return the start and end of each panel.

    >>> panels(0, 300)
    [(0, 128), (128, 256), (256, 300)]
    """
    return [(first, min(first + width, end)) for first in range(begin, end, width)]


def can_run(node: Node) -> bool:
    """Return True for one large matrix of a dtype that cuBLASLt multiplies, if cuBLASLt is
    available.
    """
    given = node.inputs[0]
    is_large = len(node.inputs[0].shape) == 2 and min(given.shape[-2:]) >= SMALLEST
    is_plain = all(each.dtype in (float32, float64) for each in node.inputs)
    if not (is_large and is_plain) or device.cublas_lt() is None:
        return False
    return driver().card.capability in FAST_FLOAT64


def panel_bytes(*specs: Spec) -> int:
    """Return the workspace of a `PanelCalls` and of arrays like these."""
    return workspace_bytes(
        Spec((MOST_WORKSPACE + WORKSPACE_ALIGNMENT,), BY_NAME["uint8"]),
        Spec((1,), BY_NAME["int32"]),
        *specs,
    )


def seconds(column_seconds: float, flops: float, node: Node) -> float:
    """Return the approximate time of a factorisation: dependent steps, and products."""
    columns = min(node.inputs[0].shape[-2:])
    return _CALL_SECONDS + columns * column_seconds + node.op.count_flops(node) / flops


class PanelCalls:
    """Calls that factorise a matrix, in the order of their creation.

    After they have run, `failed` stores whether they failed; then another runner takes over.
    """

    def __init__(self, call: Call) -> None:
        self.calls: list[Callable[[], object]] = []
        self._scratch = Scratch(call.workspace)
        spare = self._scratch.array((MOST_WORKSPACE + WORKSPACE_ALIGNMENT,), BY_NAME["uint8"])
        skipped = -address_of(spare) % WORKSPACE_ALIGNMENT
        self._spare = spare[skipped : skipped + MOST_WORKSPACE]
        self.failed = self.array((1,), BY_NAME["int32"])
        self.launch("begin", 1, 1, {"failed": pointer(self.failed)}, "*failed = 0;")

    def array(self, shape: Shape, dtype: DType) -> Array:
        """Return the next array of the workspace."""
        return self._scratch.array(shape, dtype)

    def multiply(
        self, out: Array, left: Array, right: Array, alpha: float = 1.0, beta: float = 0.0
    ) -> None:
        """Compute out = alpha left right + beta out; operands multiplied by 0 are not read."""
        if 0 in (*out.shape, left.shape[1]):
            return
        product = Multiplication(left, right, out)
        problem = problem_of(product, "DEFAULT", MOST_WORKSPACE)
        assert problem is not None, "rows of all three are dense, or columns of an operand"
        found = algorithms(problem, device.current_card())
        self.calls.append(LtCall(product, problem, found[:1], self._spare, alpha, beta))

    def cholesky(self, lower: Array, inverse: Array, a: Array, least: float = 0.0) -> None:
        """L of a block, of which the lower triangle is read, and its inverse; it fails where
        elimination does not leave more than `least` of a number on the diagonal."""
        name = type_of(a)
        self.launch(
            "cholesky_inverse",
            1,
            _THREADS,
            {
                "a": const_pointer(a),
                **strides_of("a", a),
                "lower": pointer(lower),
                **strides_of("lower", lower),
                "inverse": pointer(inverse),
                "size": u32(len(a)),
                "least": real(name, least),
                "failed": pointer(self.failed),
            },
            f"block_cholesky_inverse<{name}>({{a, a_down, a_right}},"
            " {lower, lower_down, lower_right}, inverse, size, least, failed);",
        )

    def inverse(self, inverse: Array, a: Array) -> None:
        """Invert a block without row exchanges, or a nearby block if it is singular."""
        name = type_of(a)
        self.launch(
            "inverse",
            1,
            _THREADS,
            {
                "a": const_pointer(a),
                **strides_of("a", a),
                "inverse": pointer(inverse),
                "size": u32(len(a)),
            },
            f"block_inverse<{name}>({{a, a_down, a_right}}, inverse, size);",
        )

    def symmetric_part(self, lower: Array, out: Array, a: Array) -> None:
        """The lower triangle of (a + aᵀ) / 2; above the blocks on the diagonal, `out` is 0."""
        tiles = -(-len(a) // _TILE)
        self.launch(
            "symmetric_part",
            (tiles, tiles, 1),
            (_TILE, 8, 1),
            {
                "a": const_pointer(a),
                **strides_of("a", a),
                "lower": pointer(lower),
                **strides_of("lower", lower),
                "out": pointer(out),
                **strides_of("out", out),
                "n": u32(len(a)),
            },
            f"block_symmetric_part<{type_of(a)}>({{a, a_down, a_right}},"
            " {lower, lower_down, lower_right}, {out, out_down, out_right}, n);",
        )

    def copy(self, target: Array, source: Array) -> None:
        """target[...] = source"""
        self.calls += copy_calls(target, source)

    def convert(self, target: Array, source: Array) -> None:
        """target[...] = source, of another dtype."""
        body = LoopBody((source.dtype.name,), (), ((target.dtype.name, ("in", 0)),))
        self.calls += loop_calls(body, target.shape, [source], [target])

    def clear(self, target: Array) -> None:
        """target[...] = 0"""
        name = target.dtype.name
        body = LoopBody((), (), ((name, ("number", 0.0, name)),))
        self.calls += loop_calls(body, target.shape, [], [target])

    def launch(
        self,
        name: str,
        grid: Size | int,
        block: Size | int,
        given: Mapping[str, Parameter],
        body: str,
    ) -> None:
        """A launch of a function of the headers."""
        self.calls.append(header_launch(_HEADER, name, grid, block, KernelSignature(given), body))

    def runner(self, otherwise: Callable[[], Runner]) -> Runner:
        """Return a runner of the calls, which runs the result of `otherwise()` if they fail."""
        return PanelRunner(self.calls, self.failed, otherwise)


class PanelRunner(CudaRunner):
    """Calls and a fallback if they cannot factorise a matrix: the host waits for the outcome."""

    def __init__(
        self, calls: list[Callable[[], object]], failed: Array, otherwise: Callable[[], Runner]
    ) -> None:
        super().__init__(calls)
        self._failed = failed
        self._otherwise = otherwise

    def __call__(self) -> None:
        super().__call__()
        if int(cupy_array(self._failed)[0]):
            self._otherwise()()


def strides_of(name: str, array: Array) -> dict[str, Parameter]:
    """Return the strides of a matrix as parameters."""
    down, right = element_strides(array)
    return {f"{name}_down": i64(down), f"{name}_right": i64(right)}
