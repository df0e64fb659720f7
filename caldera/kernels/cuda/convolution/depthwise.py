"""Convolutions of each channel by itself (depthwise), by kernels of our own.

There is nothing in them for tensor cores, and what they cost is to read and to write: a thread has
neighbouring channels of a strip of pixels, goes down the strip and reads each row of it once.
Images lie channels last and filters as variables do; what lies otherwise is left to others.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from caldera.core.graph.memory_format import NHWC, same_memory
from caldera.core.graph.node import Node, Spec
from caldera.core.memory.software import address_of
from caldera.core.tensor.dtype import is_float
from caldera.kernels.common.binding import Scratch, workspace_bytes
from caldera.kernels.common.geometry import Geometry
from caldera.kernels.cuda import convolution
from caldera.kernels.cuda.codegen.kernel import (
    STORED,
    CudaRunner,
    KernelLaunch,
    KernelSignature,
    Parameter,
    const_pointer,
    header_launch,
    i32,
    pointer,
)
from caldera.kernels.cuda.codegen.loop_operands import divisor
from caldera.kernels.cuda.codegen.strides import lies_dense
from caldera.kernels.cuda.runtime.driver import driver
from caldera.kernels.table import TABLE, Call, Kernel, Runner

_HEADER = "depthwise.cuh"
FILTERS = {"conv2d": 1, "conv2d_input": 1, "conv2d_weight": 2}
"""Which of the inputs and the result are filters; the others are images."""
WIDEST = 4
"""Bytes that a thread reads and writes at once: more channels are more registers."""
ALIGNMENT = 16
MOST_KEPT = 190
"""Registers for filters, for results and for the rows at hand: with more, threads would spill."""
RUN = 8
"""Neighbouring pixels of a thread, at most: of those that it reads or of those that it writes,
whichever are more."""
STEPS = 16
"""Results of a strip from top to bottom: at its ends, rows are read twice."""
THREADS, MOST_PACKS = 256, 32
BLOCKS = 2
"""Of a multiprocessor: so many add up for the gradient of filters."""
MOST_STRIPS = 1 << 31


class Divisor(ctypes.Structure):
    """`Divisor` of fast_division.cuh."""

    _fields_ = [(name, ctypes.c_uint) for name in ("by", "factor", "shift")]


_SIZES = ("channels", "height", "width", "rows", "columns", "steps")


class DepthwisePlanes(ctypes.Structure):
    """`Planes` of depthwise.cuh."""

    _fields_ = [
        *[(name, ctypes.c_int) for name in _SIZES],
        ("count", ctypes.c_uint),
        ("runs", Divisor),
        ("parts", Divisor),
    ]


@dataclass(frozen=True)
class _Way:
    """How results along an axis meet what they see: `Forward` and its like of depthwise.cuh."""

    taps: int
    stride: int
    padding: int
    dilation: int
    backward: bool
    length: int
    """Results that are computed together."""

    @property
    def is_apart(self) -> bool:
        """Whether these are single results, which lie apart by the dilation: what they see moves on
        by one place then."""
        return self.length == self.stride == 1

    @property
    def apart(self) -> int:
        return self.dilation if self.is_apart else 1

    @property
    def step(self) -> int:
        """How far on what the next results see lies."""
        return self.length // self.stride if self.backward else self.length * self.stride

    @property
    def span(self) -> int:
        """Places that they see, with those between them."""
        reach = (self.taps - 1) * self.dilation
        if self.is_apart:
            return self.taps
        if not self.backward:
            return (self.length - 1) * self.stride + reach + 1
        low = (reach - self.padding) // self.stride
        return (self.length - 1 + self.padding) // self.stride + low + 1

    @property
    def met(self) -> int:
        """Places that they see."""
        return min(self.span, self.taps * self.length)

    @property
    def code(self) -> str:
        axis = f"Axis<{self.taps}, {self.stride}, {self.padding}, {self.dilation}>"
        name = "Backward" if self.backward else "Forward"
        return f"{name}Apart<{axis}>" if self.is_apart else f"{name}<{axis}, {self.length}>"


@dataclass(frozen=True)
class _Tiling:
    """How threads share channels and pixels."""

    geometry: Geometry
    rows: _Way
    columns: _Way
    together: int
    """Channels of a thread."""

    @classmethod
    def of(cls, node: Node) -> _Tiling | None:
        """None if no thread has registers for a filter and what it meets."""
        geometry, backward = Geometry.of(node), node.op.name == "conv2d_input"
        rows, columns = (
            (*each, backward)
            for each in zip(
                geometry.taps, geometry.stride, geometry.origin, geometry.dilation, strict=True
            )
        )
        stride = geometry.stride if backward else (1, 1)
        down = _Way(*rows, stride[0])
        # Of an image's gradient, each run begins at a multiple of the stride.
        across = _Way(*columns, max(RUN // geometry.stride[1], 1) * stride[1])
        together = max(1, WIDEST // node.dtype.itemsize)
        while together > 1 and geometry.groups % together:
            together //= 2
        while True:
            found = cls(geometry, down, across, together)
            if found._kept(node.dtype.itemsize) <= MOST_KEPT or together == 1:
                break
            together //= 2
        fits = found._kept(node.dtype.itemsize) <= MOST_KEPT and across.length <= RUN
        return found if fits and found.count < MOST_STRIPS else None

    def _kept(self, itemsize: int) -> int:
        """Registers of a thread, roughly."""
        words = self.geometry.dtype.itemsize // 4
        pack = -(-self.together * itemsize // 4)
        fresh = min(self.rows.step, self.rows.span)
        taps = self.geometry.taps[0] * self.geometry.taps[1]
        open_ = -(-self.rows.span // self.rows.step) * self.rows.length * self.columns.length
        return (taps + open_) * self.together * words + 2 * fresh * self.columns.met * pack

    @property
    def places(self) -> tuple[int, int]:
        """Rows and columns of what is gone through."""
        return self.geometry.source if self.rows.backward else self.geometry.target

    @property
    def runs(self) -> int:
        """Strips beside each other."""
        return -(-self.places[1] // self.columns.length)

    @property
    def parts(self) -> int:
        """Strips below each other."""
        unit = self.rows.length * self.rows.apart
        return -(-self.places[0] // (unit * STEPS)) * self.rows.apart

    @property
    def count(self) -> int:
        """Strips of all images."""
        return self.geometry.batch * self.parts * self.runs

    @property
    def block(self) -> tuple[int, int, int]:
        """Threads: packs of channels, and strips."""
        packs = self.geometry.groups // self.together
        across = -(-packs // -(-packs // MOST_PACKS))
        return across, max(1, THREADS // across), 1

    @property
    def slices(self) -> int:
        """Blocks beside each other: of packs."""
        return -(-(self.geometry.groups // self.together) // self.block[0])

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks: of strips, and of packs."""
        return -(-self.count // self.block[1]), self.slices, 1

    @property
    def adding_grid(self) -> tuple[int, int, int]:
        """The same where each block adds up several strips."""
        fill = max(1, BLOCKS * driver().multiprocessors // self.slices)
        return min(fill, self.grid[0]), self.slices, 1

    @property
    def code(self) -> str:
        """Arguments of the kernels' templates."""
        return f"{self.rows.code}, {self.columns.code}, {self.together}"

    @property
    def planes(self) -> Parameter:
        """What the kernels are told."""
        rows, columns = self.places
        height, width = self.geometry.target if self.rows.backward else self.geometry.source
        return Parameter(
            "Planes",
            DepthwisePlanes(
                channels=self.geometry.groups,
                height=height,
                width=width,
                rows=rows,
                columns=columns,
                steps=STEPS,
                count=self.count,
                runs=Divisor(*divisor(self.runs)),
                parts=Divisor(*divisor(self.parts)),
            ),
        )

    @property
    def partial(self) -> Spec:
        """Sums of the blocks for the gradient of the filters."""
        taps = self.geometry.taps[0] * self.geometry.taps[1]
        return Spec((self.adding_grid[0], taps, self.geometry.groups), self.geometry.dtype)


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
        if address_of(array) % ALIGNMENT or not lies_dense(array, order):
            return CudaRunner(convolution.launches(call))
    tiling = _Tiling.of(call.node)
    assert tiling is not None
    if call.node.op.name == "conv2d_weight":
        return CudaRunner(_weight_gradient(tiling, call))
    (given, filters), (out,) = call.inputs, call.outputs
    signature = KernelSignature(
        {
            "image": const_pointer(given),
            "filters": const_pointer(filters),
            "out": pointer(out),
            "planes": tiling.planes,
        }
    )
    return CudaRunner(
        [
            header_launch(
                _HEADER,
                "depthwise_images",
                tiling.grid,
                tiling.block,
                signature,
                f"depthwise<{tiling.code}>({signature.names});",
                threads=THREADS,
            )
        ]
    )


def _weight_gradient(tiling: _Tiling, call: Call) -> list[KernelLaunch]:
    (image, gradient), (out,) = call.inputs, call.outputs
    spec = tiling.partial
    partial = Scratch(call.workspace).array(spec.shape, spec.dtype)
    signature = KernelSignature(
        {
            "image": const_pointer(image),
            "gradient": const_pointer(gradient),
            "partial": pointer(partial),
            "planes": tiling.planes,
        }
    )
    first = header_launch(
        _HEADER,
        "depthwise_filters",
        tiling.adding_grid,
        tiling.block,
        signature,
        f"block_depthwise_weight<{tiling.code}>({signature.names});",
        threads=THREADS,
    )
    parts, taps, channels = spec.shape
    signature = KernelSignature(
        {
            "partial": const_pointer(partial),
            "out": pointer(out),
            "parts": i32(parts),
            "taps": i32(taps),
            "channels": i32(channels),
        }
    )
    second = header_launch(
        _HEADER,
        "depthwise_filter_totals",
        (-(-channels // 32), taps, 1),
        (32, 8, 1),
        signature,
        f"block_depthwise_totals<{STORED[out.dtype.name]}>({signature.names});",
    )
    return [first, second]


def _workspace(node: Node) -> int:
    tiling = _Tiling.of(node)
    if node.op.name != "conv2d_weight" or tiling is None:
        return 0
    # Arrays that lie otherwise are left to another kernel, which has sums of its own.
    return max(workspace_bytes(tiling.partial), convolution.workspace(node))


for _op in FILTERS:
    TABLE.add(Kernel(_op, "cuda", "depthwise", _bind, _supports, _workspace, priority=13))
