"""Memory that parts of a step touch: phases, and loops fused into the products they follow.

All blocks synchronise between two phases, which costs about a microsecond; within a phase parts run
concurrently. A part is placed in the first phase in which all its inputs have been written and its
outputs are no longer read. A `late` part is placed in the last such phase. Element-wise work on
each result of a product or a reduction, done as soon as it is computed, saves a phase and a round
trip through memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from caldera.core.memory.software import address_of
from caldera.kernels.common.loops import LoopBody
from caldera.kernels.cuda.codegen.kernel import Array
from caldera.kernels.table import Call

Range = tuple[int, int]


class Touching(Protocol):
    """Piece of work that reads and writes memory."""

    @property
    def reads(self) -> Sequence[Array]: ...

    @property
    def writes(self) -> Sequence[Array]: ...


T = TypeVar("T", bound=Touching)


def span(array: Array) -> Range:
    """Return the address range of an array.

    >>> import numpy as np
    >>> numbers = np.zeros((4, 4), np.float32)
    >>> first, last = span(numbers[::-1, 1:3])
    >>> first - span(numbers)[0], last - first
    (4, 56)
    """
    if array.size == 0:
        return (0, 0)
    first = last = address_of(array)
    for length, stride in zip(array.shape, array.strides, strict=True):
        reach = (length - 1) * stride
        first += min(reach, 0)
        last += max(reach, 0)
    return first, last + array.itemsize


def _spans(arrays: Iterable[Array]) -> list[Range]:
    return [span(each) for each in arrays]


def _overlap(some: Sequence[Range], others: Sequence[Range]) -> bool:
    return any(first < end and start < last for first, last in some for start, end in others)


def meet(some: Iterable[Array], others: Iterable[Array]) -> bool:
    """Return True if arrays of the two groups share memory."""
    return _overlap(_spans(some), _spans(others))


Touched = tuple[list[Range], list[Range]]
"""The memory that a part reads, and the memory that it writes."""


def _touched(part: Touching) -> Touched:
    return _spans(part.reads), _spans(part.writes)


def _conflict(earlier: Touched, later: Touched) -> bool:
    reads, writes = earlier
    return _overlap(writes, later[0]) or _overlap(writes, later[1]) or _overlap(reads, later[1])


def conflict(earlier: Touching, later: Touching) -> bool:
    """Return True if the later part must wait for the earlier one."""
    return _conflict(_touched(earlier), _touched(later))


def in_phases(parts: Sequence[T], late: Callable[[T], bool] = lambda part: False) -> list[list[T]]:
    """Return the parts, given in an order in which they are right, as phases."""
    touched = [_touched(part) for part in parts]
    levels: list[int] = []
    for index, own in enumerate(touched):
        before = (levels[j] for j in range(index) if _conflict(touched[j], own))
        levels.append(max(before, default=-1) + 1)
    count = max(levels, default=-1) + 1
    for index in reversed(range(len(parts))):
        if late(parts[index]):
            after = range(index + 1, len(parts))
            waiting = (levels[j] for j in after if _conflict(touched[index], touched[j]))
            levels[index] = min(waiting, default=count) - 1
    return [
        [part for part, level in zip(parts, levels, strict=True) if level == number]
        for number in range(count)
    ]


def early_in(phases: Sequence[Sequence[Touching]], number: int) -> Callable[[Array], bool]:
    """Return a predicate: True for arrays that the phase before does not write.

    The phase `number` may read such arrays before the previous phase has ended. The predecessor of
    a step's first phase is the last phase of the previous step.
    """
    written = [span(array) for part in phases[number - 1] for array in part.writes]
    return lambda array: not _overlap([span(array)], written)


class RowLoop(Protocol):
    """Loop that computes rows from the arrays it reads."""

    @property
    def reads(self) -> Sequence[Array]: ...


@dataclass(eq=False)
class FusedLoop:
    """Element-wise work on arrays: a loop body without reductions."""

    loop_body: LoopBody
    shape: tuple[int, ...]
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]

    @property
    def reads(self) -> Sequence[Array]:
        """Arrays that are read."""
        return self.inputs

    @property
    def writes(self) -> Sequence[Array]:
        """Arrays that are written."""
        return self.outputs


@dataclass(eq=False)
class Producer:
    """Work that makes one array, element by element, and the loops done with each element."""

    given: tuple[Array, ...]
    result: Array
    epilogues: list[FusedLoop] = field(default_factory=list, kw_only=True)
    stores: bool = field(default=True, kw_only=True)
    """True if other pieces read the array."""

    @property
    def reads(self) -> list[Array]:
        """Arrays that are read, except values that stay in registers."""
        more = [array for loop in self.epilogues for array in loop.inputs]
        return [*self.given, *(each for each in more if not same(each, self.result))]

    @property
    def writes(self) -> list[Array]:
        """Arrays that are written."""
        own = [self.result] if self.stores else []
        return [*own, *(array for loop in self.epilogues for array in loop.outputs)]


@dataclass(eq=False)
class FusedProduct(Producer):
    """Matrix product with its op's epilogue."""

    call: Call
    rows: RowLoop | None = field(default=None, kw_only=True)
    """Gather of the left operand's rows, if they are read directly from the table."""

    @property
    def left(self) -> Array | None:
        """The left operand; None if it is transposed."""
        first = 1 if self.call.node.op.name == "matmul_accumulate" else 0
        return None if self.call.node.attrs["ta"] else self.call.inputs[first]

    @property
    def reads(self) -> list[Array]:
        """Arrays that are read, except the destination of gathered rows of the left operand."""
        found = super().reads
        left = self.left
        if self.rows is None or left is None:
            return found
        return [*(each for each in found if not same(each, left)), *self.rows.reads]


