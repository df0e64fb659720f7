"""Seeds, random streams, and normal numbers with the same bits on every machine.

Every random filler and every random op takes the next stream number when it is created, so a
program that creates the same objects in the same order gets the same numbers, on any device. The
order of threads is undefined: a thread that sets a seed has separate streams from then on, and so
have objects created inside `seeded`, such as the parameters of a model.

Box and Muller: `r cos t` and `r sin t` with `r = sqrt(-2 log u)` and a uniform angle `t` are two
independent normal numbers. Libraries disagree in the last bits of `log`, `cos` and `sin`, so
these are computed here from additions, multiplications, one division and one square root, all of
which IEEE 754 rounds in one way only. A backend gets the same bits if it evaluates the same
expressions in the same order and does not contract them into fused multiply-adds.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import factorial, log, pi
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caldera.base.arguments import require


class Streams:
    """A seed, and the next stream number under it.

    `state` is set if the seed is also stored on a device (see `op.random_state`).

    >>> streams = Streams(5)
    >>> streams.seed, streams.take(), streams.take()
    (5, 0, 1)
    """

    def __init__(self, seed: int = 0, first: int = 0, state: Any = None) -> None:
        self.seed = seed
        self.state = state
        self._next = first
        self._lock = threading.Lock()

    def take(self) -> int:
        """Return a number that is unique since the seed was set."""
        with self._lock:
            stream = self._next
            self._next += 1
        return stream

    def restart(self, seed: int) -> None:
        """Set the seed, and restart at the first stream."""
        with self._lock:
            self.seed, self._next = seed, 0


_program = Streams()
_thread = threading.local()


def streams() -> Streams:
    """Return the streams of this thread, or else of the program.

    >>> seed(5)
    >>> streams().seed
    5
    """
    own: Streams | None = getattr(_thread, "streams", None)
    return _program if own is None else own


def checked_seed(number: Any, where: str = "seed") -> int:
    """Return a number that can be a seed.

    >>> checked_seed(-1)
    Traceback (most recent call last):
    caldera.errors.ConfigError: seed: expected an int from 0 to 2**64 - 1, got -1
    """
    is_int = isinstance(number, int | np.integer) and not isinstance(number, bool)
    require(is_int and 0 <= number < 1 << 64, where, "an int from 0 to 2**64 - 1", repr(number))
    return int(number)


def seed(number: int) -> None:
    """Set the seed of all random numbers, and restart at the first stream.

    The seed is an int from 0 to 2**64 - 1; the default is 0. The main thread sets the seed of the
    program; any other thread that calls this function gets a separate seed.

    >>> import caldera as cd
    >>> cd.seed(3)
    >>> first = cd.Tensor((4,), fill=cd.uniform()).tolist()
    >>> second = cd.Tensor((4,), fill=cd.uniform()).tolist()
    >>> cd.seed(3)
    >>> again = cd.Tensor((4,), fill=cd.uniform()).tolist()
    >>> first == again, first == second
    (True, False)
    """
    chosen = checked_seed(number)
    is_main = threading.current_thread() is threading.main_thread()
    if streams() is _program and not is_main:
        _thread.streams = Streams(chosen)
    else:
        streams().restart(chosen)


@contextmanager
def seeded(number: int, first: int = 0, state: Any = None) -> Iterator[None]:
    """Context manager: this thread uses a separate seed, with streams counted from `first`.

    >>> seed(5)
    >>> with seeded(7):
    ...     global_seed(), next_stream()
    (7, 0)
    >>> global_seed()
    5
    """
    before = getattr(_thread, "streams", None)
    _thread.streams = Streams(checked_seed(number), first, state)
    try:
        yield
    finally:
        _thread.streams = before


def global_seed() -> int:
    """Return the seed that was set last; 0 if none was.

    >>> seed(5)
    >>> global_seed()
    5
    """
    return streams().seed


def next_stream() -> int:
    """Return a stream number that is unique since the seed was set.

    >>> seed(5)
    >>> next_stream(), next_stream()
    (0, 1)
    """
    return streams().take()


Floats = NDArray[Any]


@dataclass(frozen=True)
class _Precision:
    """Constants of float32 or float64: bit layout and lengths of series."""

    float_type: type[np.floating[Any]]
    integer_type: type[np.signedinteger[Any]]
    mantissa_bits: int
    angle_bits: int
    root_half: int
    sine_terms: int
    cosine_terms: int
    log_terms: int

    @property
    def sign_shift(self) -> int:
        """From bit 1 of a quadrant number to the sign bit of a float."""
        return np.dtype(self.integer_type).itemsize * 8 - 2


# root_half is the bit pattern of sqrt(1/2). Series end where the next term is below a quarter of
# the last bit.
_SINGLE = _Precision(np.float32, np.int32, 23, 24, 0x3F3504F3, 4, 5, 5)
_DOUBLE = _Precision(np.float64, np.int64, 52, 53, 0x3FE6A09E667F3BCD, 8, 9, 11)


def pairs_float32(radius: NDArray[np.uint32], angle: NDArray[np.uint32]) -> tuple[Floats, Floats]:
    """Normal numbers from 32-bit words: the whole word for the radius, 24 bits for the angle.

    `u` is (word + 1/2) * 2**-32 rounded to float32, so no result is beyond 6.8 in magnitude.

    >>> cosine, sine = pairs_float32(np.array([2**31], np.uint32), np.array([2**30], np.uint32))
    >>> print(cosine, sine)
    [-0.] [1.17741]
    """
    uniform = radius.astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)
    return _pairs(uniform, (angle >> np.uint32(8)).astype(np.int32), _SINGLE)


def pairs_float64(radius: NDArray[np.int64], angle: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Return normal numbers from 53-bit integers; `u` is (integer + 1) * 2**-53.

    >>> cosine, sine = pairs_float64(np.array([2**52 - 1]), np.array([2**51]))
    >>> print(cosine, sine)
    [-0.] [1.17741002]
    """
    uniform = (radius + 1) * np.float64(2.0**-53)
    return _pairs(uniform, np.ascontiguousarray(angle), _DOUBLE)


