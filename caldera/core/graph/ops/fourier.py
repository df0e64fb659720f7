"""Fourier transforms.

As in kernels, a complex number is a pair (real, imaginary) on a last axis of length 2; the public
functions convert complex dtypes to pairs and back.

A real transform keeps the n // 2 + 1 frequencies that determine the rest, and `mirror` adds the
rest. All three primitives are sums without a factor; the public inverse transforms divide by n. The
gradient of each is another primitive: the adjoint of a transform is its inverse times n.
"""

from __future__ import annotations

from caldera.core.graph import Node, Nodes, Spec, op, refuse_shape
from caldera.core.graph.ops import (
    check_float,
    concat,
    constant,
    equal,
    flip,
    full,
    iota,
    logical_or,
    mul,
    narrow,
    where,
)
from caldera.core.tensor.dtype import DType, int64


def _check_pairs(x: Spec) -> None:
    check_float(x)
    if x.rank < 1 or x.shape[-1] != 2:
        refuse_shape(
            "a last axis of length 2: (real, imaginary)",
            hint="stack the two parts along a new last axis",
        )


def _check_length(x: Spec, axis: int) -> None:
    if x.shape[axis] < 1:
        refuse_shape(f"at least one element along axis {axis}")


def frequencies(n: int) -> int:
    """Return the number of stored frequencies of a real signal of length n."""
    return n // 2 + 1


@op("fft")
def fft(x: Spec, *, axis: int, inverse: bool) -> Spec:
    """Return the sum over t of x_t exp(-2 pi i k t / n) for each k, or with + if `inverse`."""
    _check_pairs(x)
    if not 0 <= axis < x.rank - 1:
        refuse_shape(f"a signal along axis {axis}, before the axis of (real, imaginary)")
    _check_length(x, axis)
    return x


fft.gradient(lambda g, y, x, *, axis, inverse: (fft(g, axis=axis, inverse=not inverse),))


@op("rfft")
def rfft(x: Spec, *, axis: int) -> Spec:
    """Return the first n // 2 + 1 frequencies of a real signal."""
    check_float(x)
    if not 0 <= axis < x.rank:
        refuse_shape(f"a signal along axis {axis}")
    _check_length(x, axis)
    n = x.shape[axis]
    return Spec((*x.shape[:axis], frequencies(n), *x.shape[axis + 1 :], 2), x.dtype)


@op(
    "irfft",
    flops=lambda node: 5 * node.spec.size * (node.attrs["n"] - 1).bit_length() // 2,
    gradient=lambda g, y, x, *, axis, n: (mul(rfft(g, axis=axis), _paired(n, axis, x, 2)),),
)
def irfft(x: Spec, *, axis: int, n: int) -> Spec:
    """Return the real signal of length n with these frequencies, times n.

    The imaginary parts of frequency 0 and, for even n, of the last one are ignored.
    """
    _check_pairs(x)
    if not 0 <= axis < x.rank - 1:
        refuse_shape(f"frequencies along axis {axis}, before the axis of (real, imaginary)")
    if n < 1:
        refuse_shape("a length of 1 or more for the signal", got=f"n = {n}")
    if x.shape[axis] != frequencies(n):
        refuse_shape(
            f"{frequencies(n)} frequencies along axis {axis} for a signal of length {n}",
            hint="the number of frequencies is n / 2 + 1 for an even length and (n + 1) / 2 for "
            "an odd one",
        )
    return Spec((*x.shape[:axis], n, *x.shape[axis + 1 : -1]), x.dtype)


@op("mirror", kind="movement")
def mirror(x: Spec, *, axis: int, begin: int, end: int, others: tuple[int, ...]) -> Spec:
    """x, followed along `axis` by the conjugates of its indices `begin` to `end` in reverse order.

    Along `others`, index i of the appended part is index -i of x.

    >>> from caldera.core.graph.ops.base import check_float, constant
    >>> mirror(full((4, 3, 2), 0, constant(0.0).dtype), axis=1, begin=1, end=2, others=(0,)).shape
    (4, 4, 2)
    """
    _check_pairs(x)
    if not 0 <= axis < x.rank - 1 or not 0 <= begin <= end <= x.shape[axis]:
        refuse_shape(f"frequencies {begin} to {end} along axis {axis}")
    return Spec((*x.shape[:axis], x.shape[axis] + end - begin, *x.shape[axis + 1 :]), x.dtype)


def _mirrored(x: Node, *, axis: int, begin: int, end: int, others: tuple[int, ...]) -> Node:
    if begin == end:
        return x
    found = flip(narrow(x, axis, begin, end - begin), (axis,))
    for other in others:
        rest = flip(narrow(found, other, 1, found.shape[other] - 1), (other,))
        found = concat((narrow(found, other, 0, 1), rest), other)
    imaginary = equal(iota(shape=(2,), axis=0, dtype=int64), constant(1, int64))
    signs = where(imaginary, full((2,), -1, x.dtype), full((2,), 1, x.dtype))
    return concat((x, mul(found, signs)), axis)


mirror.decompose = _mirrored


def all_frequencies(half: Node, axis: int, n: int, others: tuple[int, ...] = ()) -> Node:
    """Return all n frequencies along `axis` of real signals whose first n // 2 + 1 are given;
    `others` are the axes along which they were transformed as well."""
    return mirror(half, axis=axis, begin=1, end=(n - 1) // 2 + 1, others=others)


# A stored frequency also represents its mirror image, except for 0 and n / 2. rfft counts each once
# and irfft counts both, hence the factors.


@rfft.gradient
def _(g: Node, y: Node, x: Node, *, axis: int) -> Nodes:
    n = x.shape[axis]
    return (irfft(mul(g, _paired(n, axis, g, 0.5)), axis=axis, n=n),)


def _paired(n: int, axis: int, spectrum: Node, factor: float) -> Node:
    """Return `factor` for frequencies with a mirror image and 1 for the rest, along `axis`."""
    behind = len(spectrum.shape) - axis - 1
    k = iota(shape=(frequencies(n),) + (1,) * behind, axis=0, dtype=int64)
    twice = mul(k, constant(2, int64))
    alone = logical_or(equal(k, constant(0, int64)), equal(twice, constant(n, int64)))
    dtype: DType = spectrum.dtype
    return where(alone, full(k.shape, 1, dtype), full(k.shape, factor, dtype))


@fft.flops
def _(node: Node) -> int:
    n = node.shape[node.attrs["axis"]]
    return 5 * (node.spec.size // 2) * (n - 1).bit_length()


@rfft.flops
def _(node: Node) -> int:
    given = node.inputs[0]
    n = given.shape[node.attrs["axis"]]
    return 5 * given.spec.size * (n - 1).bit_length() // 2