@dataclass(eq=False)
class Reduction(Producer):
    """One reduction of a loop over `shape`; the result has only the kept axes."""

    loop_body: LoopBody
    shape: tuple[int, ...]
    axes: tuple[int, ...]


def same(one: Array, other: Array) -> bool:
    """Return True if two arrays are the same elements in the same order.

    >>> import numpy as np
    >>> line = np.zeros((1, 4))
    >>> same(line, line.T.reshape(4, 1).T), same(line, line[:, ::-1])
    (True, False)
    """
    if address_of(one) != address_of(other) or one.shape != other.shape:
        return False
    steps = zip(one.shape, one.strides, other.strides, strict=True)
    return one.dtype == other.dtype and all(n == 1 or a == b for n, a, b in steps)


def fuse_epilogues(pieces: Sequence[Any], is_scratch: Any) -> list[Any]:
    """Return the pieces, with loops fused into the products and reductions they follow.

    A producer moves down to the loop that follows it, or the loop moves up. No piece in between may
    depend on the moved piece or write its inputs. The producer's result is not stored if it is in
    scratch memory and no other piece reads it before the next write.
    """
    found = list(pieces)
    index = 0
    while index < len(found):
        piece = found[index]
        follower = _epilogue_of(found, index) if isinstance(piece, Producer) else None
        if follower is None:
            index += 1
            continue
        loop, place = follower
        piece.epilogues.append(loop)
        found.remove(loop)
        found.remove(piece)
        piece.stores = _is_wanted(found, place, piece.result, is_scratch)
        found.insert(place, piece)
    return found


def _epilogue_of(pieces: list[Any], index: int) -> tuple[FusedLoop, int] | None:
    """Return the first loop after a producer that can be taken in, and where the two will stand."""
    producer: Producer = pieces[index]
    stays = False
    for place in range(index + 1, len(pieces)):
        piece = pieces[place]
        if isinstance(piece, FusedLoop) and _follows(piece, producer):
            if not stays:
                return piece, place - 1
            if not any(conflict(each, piece) for each in pieces[index + 1 : place]):
                return piece, index
        stays = stays or conflict(producer, piece)
    return None


def _follows(loop: FusedLoop, producer: Producer) -> bool:
    """Return True if a loop reads a producer's result, element by element."""
    result = producer.result
    return (
        loop.shape == result.shape
        and any(same(each, result) for each in loop.inputs)
        and all(same(each, result) or not meet([each], [result]) for each in loop.inputs)
        and not _overwrites(loop, producer)
        and _fits_others(loop, producer)
    )


def _overwrites(loop: FusedLoop, producer: Producer) -> bool:
    """Return True if a loop overwrites inputs that the producer still reads for other elements."""
    inputs = producer.given
    if isinstance(producer, FusedProduct) and producer.call.node.op.name == "matmul_accumulate":
        # The addend is read only for the same element.
        inputs = inputs[1:]
    return meet(loop.outputs, inputs)


def _fits_others(loop: FusedLoop, producer: Producer) -> bool:
    """Return True if a loop shares only whole elements with the loops already fused."""
    return all(
        same(one, other) or not meet([one], [other])
        for earlier in producer.epilogues
        for mine, theirs in (
            (loop.inputs, earlier.outputs),
            (loop.outputs, earlier.inputs),
            (loop.outputs, earlier.outputs),
        )
        for one in mine
        for other in theirs
    )


def _is_wanted(pieces: list[Any], place: int, result: Array, is_scratch: Any) -> bool:
    """Return True if a result is read by a piece from `place` on, or is outside scratch memory."""
    if not is_scratch(result):
        return True
    for piece in pieces[place:]:
        if meet(piece.reads, [result]):
            return True
        if any(same(each, result) for each in piece.writes):
            return False
    return False
