"""Attention and its gradient by tiles of 16 x 16 threads: every mask, dtype and layout.

Heads may share queries, keys, values or masks in any way that broadcasting permits. The gradient is
then the sum over the heads that share an operand; one block adds them up sequentially.
"""

from __future__ import annotations

from dataclasses import replace

from caldera.core.graph.node import Node
from caldera.kernels.common.binding import Scratch, compute_dtype, workspace_bytes
from caldera.kernels.cuda.attention.work import (
    AttentionOperand,
    AttentionWork,
    GradientWork,
    forward_work,
)
from caldera.kernels.cuda.codegen import (
    CudaRunner,
    KernelLaunch,
    const_pointer,
    flags,
    header_launch,
    i32,
    index,
    index_type,
    is_large,
    pointer,
    strided_layout,
    strides_of,
    unless_empty,
)
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner

_SIDE = 16
_THREADS = _SIDE * _SIDE
_VECTOR = 16
"""Bytes of a tile's row that a thread has."""


def _item(node: Node) -> int:
    return compute_dtype(node.inputs[1].dtype).itemsize


def _tile(node: Node) -> int:
    """Return queries or keys of a tile."""
    return _SIDE * _VECTOR // _item(node)


def _tiles(node: Node, length: int) -> int:
    """Return the number of tiles along `length` queries or keys."""
    return -(-length // _tile(node))


def _columns(width: int) -> int:
    """Return columns of a result that a thread has, at most 8."""
    return 4 if width <= 4 * _SIDE else 8


def _launch(
    work: AttentionWork, header: str, name: str, tiles: int, parts: int, columns: int, body: str
) -> KernelLaunch:
    tile, item = _tile(work.node), _item(work.node)
    shared = (3 * tile * (tile + _VECTOR // item) + tile * columns * _SIDE) * item
    return work.launch(header, name, tiles, parts, body, _THREADS, shared)


# --- forward


@unless_empty
def _bind(call: Call) -> Runner:
    work = forward_work(call)
    queries, width = work.sizes[0], work.sizes[3]
    columns = _columns(width)
    body = (
        f"{work.begin}sharing.at(0, at);\n"
        f"    for (int a = 0; a < {len(work.operands)}; a++) at[a] += own[a];\n    {work.matrices}"
        f"block_attention<{columns}, {flags(call.node.attrs['causal'])}, {work.computed}>(\n"
        f"        {work.matrix('q')}, {work.matrix('key')}, {work.matrix('v')},\n"
        f"        {work.matrix('y')}, {work.vector('logarithm')}, {work.step('logarithm')}, in, "
        "scale,\n"
        f"        tile * Tile<{work.computed}>::SIZE, part * {columns * _SIDE},\n"
        f"        {work.masked});"
    )
    return CudaRunner(
        [
            _launch(
                work,
                "attention.cuh",
                "attention",
                _tiles(work.node, queries),
                max(1, -(-width // (columns * _SIDE))),
                columns,
                body,
            )
        ]
    )


# --- backward


class TileGradient(GradientWork):
    """The launches of the gradient."""

    def of_queries(self, dq: Array) -> KernelLaunch:
        """Return the gradients of queries."""
        work = self.work(AttentionOperand("dq", dq, is_written=True))
        columns, kind = _columns(self.depth), work.computed
        body = (
            f"{_workspace(kind)}{work.begin}{_cleared(kind, columns, 'results')}"
            f"int top = tile * Tile<{kind}>::SIZE, left = part * {columns * _SIDE};\n    "
            f"{work.each_sharer}{self.attended(work)}"
            f"block_query_gradients<{columns}, {self.causal}>(\n"
            f"        of, in, scale, top, left, shared, {work.masked}, results);\n    }}\n"
            f"    for (int m = 0; m < Tile<{kind}>::M; m++)\n"
            f"        for (int n = 0; n < {columns}; n++) results[m][n] *= scale;\n"
            f"    deliver<{columns}>({work.matrix('dq', 'own')}, top, in.queries, left, "
            "in.depth, results);"
        )
        return _launch(
            work,
            "attention_backward.cuh",
            "attention_query_gradients",
            _tiles(work.node, self.queries),
            -(-self.depth // (columns * _SIDE)),
            columns,
            body,
        )

    def of_keys(self, dk: Array | None, dv: Array | None) -> KernelLaunch:
        """Return the launch for gradients of keys, of values, or of both if shared alike."""
        work = self.work(*self.key_results(dk, dv))
        width = max(self.depth if dk is not None else 0, self.width if dv is not None else 0)
        columns, kind = _columns(width), work.computed
        options = f"{flags(dk is not None, dv is not None)}, {self.causal}"
        deliver = "".join(
            f"deliver<{columns}>({work.matrix(name, 'own')}, side, in.keys, left, {length}, "
            f"{found});\n    "
            for name, array, length, found in (
                ("dk", dk, "in.depth", "for_keys"),
                ("dv", dv, "in.width", "for_values"),
            )
            if array is not None
        )
        body = (
            f"{_workspace(kind)}{work.begin}{_cleared(kind, columns, 'for_keys')}"
            f"{_cleared(kind, columns, 'for_values')}"
            f"int side = tile * Tile<{kind}>::SIZE, left = part * {columns * _SIDE};\n    "
            f"{work.each_sharer}{self.attended(work)}"
            f"block_key_gradients<{columns}, {options}>(\n"
            f"        of, in, scale, side, left, shared, {work.masked}, for_keys, for_values);\n"
            f"    }}\n    {deliver}"
        )
        return _launch(
            work,
            "attention_backward.cuh",
            "attention_key_gradients",
            _tiles(work.node, self.keys),
            -(-width // (columns * _SIDE)),
            columns,
            body,
        )

    def of_mask(self, added: Array) -> KernelLaunch:
        """Return the gradient of a mask that was added."""
        result = AttentionOperand(
            "gradients", added, min(added.ndim, 2), is_written=True, is_mask=True
        )
        work = self.work(result)
        lengths = (1, 1, *added.shape)[-2:]
        rows, columns = lengths[0] == self.queries, lengths[1] == self.keys
        tiles = (_tiles(work.node, self.queries), _tiles(work.node, self.keys))
        down, across = (n if has else 1 for n, has in zip(tiles, (rows, columns), strict=True))
        kind = work.computed
        size_ = f"Tile<{kind}>::SIZE"
        body = (
            f"{_workspace(kind)}{work.begin}{_cleared(kind, f'Tile<{kind}>::M', 'results')}"
            f"int top = {'tile * ' + size_ if rows else '0'}, "
            f"side = {'part * ' + size_ if columns else '0'};\n    {work.each_sharer}"
            f"{self.attended(work)}"
            f"for (int t = top; t < {'top + 1' if rows else 'in.queries'}; t += {size_})\n"
            f"    for (int s = side; s < {'side + 1' if columns else 'in.keys'}; s += {size_})\n"
            f"        block_mask_gradients<{self.causal}>(of, in, scale, t, s, shared, "
            f"{work.masked}, results);\n    }}\n"
            f"    block_deliver_mask<{flags(rows, columns)}>("
            f"{work.matrix('gradients', 'own')}, in, top, side, shared.tile, results);"
        )
        return _launch(
            work, "attention_backward.cuh", "attention_mask_gradients", down, across, 4, body
        )


def _workspace(kind: str) -> str:
    return f"DYNAMIC_SHARED({kind}, memory);\n    Places<{kind}> shared = places_in(memory);\n    "


def _cleared(kind: str, columns: int | str, name: str) -> str:
    return f"{kind} {name}[Tile<{kind}>::M][{columns}];\n    clear({name});\n    "


def gradient_launches(call: Call) -> list[KernelLaunch]:
    """Return the launches of `scaled_dot_product_attention_grad`."""
    dq, dk, dv, *added = call.outputs
    gradient = TileGradient(call)
    calls = [gradient.of_queries(dq)] if dq.size else []
    if dk.shape[:-2] == dv.shape[:-2] and dk.size and dv.size:
        calls.append(gradient.of_keys(dk, dv))
    else:
        calls += [gradient.of_keys(dk, None)] if dk.size else []
        calls += [gradient.of_keys(None, dv)] if dv.size else []
    calls += [gradient.of_mask(each) for each in added if each.size]
    return calls


def row_products(call: Call) -> tuple[Call, list[KernelLaunch]]:
    """Return the call with sums of g * result for each query, and the launches of these.

    The sums, which the gradients of a query's scores have in common, take the result's place.
    """
    g, q, key, v, result, logarithm, *masks = call.inputs
    common = Scratch(call.workspace).array(logarithm.shape, logarithm.dtype)
    rest = replace(call, inputs=(g, q, key, v, common, logarithm, *masks))
    count = common.size
    if not count:
        return rest, []
    strides = [strides_of(common), *(strides_of(each)[:-1] for each in (g, result))]
    rows = strided_layout(common.shape, range(common.ndim), strides)
    large = is_large(common, g, result)
    integer = index_type(large)
    body = (
        f"{integer} which = blockIdx.x * {_THREADS // 32} + threadIdx.x / 32, at[3];\n"
        "    if (which >= count) return;\n    rows.at(which, at);\n"
        "    warp_row_product(common + at[0], g + at[1], g_step, y + at[2], y_step, width);"
    )
    launch = [
        header_launch(
            "attention_backward.cuh",
            "attention_row_products",
            -(-count // (_THREADS // 32)),
            _THREADS,
            {
                "common": pointer(common),
                "g": const_pointer(g),
                "y": const_pointer(result),
                "rows": rows.parameter(large),
                "count": index(count, large),
                "g_step": index(strides_of(g)[-1], large),
                "y_step": index(strides_of(result)[-1], large),
                "width": i32(g.shape[-1]),
            },
            body,
        )
    ]
    return rest, launch


def _bind_backward(call: Call) -> Runner:
    rest, products = row_products(call)
    return CudaRunner([*products, *gradient_launches(rest)])


def common_bytes(node: Node) -> int:
    """Return the workspace for a number for each query."""
    return workspace_bytes(node.inputs[5].spec)


TABLE.add(Kernel("scaled_dot_product_attention", "cuda", "tiles", _bind))
TABLE.add(
    Kernel(
        "scaled_dot_product_attention_grad",
        "cuda",
        "tiles",
        lambda call: CudaRunner(gradient_launches(call)),
    )
)
TABLE.add(
    Kernel(
        "scaled_dot_product_attention_backward",
        "cuda",
        "tiles",
        _bind_backward,
        workspace=common_bytes,
    )
)
