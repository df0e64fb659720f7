"""Checks of the behaviour of a communicator, which run on all its ranks.

    for check in CONTRACT:
        check(communicator)

Each check is called by all ranks simultaneously and raises an error on each rank that detects a
fault.
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from caldera.comm import ANY_SOURCE, Communicator
from caldera.comm.algorithms import ALLREDUCE
from caldera.errors import CalderaError

Check = Callable[[Communicator], None]
CONTRACT: list[Check] = []
SIZES = (0, 1, 5, 16, 1001, 70_001)
"""The last is more than one segment for each of eight ranks."""
DTYPES = ("int32", "int64", "uint8", "float32", "float64", "complex64")
HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


def _check(function: Check) -> Check:
    CONTRACT.append(function)
    return function


def of_rank(rank: int, size: int, dtype: str | np.dtype = "float64") -> np.ndarray:
    """Return numbers of a rank; small whole ones, so that every order of adding them is exact.

    >>> of_rank(1, 3).shape
    (3,)
    """
    return np.random.default_rng([rank, size]).integers(0, 8, size).astype(dtype)


def _everybody(comm: Communicator, size: int, dtype: str | np.dtype = "float64") -> np.ndarray:
    return np.array([of_rank(rank, size, dtype) for rank in range(comm.size)])


def _uneven(comm: Communicator, scale: int = 1) -> list[int]:
    """Return uneven counts: rank 1 has no elements, the remaining ranks some."""
    return [0 if rank == 1 else scale * (rank + 1) for rank in range(comm.size)]


@_check
def point_to_point(comm: Communicator) -> None:
    """Messages arrive whole and in order, and are distinguished by tag and sender."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for size in SIZES:
        leaving = [of_rank(comm.rank, size) + tag for tag in range(3)]
        requests = [comm.Isend(leaving[tag], right, tag) for tag in range(3)]
        requests += [comm.Isend(leaving[0] * 2, right, 0)]
        # Taken in another order than they were sent in.
        for tag, expected in ((2, 2), (1, 1)):
            arrived = np.empty(size)
            assert comm.Recv(arrived, left, tag) == left
            np.testing.assert_array_equal(arrived, of_rank(left, size) + expected)
        first, second = np.empty(size), np.empty(size)
        later = [comm.Irecv(first, left, 0), comm.Irecv(second, left, 0)]
        later[1].wait()
        later[0].wait()
        np.testing.assert_array_equal(first, of_rank(left, size))
        np.testing.assert_array_equal(second, of_rank(left, size) * 2)
        for request in requests:
            request.wait()
            assert request.test()
        comm.Sendrecv(leaving[0], right, first, left, 5)
        np.testing.assert_array_equal(first, of_rank(left, size))


@_check
def messages_from_anybody(comm: Communicator) -> None:
    """A receive may accept any message, and returns its sender."""
    if comm.rank == 0:
        seen = []
        for _ in range(comm.size - 1):
            buffer = np.empty(1, np.int64)
            source = comm.Recv(buffer, ANY_SOURCE, 9)
            assert buffer[0] == source
            seen.append(source)
        assert sorted(seen) == list(range(1, comm.size))
    else:
        comm.Send(np.array([comm.rank], np.int64), 0, 9)
    comm.Barrier()


@_check
def broadcasts(comm: Communicator) -> None:
    """Check broadcasts from every root, for every size and dtype."""
    for root in range(comm.size):
        for size in SIZES:
            buffer = of_rank(comm.rank, size)
            comm.Bcast(buffer, root)
            np.testing.assert_array_equal(buffer, of_rank(root, size))
    for dtype in (*DTYPES, *HALVES, "bool"):
        buffer = of_rank(comm.rank, 6, dtype).reshape(2, 3)
        comm.Bcast(buffer, comm.size - 1)
        np.testing.assert_array_equal(buffer.reshape(-1), of_rank(comm.size - 1, 6, dtype))


@_check
def reductions(comm: Communicator) -> None:
    """To every root and to all, in every dtype that has them; in place as well."""
    functions: dict[str, Callable[..., np.ndarray]] = {
        "sum": np.sum,
        "max": np.max,
        "min": np.min,
        "mean": np.mean,
    }
    for dtype in DTYPES:
        kind = np.dtype(dtype).kind
        ops = {"c": ("sum", "mean"), "f": tuple(functions)}.get(kind, ("sum", "max", "min"))
        everything = _everybody(comm, 10, dtype)
        for op in ops:
            expected = functions[op](everything, axis=0).astype(dtype)
            send = of_rank(comm.rank, 10, dtype).reshape(2, 5)
            receive = np.empty_like(send)
            comm.Allreduce(send, receive, op)
            np.testing.assert_allclose(receive.reshape(-1), expected, rtol=1e-6)
            np.testing.assert_array_equal(send.reshape(-1), of_rank(comm.rank, 10, dtype))
            comm.Allreduce(send, send, op)
            np.testing.assert_array_equal(send, receive)
            root = comm.size - 1
            mine = of_rank(comm.rank, 10, dtype)
            found = np.zeros(10, dtype) if comm.rank == root else None
            comm.Reduce(mine, found, root, op)
            if found is not None:
                np.testing.assert_allclose(found, expected, rtol=1e-6)


