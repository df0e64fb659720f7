"""Cases for Fourier transforms; the results are squared so that second derivatives are not zero."""

from __future__ import annotations

import numpy as np

from caldera import op
from tests.unit.ops.case import Case, numbers


def _complex(x: np.ndarray) -> np.ndarray:
    return x[..., 0] + 1j * x[..., 1]


def _pairs(z: np.ndarray) -> np.ndarray:
    return np.stack([z.real, z.imag], axis=-1)


_LENGTHS = (1, 2, 3, 4, 5, 6)

CASES = [
    Case("fft", lambda x, f=ours: f(x) * f(x), (numbers(n, 2),),
         lambda x, f=numpys: _pairs(f(_complex(x))) ** 2, name=f"{numpys.__name__} {n}", order=2)
    for ours, numpys in ((op.fft, np.fft.fft), (op.ifft, np.fft.ifft))
    for n in _LENGTHS
]  # fmt: skip
CASES += [
    Case("fft", lambda x, f=ours, a=axis: f(x * x, axis=a), (numbers(*shape),),
         lambda x, f=numpys, a=axis: _pairs(f(_complex(x * x), axis=a)),
         name=f"{numpys.__name__} axis {axis}", order=2)
    for ours, numpys in ((op.fft, np.fft.fft), (op.ifft, np.fft.ifft))
    for shape, axis in (((2, 3, 2), 0), ((2, 3, 2), -1), ((2, 2, 2, 2), 1), ((0, 3, 2), -1))
]  # fmt: skip
CASES += [
    Case("fft", lambda x, f=ours: f(x) * f(x), (numbers(2, 3, 2),),
         lambda x, f=numpys: _pairs(f(_complex(x))) ** 2, name=numpys.__name__, order=2)
    for ours, numpys in ((op.fft2, np.fft.fft2), (op.ifft2, np.fft.ifft2))
]  # fmt: skip

CASES += [
    Case("rfft", lambda x: op.rfft(x) * op.rfft(x), (numbers(n),),
         lambda x: _pairs(np.fft.rfft(x)) ** 2, name=f"{n}", order=2)
    for n in _LENGTHS
]  # fmt: skip
CASES += [
    Case("rfft", lambda x, a=axis: op.rfft(x * x, axis=a), (numbers(*shape),),
         lambda x, a=axis: _pairs(np.fft.rfft(x * x, axis=a)), name=f"axis {axis}", order=2)
    for shape, axis in (((3, 2), 0), ((2, 4), -1), ((2, 5, 2), 1), ((0, 4), 1))
]  # fmt: skip
CASES += [
    Case("rfft", lambda x: op.rfft2(x) * op.rfft2(x), (numbers(*shape),),
         lambda x: _pairs(np.fft.rfft2(x)) ** 2, name="rfft2", order=2)
    for shape in ((2, 3), (3, 4), (2, 1, 2))
]  # fmt: skip

CASES += [
    Case("irfft", lambda x, n=n: op.irfft(x, n) * op.irfft(x, n), (numbers(n // 2 + 1, 2),),
         lambda x, n=n: np.fft.irfft(_complex(x), n) ** 2, name=f"{n}", order=2)
    for n in _LENGTHS
]  # fmt: skip
CASES += [
    Case("irfft", lambda x, a=axis, n=n: op.irfft(x * x, n, axis=a), (numbers(*shape),),
         lambda x, a=axis, n=n: np.fft.irfft(_complex(x * x), n, axis=a),
         name=f"axis {axis} n {n}", order=2)
    for shape, axis, n in (((3, 2, 2), 0, 5), ((2, 3, 2), -1, 4), ((2, 3, 2, 2), 1, None),
                           ((0, 3, 2), -1, 4))
]  # fmt: skip
CASES += [
    Case("irfft", lambda x, n=n: op.irfft2(x, n) * op.irfft2(x, n), (numbers(3, n // 2 + 1, 2),),
         lambda x, n=n: np.fft.irfft2(_complex(x), (3, n)) ** 2, name=f"irfft2 {n}", order=2)
    for n in (3, 4)
]  # fmt: skip

CASES += [
    Case("complex_mul", lambda a, b: op.complex_mul(a, b), (a, b),
         lambda a, b: _pairs(_complex(a) * _complex(b)), order=2)
    for a, b in ((numbers(2), numbers(2, seed=1)), (numbers(3, 2), numbers(3, 2, seed=1)),
                 (numbers(2, 1, 2), numbers(3, 2)), (numbers(2), numbers(0, 2)))
]  # fmt: skip
CASES += [
    Case("complex_mul", lambda x: op.complex_mul(x, x), (numbers(3, 2),),
         lambda x: _pairs(_complex(x) ** 2), name="squared", order=2),
]  # fmt: skip
