"""Cases for Fourier transforms; the results are squared so that second derivatives are not zero."""

from __future__ import annotations

import numpy as np

from caldera import op
from tests.unit.ops.case import Case, complex_numbers, numbers

_LENGTHS = (1, 2, 3, 4, 5, 6)
_PAIRS = ((op.fft, np.fft.fft), (op.ifft, np.fft.ifft))

CASES = [
    Case(
        "fft",
        lambda x, f=ours: f(x) * f(x),
        (complex_numbers(n),),
        lambda x, f=numpys: f(x) ** 2,
        name=f"{numpys.__name__} {n}",
        order=2,
    )
    for ours, numpys in _PAIRS
    for n in _LENGTHS
]
CASES += [
    Case(
        "fft",
        lambda x, f=ours, a=axis: f(x * x, axis=a),
        (complex_numbers(*shape),),
        lambda x, f=numpys, a=axis: f(x * x, axis=a),
        name=f"{numpys.__name__} axis {axis}",
        order=2,
    )
    for ours, numpys in _PAIRS
    for shape, axis in (((2, 3), 0), ((2, 3), -1), ((2, 2, 2), 1), ((0, 3), -1))
]
CASES += [
    # Half of what real numbers have is computed, and mirrored.
    Case(
        "mirror" if ours is op.fft and given.dtype.kind == "f" else "fft",
        lambda x, f=ours, n=n, how=norm: f(x * x, n, 0, how),
        (given,),
        lambda x, f=numpys, n=n, how=norm: f(x * x, n, 0, how),
        name=f"{numpys.__name__} {n} {norm} {given.dtype}",
    )
    for ours, numpys in _PAIRS
    for given, n, norm in ((numbers(4, 2), 3, "ortho"), (complex_numbers(3), 5, "forward"))
]
CASES += [
    Case(
        "fft",
        lambda x, f=ours: f(x) * f(x),
        (complex_numbers(2, 3),),
        lambda x, f=numpys: f(x) ** 2,
        name=numpys.__name__,
        order=2,
    )
    for ours, numpys in (
        (op.fft2, np.fft.fft2),
        (op.ifft2, np.fft.ifft2),
        (op.fftn, np.fft.fftn),
        (op.ifftn, np.fft.ifftn),
    )
]
CASES += [
    Case(
        "fft",
        lambda x: op.fftn(x, (0, 2), "ortho"),
        (complex_numbers(2, 2, 3),),
        lambda x: np.fft.fftn(x, axes=(0, 2), norm="ortho"),
        name="some axes",
    ),
]

CASES += [
    Case(
        "mirror",
        lambda x, a=axes: op.square(op.fftn(x, a)),
        (numbers(*shape),),
        lambda x, a=axes: np.fft.fftn(x, axes=a) ** 2,
        name=f"axes {axes}",
        order=2,
    )
    for shape, axes in (((2, 3), None), ((3, 4), None), ((2, 3, 4), (2, 0)), ((2, 1, 2), None))
]

CASES += [
    Case(
        "rfft",
        lambda x: op.rfft(x) * op.rfft(x),
        (numbers(n),),
        lambda x: np.fft.rfft(x) ** 2,
        name=f"{n}",
        order=2,
    )
    for n in _LENGTHS
]
CASES += [
    Case(
        "rfft",
        lambda x, a=axis: op.rfft(x * x, axis=a),
        (numbers(*shape),),
        lambda x, a=axis: np.fft.rfft(x * x, axis=a),
        name=f"axis {axis}",
        order=2,
    )
    for shape, axis in (((3, 2), 0), ((2, 4), -1), ((2, 5, 2), 1), ((0, 4), 1))
]
CASES += [
    Case(
        "rfft",
        lambda x: op.rfft2(x) * op.rfft2(x),
        (numbers(*shape),),
        lambda x: np.fft.rfft2(x) ** 2,
        name="rfft2",
        order=2,
    )
    for shape in ((2, 3), (3, 4), (2, 1, 2))
]

CASES += [
    Case(
        "irfft",
        lambda x, n=n: op.irfft(x, n) * op.irfft(x, n),
        (complex_numbers(n // 2 + 1),),
        lambda x, n=n: np.fft.irfft(x, n) ** 2,
        name=f"{n}",
        order=2,
    )
    for n in _LENGTHS
]
CASES += [
    Case(
        "irfft",
        lambda x, a=axis, n=n: op.irfft(x * x, n, axis=a),
        (complex_numbers(*shape),),
        lambda x, a=axis, n=n: np.fft.irfft(x * x, n, axis=a),
        name=f"axis {axis} n {n}",
        order=2,
    )
    for shape, axis, n in (
        ((3, 2), 0, 5),
        ((2, 3), -1, 4),
        ((2, 3, 2), 1, None),
        ((2, 3), 1, 7),
        ((2, 3), 1, 2),
        ((0, 3), -1, 4),
    )
]
CASES += [
    Case(
        "irfft",
        lambda x, n=n: op.square(op.irfft2(x, n)),
        (complex_numbers(3, n // 2 + 1),),
        lambda x, n=n: np.fft.irfft2(x, (3, n)) ** 2,
        name=f"irfft2 {n}",
        order=2,
    )
    for n in (3, 4)
]
