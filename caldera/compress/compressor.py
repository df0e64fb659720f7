"""Base class of gradient compressors, error feedback per parameter, and messages.

Only the sender has the length of a message; the receiver has an upper bound, and no length is
announced. Indices of a sparse message are packed in the shorter of two lossless forms (layout:
`kernels.native.compression.rice`):

- **gaps**: the differences of successive indices, in Rice code. For randomly spread indices this
  is within 3% of the entropy; with the parameter 0 it is a bitmap.
- **runs**: the gaps before runs of consecutive indices and the lengths of the runs, both in Rice
  code. Rows of an embedding have this form.

The random words of an exchange depend on the rounded values, never on timing. The stream is
selected by the parameter, the step by the number of its exchanges; ranks and the stages of an
exchange use successive positions of the stream, so no two share a word.

A compressor sums the gradients of all ranks with fewer bytes on the wire than they occupy. The
unsent remainder is kept and added to the next gradient. Over all ranks, applied and kept values add
up to the sum of all gradients: values are delayed, not lost. Residuals therefore belong in
checkpoints; `redistribute` converts them to another number of ranks.
"""

from __future__ import annotations

import zlib
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TypedDict

import numpy as np

from caldera.base.arguments import within
from caldera.base.configurable import Configurable, Family
from caldera.comm import Communicator
from caldera.core.tensor.dtype import FLOATS, HALVES
from caldera.errors import CheckpointError, DataError, DtypeError, ShapeError
from caldera.kernels.native.compression.rice import HEADER, pack, unpack
from caldera.kernels.native.compression.stochastic_rounding import ALIGNED, Draws

EMPTY = np.empty(0, np.uint8)
AT_ONCE = 1 << 20
"""Maximum message size in bytes for a direct all-to-all; more would collide on one link."""


