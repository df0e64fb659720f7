"""Linear algebra on large matrices by cuSOLVER and cuBLAS, and by GPU and host together.

The library, called through CuPy for one matrix at a time, reports whether it succeeded, and the
host waits for the report. Such calls cannot be captured, and a matrix that cannot be factorised or
inverted raises an error, as on the CPU.

GPU and host together work as in MAGMA. A panel (some columns) is a chain of small dependent steps,
which suit a host. The panel's changes to the rest of the matrix are one large product, which suits
the GPU. While the GPU multiplies, the host already has the next panel: the GPU updates these
columns first (look-ahead), and their copy does not wait for the rest. (Tomov, Dongarra and
Baboulin, Towards dense linear algebra for hybrid GPU accelerated manycore systems, 2010.)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from caldera.base.registry import optional_import
from caldera.core.graph.node import Node
from caldera.core.graph.ops.factorisation import ABOUT_EQUAL
from caldera.core.memory.gpus import PACKAGE, card_count, cupy
from caldera.core.tensor.dtype import FLOATS, bfloat16, float16, float32, float64, part_of
from caldera.kernels.cuda.runtime.device import cupy_array, current_card
from caldera.kernels.reference import FUNCTIONS
from caldera.kernels.reference.arrays import named
from caldera.kernels.table import TABLE, Call, Kernel, Runner

_CALL_SECONDS = 2e-4
_ROW_SECONDS = 2e-6
_ROTATION_SECONDS = 3e-5
"""A row of a factorisation by rotations and reflections, which wait for each other."""
_FLOPS = 5e12
Results = tuple[Any, ...]


def _symmetric(a: Any) -> Any:
    return (a + a.T.conj()) * a.dtype.type(0.5)


def _slogdet(a: Any) -> Results:
    sign, logarithm = cupy().linalg.slogdet(a)
    return sign, logarithm


def _qr(a: Any) -> Results:
    q, r = cupy().linalg.qr(a)
    sign = _sign(cupy().diagonal(r))
    r = r * sign.conj()[:, None]
    if r.dtype.kind == "c":
        # Removes the imaginary rounding errors of the real diagonal.
        steps = cupy().arange(r.shape[0])
        r[steps, steps] = r[steps, steps].real
    return q * sign, r


def _svd(a: Any) -> Results:
    u, s, vt = cupy().linalg.svd(a, full_matrices=False)
    sign = _sign_of_columns(u)
    return u * sign.conj(), s, vt * sign[:, None]


def _eigh(a: Any) -> Results:
    w, v = cupy().linalg.eigh(_symmetric(a))
    return w, v * _sign_of_columns(v).conj()


def _eig(a: Any) -> Results:
    # CuPy has no such function for all libraries of CUDA 12: the host computes it.
    return tuple(map(cupy().asarray, FUNCTIONS["eig"](cupy().asnumpy(a))))


def _sign(x: Any) -> Any:
    """The direction of each number, 1 for 0: what makes it positive if it is divided by it."""
    if x.dtype.kind != "c":
        return cupy().where(x < 0, -1, 1).astype(x.dtype)
    length = cupy().abs(x)
    return cupy().where(length == 0, 1, x / cupy().where(length == 0, 1, length)).astype(x.dtype)


def _sign_of_columns(vectors: Any) -> Any:
    """Return the direction of each column: the direction of the first of its largest components."""
    magnitude = cupy().abs(vectors)
    among_largest = magnitude >= ABOUT_EQUAL * magnitude.max(axis=0, keepdims=True)
    first = cupy().argmax(among_largest, axis=0)
    deciding = vectors[first, cupy().arange(vectors.shape[1])]
    return _sign(deciding)


def bind(call: Call) -> Runner:
    """Return a runner that calls the library for an op, for each matrix in order."""
    node = call.node
    function, _ = _LIBRARY[node.op.name]
    outputs = [cupy_array(array) for array in call.outputs]
    batch = node.shape[:-2] if node.op.name == "solve" else node.inputs[0].shape[:-2]
    inputs = [
        cupy().broadcast_to(cupy_array(array), (*batch, *array.shape[-2:])) for array in call.inputs
    ]
    state = optional_import("cupyx", PACKAGE, "linear algebra").errstate
    # The library has no functions for halves: they are computed in float32.
    widened = node.inputs[0].dtype == float16

    def run() -> None:
        with state(linalg="raise"), named(node.op.name):
            for index in np.ndindex(*batch):
                given = [array[index] for array in inputs]
                results = function(*[each.astype("float32") if widened else each for each in given])
                for output, result in zip(outputs, results, strict=True):
                    output[index] = result

    return run


def supports(node: Node) -> bool:
    """Return True if the library supports this node; CuPy does not support bfloat16."""
    sizes = [given.spec.size for given in node.inputs]
    dtype = part_of(node.inputs[0].dtype)
    return card_count() > 0 and dtype in FLOATS - {bfloat16} and min(sizes) > 0


def _seconds(node: Node) -> float:
    *batch, m, n = node.inputs[0].shape
    _, row_seconds = _LIBRARY[node.op.name]
    each = _CALL_SECONDS + min(m, n) * row_seconds
    return float(np.prod(batch, dtype=float)) * each + node.op.count_flops(node) / _FLOPS


_LIBRARY: dict[str, tuple[Callable[..., Results], float]] = {
    "solve": (lambda a, b: (cupy().linalg.solve(a, b),), _ROW_SECONDS),
    "inverse": (lambda a: (cupy().linalg.inv(a),), _ROW_SECONDS),
    "slogdet": (_slogdet, _ROW_SECONDS),
    "cholesky": (lambda a: (cupy().linalg.cholesky(_symmetric(a)),), _ROW_SECONDS),
    "qr": (_qr, _ROW_SECONDS),
    "eigh": (_eigh, _ROTATION_SECONDS),
    "svd": (_svd, _ROTATION_SECONDS),
    "eig": (_eig, _ROTATION_SECONDS),
}
"""Function for each op, and its seconds per row."""
for _op in _LIBRARY:
    TABLE.add(
        Kernel(
            _op,
            "cuda",
            "cusolver",
            bind,
            supports,
            estimate=_seconds,
            capturable=False,
            measured=False,
        )
    )


PANEL = 128
"""Columns of a panel."""
SMALLEST = 1024
"""Rows below which the GPU without the host is faster, or a panel is nearly all of the matrix."""
_SECONDS_PER_BYTE = 1e-9
_HYBRID_FLOPS = 2e12
"""Operations per second of GPU and host together.

