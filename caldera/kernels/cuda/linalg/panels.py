"""What factorisations panel by panel are made of on a card: products by cuBLASLt, and blocks on the
diagonal by a launch of our own.

A panel is some columns of a matrix. cuSOLVER spends most of its time on steps of one column, which
wait for each other. Here these are done for a small block, in the registers of one multiprocessor,
and that gives the inverse as well; everything else is products.
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
"""Columns after which all the columns behind them are brought up to date at once: deep products are
faster. Until then panels change only what lies in their group."""
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
    """Where panels begin and end.

    >>> panels(0, 300)
    [(0, 128), (128, 256), (256, 300)]
    """
    return [(first, min(first + width, end)) for first in range(begin, end, width)]


def can_run(node: Node) -> bool:
    """Whether one large matrix of a dtype that cuBLASLt multiplies is given, and the library is."""
    given = node.inputs[0]
    is_large = len(node.inputs[0].shape) == 2 and min(given.shape[-2:]) >= SMALLEST
    is_plain = all(each.dtype in (float32, float64) for each in node.inputs)
    if not (is_large and is_plain) or device.cublas_lt() is None:
        return False
    return driver().card.capability in FAST_FLOAT64


def panel_bytes(*specs: Spec) -> int:
    """The workspace of a `PanelCalls` and of arrays like these."""
    return workspace_bytes(
        Spec((MOST_WORKSPACE + WORKSPACE_ALIGNMENT,), BY_NAME["uint8"]),
        Spec((1,), BY_NAME["int32"]),
        *specs,
    )


def seconds(column_seconds: float, flops: float, node: Node) -> float:
    """About how long a factorisation takes: steps that wait for each other, and products."""
    columns = min(node.inputs[0].shape[-2:])
    return _CALL_SECONDS + columns * column_seconds + node.op.count_flops(node) / flops


class PanelCalls:
    """The calls that factorise a matrix, in the order in which they were asked for.

    When they have run, `failed` holds whether they could; then another runner does it instead.
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
        """The next array of the workspace."""
        return self._scratch.array(shape, dtype)

    def multiply(
        self, out: Array, left: Array, right: Array, alpha: float = 1.0, beta: float = 0.0
    ) -> None:
        """out = alpha left right + beta out; what is multiplied by 0 is not read."""
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
        """The inverse of a block without exchanges of rows, or of one nearby if it has none."""
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
        """What runs them, and what `otherwise` makes if they failed."""
        return PanelRunner(self.calls, self.failed, otherwise)


class PanelRunner(CudaRunner):
    """Calls, and what to do if they could not factorise a matrix: the host waits to know."""

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
    """The strides of a matrix as parameters."""
    down, right = element_strides(array)
    return {f"{name}_down": i64(down), f"{name}_right": i64(right)}