def _pairs(uniform: Floats, turn: NDArray[Any], precision: _Precision) -> tuple[Floats, Floats]:
    """`r cos t` and `r sin t` for u in (0, 1] and an angle of `turn` / 2**angle_bits turns."""
    radius = np.sqrt(_minus_two_log(uniform, precision))
    # Quarter turns are subtracted exactly, in integers; the rest is in [-pi/4, pi/4).
    quarter = precision.angle_bits - 2
    quadrant = (turn + (1 << (quarter - 1))) >> quarter
    rest = turn - (quadrant << quarter)
    to_radians = precision.float_type(2 * pi / 2**precision.angle_bits)
    sine, cosine = _sine_and_cosine(rest.astype(precision.float_type) * to_radians, precision)
    odd = (quadrant & 1).astype(np.bool_)
    first = np.where(odd, sine, cosine)
    second = np.where(odd, cosine, sine)
    # The cosine is negative in quadrants 1 and 2, the sine in 2 and 3: move that bit to the sign.
    first_sign = ((quadrant + 1) & 2) << precision.sign_shift
    second_sign = (quadrant & 2) << precision.sign_shift
    for values, sign in ((first, first_sign), (second, second_sign)):
        bits = values.view(precision.integer_type)
        np.bitwise_xor(bits, sign, out=bits)
        np.multiply(values, radius, out=values)
    return first, second


def _minus_two_log(value: Floats, precision: _Precision) -> Floats:
    """-2 log(value), from value = mantissa * 2**exponent with the mantissa near 1.

    With s = (m - 1) / (m + 1), log m = 2 s (1 + s^2/3 + s^4/5 + ...).
    """
    bits = value.view(precision.integer_type)
    exponent = (bits - precision.root_half) >> precision.mantissa_bits
    mantissa = (bits - (exponent << precision.mantissa_bits)).view(precision.float_type)
    ratio = (mantissa - precision.float_type(1)) / (mantissa + precision.float_type(1))
    series = _polynomial(
        ratio * ratio, [-4.0 / (2 * term + 1) for term in range(precision.log_terms)], precision
    )
    np.multiply(series, ratio, out=series)
    scaled = exponent.astype(precision.float_type)
    np.multiply(scaled, precision.float_type(-2.0 * log(2.0)), out=scaled)
    np.add(scaled, series, out=scaled)
    return scaled


def _sine_and_cosine(angle: Floats, precision: _Precision) -> tuple[Floats, Floats]:
    """Taylor's series, for angles of at most pi/4 in magnitude."""
    square = angle * angle
    sine = _polynomial(
        square,
        [(-1.0) ** term / factorial(2 * term + 1) for term in range(1, precision.sine_terms + 1)],
        precision,
    )
    # angle + angle * (square * series): the large part is added last, and so rounded once.
    np.multiply(sine, square, out=sine)
    np.multiply(sine, angle, out=sine)
    np.add(sine, angle, out=sine)
    cosine = _polynomial(
        square,
        [(-1.0) ** term / factorial(2 * term) for term in range(precision.cosine_terms + 1)],
        precision,
    )
    return sine, cosine


def _polynomial(variable: Floats, coefficients: list[float], precision: _Precision) -> Floats:
    """Evaluate a polynomial by Horner's rule, with the constant coefficient first."""
    last, *others = reversed([precision.float_type(value) for value in coefficients])
    result = variable * last
    for coefficient in others[:-1]:
        np.add(result, coefficient, out=result)
        np.multiply(result, variable, out=result)
    np.add(result, others[-1], out=result)
    return result
