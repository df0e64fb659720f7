"""Recurrent layers in one launch for all steps: blocks keep their part of the weights in registers.

A loop run step by step has two or three launches per step, each of which reads all weights. Here
all blocks are resident simultaneously, and wait only for the results of the previous step, see
include/recurrent/recurrent.cuh. The product of all inputs with their weights is computed before the
loop, and the gradients of weights after it.

If one launch covers all rows it takes a tenth of the loop's time or less (H200: 128 steps of an
LSTM in 0.2 ms instead of 6.9). It is therefore not measured: capturing a loop of some thousand
launches takes longer than everything else. Several launches for groups of rows are measured against
the loop, whose products are more efficient then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from caldera.core.graph.node import Node, Spec
from caldera.core.tensor.dtype import int32
from caldera.kernels.common.binding import Scratch, workspace_bytes
from caldera.kernels.cuda.codegen import (
    STORED,
    CudaRunner,
    KernelLaunch,
    KernelSignature,
    const_pointer,
    i32,
    i64,
    pointer,
    strides_of,
    u32,
)
from caldera.kernels.cuda.recurrent.cell import RecurrentCell, cell_of
from caldera.kernels.cuda.recurrent.source import CellSource
from caldera.kernels.cuda.runtime.driver import driver
from caldera.kernels.table import TABLE, Call, Kernel, Runner

UNITS, WARPS, TILE_ROWS = 16, 8, 8
"""Units of a block, warps that share a product, and rows of a tile, as in recurrent_weights.cuh."""
THREADS = 32 * WARPS
MOST_WEIGHTS = 128
"""Registers of a thread that hold weights; it has 255."""
MOST_TILES = 8
"""Tiles of rows of a block, each of which a thread has half an element of."""
MOST_AT_ONCE = 8
"""Tiles, each of which takes four registers."""
_BARRIERS = 4096
"""Number of barriers, as in grid_barrier.cuh."""
_places = count()


@dataclass(frozen=True)
class RecurrentGeometry:
    """Distribution of a layer among blocks.

    A group consists of `blocks` blocks with units of the same rows. There are `groups` groups, each
    with `tiles` times eight rows. The remaining rows require further launches.
    """

    cell: RecurrentCell
    blocks: int
    groups: int
    tiles: int

    @property
    def rows(self) -> int:
        """Number of rows of a launch."""
        return self.groups * self.tiles * TILE_ROWS

    @property
    def gathers(self) -> bool:
        """True if blocks exchange the operands of the product, False if they exchange partial
        results.
        """
        return len(self.cell.left) <= self.cell.right

    @property
    def share(self) -> int:
        """Pieces of 16 x 16 weights of each vector that a warp has."""
        vectors = len(self.cell.left) if self.gathers else self.cell.right
        return -(-vectors * self.blocks // WARPS)

    @property
    def _words(self) -> int:
        """Words of a thread for each of its pieces."""
        vectors = self.cell.right if self.gathers else len(self.cell.left)
        return vectors * (4 if self.cell.kind in ("Half", "Bfloat") else 8)

    @property
    def kept(self) -> int:
        """Number of these pieces kept in registers; the remaining pieces are in shared memory."""
        return max(1, min(self.share, MOST_WEIGHTS // self._words))

    @property
    def exchange(self) -> Spec:
        """Specification of two buffers for the words that blocks exchange."""
        if self.gathers:
            tiles = len(self.cell.left) * self.blocks
        else:
            tiles = self.cell.right * self.blocks**2
        return Spec((2, self.groups, tiles * self.tiles * TILE_ROWS * UNITS), int32)

    @property
    def parts(self) -> int:
        """Number of partial sums in shared memory for each result."""
        return WARPS if self.gathers else max(1, WARPS // self.tiles)

    @property
    def batch(self) -> int:
        """Number of tiles that a warp reads together to add them up."""
        return min(MOST_AT_ONCE, -(-self.blocks // self.parts))

    @property
    def template(self) -> str:
        """The function of recurrent.cuh, with its arguments."""
        pieces = f"Cell, {self.tiles}, {self.share}, {self.kept}"
        if self.gathers:
            return f"grid_gather<{pieces}, {self.cell.kind}>"
        return f"grid_scatter<{pieces}, {self.parts}, {self.batch}, {self.cell.kind}>"

    @property
    def shared(self) -> int:
        """Bytes of shared memory: partial sums, own operands, weights, data of the next step."""
        rows = self.tiles * TILE_ROWS
        floats = self.parts * self.cell.right * UNITS * (rows + 2)
        floats += 0 if self.gathers else rows * (len(self.cell.left) * UNITS + 4)
        floats += (self.share - self.kept) * self._words * THREADS
        return 4 * (floats + len(self.cell.ahead) * -(-rows * UNITS // THREADS) * THREADS)

    @property
    def fits(self) -> bool:
        """True if the shared memory suffices."""
        return self.groups > 0 and self.shared <= driver().shared_bytes


def geometry_of(cell: RecurrentCell) -> RecurrentGeometry:
    """Return the geometry with the maximum number of groups: blocks with fewer rows are faster."""
    blocks = -(-cell.units // UNITS)
    most = driver().multiprocessors // blocks
    if not most:
        return RecurrentGeometry(cell, blocks, 0, 1)
    tiles = -(-cell.rows // TILE_ROWS)
    room = next(
        (n for n in range(MOST_TILES, 1, -1) if RecurrentGeometry(cell, blocks, 1, n).fits), 1
    )
    launches = -(-tiles // (most * room))
    each = -(-tiles // (most * launches))
    return RecurrentGeometry(cell, blocks, min(most, -(-tiles // each)), each)


def supports(node: Node) -> bool:
    """Return True if a loop is a recurrent layer whose weights fit on the GPU."""
    if not node.attrs["length"] or any(spec.order is not None for spec in node.outputs):
        return False
    cell = cell_of(node)
    return cell is not None and geometry_of(cell).fits


def _takes_one_launch(node: Node) -> bool:
    cell = cell_of(node)
    return supports(node) and cell is not None and geometry_of(cell).rows >= cell.rows


def _workspace(node: Node) -> int:
    cell = cell_of(node)
    assert cell is not None
    return workspace_bytes(geometry_of(cell).exchange)


def source_of(
    node: Node, geometry: RecurrentGeometry, fields: KernelSignature, signature: KernelSignature
) -> str:
    """Return the kernel: `fields` are the parameters that the cell has."""
    cell = geometry.cell
    weights = STORED[node.attrs["body"].parameters[cell.weights].dtype.name]
    return (
        '#include "recurrent.cuh"\n'
        f"{CellSource(cell, node).text(fields)}"
        f'extern "C" __global__ void __launch_bounds__({THREADS}, 1) recurrent('
        f"{signature.declaration}) {{\n"
        "    DYNAMIC_SHARED(float, shared);\n"
        f"    Cell cell = {{{fields.names}}};\n"
        f"    StateWeights<{weights}> from = {{weights, down, across, units}};\n"
        f"    {geometry.template}(\n"
        "        cell, from, (u32*)exchange, shared, begin, end, count, barrier);\n}\n"
    )


def _bind(call: Call) -> Runner:
    node = call.node
    cell = cell_of(node)
    assert cell is not None
    geometry = geometry_of(cell)
    fields = CellSource(cell, node).signature(call.inputs, call.outputs)
    weights, exchange = call.inputs[cell.weights], geometry.exchange
    down, across = _both(strides_of(weights), cell.transposed)
    scratch = Scratch(call.workspace).array(exchange.shape, exchange.dtype)

    def launch(begin: int) -> KernelLaunch:
        signature = KernelSignature(
            fields
            | {
                "weights": const_pointer(weights),
                "down": i64(down),
                "across": i64(across),
                "exchange": pointer(scratch),
                "begin": i32(begin),
                "end": i32(min(begin + geometry.rows, cell.rows)),
                "count": i32(node.attrs["length"]),
                # A launch uses a barrier that no concurrent launch uses.
                "barrier": u32(next(_places) * geometry.groups % _BARRIERS),
            }
        )
        # Two blocks on the same multiprocessor would take turns, while another multiprocessor is
        # idle.
        return KernelLaunch(
            source_of(node, geometry, fields, signature),
            "recurrent",
            (geometry.blocks, geometry.groups, 1),
            THREADS,
            signature,
            max(geometry.shared, driver().lonely_bytes),
            cooperative=True,
        )

    return CudaRunner([launch(begin) for begin in range(0, cell.rows, geometry.rows)])


def _both(steps: Sequence[int], transposed: bool) -> tuple[int, int]:
    rows, columns = steps
    return (columns, rows) if transposed else (rows, columns)


# Two concurrent launches might each wait for blocks that do not fit on the GPU.
_SHARES = frozenset({"barriers"})
TABLE.add(
    Kernel(
        "scan",
        "cuda",
        "persistent",
        _bind,
        _takes_one_launch,
        _workspace,
        priority=1,
        measured=False,
        shares=_SHARES,
    )
)
TABLE.add(
    Kernel(
        "scan",
        "cuda",
        "persistent, rows in turns",
        _bind,
        lambda node: supports(node) and not _takes_one_launch(node),
        _workspace,
        priority=1,
        shares=_SHARES,
    )
)
