"""Master process: orders to workers, their replies, and recovery from failures.

Orders are sent without waiting. A worker reports a failure when it happens, and the master receives
the report with its next order or reply. It then releases all workers from their waits, and they
continue with new communicators. Arrays remain, except for the results of the failed program. If a
worker is gone or does not respond, all workers are ended.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from caldera import errors
from caldera.comm import Traffic
from caldera.compiler.sharding.layout import ShardLayout
from caldera.dmath.codec import decode, encode
from caldera.dmath.protocol import (
    CALL,
    DATA_TAG,
    DEFINE,
    END,
    FAILURE,
    GET,
    ORDER_TAG,
    PUT,
    RENEW,
    REPLY,
    REPORT_TAG,
    ROOM,
    RUN,
    UNDEFINE,
    Channel,
    pack_changes,
    pack_numbers,
    varint,
    varints,
)
from caldera.dmath.rank import Definition
from caldera.dmath.session import Handle, PartOf, Session
from caldera.dmath.workers import Team
from caldera.errors import CalderaError, CommError

COME_BACK_S = 5.0
"""After a failure, workers that have not answered for so long are ended."""
CAUSE_S = 2.0
"""Seconds to wait for the cause of a failure after a report that a rank was released."""
_KINDS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, CalderaError)
}
_KINDS |= {
    kind.__name__: kind
    for kind in (
        np.linalg.LinAlgError,
        ValueError,
        TypeError,
        MemoryError,
        OSError,
        FileNotFoundError,
        ZeroDivisionError,
        FloatingPointError,
        NotImplementedError,
    )
}
"""Errors of workers that are raised here as what they are; others are a `CommError`."""


class Master(Session):
    """A session whose ranks are workers of a team."""

    one_script = True

    def __init__(self, team: Team) -> None:
        super().__init__()
        self._team = team
        self.ranks = team.workers
        self.traffic = Traffic()
        self._epoch = 0
        self._serial = 0
        self._join()

    def __repr__(self) -> str:
        state = "" if self.is_open else ", ended"
        return f"<session with {self.ranks} workers{state}>"

    @property
    def processes(self) -> list[int]:
        return self._team.processes()

    def close(self) -> None:
        """End all workers; it is done when they have ended."""
        if not self.is_open:
            return
        super().close()
        try:
            for worker in range(self.ranks):
                self._orders.send(worker + 1, END)
        except CommError:
            # The worker has already exited.
            pass
        finally:
            self._team.leave()

    # --- orders

    @contextmanager
    def _exchange(self) -> Iterator[None]:
        """Context manager of orders and their replies.

        After an interruption (Ctrl-C, no memory) all ranks continue with new communicators: pending
        messages must not be taken for later replies.
        """
        epoch = self._epoch
        try:
            while self._report(0) is not None:
                pass
            yield
        except BaseException:
            if self.is_open and self._epoch == epoch:
                self._interrupt()
            raise

    def _put(self, number: int, layout: ShardLayout, part_of: PartOf) -> None:
        parts: dict[Any, np.ndarray] = {}
        with self._exchange():
            freed = tuple(self._take_forgotten())
            for rank in range(self.ranks):
                # Parts without any element have no pieces, but each its shape.
                own = layout.pieces(rank), layout.local_shape(rank)
                if own not in parts:
                    # Ranks with equal parts are consecutive.
                    parts = {own: np.asarray(part_of(rank), order="C")}
                part = parts[own]
                self._order(rank, PUT + encode((number, part.shape, part.dtype.name, freed)))
                with self._reaching(), self.traffic.operation("put"):
                    self._control.Send(part, rank + 1, DATA_TAG)

    def _define(self, number: int, definition: Definition) -> None:
        content = DEFINE + varint(number) + definition.to_bytes()
        with self._exchange():
            for rank in range(self.ranks):
                self._order(rank, content)

    def _undefine(self, number: int) -> None:
        with self._exchange():
            self._leaves.pop(number, None)
            for rank in range(self.ranks):
                self._order(rank, UNDEFINE + varint(number))

    def _run(self, program: int, leaves: list[int], first: int) -> None:
        with self._exchange():
            before = self._leaves.get(program) or [first] * len(leaves)
            self._leaves[program] = leaves
            content = RUN + varint(program) + varint(first) + varint(len(leaves))
            content += pack_changes(leaves, before)
            freed = self._take_forgotten()
            while len(content) + len(packed := pack_numbers(freed, first)) > ROOM and freed:
                # The remaining numbers are sent with the next message.
                self._forgotten.append(freed.pop())
            for rank in range(self.ranks):
                self._order(rank, content + packed)

    def _parts(self, handle: Handle, ranks: Sequence[int]) -> dict[int, np.ndarray]:
        parts = {}
        with self._exchange():
            serial = self._next_serial()
            for rank in ranks:
                self._order(rank, GET + varint(serial) + varint(handle.number))
            self._answers(serial, ranks)
            for rank in ranks:
                part = np.empty(handle.layout.local_shape(rank), handle.spec.dtype)
                with self._reaching(), self.traffic.operation("get"):
                    self._control.Recv(part, rank + 1, DATA_TAG)
                parts[rank] = part
        return parts

    def _call(self, service: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        with self._exchange():
            serial = self._next_serial()
            freed = tuple(self._take_forgotten())
            for rank, given in enumerate(arguments):
                self._order(rank, CALL + varint(serial) + encode((service, freed, given)))
            answers = self._answers(serial, range(self.ranks))
        return [decode(answers[rank]) for rank in range(self.ranks)]

    def _order(self, rank: int, content: bytes) -> None:
        with self._reaching():
            self._orders.send(rank + 1, content)

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Context manager that reports a lost worker if a message fails."""
        try:
            yield
        except CommError as error:
            raise self._lost(error) from None

    # --- answers

    def _answers(self, serial: int, ranks: Sequence[int]) -> dict[int, bytes]:
        """Return the replies of these ranks to the request with a serial number."""
        found: dict[int, bytes] = {}
        refusals: dict[int, bytes] = {}
        while len(found) + len(refusals) < len(ranks):
            report = self._report()
            assert report is not None
            rank, kind, number, content = report
            if number == serial:
                (found if kind == REPLY else refusals)[rank] = content
        if refusals:
            # Messages received since are discarded.
            raise self._recovered(*min((rank, False, said) for rank, said in refusals.items()))
        return found

    def _report(self, seconds: float | None = None) -> tuple[int, bytes, int, bytes] | None:
        """Return the next report within `seconds`, if any; raise if it reports a failure."""
        with self._reaching():
            report = self._reports.receive(seconds)
        if report is None:
            return None
        rank, kind, number, content = _read(*report)
        if kind == FAILURE:
            raise self._recovered(rank, bool(number), content)
        return rank, kind, number, content

    def _recovered(self, rank: int, released: bool, content: bytes) -> Exception:
        """Return the error of a failed worker, after all ranks are ready to continue."""
        until = time.monotonic() + CAUSE_S
        try:
            while released and time.monotonic() < until:
                # This one was only released by another, which is the cause.
                report = self._reports.receive(max(0.0, until - time.monotonic()))
                if report is not None:
                    source, kind, number, text = _read(*report)
                    if kind == FAILURE and not number:
                        rank, released, content = source, False, text
            self._renew()
        except CommError as error:
            return self._lost(error)
        return self._error(rank, content)

    def _renew(self) -> None:
        """Continue with new communicators, or end all workers if one does not respond."""
        serial = self._next_serial()
        self._epoch += 1
        missing = set(range(self.ranks))
        until = time.monotonic() + COME_BACK_S
        for rank in range(self.ranks):
            self._orders.send(rank + 1, RENEW + varint(serial) + varint(self._epoch))
        while missing and time.monotonic() < until:
            report = self._reports.receive(max(0.0, until - time.monotonic()))
            if report is not None:
                rank, kind, number, _ = _read(*report)
                if kind == REPLY and number == serial:
                    missing.discard(rank)
        if missing:
            self._end()
        else:
            self._join()

    def _interrupt(self) -> None:
        """Interrupt the workers' current program, for example after Ctrl-C."""
        try:
            self._team.revoke("interrupted")
            self._renew()
        except BaseException as error:
            self._end()
            if not isinstance(error, CommError):
                raise

    def _lost(self, error: CommError) -> CommError:
        """Return an error that names lost workers with their cause; end all remaining workers."""
        gone = self._team.lost()
        self._end()
        return CommError.build(
            gone, got="no answer from it", hint=f"the session has ended ({error})"
        )

    def _end(self) -> None:
        super().close()
        self._team.end()
        self._team.leave()

    def _error(self, rank: int, content: bytes) -> Exception:
        name, message, trace = decode(content)
        ended = "" if self.is_open else "; the session has ended"
        kind = _KINDS.get(name, CommError)
        said = message if kind.__name__ == name else f"{name}: {message}"
        error = kind(f"{self._team.who(rank)}: {said}{ended}")
        error.add_note(f"on {self._team.who(rank)}:\n{trace}")
        return error

    def _join(self) -> None:
        self._control, _ = self._team.communicators(self._epoch)
        # What each program was last run on, here and there.
        self._leaves: dict[int, list[int]] = {}
        # All communicators share one table.
        self._control.traffic = self.traffic
        self._orders = Channel(self._control, ORDER_TAG)
        self._reports = Channel(self._control, REPORT_TAG)

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial


def _read(source: int, report: bytes) -> tuple[int, bytes, int, bytes]:
    """Return rank, kind, number and the rest of a report."""
    kind, number = report[:1], next(varints(report[1:]))
    return source - 1, kind, number, report[1 + len(varint(number)) :]