@_check
def allreduce_algorithms(comm: Communicator) -> None:
    """Each algorithm, at every size: the sum, and the same bits on all ranks."""
    before = comm.algorithm
    for name in comm.algorithms():
        comm.algorithm = name
        for size in SIZES:
            total = np.empty(size)
            comm.Allreduce(of_rank(comm.rank, size), total)
            np.testing.assert_array_equal(total, _everybody(comm, size).sum(0), err_msg=name)
        rough = np.random.default_rng(comm.rank).normal(size=1001).astype("float32")
        comm.Allreduce(rough, rough, "mean")
        _same_everywhere(comm, rough, name)
        for dtype in HALVES:
            # A value too small to change the sum individually, but not in total.
            least = float(ml_dtypes.finfo(dtype).eps) / 2
            half = np.full(9, 1.0 if comm.rank == 0 else least, dtype)
            comm.Allreduce(half, half)
            exact = np.full(9, 1 + (comm.size - 1) * least).astype(np.float32).astype(dtype)
            np.testing.assert_array_equal(half, exact, err_msg=name)
    comm.algorithm = before


def _same_everywhere(comm: Communicator, buffer: np.ndarray, what: str) -> None:
    copies = np.empty(comm.size * buffer.nbytes, np.uint8)
    comm.Allgather(buffer.view(np.uint8), copies)
    for copy in copies.reshape(comm.size, -1):
        np.testing.assert_array_equal(copy, buffer.view(np.uint8), err_msg=what)


@_check
def sums_of_halves(comm: Communicator) -> None:
    """float16 and bfloat16: rounded once, and a mean never overflows on the way."""
    for dtype in HALVES:
        parts = np.random.default_rng(3).normal(size=(comm.size, 33)).astype(dtype)
        exact = parts.astype(np.float64).sum(0)
        total = np.empty(33, dtype)
        comm.Allreduce(parts[comm.rank].copy(), total)
        np.testing.assert_array_equal(total, exact.astype(np.float32).astype(dtype))
        largest = np.full(33, ml_dtypes.finfo(dtype).max, dtype)
        largest = (largest.astype(np.float32) / 2).astype(dtype)
        comm.Allreduce(largest, total, "mean")
        np.testing.assert_array_equal(total, largest)
        counts = _uneven(comm)
        mine = np.empty(counts[comm.rank], dtype)
        comm.ReduceScatter(np.ones(sum(counts), dtype), mine, counts)
        np.testing.assert_array_equal(mine, np.full(mine.shape, comm.size, dtype))
        comm.Allreduce(parts[comm.rank].copy(), total, "max")
        np.testing.assert_array_equal(total, parts.max(0))
        at_root = np.empty(33, dtype) if comm.rank == 0 else None
        comm.Reduce(parts[comm.rank].copy(), at_root, 0)
        if at_root is not None:
            np.testing.assert_array_equal(at_root, exact.astype(np.float32).astype(dtype))


