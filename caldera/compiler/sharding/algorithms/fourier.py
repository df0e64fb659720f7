"""The Fourier transform along an axis that is spread over ranks.

A transform of n1 n2 numbers is n2 transforms of n1 and n1 transforms of n2 (Cooley and Tukey; as
matrices, Bailey's six steps, 1990): the numbers are a matrix with n1 rows, which is transposed over
the ranks three times. A length without two factors of the right size becomes a convolution of a
power of two (Bluestein, 1970).

More axes may follow the one that is transformed. Of an array with several long axes nothing of this
is needed: those that are whole on a rank are transformed there, and a redistribution in between
makes the others whole (slabs, or pencils on a grid).
"""

from __future__ import annotations

from math import isqrt

import numpy as np

from caldera.comm import Communicator
from caldera.compiler.sharding.algorithms.axis_exchange import (
    columns_to_rows,
    move_rows,
    rows_to_columns,
)
from caldera.compiler.sharding.algorithms.process_grid import Cuts, even_cuts, gather_rows

SHORT = 1 << 14
"""Signals of this length are transformed on every rank: transposing them takes longer."""


def factors(n: int, ranks: int) -> tuple[int, int] | None:
    """Two factors that are as equal as possible, neither smaller than the number of ranks; None if
    there are none."""
    for first in range(isqrt(n), max(ranks, 2) - 1, -1):
        if n % first == 0:
            return first, n // first
    return None


def input_cuts(n: int, ranks: int) -> Cuts:
    """How a signal has to be cut."""
    found = factors(n, ranks) if n > SHORT else None
    if found is None:
        return even_cuts(n, ranks)
    return tuple(cut * found[1] for cut in even_cuts(found[0], ranks))


def output_cuts(n: int, ranks: int) -> Cuts:
    """How its transform will be cut."""
    found = factors(n, ranks) if n > SHORT else None
    if found is None:
        return even_cuts(n, ranks)
    return tuple(cut * found[0] for cut in even_cuts(found[1], ranks))


def fft(part: np.ndarray, n: int, comm: Communicator, *, inverse: bool = False) -> np.ndarray:
    """This rank's part of the transform along the first axis, a sum without a factor in front.

    The signal is cut by `input_cuts`, the transform by `output_cuts`.
    """
    if comm.size == 1:
        return transform(part, inverse)
    if n <= SHORT:
        cuts = even_cuts(n, comm.size)
        whole = gather_rows(part, [int(each) for each in np.diff(cuts)], comm)
        return transform(whole, inverse)[cuts[comm.rank] : cuts[comm.rank + 1]]
    found = factors(n, comm.size)
    if found is None:
        return _bluestein(part, n, comm, inverse)
    return _six_steps(part, *found, comm, inverse)


def transform(x: np.ndarray, inverse: bool) -> np.ndarray:
    """The transform along the first axis, here; real numbers become complex ones."""
    if x.shape[0] == 0:
        return x.astype(np.result_type(x.dtype, np.complex64))
    # "forward" has the inverse without a factor.
    return np.fft.ifft(x, axis=0, norm="forward") if inverse else np.fft.fft(x, axis=0)


def _six_steps(part: np.ndarray, n1: int, n2: int, comm: Communicator, inverse: bool) -> np.ndarray:
    rows, columns, more = even_cuts(n1, comm.size), even_cuts(n2, comm.size), part.shape[1:]
    own = columns[comm.rank], columns[comm.rank + 1]
    matrix = rows_to_columns(part.reshape(len(part) // n2, n2, *more), rows, columns, comm)
    matrix = transform(matrix, inverse)
    matrix *= _twiddles(n1, n2, own, inverse, matrix.dtype).reshape(n1, -1, *[1] * len(more))
    matrix = columns_to_rows(matrix, rows, columns, comm)
    matrix = transform(matrix.swapaxes(0, 1), inverse)
    # Now it is (n2, some of n1); frequencies are in order if its rows lie end to end.
    matrix = columns_to_rows(matrix, columns, rows, comm)
    return np.ascontiguousarray(matrix).reshape(len(matrix) * n1, *more)


def _twiddles(
    n1: int, n2: int, columns: tuple[int, int], inverse: bool, dtype: np.dtype
) -> np.ndarray:
    turns = np.outer(np.arange(n1), np.arange(*columns)) % (n1 * n2)
    return _root(turns, n1 * n2, inverse).astype(dtype)


def _root(turns: np.ndarray, n: int, inverse: bool) -> np.ndarray:
    """exp(-2 pi i turns / n), or with + for the inverse."""
    return np.exp((2j if inverse else -2j) * np.pi / n * turns)


def _bluestein(part: np.ndarray, n: int, comm: Communicator, inverse: bool) -> np.ndarray:
    """kt = (k² + t² - (k - t)²) / 2 makes a convolution with a chirp of it."""
    ranks, rank = comm.size, comm.rank
    longer = 1 << (2 * n - 1).bit_length()
    cuts, wide = even_cuts(n, ranks), input_cuts(longer, ranks)
    behind = [1] * (part.ndim - 1)
    dtype = np.result_type(part.dtype, np.complex64)
    own = _chirp(np.arange(cuts[rank], cuts[rank + 1]), n, inverse).astype(dtype)
    own = own.reshape(-1, *behind)
    signal = move_rows((part * own).astype(dtype), cuts, wide, comm)
    place = np.arange(wide[rank], wide[rank + 1])
    # The chirp to both sides of 0, and nothing between its ends.
    distance = np.minimum(place, longer - place)
    other = np.where(distance < n, _chirp(distance, n, not inverse), 0).astype(dtype)
    spectrum = fft(signal, longer, comm) * fft(other, longer, comm).reshape(-1, *behind)
    spectrum = move_rows(spectrum, output_cuts(longer, ranks), wide, comm)
    found = fft(spectrum, longer, comm, inverse=True) / longer
    found = move_rows(found, output_cuts(longer, ranks), cuts, comm)
    return (found * own).astype(dtype)


def _chirp(place: np.ndarray, n: int, inverse: bool) -> np.ndarray:
    # Whole numbers first: the square is far too large for what a float has of digits.
    return _root(place * place % (2 * n), 2 * n, inverse)


def spectrum_to_signal(part: np.ndarray, n: int, begin: int) -> np.ndarray:
    """Frequencies of a real signal, from number `begin` on, such that the real part of a complex
    transform of them, with zeros for all others, is the signal times n."""
    number = np.arange(begin, begin + len(part))
    alone = (number == 0) | (2 * number == n)
    scaled: np.ndarray = part * np.where(alone, 1, 2).reshape(-1, *[1] * (part.ndim - 1))
    return scaled.astype(part.dtype)