On an H200 with 16 cores the panels take longer than the whole computation in cuSOLVER
(benchmarks/results/placement-h200.md). These kernels therefore serve only if `choices.fix` selects
them, or if no other kernel is available.
"""


@cache
def _copy_stream(card: int) -> Any:
    """Return the copy stream of a GPU.

    There is only one per GPU, since CuPy keeps a separate memory pool for every stream ever
    created.
    """
    return cupy().cuda.Stream(non_blocking=True)


def _pinned(elements: int, dtype: Any) -> np.ndarray:
    """Return host memory that a GPU copies from and to while the host continues."""
    size = elements * np.dtype(dtype).itemsize
    memory = cupy().cuda.alloc_pinned_memory(max(size, 1))
    return np.frombuffer(memory, dtype, elements)


class _Link:
    """Copies of columns between host and GPU, concurrent with the GPU's computation.

    It has GPU memory for `elements` elements, the total number sent. Sent data is never
    overwritten, so no copy waits for earlier readers of that memory. Host memory holds `largest`
    elements in each direction.
    """

    def __init__(self, elements: int, largest: int, dtype: Any) -> None:
        self._main = cupy().cuda.get_current_stream()
        self._stream = _copy_stream(current_card())
        self._room = cupy().empty(elements, dtype)
        self._used = 0
        self._arriving, self._leaving = _pinned(largest, dtype), _pinned(largest, dtype)
        self._stream.wait_event(self._main.record())
        self._left = self._stream.record()

    def fetched(self, part: Any) -> Callable[[], np.ndarray]:
        """Start the copy of a part of a matrix to the host, and return a function that waits for
        it.

        On the host, columns are contiguous, as LAPACK requires; the next part overwrites them.
        """
        rows, columns = part.shape
        arriving = self._arriving[: rows * columns].reshape(columns, rows)
        if not part.size:
            return lambda: arriving.T
        self._stream.wait_event(self._main.record())
        with self._stream:
            held = cupy().ascontiguousarray(part.T)
            cupy().asnumpy(held, stream=self._stream, out=arriving, blocking=False)
            done = self._stream.record()

        def wait() -> np.ndarray:
            done.synchronize()
            return arriving.T

        return wait

    def sent(self, array: np.ndarray) -> Any:
        """Return a matrix on the GPU; later computations there wait for its copy."""
        begin, end = self._used, self._used + array.size
        self._used = end
        self._left.synchronize()
        leaving = self._leaving[: array.size].reshape(array.shape[::-1])
        np.copyto(leaving, array.T)
        there = self._room[begin:end].reshape(leaving.shape)
        there.set(leaving, stream=self._stream)
        self._left = self._stream.record()
        self._main.wait_event(self._left)
        return there.T

    def close(self) -> None:
        """Wait for all copies: others may be given the memory on the host."""
        self._stream.synchronize()


def _panels(k: int) -> list[tuple[int, int]]:
    return [(begin, min(begin + PANEL, k)) for begin in range(0, k, PANEL)]


def _hybrid_cholesky(a: Any) -> Results:
    """Left-looking: the product below a diagonal block runs while the host factorises the block."""
    n = len(a)
    lower = cupy().tril((a + a.T) * a.dtype.type(0.5))
    link = _Link(2 * n * PANEL, PANEL * PANEL, a.dtype)
    for begin, end in _panels(n):
        left = lower[begin:end, :begin]
        lower[begin:end, begin:end] -= left @ left.T
        block = link.fetched(lower[begin:end, begin:end])
        lower[end:, begin:end] -= lower[end:, :begin] @ left.T
        found = _checked("potrf", block(), lower=1)[0]
        lower[begin:end, begin:end] = link.sent(found)
        # The inverse of a small triangle makes one more product of the triangular solution.
        inverse = link.sent(_checked("trtri", found, lower=1)[0])
        lower[end:, begin:end] = lower[end:, begin:end] @ inverse.T
    link.close()
    return (lower,)


def _hybrid_qr(a: Any) -> Results:
    """Panels of Householder's reflections, each panel one product with the rest (WY form)."""
    m, n = a.shape
    k = min(m, n)
    rest = a.copy()
    link = _Link((m + PANEL) * k, m * PANEL, a.dtype)
    reflections: list[tuple[int, Any, Any]] = []
    panel = link.fetched(rest[:, : min(PANEL, k)])
    for begin, end in _panels(k):
        packed, inner = _reflected(panel())
        there, t = link.sent(packed), link.sent(inner)
        width = end - begin
        v = cupy().tril(there, -1)
        v[:width] += cupy().eye(width, dtype=a.dtype)
        rest[begin:, begin:end] = cupy().triu(there)
        reflections.append((begin, v, t))
        ahead = min(end + PANEL, k)
        # First the columns that the host needs next, then the rest, while the host works.
        _reflect(rest[begin:, end:ahead], v, t)
        panel = link.fetched(rest[end:, end:ahead])
        _reflect(rest[begin:, ahead:], v, t)
    link.close()
    q = cupy().eye(m, k, dtype=a.dtype)
    for begin, v, t in reversed(reflections):
        part = q[begin:, begin:]
        part -= v @ (t @ (v.T @ part))
    r = cupy().triu(rest[:k])
    sign = cupy().where(cupy().diagonal(r) < 0, -1, 1).astype(a.dtype)
    return q * sign, r * sign[:, None]


