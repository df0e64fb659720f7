"""Fourier transforms by pocketfft on several threads, and complex numbers from their parts.

float64 uses NumPy's transform, which writes to a given array; float32 uses SciPy's, if installed,
which is about twice as fast. All other ops on complex numbers run as real kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np

from caldera.base.threads import parallel_for, thread_count
from caldera.core.graph import Node, as_pairs
from caldera.core.tensor import Shape, complex_of, float32, float64, size
from caldera.kernels.native.codegen import (
    any_layout,
    offer,
)
from caldera.kernels.native.movement import copying
from caldera.kernels.table import AddressedRunner, Call, Runner

BLOCK_BYTES = {float32: 1 << 18, float64: 1 << 62}
"""Bytes of contiguous signals that are transformed together: float32 is faster in small blocks."""
SIDE_BY_SIDE = {float32: 64, float64: 1 << 62}
"""Number of interleaved signals that are transformed together.

With more signals of float32, the copies would not stay in the caches.
"""
WORTH_SPLITTING = 1 << 15
"""Numbers from which on a second thread pays."""

Transform = Callable[[np.ndarray, np.ndarray], object]
"""Function that transforms the first array and writes the result to the second."""


@cache
def _scipy() -> Any | None:
    return import_module("scipy.fft") if find_spec("scipy") is not None else None


def _transform(node: Node) -> Transform:
    attrs = dict(node.attrs)
    # Sums without a factor: NumPy divides the inverse ones by their length unless told otherwise.
    name = node.op.name
    if name == "irfft" or attrs.pop("inverse", False):
        name, attrs["norm"] = "irfft" if name == "irfft" else "ifft", "forward"
    scipy = _scipy() if node.inputs[0].dtype == float32 else None
    if scipy is None:
        in_numpy = getattr(np.fft, name)
        return lambda given, out: in_numpy(given, out=out, **attrs)
    in_scipy = getattr(scipy, name)
    return lambda given, out: np.copyto(out, in_scipy(given, **attrs))


def _pieces(shape: Shape, axis: int, blocks: int, together: int) -> list[tuple[slice, ...]]:
    """Return slices that split the signals along `axis` into tasks.

    Interleaved signals are split into groups of at most `together`, contiguous signals into at
    least `blocks` blocks.
    """
    others = [each for each in range(len(shape)) if each != axis]
    if not others:
        return [()]
    along = max(others, key=lambda each: shape[each])
    wanted = thread_count() if size(shape) >= WORTH_SPLITTING else 1
    wanted = max(wanted, blocks if along < axis else -(-shape[along] // together))
    count = max(1, min(wanted, shape[along]))
    ends = [shape[along] * index // count for index in range(count + 1)]
    return [(slice(None),) * along + (slice(*each),) for each in pairwise(ends)]


def _bind(call: Call) -> Runner | None:
    """Return a runner; None for complex pairs whose parts are not adjacent."""
    (given,), (result,), node = call.inputs, call.outputs, call.node
    transform = _transform(node)
    source = given if node.op.name == "rfft" else _as_complex(given)
    target = result if node.op.name == "irfft" else _as_complex(result)
    if source is None or target is None:
        return None
    nbytes = max(source.nbytes, target.nbytes)
    blocks = nbytes // BLOCK_BYTES[node.inputs[0].dtype]
    together = SIDE_BY_SIDE[node.inputs[0].dtype]
    pieces = _pieces(source.shape, node.attrs["axis"], blocks, together)

    workers = min(len(pieces), thread_count())

    def run(source: np.ndarray, target: np.ndarray) -> None:
        def work(worker: int, workers: int) -> None:
            for piece in pieces[worker::workers]:
                transform(source[piece], target[piece])

        if workers == 1:
            work(0, 1)
        else:
            parallel_for(work, workers)

    return AddressedRunner(run, source, target)


def _as_complex(pairs: np.ndarray) -> np.ndarray | None:
    """Return the memory of pairs as complex numbers."""
    if pairs.strides[-1] != pairs.itemsize:
        return None
    return pairs.view(complex_of(pairs.dtype))[..., 0]


def _bind_mirror(call: Call) -> Runner | None:
    """Bind the copy of mirrored parts; None for arrays whose real and imaginary parts are not
    adjacent.
    """
    (given,), (result,), attrs = call.inputs, call.outputs, call.node.attrs
    source, target = _as_complex(given), _as_complex(result)
    if source is None or target is None:
        return None
    axis, begin, end = attrs["axis"], attrs["begin"], attrs["end"]
    kept = source.shape[axis]
    whole = (slice(None),) * source.ndim
    first = _at(whole, axis, slice(0, kept))
    back = slice(end - 1, begin - 1 if begin else None, -1)
    moves = [(_at(whole, axis, back), _at(whole, axis, slice(kept, None)))]
    for other in attrs["others"]:
        # The first element keeps its position, the remaining ones are reversed.
        moves = [
            (_at(each, other, of), _at(to, other, there))
            for each, to in moves
            for of, there in ((slice(0, 1), slice(0, 1)), (slice(None, 0, -1), slice(1, None)))
        ]

    def run(source: np.ndarray, target: np.ndarray) -> None:
        np.copyto(target[first], source)
        if end > begin:
            for each, to in moves:
                np.conjugate(source[each], out=target[to])

    return AddressedRunner(run, source, target)


def _at(index: tuple[slice, ...], axis: int, place: slice) -> tuple[slice, ...]:
    return (*index[:axis], place, *index[axis + 1 :])


def _supports(node: Node) -> bool:
    return node.inputs[0].dtype in BLOCK_BYTES


offer(("fft", "rfft", "irfft"), "pocketfft", any_layout(_bind), _supports, priority=10)
offer("mirror", "copies", any_layout(_bind_mirror), _supports, priority=10)


def _bind_complex(call: Call) -> Runner:
    pairs = as_pairs(call.outputs[0])
    return copying([(pairs[..., which], part) for which, part in enumerate(call.inputs)])


offer("complex", "native", _bind_complex, priority=10)
