"""Depthwise and pointwise convolutions: each channel, or each pixel, is computed separately.

Depthwise convolutions have no work for tensor cores; their cost is reading and writing. A thread
has neighbouring channels of a strip of pixels, moves down the strip and reads each row once. Images
are channels last and filters have the layout of variables; other kernels serve other layouts.

Pointwise convolutions are matrix products, by cuBLASLt if installed. Channels-last images are one
tall matrix, row-major images a batch of matrices.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from caldera.core.graph import NHWC, Node, Spec, same_memory
from caldera.core.memory.software import address_of
from caldera.core.tensor import is_float, size
from caldera.kernels.common.binding import Scratch, workspace_bytes
from caldera.kernels.common.geometry import Geometry
from caldera.kernels.cuda import convolution
from caldera.kernels.cuda.codegen import (
    STORED,
    CudaRunner,
    KernelLaunch,
    Parameter,
    const_pointer,
    divisor,
    function_launch,
    i32,
    lies_dense,
    pointer,
)
from caldera.kernels.cuda.product import cublas, tiled
from caldera.kernels.cuda.product.problem import Multiplication, described_call
from caldera.kernels.cuda.runtime import device
from caldera.kernels.cuda.runtime.driver import driver
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner

_HEADER = "depthwise.cuh"
FILTERS = {"conv2d": 1, "conv2d_input": 1, "conv2d_weight": 2}
"""Index of the filters among the inputs and the result; the remaining arrays are images."""
WIDEST = 4
"""Maximum number of bytes per access of a thread: more channels need more registers."""
ALIGNMENT = 16
MOST_KEPT = 190
"""Registers for filters, for results and for the rows at hand: with more, threads would spill."""
RUN = 8
"""Maximum number of neighbouring pixels of a thread: the larger of the pixels read and written."""
STEPS = 16
"""Results of a strip from top to bottom: at its ends, rows are read twice."""
THREADS, MOST_PACKS = 256, 32
BLOCKS = 2
"""Number of blocks per multiprocessor that add up the gradient of filters."""
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
    """Mapping from results along an axis to their inputs, as by `Forward` etc. of depthwise.cuh."""

    taps: int
    stride: int
    padding: int
    dilation: int
    backward: bool
    length: int
    """Results that are computed together."""

    @property
    def is_apart(self) -> bool:
        """True if a thread's results are single ones, spaced by the dilation.

        Their input window then moves by one position per result.
        """
        return self.length == self.stride == 1

    @property
    def apart(self) -> int:
        return self.dilation if self.is_apart else 1

    @property
    def step(self) -> int:
        """Offset from the input window of these results to the window of the next results."""
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
    """Distribution of channels and pixels among threads."""

    geometry: Geometry
    rows: _Way
    columns: _Way
    together: int
    """Channels of a thread."""

    @classmethod
    def of(cls, node: Node) -> _Tiling | None:
        """Return the tiling; None if a filter and its inputs exceed a thread's registers."""
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
        """Return registers of a thread, roughly."""
        words = self.geometry.dtype.itemsize // 4
        pack = -(-self.together * itemsize // 4)
        fresh = min(self.rows.step, self.rows.span)
        taps = self.geometry.taps[0] * self.geometry.taps[1]
        open_ = -(-self.rows.span // self.rows.step) * self.rows.length * self.columns.length
        return (taps + open_) * self.together * words + 2 * fresh * self.columns.met * pack

    @property
    def places(self) -> tuple[int, int]:
        """Rows and columns of the images that the strips cover."""
        return self.geometry.source if self.rows.backward else self.geometry.target

    @property
    def runs(self) -> int:
        """Number of strips in horizontal direction."""
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
        """Number of blocks along the packs of channels."""
        return -(-(self.geometry.groups // self.together) // self.block[0])

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks: of strips, and of packs."""
        return -(-self.count // self.block[1]), self.slices, 1

    @property
    def adding_grid(self) -> tuple[int, int, int]:
        """Grid of a launch in which each block adds up several strips."""
        fill = max(1, BLOCKS * driver().multiprocessors // self.slices)
        return min(fill, self.grid[0]), self.slices, 1

    @property
    def code(self) -> str:
        """Arguments of the kernels' templates."""
        return f"{self.rows.code}, {self.columns.code}, {self.together}"

    @property
    def planes(self) -> Parameter:
        """Parameter that describes the images to the kernels."""
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
    return CudaRunner(
        [
            function_launch(
                _HEADER,
                "depthwise_images",
                tiling.grid,
                tiling.block,
                f"depthwise<{tiling.code}>",
                {
                    "image": const_pointer(given),
                    "filters": const_pointer(filters),
                    "out": pointer(out),
                    "planes": tiling.planes,
                },
                threads=THREADS,
            )
        ]
    )


def _weight_gradient(tiling: _Tiling, call: Call) -> list[KernelLaunch]:
    (image, gradient), (out,) = call.inputs, call.outputs
    spec = tiling.partial
    partial = Scratch(call.workspace).array(spec.shape, spec.dtype)
    first = function_launch(
        _HEADER,
        "depthwise_filters",
        tiling.adding_grid,
        tiling.block,
        f"block_depthwise_weight<{tiling.code}>",
        {
            "image": const_pointer(image),
            "gradient": const_pointer(gradient),
            "partial": pointer(partial),
            "planes": tiling.planes,
        },
        threads=THREADS,
    )
    parts, taps, channels = spec.shape
    second = function_launch(
        _HEADER,
        "depthwise_filter_totals",
        (-(-channels // 32), taps, 1),
        (32, 8, 1),
        f"block_depthwise_totals<{STORED[out.dtype.name]}>",
        {
            "partial": const_pointer(partial),
            "out": pointer(out),
            "parts": i32(parts),
            "taps": i32(taps),
            "channels": i32(channels),
        },
    )
    return [first, second]


def _workspace(node: Node) -> int:
    tiling = _Tiling.of(node)
    if node.op.name != "conv2d_weight" or tiling is None:
        return 0
    # Arrays of other layouts are left to another kernel, which needs separate memory for sums.
    return max(workspace_bytes(tiling.partial), convolution.workspace(node))


for _op in FILTERS:
    TABLE.add(Kernel(_op, "cuda", "depthwise", _bind, _supports, _workspace, priority=13))


def product_of(call: Call) -> Multiplication | None:
    """Return the product that a call amounts to.

    None where the arrays cannot be seen as matrices.
    """
    groups = Geometry.of(call.node).groups
    compute = call.node.attrs.get("compute")
    try:
        left, right, out = _OPERANDS[call.node.op.name](call, groups)
    except ValueError:
        # Something would have to be copied.
        return None
    return Multiplication(left, right, out, compute=compute)


def _rows(images: Array, groups: int) -> Array:
    """(N, C, H, W) as (groups, pixels, C / groups)."""
    batch, channels, height, width = images.shape
    pixels = images.transpose(0, 2, 3, 1).reshape(batch * height * width, channels, copy=False)
    return pixels.reshape(len(pixels), groups, channels // groups, copy=False).transpose(1, 0, 2)


def _columns(images: Array, groups: int) -> Array:
    """(N, C, H, W) as (N, groups, C / groups, pixels)."""
    batch, channels, *area = images.shape
    return images.reshape(batch, groups, channels // groups, size(tuple(area)), copy=False)


def _matrices(filters: Array, groups: int) -> Array:
    """(K, C / groups, 1, 1) as (groups, K / groups, C / groups)."""
    results, channels = filters.shape[:2]
    return filters[:, :, 0, 0].reshape(groups, results // groups, channels, copy=False)


Operands = tuple[Array, Array, Array]


def _forward(call: Call, groups: int) -> Operands:
    images, filters, out = call.inputs[0], _matrices(call.inputs[1], groups), call.outputs[0]
    try:
        return _rows(images, groups), filters.swapaxes(1, 2), _rows(out, groups)
    except ValueError:
        return filters, _columns(images, groups), _columns(out, groups)


def _input(call: Call, groups: int) -> Operands:
    gradient, filters, out = call.inputs[0], _matrices(call.inputs[1], groups), call.outputs[0]
    try:
        return _rows(gradient, groups), filters, _rows(out, groups)
    except ValueError:
        return filters.swapaxes(1, 2), _columns(gradient, groups), _columns(out, groups)


def _weight(call: Call, groups: int) -> Operands:
    images, gradient = (_rows(each, groups) for each in call.inputs)
    return gradient.swapaxes(1, 2), images, _matrices(call.outputs[0], groups)


_OPERANDS = {"conv2d": _forward, "conv2d_input": _input, "conv2d_weight": _weight}


def _pointwise_bind(call: Call) -> Runner:
    product = product_of(call)
    if product is None:
        return CudaRunner(convolution.launches(call))
    calls = None
    if device.cublas_lt() is not None:
        calls = cublas.bind_product(product, call.workspace)
    return CudaRunner(tiled.launches(product, call.workspace) if calls is None else calls)


def _pointwise_supports(node: Node) -> bool:
    geometry = Geometry.of(node)
    if not geometry.is_pointwise or not geometry.is_usual or geometry.is_depthwise:
        return False
    return product_of(described_call(node)) is not None


def _pointwise_workspace(node: Node) -> int:
    product = product_of(described_call(node))
    assert product is not None
    if device.cublas_lt() is not None and 0 not in (*product.extent, product.count):
        found, algorithms = cublas.workspace(product)
        if algorithms:
            return found
    return tiled.workspace(product)


for _pointwise_op in _OPERANDS:
    TABLE.add(
        Kernel(
            _pointwise_op,
            "cuda",
            "1x1 product",
            _pointwise_bind,
            _pointwise_supports,
            _pointwise_workspace,
            priority=11,
        )
    )