def _reflected(panel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """V below R as LAPACK packs them, and T: the panel is (I - V T Vᵀ) times R below zeros."""
    packed, tau, *_ = _checked("geqrf", panel)
    k = len(tau)
    first = np.tril(packed[:k, :k], -1) + np.eye(k, dtype=panel.dtype)
    inner = np.triu(first.T @ first + packed[k:, :k].T @ packed[k:, :k], 1)
    # A column that needs no reflection has tau = 0: its row and column of T are 0.
    is_used = tau != 0
    inner += np.diag(1 / np.where(is_used, tau, 1)).astype(panel.dtype)
    inner[:, ~is_used] = inner[~is_used] = 0
    inner[~is_used, ~is_used] = 1
    t = _checked("trtri", inner)[0]
    t[:, ~is_used] = t[~is_used] = 0
    return packed, t


def _reflect(part: Any, v: Any, t: Any) -> None:
    if part.shape[1]:
        part -= v @ (t.T @ (v.T @ part))


def _hybrid_solve(a: Any, b: Any) -> Results:
    """LU with partial pivoting; the right sides are columns that are eliminated with the rest."""
    n = len(a)
    rest = cupy().concatenate([a, b], axis=1)
    link = _Link((n + 2 * PANEL) * n, n * PANEL, a.dtype)
    uppers: list[tuple[int, int, Any]] = []
    panel = link.fetched(rest[:, : min(PANEL, n)])
    for begin, end in _panels(n):
        order, packed = _eliminated(panel())
        lower, upper = (link.sent(each) for each in _inverses(packed[: end - begin]))
        below, taken = link.sent(packed)[end - begin :], cupy().asarray(order)
        uppers.append((begin, end, upper))
        ahead = min(end + PANEL, n)
        # First the columns that the host needs next, then the rest, while the host works.
        _eliminate(rest[begin:, end:ahead], taken, below, lower)
        panel = link.fetched(rest[end:, end:ahead])
        _eliminate(rest[begin:, ahead:], taken, below, lower)
    link.close()
    x = rest[:, n:]
    for begin, end, inverse in reversed(uppers):
        x[begin:end] = inverse @ (x[begin:end] - rest[begin:end, end:n] @ x[end:])
    return (x,)


def _eliminated(panel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The order of rows, and L and U of a panel as LAPACK packs them."""
    packed, pivots, *_ = _checked("getrf", panel)
    order = list(range(len(panel)))
    for row, other in enumerate(pivots):
        order[row], order[other] = order[other], order[row]
    return np.array(order), packed


def _inverses(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the inverses of L and U of a square block."""
    lower = _checked("trtri", packed, lower=1, unitdiag=1)[0]
    upper = _checked("trtri", packed)[0]
    return np.tril(lower, -1) + np.eye(len(packed), dtype=packed.dtype), np.triu(upper)


def _eliminate(part: Any, order: Any, lower: Any, inverse: Any) -> None:
    if part.shape[1]:
        k = len(inverse)
        part[...] = part[order]
        part[:k] = inverse @ part[:k]
        part[k:] -= lower @ part[:k]


def _checked(name: str, a: np.ndarray, **how: int) -> tuple[Any, ...]:
    """Return the results of a LAPACK function, except the last, which reports failure."""
    lapack = optional_import("scipy.linalg.lapack", "scipy", "panels on the host")
    *found, failed = lapack.get_lapack_funcs((name,), (a,))[0](a, **how)
    if failed:
        raise np.linalg.LinAlgError("Singular matrix")
    return tuple(found)


def _bind(function: Callable[..., Results], call: Call) -> Runner:
    outputs = [cupy_array(array) for array in call.outputs]
    inputs = [cupy_array(array) for array in call.inputs]
    name = call.node.op.name

    def run() -> None:
        with named(name):
            results = function(*inputs)
        for output, result in zip(outputs, results, strict=True):
            output[...] = result

    return run


def _supports(node: Node) -> bool:
    is_one = all(len(given.shape) == 2 for given in node.inputs)
    is_large = min(node.inputs[0].shape) >= SMALLEST
    can_run = card_count() > 0 and find_spec("scipy") is not None
    return can_run and is_one and is_large and node.inputs[0].dtype in (float32, float64)


for _hybrid_op, _function in (
    ("cholesky", _hybrid_cholesky),
    ("qr", _hybrid_qr),
    ("solve", _hybrid_solve),
):
    TABLE.add(
        Kernel(
            _hybrid_op,
            "cuda",
            "hybrid",
            partial(_bind, _function),
            _supports,
            estimate=lambda node: (
                node.inputs[0].spec.nbytes * _SECONDS_PER_BYTE
                + node.op.count_flops(node) / _HYBRID_FLOPS
            ),
            capturable=False,
            measured=False,
            priority=-1,
        )
    )
