"""Convolutions of each channel by itself (depthwise), by kernels of our own.

There is nothing in them for tensor cores, and what they cost is to read and to write: a thread has
neighbouring channels of a run of pixels, and reads what several results see once. Images lie
channels last and filters as variables do; what lies otherwise is left to others.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from caldera.graph.memory_format import NHWC, same_memory
from caldera.graph.node import Node, Spec
from caldera.kernels.common.geometry import Geometry
from caldera.kernels.common.scratch import Scratch, compute_dtype, workspace_bytes
from caldera.kernels.cuda import convolution
from caldera.kernels.cuda.codegen.dtypes import STORED
from caldera.kernels.cuda.codegen.loop_operands import divisor
from caldera.kernels.cuda.codegen.signature import (
    Parameter,
    Signature,
    const_pointer,
    i32,
    pointer,
)
from caldera.kernels.cuda.codegen.source import header_launch
from caldera.kernels.cuda.codegen.strided import lies_dense
from caldera.kernels.cuda.runtime.driver import driver
from caldera.kernels.cuda.runtime.launch import CudaRunner, Launch
from caldera.kernels.table import TABLE, Call, Kernel, Runner
from caldera.memory.device_array import address_of
from caldera.tensor.dtype import is_float

_HEADER = "depthwise.cuh"
FILTERS = {"conv2d": 1, "conv2d_input": 1, "conv2d_weight": 2}
"""Which of the inputs and the result are filters; the others are images."""
WIDEST = 16
"""Bytes that a thread reads and writes at once."""
MOST_KEPT = 104
"""Registers for filters, or for the sums of their gradient: with more, threads would spill."""
RUN = 4
"""Neighbouring pixels of a thread, at least."""
LONGEST_RUN = 8
THREADS, MOST_PACKS = 256, 32
BLOCKS = 6
"""Of a multiprocessor: so many share the pixels, as each reads filters first."""
MOST_RUNS = 1 << 31


class Divisor(ctypes.Structure):
    """`Divisor` of fast_division.cuh."""

    _fields_ = [(name, ctypes.c_uint) for name in ("by", "factor", "shift")]


class Planes(ctypes.Structure):
    """`Planes` of depthwise.cuh."""

    _fields_ = [
        *[(name, ctypes.c_int) for name in ("channels", "height", "width", "rows", "columns")],
        ("count", ctypes.c_uint), ("runs", Divisor), ("lines", Divisor),
    ]  # fmt: skip


@dataclass(frozen=True)
class _Tiling:
    """How threads share channels and pixels."""

    geometry: Geometry
    is_input: bool
    together: int
    """Channels of a thread."""

    @classmethod
    def of(cls, node: Node) -> _Tiling | None:
        """None if no thread has registers for a filter."""
        geometry = Geometry.of(node)
        channels, taps = geometry.groups, geometry.taps[0] * geometry.taps[1]
        together = WIDEST // node.dtype.itemsize
        words = compute_dtype(node.dtype).itemsize // 4
        while together > 1 and (channels % together or taps * together * words > MOST_KEPT):
            together //= 2
        if taps * together * words > MOST_KEPT:
            return None
        found = cls(geometry, node.op.name == "conv2d_input", together)
        return found if found.length <= LONGEST_RUN and found.count < MOST_RUNS else None

    @property
    def length(self) -> int:
        """Pixels of a run. Of an image's gradient, each begins at a multiple of the stride."""
        stride = self.geometry.stride[1] if self.is_input else 1
        return -(-RUN // stride) * stride

    @property
    def places(self) -> tuple[int, int]:
        """Rows and columns of what is gone through."""
        return self.geometry.source if self.is_input else self.geometry.target

    @property
    def runs(self) -> int:
        """Of a row."""
        return -(-self.places[1] // self.length)

    @property
    def count(self) -> int:
        """Runs of all images."""
        return self.geometry.batch * self.places[0] * self.runs

    @property
    def block(self) -> tuple[int, int, int]:
        """Threads: packs of channels, and runs."""
        packs = self.geometry.groups // self.together
        across = -(-packs // -(-packs // MOST_PACKS))
        return across, max(1, THREADS // across), 1

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks: of runs, and of packs."""
        across, down, _ = self.block
        slices = -(-(self.geometry.groups // self.together) // across)
        fill = max(1, BLOCKS * driver().multiprocessors // slices)
        return min(fill, -(-self.count // down)), slices, 1

    @property
    def window(self) -> str:
        """The type of the window."""
        of = self.geometry
        numbers = (*of.taps, *of.stride, *of.origin, *of.dilation)
        return f"Window<{', '.join(map(str, numbers))}>"

    @property
    def planes(self) -> Parameter:
        """What the kernels are told."""
        rows, columns = self.places
        height, width = self.geometry.target if self.is_input else self.geometry.source
        return Parameter("Planes", Planes(
            channels=self.geometry.groups, height=height, width=width, rows=rows, columns=columns,
            count=self.count, runs=Divisor(*divisor(self.runs)), lines=Divisor(*divisor(rows)),
        ))  # fmt: skip

    @property
    def partial(self) -> Spec:
        """Sums of the blocks for the gradient of the filters."""
        taps = self.geometry.taps[0] * self.geometry.taps[1]
        return Spec((self.grid[0], taps, self.geometry.groups), self.geometry.dtype)


def _supports(node: Node) -> bool:
    if not is_float(node.dtype) or not Geometry.of(node).is_depthwise:
        return False
    specs = [*(given.outputs[0] for given in node.inputs), node.spec]
    if any(0 in spec.shape for spec in specs) or _Tiling.of(node) is None:
        return False
    return all(
        same_memory(spec.shape, spec.order, None if index == FILTERS[node.op.name] else NHWC)
        for index, spec in enumerate(specs)
    )


def _bind(call: Call) -> Runner:
    for index, array in enumerate((*call.inputs, *call.outputs)):
        order = None if index == FILTERS[call.node.op.name] else NHWC
        if address_of(array) % WIDEST or not lies_dense(array, order):
            return CudaRunner(convolution.launches(call))
    tiling = _Tiling.of(call.node)
    assert tiling is not None
    if call.node.op.name == "conv2d_weight":
        return CudaRunner(_weight_gradient(tiling, call))
    (given, filters), (out,) = call.inputs, call.outputs
    signature = Signature({
        "image": const_pointer(given), "filters": const_pointer(filters), "out": pointer(out),
        "planes": tiling.planes,
    })  # fmt: skip
    sizes = f"{tiling.window}, {tiling.together}, {tiling.length}"
    way = f"{'Backward' if tiling.is_input else 'Forward'}<{tiling.window}, {tiling.length}>"
    return CudaRunner([header_launch(
        _HEADER, "depthwise_images", tiling.grid, tiling.block, signature,
        f"depthwise<{way}, {sizes}>({signature.names});", threads=THREADS,
    )])  # fmt: skip


def _weight_gradient(tiling: _Tiling, call: Call) -> list[Launch]:
    (image, gradient), (out,) = call.inputs, call.outputs
    spec = tiling.partial
    partial = Scratch(call.workspace).array(spec.shape, spec.dtype)
    signature = Signature({
        "image": const_pointer(image), "gradient": const_pointer(gradient),
        "partial": pointer(partial), "planes": tiling.planes,
    })  # fmt: skip
    first = header_launch(
        _HEADER, "depthwise_filters", tiling.grid, tiling.block, signature,
        f"block_depthwise_weight<{tiling.window}, {tiling.together}, {tiling.length}>"
        f"({signature.names});", threads=THREADS,
    )  # fmt: skip
    parts, taps, channels = spec.shape
    signature = Signature({
        "partial": const_pointer(partial), "out": pointer(out), "parts": i32(parts),
        "taps": i32(taps), "channels": i32(channels),
    })  # fmt: skip
    second = header_launch(
        _HEADER, "depthwise_filter_totals", (-(-channels // 32), taps, 1), (32, 8, 1), signature,
        f"block_depthwise_totals<{STORED[out.dtype.name]}>({signature.names});",
    )  # fmt: skip
    return [first, second]


def _workspace(node: Node) -> int:
    tiling = _Tiling.of(node)
    if node.op.name != "conv2d_weight" or tiling is None:
        return 0
    # Arrays that lie otherwise are left to another kernel, which has sums of its own.
    return max(workspace_bytes(tiling.partial), convolution.workspace(node))


for _op in FILTERS:
    TABLE.add(Kernel(_op, "cuda", "depthwise", _bind, _supports, _workspace, priority=13))
