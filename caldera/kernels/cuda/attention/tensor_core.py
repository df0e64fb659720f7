"""Tensor-core attention and its gradients, and packed gradients of queries, keys and values.

The tensor-core kernels (attention_cores.cuh) run in half precision, or in float32 that may be
rounded to tf32. They support inputs that cuDNN does not: masks, any head size up to 512 bytes, any
sharing of heads, any strides. Sums run in a fixed order, so results are the same on every run.
Gradients of added masks are computed by the tiles.

Packed gradients are computed by any kernel for the three, which writes each to its slice.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from caldera.core.graph.node import Node
from caldera.core.graph.ops.attention import (
    HEADS_INSIDE,
    attention_backward,
    attention_backward_packed,
)
from caldera.core.memory.software import address_of
from caldera.core.tensor.dtype import DType, bfloat16, float16, float32
from caldera.kernels.cuda.attention import cudnn_sdpa, tiles
from caldera.kernels.cuda.attention.tiles import TileGradient, common_bytes, row_products
from caldera.kernels.cuda.attention.work import (
    AttentionOperand,
    GradientWork,
    forward_work,
)
from caldera.kernels.cuda.codegen import CudaRunner, KernelLaunch, flags, strides_of
from caldera.kernels.cuda.runtime.driver import driver
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner

HEADER = "attention_cores.cuh"
THREADS = 128
ROWS = 64
"""Queries or keys that a block has for its own."""
LONGEST = 512
"""Bytes of a query, a key or a value."""
MOST_COLUMNS = 128
"""Columns of a result that a block computes. A thread has a quarter of the columns in two rows."""
PIECE = 16
"""Bytes per memory access, and bytes of padding between rows in shared memory."""


def _padded(length: int) -> int:
    """Columns in shared memory: whole steps of the tensor cores, and whole parts of a result."""
    step = 16 if length <= MOST_COLUMNS else MOST_COLUMNS
    return -(-length // step) * step


def _rows_bytes(rows: int, columns: int, item: int) -> int:
    return rows * (columns * item + PIECE)


def _forward_bytes(depth: int, width: int, item: int) -> int:
    """Return shared memory: queries, and two tiles of keys and values."""
    columns = min(_padded(width), MOST_COLUMNS)
    return 3 * _rows_bytes(ROWS, _padded(depth), item) + 2 * _rows_bytes(ROWS, columns, item)


def _backward_step(depth: int, width: int) -> int:
    """Return keys or queries that pass through shared memory together."""
    return ROWS if max(_padded(depth), _padded(width)) <= ROWS else ROWS // 2


def _backward_bytes(depth: int, width: int, item: int) -> int:
    """Return the bytes of shared memory.

    They hold 64 rows of queries and keys, two tiles of their products, and two numbers per row.
    """
    step = _backward_step(depth, width)
    return 2 * 2 * 4 * step + sum(
        _rows_bytes(ROWS, _padded(each), item) + 2 * _rows_bytes(step, _padded(each), item)
        for each in (depth, width)
    )


def _tiles(length: int) -> int:
    return -(-length // ROWS)


def _is_aligned(*operands: AttentionOperand) -> bool:
    """Return True if the rows of all operands consist of aligned pieces of 16 bytes."""
    for each in operands:
        *outer, inner = strides_of(each.array)
        starts = [step * each.array.itemsize for step in (each.array.shape[-1], *outer)]
        if inner != 1 or any(start % PIECE for start in (address_of(each.array), *starts)):
            return False
    return True


def _sums(name: str, columns: int) -> str:
    return f"float {name}[{columns // 8}][4];\n    clear_sums({name});\n    "


# --- forward


def _bind(call: Call) -> Runner:
    work = forward_work(call)
    queries, _, own_depth, own_width = work.sizes
    depth, width = _padded(own_depth), min(_padded(own_width), MOST_COLUMNS)
    options = flags(call.node.attrs["causal"], _is_aligned(*work.operands[:4]))
    # The last queries see the most keys of a causal head: their blocks begin first.
    body = (
        f"{work.begin}tile = tiles - 1 - tile;\n    sharing.at(0, at);\n"
        f"    for (int a = 0; a < {len(work.operands)}; a++) at[a] += own[a];\n    {work.matrices}"
        f"block_core_attention<{depth}, {width}, {ROWS}, {options}>(\n"
        f"        {work.matrix('q')}, {work.matrix('key')}, {work.matrix('v')},\n"
        f"        {work.matrix('y')}, {work.vector('logarithm')}, {work.step('logarithm')}, in, "
        f"scale,\n        tile * {ROWS}, part * {width}, {work.masked});"
    )
    shared = sum(
        times * _rows_bytes(ROWS, columns, call.inputs[0].itemsize)
        for times, columns in ((3, depth), (2, width))
    )
    parts = -(-own_width // width)
    launch = work.launch(HEADER, "core_attention", _tiles(queries), parts, body, THREADS, shared)
    return CudaRunner([launch])


# --- backward


class _CoreGradient(GradientWork):
    """The launches of the gradient."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.padded = (_padded(self.depth), _padded(self.width))
        self.step = _backward_step(self.depth, self.width)
        self.shared = _backward_bytes(self.depth, self.width, call.inputs[0].itemsize)

    def _sizes(self) -> str:
        return f"{self.padded[0]}, {self.padded[1]}, {self.step}"

    def of_queries(self, dq: Array) -> KernelLaunch:
        """Return the gradients of queries."""
        result = AttentionOperand("dq", dq, is_written=True)
        work, columns = self.work(result), min(self.padded[0], MOST_COLUMNS)
        aligned = flags(_is_aligned(*self.given[:4], result))
        body = (
            f"{work.begin}tile = tiles - 1 - tile;\n    {_sums('results', columns)}"
            f"int top = tile * {ROWS}, left = part * {columns};\n    "
            f"{work.each_sharer}{self.attended(work)}"
            f"block_core_query_gradients<{self._sizes()}, {self.causal}, {aligned}>(\n"
            f"        of, in, scale, top, left, {work.masked}, results);\n    }}\n"
            f"    deliver_sums<{aligned}>({work.matrix('dq', 'own')}, top, in.queries, left, "
            "in.depth, results, scale);"
        )
        parts = self.padded[0] // columns
        return work.launch(
            HEADER, "core_query_gradients", _tiles(self.queries), parts, body, THREADS, self.shared
        )

    def of_keys(self, dk: Array | None, dv: Array | None) -> KernelLaunch:
        """Return the launch for gradients of keys, of values, or of both if shared alike."""
        results = self.key_results(dk, dv)
        work = self.work(*results)
        aligned = flags(_is_aligned(*self.given[:4], *results))
        columns = [min(each, MOST_COLUMNS) for each in self.padded]
        options = f"{flags(dk is not None, dv is not None)}, {self.causal}, {aligned}"
        deliver = "".join(
            f"deliver_sums<{aligned}>({work.matrix(name, 'own')}, side, in.keys, left, {length}, "
            f"{found}, {factor});\n    "
            for name, array, length, found, factor in (
                ("dk", dk, "in.depth", "for_keys", "scale"),
                ("dv", dv, "in.width", "for_values", "1.0f"),
            )
            if array is not None
        )
        body = (
            f"{work.begin}{_sums('for_keys', columns[0])}{_sums('for_values', columns[1])}"
            f"int side = tile * {ROWS}, left = part * {MOST_COLUMNS};\n    "
            f"{work.each_sharer}{self.attended(work)}"
            f"block_core_key_gradients<{self._sizes()}, {options}>(\n"
            f"        of, in, scale, side, left, {work.masked}, for_keys, for_values);\n"
            f"    }}\n    {deliver}"
        )
        parts = -(-max(self.padded) // MOST_COLUMNS)
        return work.launch(
            HEADER, "core_key_gradients", _tiles(self.keys), parts, body, THREADS, self.shared
        )


def _bind_backward(call: Call) -> Runner:
    dq, dk, dv, *added = call.outputs
    rest, products = row_products(call)
    gradient = _CoreGradient(rest)
    calls = [*products, gradient.of_queries(dq)]
    if dk.shape[:-2] == dv.shape[:-2]:
        calls.append(gradient.of_keys(dk, dv))
    else:
        calls += [gradient.of_keys(dk, None), gradient.of_keys(None, dv)]
    calls += [TileGradient(rest).of_mask(each) for each in added]
    return CudaRunner(calls)


def _supports(node: Node) -> bool:
    is_forward = node.op.name == "scaled_dot_product_attention"
    specs = [*(each.outputs[0] for each in node.inputs), *node.outputs]
    q, v = (specs[i] for i in ((0, 2) if is_forward else (1, 3)))
    if not _multiplies(q.dtype, node.attrs.get("compute")) or any(0 in x.shape for x in specs):
        return False
    if not is_forward and specs[5].dtype != float32:
        return False
    sizes = (q.shape[-1], v.shape[-1], q.dtype.itemsize)
    if max(sizes[:2]) * sizes[2] > LONGEST:
        return False
    needed = _forward_bytes(*sizes) if is_forward else _backward_bytes(*sizes)
    return needed <= driver().shared_bytes


def _multiplies(dtype: DType, compute: str | None) -> bool:
    """Return True if the GPU's tensor cores can multiply this dtype and `compute` permits it."""
    if dtype == float32:
        return compute == "tf32" and driver().card.has_tf32
    return dtype == float16 or (dtype == bfloat16 and driver().card.has_bfloat16)


TABLE.add(
    Kernel("scaled_dot_product_attention", "cuda", "tensor cores", _bind, _supports, priority=5)
)
TABLE.add(
    Kernel(
        "scaled_dot_product_attention_backward",
        "cuda",
        "tensor cores",
        _bind_backward,
        _supports,
        common_bytes,
        priority=5,
    )
)


# These have registered their kernels before this module looks for them.
assert all((cudnn_sdpa, tiles))


def _apart(node: Node) -> Node:
    """Return the node with an output for each of the three."""
    return attention_backward.node(*node.inputs, **node.attrs)


def _packed_bind(kernel: Kernel, call: Call) -> Runner:
    (whole,) = call.outputs
    node = _apart(call.node)
    views, begin = [], 0
    for spec in node.outputs:
        count, heads, steps, width = spec.shape
        part = whole[:, :, begin : begin + heads * width]
        begin += heads * width
        views.append(part.reshape((count, steps, heads, width), copy=False).transpose(HEADS_INSIDE))
    return kernel.bind(replace(call, node=node, outputs=tuple(views)))


def _packed_supports(kernel: Kernel, node: Node) -> bool:
    return kernel.supports(_apart(node))


def _workspace(kernel: Kernel, node: Node) -> int:
    return kernel.workspace(_apart(node))


for _kernel in TABLE.kernels(attention_backward.name, "cuda"):
    TABLE.add(
        Kernel(
            attention_backward_packed.name,
            "cuda",
            _kernel.name,
            partial(_packed_bind, _kernel),
            partial(_packed_supports, _kernel),
            partial(_workspace, _kernel),
            _kernel.priority,
        )
    )
