"""Factorisations by card and host together, as MAGMA does it.

A panel, a few hundred columns, is a chain of small steps that wait for each other: a host has it
done while a card would mostly wait. What the panel changes in the rest of the matrix is one large
product, which is for the card. While the card multiplies, the host has the next panel already: its
columns are the first that the card brings up to date (look-ahead), and their copy does not wait for
the rest.
(Tomov, Dongarra and Baboulin, Towards dense linear algebra for hybrid GPU accelerated manycore
systems, 2010.)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from caldera.graph.node import Node
from caldera.kernels.cuda.runtime.libraries import cupy_array
from caldera.kernels.reference.linalg import named
from caldera.kernels.table import TABLE, Call, Kernel, Runner
from caldera.memory.gpus import card_count, cupy
from caldera.optional import optional_import
from caldera.tensor.dtype import float32, float64

PANEL = 256
"""Columns of a panel."""
SMALLEST = 1024
"""Rows below which a card alone is faster, or one panel is nearly all of the matrix."""
_SECONDS_PER_BYTE = 1e-9
_FLOPS = 2e12
"""What both do together: guesses. Nobody has measured these kernels on a card yet, so they serve
only where somebody fixes them (`choices.fix`), or nothing else can."""
Results = tuple[Any, ...]


class _Link:
    """Copies between host and card beside what the card computes."""

    def __init__(self) -> None:
        self._stream = cupy().cuda.Stream(non_blocking=True)

    def fetched(self, part: Any) -> Callable[[], np.ndarray]:
        """Begin to copy a part of a matrix to the host; what is given back waits for it."""
        main = cupy().cuda.get_current_stream()
        ready = main.record()
        self._stream.wait_event(ready)
        with self._stream:
            held = cupy().ascontiguousarray(part)
            arrived = cupy().asnumpy(held, stream=self._stream, blocking=False)
            done = self._stream.record()

        def wait() -> np.ndarray:
            done.synchronize()
            found: np.ndarray = arrived
            return found

        return wait


def _cholesky(a: Any) -> Results:
    """Left-looking: the product below a diagonal block runs while the host factorises the block."""
    n = len(a)
    lower = cupy().tril((a + a.T) * a.dtype.type(0.5))
    link = _Link()
    for begin in range(0, n, PANEL):
        end = min(begin + PANEL, n)
        left = lower[begin:end, :begin]
        lower[begin:end, begin:end] -= left @ left.T
        block = link.fetched(lower[begin:end, begin:end])
        lower[end:, begin:end] -= lower[end:, :begin] @ left.T
        whole = np.tril(block())
        found = np.linalg.cholesky(whole + np.tril(whole, -1).T)
        # The inverse of a small triangle makes one more product of the triangular solution.
        inverse = np.linalg.inv(found).astype(found.dtype)
        lower[begin:end, begin:end] = cupy().asarray(found)
        lower[end:, begin:end] = lower[end:, begin:end] @ cupy().asarray(np.tril(inverse)).T
    return (lower,)


def _qr(a: Any) -> Results:
    """Panels of Householder's reflections, each panel one product with the rest (WY form)."""
    m, n = a.shape
    k = min(m, n)
    rest = a.copy()
    link = _Link()
    reflections: list[tuple[int, Any, Any]] = []
    panel = link.fetched(rest[:, : min(PANEL, k)])
    for begin in range(0, k, PANEL):
        end = min(begin + PANEL, k)
        v, t, r = _reflected(panel())
        on_card = cupy().asarray(v), cupy().asarray(t)
        rest[begin : begin + len(r), begin:end] = cupy().asarray(r)
        rest[begin + len(r) :, begin:end] = 0
        reflections.append((begin, *on_card))
        ahead = min(end + PANEL, k)
        # First what the host needs next, then all the rest beside it.
        _reflect(rest[begin:, end:ahead], *on_card)
        panel = link.fetched(rest[end:, end:ahead])
        _reflect(rest[begin:, ahead:], *on_card)
    q = cupy().eye(m, k, dtype=a.dtype)
    for begin, v, t in reversed(reflections):
        part = q[begin:, begin:]
        part -= v @ (t @ (v.T @ part))
    r = cupy().triu(rest[:k])
    sign = cupy().where(cupy().diagonal(r) < 0, -1, 1).astype(a.dtype)
    return q * sign, r * sign[:, None]