@_check
def halves_that_move(comm: Communicator) -> None:
    """float16 and bfloat16 arrive bit for bit, NaNs and infinities included."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for dtype in HALVES:
        patterns = np.arange(7 * comm.size, dtype=np.uint16) * 9001
        mine = (patterns + comm.rank).view(dtype)
        arrived = np.empty_like(mine)
        comm.Sendrecv(mine, right, arrived, left)
        np.testing.assert_array_equal(arrived.view(np.uint16), patterns + left)
        comm.Alltoall(mine, arrived)
        own = slice(7 * comm.rank, 7 * comm.rank + 7)
        expected = [patterns[own] + rank for rank in range(comm.size)]
        np.testing.assert_array_equal(arrived.view(np.uint16), np.concatenate(expected))


@_check
def scattered_reductions(comm: Communicator) -> None:
    """Equal parts, uneven parts, and ranks without elements."""
    for scale in (1, 3, 9_001):
        for counts in (None, _uneven(comm, scale)):
            whole = comm.size * scale if counts is None else sum(counts)
            parts = [scale] * comm.size if counts is None else counts
            begin = sum(parts[: comm.rank])
            expected = _everybody(comm, whole).sum(0)[begin : begin + parts[comm.rank]]
            receive = np.empty(parts[comm.rank])
            comm.ReduceScatter(of_rank(comm.rank, whole), receive, counts)
            np.testing.assert_array_equal(receive, expected)
            comm.ReduceScatter(of_rank(comm.rank, whole), receive, counts, "mean")
            np.testing.assert_allclose(receive, expected / comm.size)


@_check
def gathering(comm: Communicator) -> None:
    """Equal parts, uneven parts, ranks without elements, and parts already in place."""
    for scale in (1, 3, 9_001):
        receive = np.empty(comm.size * scale, np.float32)
        comm.Allgather(of_rank(comm.rank, scale, "float32"), receive)
        np.testing.assert_array_equal(receive, np.concatenate(list(_everybody(comm, scale))))
        counts = _uneven(comm, scale)
        gathered = np.zeros(sum(counts))
        begin = sum(counts[: comm.rank])
        own = gathered[begin : begin + counts[comm.rank]]
        own[:] = of_rank(comm.rank, counts[comm.rank])
        comm.Allgather(own, gathered, counts)
        uneven = np.concatenate([of_rank(rank, count) for rank, count in enumerate(counts)])
        np.testing.assert_array_equal(gathered, uneven)
        in_halves = np.empty(sum(counts), HALVES[1])
        comm.Allgather(own.astype(HALVES[1]), in_halves, counts)
        np.testing.assert_array_equal(in_halves, uneven.astype(HALVES[1]))


@_check
def everybody_to_everybody(comm: Communicator) -> None:
    """Rank a sends rank b a message that only this pair has."""
    for scale in (1, 9_001):
        send = np.repeat(100.0 * comm.rank + np.arange(comm.size), scale)
        receive = np.empty_like(send)
        comm.Alltoall(send, receive)
        expected = np.repeat(100.0 * np.arange(comm.size) + comm.rank, scale)
        np.testing.assert_array_equal(receive, expected)
    # Rank a sends a + b numbers to rank b, so rank 0 sends itself none.
    counts = [comm.rank + other for other in range(comm.size)]
    send = np.repeat(100.0 * comm.rank + np.arange(comm.size), counts)
    receive = np.empty(sum(counts))
    comm.Alltoall(send, receive, counts, counts)
    expected = np.repeat(100.0 * np.arange(comm.size) + comm.rank, counts)
    np.testing.assert_array_equal(receive, expected)


@_check
def messages_of_unknown_length(comm: Communicator) -> None:
    """Rank a sends rank b a message of a + 2 b bytes, to itself as well."""
    everybody = range(comm.size)
    leaving = {b: np.full(comm.rank + 2 * b, comm.rank, np.uint8) for b in everybody}
    arrived = comm.exchange_messages(leaving, dict.fromkeys(everybody, 3 * comm.size))
    for rank, message in arrived.items():
        np.testing.assert_array_equal(message, np.full(rank + 2 * comm.rank, rank, np.uint8))
    before = comm.traffic.mark()
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    found = comm.exchange_messages({right: np.ones(70_000, np.uint8)}, {left: 80_000})[left]
    np.testing.assert_array_equal(found, np.ones(70_000, np.uint8))
    count = comm.traffic.since(before)["exchange_messages"]
    assert (count.messages, count.bytes_sent, count.bytes_received) == (1, 70_000, 70_000)


@_check
def groups(comm: Communicator) -> None:
    """Colours, the order of keys, groups of groups, and no mixing of their messages."""
    odd = comm.Split(comm.rank % 2, -comm.rank)
    assert odd is not None
    members = [rank for rank in range(comm.size) if rank % 2 == comm.rank % 2][::-1]
    assert odd.size == len(members)
    assert members[odd.rank] == comm.rank
    total = np.empty(1)
    odd.Allreduce(np.array([1.0 + comm.rank]), total)
    assert total[0] == sum(members) + len(members)
    alone = odd.Split(odd.rank)
    assert alone is not None
    assert (alone.rank, alone.size) == (0, 1)
    only_first = comm.Split(0 if comm.rank == 0 else None)
    assert (only_first is not None) == (comm.rank == 0)
    again = comm.Dup()
    assert (again.rank, again.size) == (comm.rank, comm.size)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    requests = [comm.Isend(np.array([1.0]), right, 4), again.Isend(np.array([2.0]), right, 4)]
    for group, expected in ((again, 2.0), (comm, 1.0)):
        buffer = np.empty(1)
        group.Recv(buffer, left, 4)
        assert buffer[0] == expected
    for request in requests:
        request.wait()


@_check
def small_values(comm: Communicator) -> None:
    """Anything that JSON can say, from all to all and from one to all."""
    values = comm.gather_objects({"rank": comm.rank, "text": "é" * comm.rank})
    assert values == [{"rank": r, "text": "é" * r} for r in range(comm.size)]
    root = comm.size - 1
    assert comm.bcast_object([comm.rank, None, 0.5], root) == [root, None, 0.5]


@_check
def in_the_background(comm: Communicator) -> None:
    """Started operations proceed in order, concurrently with blocking calls of the group."""
    sends = [of_rank(comm.rank, size) for size in SIZES]
    totals = [np.empty(size) for size in SIZES]
    requests = [comm.Iallreduce(s, t) for s, t in zip(sends, totals, strict=True)]
    beside = np.empty(1)
    comm.Allreduce(np.ones(1), beside)
    assert beside[0] == comm.size
    whole = np.empty(comm.size)
    last = comm.background(lambda own: own.Allgather(np.array([1.0 * own.rank]), whole))
    last.wait()
    assert all(request.test() for request in requests)
    for size, total in zip(SIZES, totals, strict=True):
        np.testing.assert_array_equal(total, _everybody(comm, size).sum(0))
    np.testing.assert_array_equal(whole, np.arange(comm.size))


@_check
def counted(comm: Communicator) -> None:
    """Bytes equal the formulas: 2 (n - 1) / n of the buffer for a ring, (n - 1) / n for a half."""
    n = comm.size
    buffer = np.zeros(n * 5000)
    part = buffer.nbytes // n
    before = comm.traffic.mark()
    if "ring" in comm.algorithms():
        chosen, comm.algorithm = comm.algorithm, "ring"
        comm.Allreduce(buffer, buffer)
        comm.algorithm = chosen
        found = comm.traffic.since(before)["Allreduce"]
        assert found.calls == 1
        assert found.bytes_sent == found.bytes_received == 2 * (n - 1) * part
        assert found.seconds > 0
    comm.ReduceScatter(buffer, buffer[: buffer.size // n].copy())
    comm.Allgather(buffer[: buffer.size // n].copy(), buffer)
    right, left = (comm.rank + 1) % n, (comm.rank - 1) % n
    comm.Sendrecv(buffer, right, buffer.copy(), left)
    found_by = comm.traffic.since(before)
    for name in ("ReduceScatter", "Allgather"):
        assert found_by[name].bytes_sent == found_by[name].bytes_received == (n - 1) * part
    assert found_by["Sendrecv"].messages == 1
    assert found_by["Sendrecv"].bytes_sent == buffer.nbytes
    assert found_by.total.bytes_sent == sum(count.bytes_sent for count in found_by.values())


@_check
def refused(comm: Communicator) -> None:
    """Check that wrong buffers raise errors before any data are sent."""
    good = np.zeros(comm.size)
    gaps, dense = np.zeros(4 * comm.size)[::2], np.zeros(2 * comm.size)
    wrong: list[Callable[[], object]] = [
        lambda: comm.Send(gaps, 0),
        lambda: comm.Recv(gaps, 0),
        lambda: comm.Bcast(gaps),
        lambda: comm.Reduce(gaps, dense),
        lambda: comm.Allreduce(gaps, dense),
        lambda: comm.Allreduce(dense, gaps),
        lambda: comm.ReduceScatter(gaps, np.zeros(2)),
        lambda: comm.Allgather(np.zeros(2), gaps),
        lambda: comm.Alltoall(dense, gaps),
        lambda: comm.Send(good, comm.size),
        lambda: comm.Send(good, 0, tag=-1),
        lambda: comm.Allreduce(good, np.zeros(comm.size + 1)),
        lambda: comm.Allreduce(good, np.zeros(comm.size, np.float32)),
        lambda: comm.Allreduce(good, good.copy(), "median"),
        lambda: comm.Allreduce(np.zeros(2, bool), np.zeros(2, bool)),
        lambda: comm.ReduceScatter(np.zeros(comm.size + 1), np.zeros(1), [1] * comm.size),
        lambda: comm.Allgather(np.zeros(2), np.zeros(comm.size), [1] * comm.size),
        lambda: comm.Bcast(good, root=comm.size),
        lambda: setattr(comm, "algorithm", "bubble sort"),
    ]
    before = comm.traffic.mark().total.bytes_sent
    for call in wrong:
        try:
            call()
        except CalderaError:
            continue
        raise AssertionError("a wrong buffer was accepted")
    assert comm.traffic.mark().total.bytes_sent == before
    assert set(comm.algorithms()) >= set(ALLREDUCE) or comm.size == 1 or comm.name == "NCCL"
