"""Linear algebra on a GPU with one block for each matrix: the fastest method for small matrices.

A run on a GPU cannot stop at a matrix that cannot be factorised or inverted: its results are nan.
(The determinant of a singular matrix is 0, as on other devices.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod

from caldera.core.graph.node import Node
from caldera.core.tensor import Shape, is_float
from caldera.kernels.cuda.codegen import (
    STORED,
    Array,
    CudaRunner,
    Parameter,
    axes_of,
    computed_type,
    const_pointer,
    element_strides,
    header_launch,
    i64,
    merged,
    null_pointer,
    pointer,
    strided_axes,
    threads_for,
    type_of,
    u32,
    unless_empty,
)
from caldera.kernels.cuda.linalg import cusolver
from caldera.kernels.cuda.runtime.driver import driver, fits_in_shared
from caldera.kernels.table import TABLE, Call, Kernel, Runner

_COLUMNS = 64
"""Right sides that one block solves for; further ones are another block's."""
_LARGE = 256
"""Rows from which on it is cheaper to eliminate once than once for each block of right sides."""
_MOST_ROWS = 1024
"""Maximum number of rows or columns of a matrix if a library is available."""
_STEP_SECONDS = 4e-7
"""A step of an algorithm, in which all threads of the block meet a few times."""
_FLOPS = 5e10
"""Operations per second of a block."""
_BLOCKS_EACH = 2
"""Number of blocks that a multiprocessor runs simultaneously."""
_WORKSPACE_FACTOR = 4
"""Factor by which all steps are slower outside shared memory."""


# --- where matrices lie


BlocksOf = Callable[[Node], tuple[int, int]]
"""Counts the blocks of a node, and the numbers that each keeps."""


def _batch(shape: Shape, arrays: Sequence[tuple[Array, int]]) -> Parameter:
    """Return the layout of all matrices.

    Arrays are given with the number of axes of their results.
    """
    strides = []
    for array, own in arrays:
        lengths = array.shape[: array.ndim - own]
        steps = element_strides(array)[: array.ndim - own]
        missing = len(shape) - len(lengths)
        repeated = [0 if n == 1 else step for n, step in zip(lengths, steps, strict=True)]
        strides.append((*(0,) * missing, *repeated))
    return strided_axes(merged(axes_of(shape, *strides)), len(arrays))


def _steps(prefix: str, array: Array, axes: int = 2) -> dict[str, Parameter]:
    """Return strides of the last axes: of a matrix down and right, of a vector the step."""
    names = ("down", "right") if axes == 2 else ("step",)
    strides = element_strides(array)[array.ndim - axes :]
    return {f"{prefix}{name}": i64(step) for name, step in zip(names, strides, strict=True)}


def _bytes(dtype: str) -> int:
    return 8 if dtype == "float64" else 4


def _spare_bytes(node: Node, blocks: int, elements: int) -> int:
    """Return workspace for `elements` numbers of each block, where shared memory is too small."""
    nbytes = elements * _bytes(node.inputs[0].dtype.name)
    return 0 if fits_in_shared(nbytes) else blocks * nbytes


def _launched(
    call: Call,
    header: str,
    name: str,
    blocks: int,
    elements: int,
    given: Mapping[str, Parameter],
    body: str,
) -> Runner:
    """Return a launch with a block for each matrix (or part of a matrix) that keeps `elements`
    numbers.
    """
    dtype = call.inputs[0].dtype.name
    stored, computed = STORED[dtype], computed_type(dtype)
    nbytes = elements * _bytes(dtype)
    shared = fits_in_shared(nbytes)
    begin = (
        f"typedef {stored} T;\n    typedef {computed} C;\n    DYNAMIC_SHARED(C, shared);\n"
        "    C* workspace = spare ? spare + (u64)blockIdx.x * size : shared;\n"
    )
    return CudaRunner(
        [
            header_launch(
                header,
                name,
                blocks,
                threads_for(elements),
                {
                    **given,
                    "spare": null_pointer(computed)
                    if shared
                    else pointer(call.workspace, computed),
                    "size": u32(elements),
                },
                begin + body,
                bounded=False,
                shared=nbytes if shared else 0,
            )
        ]
    )


# --- equations