def _reflected(panel: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """V, T and R of a panel: it is (I - V T Vᵀ) times R below zeros."""
    raw, tau = np.linalg.qr(panel, mode="raw")
    packed = raw.T
    k = len(tau)
    v = np.tril(packed[:, :k], -1)
    v[np.arange(k), np.arange(k)] = 1
    # A column that needs no reflection has tau = 0: its row and column of T are 0.
    is_used = tau != 0
    inner = np.triu(v.T @ v, 1) + np.diag(1 / np.where(is_used, tau, 1))
    inner[:, ~is_used] = inner[~is_used] = 0
    inner[~is_used, ~is_used] = 1
    t = np.linalg.inv(inner)
    t[:, ~is_used] = t[~is_used] = 0
    dtype = panel.dtype
    return v.astype(dtype), np.triu(t).astype(dtype), np.triu(packed[:k]).astype(dtype)


def _reflect(part: Any, v: Any, t: Any) -> None:
    if part.shape[1]:
        part -= v @ (t.T @ (v.T @ part))


def _solve(a: Any, b: Any) -> Results:
    """LU with partial pivoting; the right sides are columns that are eliminated with the rest."""
    n = len(a)
    rest = cupy().concatenate([a, b], axis=1)
    link = _Link()
    uppers: list[tuple[int, int, Any]] = []
    panel = link.fetched(rest[:, : min(PANEL, n)])
    for begin in range(0, n, PANEL):
        end = min(begin + PANEL, n)
        order, below, inverse, upper = _eliminated(panel())
        taken, lower = cupy().asarray(order), cupy().asarray(below)
        first = cupy().asarray(inverse)
        uppers.append((begin, end, cupy().asarray(upper)))
        ahead = min(end + PANEL, n)
        # First what the host needs next, then all the rest beside it.
        _eliminate(rest[begin:, end:ahead], taken, lower, first)
        panel = link.fetched(rest[end:, end:ahead])
        _eliminate(rest[begin:, ahead:], taken, lower, first)
    x = rest[:, n:]
    for begin, end, inverse in reversed(uppers):
        x[begin:end] = inverse @ (x[begin:end] - rest[begin:end, end:n] @ x[end:])
    return (x,)


def _eliminated(panel: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The order of rows, L below the first block, and the inverses of L and U of that block."""
    getrf = _lapack().get_lapack_funcs(("getrf",), (panel,))[0]
    packed, pivots, failed = getrf(panel)
    if failed:
        raise np.linalg.LinAlgError("Singular matrix")
    order = np.arange(len(panel))
    for row, other in enumerate(pivots):
        order[[row, other]] = order[[other, row]]
    k = panel.shape[1]
    lower = np.tril(packed[:k], -1) + np.eye(k, dtype=panel.dtype)
    inverses = np.tril(np.linalg.inv(lower)), np.triu(np.linalg.inv(np.triu(packed[:k])))
    return order, packed[k:], *(each.astype(panel.dtype) for each in inverses)


def _eliminate(part: Any, order: Any, lower: Any, inverse: Any) -> None:
    if part.shape[1]:
        k = len(inverse)
        part[...] = part[order]
        part[:k] = inverse @ part[:k]
        part[k:] -= lower @ part[:k]


def _lapack() -> Any:
    return optional_import("scipy.linalg.lapack", "scipy", "LU of a panel on the host")


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
    if node.op.name == "solve" and find_spec("scipy") is None:
        return False
    return card_count() > 0 and is_one and is_large and node.inputs[0].dtype in (float32, float64)


def _seconds(node: Node) -> float:
    return node.inputs[0].spec.nbytes * _SECONDS_PER_BYTE + node.op.count_flops(node) / _FLOPS


for _op, _function in (("cholesky", _cholesky), ("qr", _qr), ("solve", _solve)):
    TABLE.add(Kernel(
        _op, "cuda", "hybrid", partial(_bind, _function), _supports, estimate=_seconds,
        capturable=False, measured=False, priority=-1,
    ))  # fmt: skip