def bounds(length: int, parts: int) -> list[int]:
    """Return the boundaries of the parts of a vector: multiples of 64 at about equal distances.

    >>> bounds(1000, 3)
    [0, 320, 640, 1000]
    """
    blocks = -(-length // ALIGNED)
    return [min(blocks * part // parts * ALIGNED, length) for part in range(parts + 1)]


def alltoall_messages(
    communicator: Communicator, leaving: Sequence[np.ndarray], longest: int
) -> list[np.ndarray]:
    """Send message r to rank r; return the received messages by rank.

    No message is longer than `longest` bytes. The rank's own message is not sent: its place is
    empty.
    """
    others = [rank for rank in range(communicator.size) if rank != communicator.rank]
    arrived = communicator.exchange_messages(
        {rank: leaving[rank] for rank in others}, dict.fromkeys(others, longest)
    )
    return [arrived.get(rank, EMPTY) for rank in range(communicator.size)]


def allgather_messages(
    communicator: Communicator, message: np.ndarray, longest: Sequence[int]
) -> list[np.ndarray]:
    """Return the messages of all ranks; rank r's message has at most `longest[r]` bytes."""
    if sum(longest) <= AT_ONCE:
        others = [rank for rank in range(communicator.size) if rank != communicator.rank]
        arrived = communicator.exchange_messages(
            dict.fromkeys(others, message), {rank: longest[rank] for rank in others}
        )
        return [arrived.get(rank, message) for rank in range(communicator.size)]
    # Messages that travel around the ring need their lengths announced.
    lengths = np.empty(communicator.size, np.int64)
    communicator.Allgather(np.array([message.size], np.int64), lengths)
    received = np.empty(int(lengths.sum()), np.uint8)
    communicator.Allgather(message, received, lengths.tolist())
    return [received[begin:end] for begin, end in pairwise([0, *np.cumsum(lengths).tolist()])]


# --- arrays in a message


def as_bytes(*arrays: np.ndarray) -> np.ndarray:
    """Return the concatenated bytes of some arrays."""
    flat = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
    return flat[0] if len(flat) == 1 else np.concatenate(flat)


def read(message: np.ndarray, dtype: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first `count` elements of a message, and the bytes that follow."""
    size = count * np.dtype(dtype).itemsize
    if message.size < size:
        raise DataError.build("a message", expected=f"{size} more bytes", got=f"{message.size}")
    # A copy, because a message may begin anywhere in memory.
    return message[:size].copy().view(dtype), message[size:]


__all__ = ["HEADER", "max_index_bytes", "pack_indices", "packed_bits", "unpack_indices"]
_WIDEST = 30


def pack_indices(places: np.ndarray, length: int) -> np.ndarray:
    """Return increasing places (int32) below `length` as bytes, in the smaller of the forms.

    >>> import numpy as np
    >>> from caldera.compress.compressor import pack_indices, unpack_indices
    >>> places = np.arange(0, 32_000, 32, dtype=np.int32)
    >>> packed = pack_indices(places, 32_000)
    >>> packed.nbytes, np.array_equal(unpack_indices(packed, 32_000)[0], places)
    (766, True)
    """
    (packed,) = pack(places, [(0, places.size)], [(0, length)], [0])
    return packed


def unpack_indices(packed: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the places (int32) at the beginning of a message, and the bytes that follow."""
    places, _, (taken,) = unpack([packed], [(0, length)])
    return places, packed[taken:]


def max_index_bytes(length: int) -> int:
    """Return the maximum bytes of the packed indices of a vector of this length.

    >>> max_index_bytes(1000)
    141
    """
    return HEADER + -(-length // 8)


def packed_bits(density: float) -> float:
    """Return the approximate bits per index if this fraction of elements is selected at random.

    >>> round(packed_bits(1 / 32), 1), round(packed_bits(0.9), 1)
    (6.5, 1.1)
    """
    if density <= 0:
        return 0.0
    bitmap = 1 / density
    if density >= 0.5:
        return bitmap
    keep = 1 - density
    by_gaps = (r + 1 + keep ** (1 << r) / (1 - keep ** (1 << r)) for r in range(_WIDEST))
    return min(bitmap, *by_gaps)


_RANKS = 1 << 16
_ROOM = 1 << 32
"""Length of the stream reserved for a rank in a stage, in units of 64 words."""


@dataclass(frozen=True)
class RandomStream:
    """Random words of an exchange.

    >>> random_stream = RandomStream(seed=3, step=0, name="dense/weight")
    >>> stream = random_stream.of(rank=1)
    >>> stream == random_stream.of(rank=1), stream == random_stream.of(rank=1, stage=1)
    (True, False)
    """

    seed: int
    step: int
    name: str

    def of(self, rank: int, stage: int = 0, start: int = 0) -> Draws:
        """Return the words of a rank in a stage; `start` is a multiple of 64."""
        stream = zlib.crc32(self.name.encode())
        place = (stage * _RANKS + rank) * _ROOM + start // ALIGNED
        return Draws(self.seed, self.step & 0xFFFFFFFF, stream, place)


State = dict[str, np.ndarray]

SUMMED = ("residual", "velocity")
"""Kinds of state of which each rank has its own, and the sum over ranks is what counts."""
SHARED = ("step", "factor")
"""Kinds of state that all ranks have alike."""


class CompressorState:
    """Values that a compressor stores between exchanges, by kind and parameter."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[str, str], np.ndarray] = {}
        self._joined: dict[tuple[str, ...], np.ndarray] = {}

    def take(self, kind: str, name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        """Return the array of a parameter, to be changed in place; made if there is none yet."""
        key = (kind, name)
        if key not in self._arrays:
            self._arrays[key] = make()
        return self._arrays[key]

    def like(self, kind: str, name: str, gradient: np.ndarray) -> np.ndarray:
        """Return a stored array as `take` does: one number per element of the gradient, initially
        0.
        """
        wide = np.float32 if gradient.dtype in HALVES else gradient.dtype
        found = self.take(kind, name, lambda: np.zeros(gradient.size, wide))
        if found.size != gradient.size:
            raise ShapeError.build(
                f"{kind} of {name}",
                expected=f"{found.size} elements, as before",
                got=f"{gradient.size}",
                hint="names of parameters must be unique",
            )
        return found

    def together(self, kind: str, gradients: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the values of several parameters as one concatenated vector, like `like`."""
        found = [self.like(kind, name, gradient) for name, gradient in gradients.items()]
        key = (kind, *gradients)
        whole = self._joined.get(key)
        if whole is None or any(each.base is not whole for each in found):
            whole = self._joined[key] = np.concatenate(found)
            edges = accumulate((each.size for each in found), initial=0)
            for name, (begin, end) in zip(gradients, pairwise(edges), strict=True):
                self.put(kind, name, whole[begin:end])
        return whole

    def put(self, kind: str, name: str, array: np.ndarray) -> None:
        """Keep another array."""
        self._arrays[kind, name] = array

    def next_step(self, name: str) -> int:
        """Return the number of earlier calls for this parameter."""
        count = self.take("step", name, lambda: np.zeros(1, np.int64))
        count += 1
        return int(count[0]) - 1

    def state(self) -> State:
        """Return copies of all values, by "kind/parameter"."""
        return {f"{kind}/{name}": array.copy() for (kind, name), array in self._arrays.items()}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Replace all values by a result of `state()`."""
        self._arrays = {_kind_and_name(key): np.array(value) for key, value in state.items()}


def redistribute(
    states: Sequence[Mapping[str, np.ndarray]], size: int, mean: bool = False
) -> list[State]:
    """Convert the states of some number of ranks to `size` ranks.

    The sum over ranks is preserved (with `mean`, for compressors that compute means, the mean is):
    removed ranks add their states to remaining ranks, and new ranks start from zero.

    >>> import numpy as np
    >>> from caldera.compress import redistribute
    >>> four = [{"residual/w": np.array([float(rank)])} for rank in range(4)]
    >>> [state["residual/w"].item() for state in redistribute(four, 3)]
    [3.0, 1.0, 2.0]
    """
    within("redistribute", "size", size, 1, 2**20)
    keys = {key for state in states for key in state}
    factor = size / len(states) if mean else 1.0
    result: list[State] = [{} for _ in range(size)]
    for key in sorted(keys):
        kind, _ = _kind_and_name(key)
        owned = [state.get(key) for state in states]
        example = next(array for array in owned if array is not None)
        for rank in range(size):
            if kind in SHARED:
                result[rank][key] = example.copy()
                continue
            parts = [array for array in owned[rank::size] if array is not None]
            total = np.sum(parts, axis=0) if parts else np.zeros_like(example)
            result[rank][key] = (total * factor).astype(example.dtype)
    return result


def _kind_and_name(key: str) -> tuple[str, str]:
    kind, slash, name = key.partition("/")
    if not slash or kind not in SUMMED + SHARED:
        raise CheckpointError.build(
            "state of a compressor",
            expected="residual/..., velocity/..., step/... or factor/...",
            got=repr(key),
        )
    return kind, name


class CompressorOptions(TypedDict, total=False):
    """Options of every compressor: `mean` selects the mean over ranks, `seed` the random
    numbers.
    """

    mean: bool
    seed: int


class Compressor(Configurable):
    """Sum of gradients over ranks with fewer bytes.

    `exchange(name, gradient, communicator)` replaces the gradient by the sum over all ranks (with
    `mean=True` the mean), with the same bits on every rank. All ranks exchange the same parameters
    in the same order. Residuals and steps are stored by parameter: checkpoints save `state()` and
    load it with `restore`; each rank has its own.

    >>> import numpy as np
    >>> from caldera import comm, compress
    >>> def work(communicator):
    ...     gradient = np.array([1.0, -2.0, 0.25, communicator.rank], np.float32)
    ...     compress.QSGD(bits=8).exchange("w", gradient, communicator)
    ...     return gradient.shape
    >>> comm.run_virtual_ranks(2, work)
    [(4,), (4,)]
    """

    def __init__(self, mean: bool = False, seed: int = 0) -> None:
        self.mean = mean
        self.seed = seed
        self._kept = CompressorState()

    def exchange(self, name: str, gradient: np.ndarray, communicator: Communicator) -> None:
        """Sum one parameter's gradient over all ranks, in place."""
        self.exchange_all({name: gradient}, communicator)

    def exchange_all(self, gradients: Mapping[str, np.ndarray], communicator: Communicator) -> None:
        """Sum the gradients of several parameters over all ranks, in place and in one message."""
        for name, gradient in gradients.items():
            _check(name, gradient)
        given = {name: gradient for name, gradient in gradients.items() if gradient.size}
        if not given:
            return
        label = next(iter(given))
        random_stream = RandomStream(self.seed, self._kept.next_step(label), label)
        self._exchange(given, communicator, random_stream)

    @abstractmethod
    def _exchange(
        self,
        gradients: Mapping[str, np.ndarray],
        communicator: Communicator,
        random_stream: RandomStream,
    ) -> None:
        """Sum (or average) gradients over all ranks in place; no gradient is empty."""

    def _scaled(self, total: np.ndarray, ranks: int) -> np.ndarray:
        """Return a sum, or the mean, before it is converted to a narrower dtype."""
        return total / total.dtype.type(ranks) if self.mean else total

    def state(self) -> State:
        """Return this rank's values between exchanges, by name, for checkpoints."""
        return self._kept.state()

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Replace the stored values by a result of `state()`."""
        self._kept.restore(state)


compressors: Family[Compressor] = Family("compressor", Compressor)


def _check(name: str, gradient: np.ndarray) -> None:
    if gradient.dtype not in FLOATS:
        raise DtypeError.build(
            f"gradient of {name}", expected="a float dtype", got=str(gradient.dtype)
        )
    if not gradient.flags.c_contiguous or not gradient.flags.writeable:
        raise ShapeError.build(
            f"gradient of {name}",
            expected="a contiguous array that may be written",
            got="a view or one that is read-only",
            hint="pass np.ascontiguousarray(array)",
        )