_SOLVE = """    i64 at[3];
    locate(batch, blockIdx.x / parts, at);
    u32 first = blockIdx.x % parts * part;
    block_solve<T, C>(workspace, {a + at[0], a_down, a_right}, {b ? b + at[1] : b, b_down, b_right},
        {x + at[2], x_down, x_right}, n, first, columns - first < part ? columns - first : part);"""


def _parts(node: Node) -> tuple[int, int, int]:
    """Return matrices, right sides of each block, and blocks for each matrix."""
    columns = node.shape[-1]
    part = columns if node.shape[-2] > _LARGE else min(columns, _COLUMNS)
    return prod(node.shape[:-2]), part, -(-columns // max(part, 1))


def _solve_blocks(node: Node) -> tuple[int, int]:
    """Return blocks, and numbers that each keeps."""
    matrices, part, parts = _parts(node)
    n = node.shape[-2]
    return matrices * parts, n * (n + part)


@unless_empty
def _bind_solve(call: Call) -> Runner:
    (x,), (a, *rest) = call.outputs, call.inputs
    _, part, parts = _parts(call.node)
    blocks, elements = _solve_blocks(call.node)
    # The inverse solves for the identity, which is nowhere in memory.
    given = rest[0] if rest else x
    return _launched(
        call,
        "linalg.cuh",
        "solve",
        blocks,
        elements,
        {
            "a": const_pointer(a),
            "b": const_pointer(given) if rest else null_pointer(f"const {type_of(x)}"),
            "x": pointer(x),
            "batch": _batch(x.shape[:-2], [(a, 2), (given, 2), (x, 2)]),
            **_steps("a_", a),
            **_steps("b_", given),
            **_steps("x_", x),
            "n": u32(x.shape[-2]),
            "columns": u32(x.shape[-1]),
            "part": u32(part),
            "parts": u32(parts),
        },
        _SOLVE,
    )


_SLOGDET = """    i64 at[3];
    locate(batch, blockIdx.x, at);
    block_slogdet<T, C>(workspace, {a + at[0], down, right}, sign + at[1], log_size + at[2], n);"""


def _square_blocks(node: Node) -> tuple[int, int]:
    shape = node.inputs[0].shape
    return prod(shape[:-2]), shape[-1] ** 2


# --- factors

_CHOLESKY = """    i64 at[2];
    locate(batch, blockIdx.x, at);
    block_cholesky<T, C>(
        workspace, {a + at[0], down, right}, {out + at[1], out_down, out_right}, n);"""


_QR = """    i64 at[3];
    locate(batch, blockIdx.x, at);
    block_qr<T, C>(workspace, {a + at[0], down, right}, {q + at[1], q_down, q_right},
        {r + at[2], r_down, r_right}, m, n);"""


def _sizes(node: Node) -> tuple[int, int, int]:
    *batch, m, n = node.inputs[0].shape
    return prod(batch), m, n


def _qr_blocks(node: Node) -> tuple[int, int]:
    matrices, m, n = _sizes(node)
    k = min(m, n)
    return matrices, m * n + m * k + k


_EIGH = """    i64 at[3];
    locate(batch, blockIdx.x, at);
    block_eigh<T, C>(
        workspace, {a + at[0], down, right}, w + at[1], w_step, {v + at[2], v_down, v_right}, n);"""


def _eigh_blocks(node: Node) -> tuple[int, int]:
    matrices, _, n = _sizes(node)
    return matrices, 2 * n * n + n + n % 2


_SVD = """    i64 at[4];
    locate(batch, blockIdx.x, at);
    block_svd<T, C>(workspace, {a + at[0], down, right}, {u + at[1], u_down, u_right}, s + at[2],
        s_step, {v + at[3], v_down, v_right}, m, n, turned);"""


def _svd_blocks(node: Node) -> tuple[int, int]:
    matrices, m, n = _sizes(node)
    small = min(m, n)
    return matrices, m * n + small * small + small


@unless_empty
def _bind_svd(call: Call) -> Runner:
    (u, s, vt), (a,) = call.outputs, call.inputs
    m, n = a.shape[-2:]
    v = vt.swapaxes(-1, -2)
    turned = m < n
    if turned:
        # Its columns are rotated, and their number must not exceed the number of rows.
        a, u, v, m, n = a.swapaxes(-1, -2), v, u, n, m
    return _launched(
        call,
        "factorisations.cuh",
        "svd",
        *_svd_blocks(call.node),
        {
            "a": const_pointer(a),
            "u": pointer(u),
            "s": pointer(s),
            "v": pointer(v),
            "batch": _batch(a.shape[:-2], [(a, 2), (u, 2), (s, 1), (v, 2)]),
            **_steps("", a),
            **_steps("u_", u),
            **_steps("s_", s, 1),
            **_steps("v_", v),
            "m": u32(m),
            "n": u32(n),
            "turned": u32(turned),
        },
        _SVD,
    )


_FACTORS: dict[str, tuple[str, str, BlocksOf, dict[str, int], str]] = {
    "slogdet": ("linalg.cuh", _SLOGDET, _square_blocks, {"sign": 0, "log_size": 0}, "n"),
    "cholesky": ("linalg.cuh", _CHOLESKY, _square_blocks, {"out": 2}, "n"),
    "qr": ("factorisations.cuh", _QR, _qr_blocks, {"q": 2, "r": 2}, "mn"),
    "eigh": ("factorisations.cuh", _EIGH, _eigh_blocks, {"w": 1, "v": 2}, "n"),
}
"""By the op: header, text, blocks, the axes of a single result of each output, and the sizes read.
"""


@unless_empty
def _bind_factors(call: Call) -> Runner:
    (a,), op = call.inputs, call.node.op.name
    header, body, blocks_of, axes, sizes = _FACTORS[op]
    outputs = dict(zip(axes, call.outputs, strict=True))
    given = {"a": const_pointer(a), **{name: pointer(each) for name, each in outputs.items()}}
    lie = [(a, 2), *((outputs[name], own) for name, own in axes.items())]
    given |= {"batch": _batch(a.shape[:-2], lie), **_steps("", a)}
    for name, own in axes.items():
        if own:
            given |= _steps(f"{name}_", outputs[name], own)
    lengths = dict(zip("mn", a.shape[-2:], strict=True))
    given |= {name: u32(lengths[name]) for name in sizes}
    return _launched(call, header, op, *blocks_of(call.node), given, body)


# --- cost


def _seconds(blocks_of: BlocksOf, steps: int, node: Node) -> float:
    blocks, _ = blocks_of(node)
    matrices, m, n = _sizes(node)
    waves = -(-blocks // (_BLOCKS_EACH * driver().multiprocessors))
    flops = steps * node.op.count_flops(node) / max(matrices, 1)
    slower = _WORKSPACE_FACTOR if _workspace(blocks_of, node) else 1
    return waves * slower * (min(m, n) * steps * _STEP_SECONDS + flops / _FLOPS)


def _workspace(blocks_of: BlocksOf, node: Node) -> int:
    return _spare_bytes(node, *blocks_of(node))


def _supports(node: Node) -> bool:
    """Return True if the kernel supports a node.

    A block takes minutes for matrices that cuSOLVER handles in milliseconds. Where cuSOLVER is
    available, large matrices are not supported, regardless of the estimated time.
    """
    given = node.inputs[0]
    is_large = max(given.shape[-2:]) > _MOST_ROWS
    return is_float(given.dtype) and not (is_large and cusolver.supports(node))


_SWEEPS = 8
"""Maximum number of passes over all pairs of columns until the rotations converge."""
for _op, _bind, _blocks_of, _per_row in (
    ("solve", _bind_solve, _solve_blocks, 2),
    ("inverse", _bind_solve, _solve_blocks, 2),
    ("slogdet", _bind_factors, _square_blocks, 1),
    ("cholesky", _bind_factors, _square_blocks, 1),
    ("qr", _bind_factors, _qr_blocks, 2),
    ("eigh", _bind_factors, _eigh_blocks, _SWEEPS),
    ("svd", _bind_svd, _svd_blocks, _SWEEPS),
):
    TABLE.add(
        Kernel(
            _op,
            "cuda",
            "one block",
            _bind,
            _supports,
            workspace=partial(_workspace, _blocks_of),
            estimate=partial(_seconds, _blocks_of, _per_row),
            measured=False,
        )
    )
