"""A worker: does what the master orders until it ends.

What it is ordered it does in order, without answering unless it is asked to. If something fails, it
releases those who wait for it, tells the master, and does nothing more until all go on together
with new communicators; the arrays that it has stay.
"""

from __future__ import annotations

import traceback

import numpy as np

from caldera.comm import Traffic
from caldera.core.tensor.dtype import canonical
from caldera.dmath import shards  # noqa: F401 - its services
from caldera.dmath.codec import decode, encode
from caldera.dmath.messages import (
    CALL,
    DATA_TAG,
    DEFINE,
    END,
    FAILURE,
    GET,
    ORDER_TAG,
    PUT,
    REFUSAL,
    RENEW,
    REPLY,
    REPORT_TAG,
    RUN,
    UNDEFINE,
    Channel,
    unpack_changes,
    unpack_numbers,
    varint,
    varints,
)
from caldera.dmath.rank import Definition, Rank
from caldera.dmath.services import SERVICES
from caldera.dmath.teams import Team
from caldera.errors import CommError

LONGEST_TEXT = 20_000


class Worker:
    """One of the ranks that hold data; `serve` returns when the master ends."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._failed = False
        self._traffic = Traffic(), Traffic()
        self._join(0)
        self._rank = Rank(self._data)

    def _join(self, epoch: int) -> None:
        control, data = self._team.communicators(epoch)
        assert data is not None
        # What each program was last run on, as the master knows it.
        self._leaves: dict[int, list[int]] = {}
        # What was counted before goes on.
        control.traffic, data.traffic = self._traffic
        self._control, self._data = control, data
        self._orders, self._reports = Channel(control, ORDER_TAG), Channel(control, REPORT_TAG)

    def serve(self) -> None:
        """Do what is ordered until the master ends, or is gone."""
        while True:
            try:
                found = self._orders.receive()
            except CommError:
                # The master has left, or a process is lost: then it ends all.
                return
            assert found is not None
            kind, content = found[1][:1], found[1][1:]
            if kind == END:
                return
            try:
                if kind == RENEW:
                    self._renew(content)
                else:
                    self._obey(kind, content)
            except Exception as error:
                self._fail(error)

    def _obey(self, kind: bytes, content: bytes) -> None:
        if kind == PUT:
            self._put(content)
        elif self._failed:
            # Whoever waits for an answer hears of the failure instead.
            return
        elif kind == RUN:
            stream = varints(content)
            program, first, count = next(stream), next(stream), next(stream)
            leaves = unpack_changes(stream, self._leaves.get(program) or [first] * count)
            self._leaves[program] = leaves
            self._rank.free(unpack_numbers(stream, first))
            self._rank.run(program, leaves, first)
        elif kind == DEFINE:
            number = next(varints(content))
            rest = content[len(varint(number)) :]
            self._rank.define(number, Definition.from_bytes(rest))
        elif kind == UNDEFINE:
            number = next(varints(content))
            self._leaves.pop(number, None)
            self._rank.undefine(number)
        elif kind == GET:
            self._get(content)
        elif kind == CALL:
            self._call(content)
        else:
            raise CommError.build("a worker", expected="an order", got=repr(kind))

    def _put(self, content: bytes) -> None:
        number, shape, dtype, freed = decode(content)
        part = np.empty(shape, canonical(dtype))
        self._control.Recv(part, 0, DATA_TAG)
        if not self._failed:
            self._rank.free(freed)
            self._rank.put(number, part)

    def _get(self, content: bytes) -> None:
        serial, number = varints(content)
        try:
            part = np.asarray(self._rank.part(number).numpy(), order="C")
        except CommError as error:
            self._reports.send(0, REFUSAL + varint(serial) + _as_text(error))
            return
        self._reports.send(0, REPLY + varint(serial))
        self._control.Send(part, 0, DATA_TAG)

    def _call(self, content: bytes) -> None:
        serial = next(varints(content))
        service, freed, arguments = decode(content[len(varint(serial)) :])
        try:
            self._rank.free(freed)
            said = encode(SERVICES[service](self._rank, *arguments))
        except Exception as error:
            self._reports.send(0, REFUSAL + varint(serial) + _as_text(error))
        else:
            self._reports.send(0, REPLY + varint(serial) + said)

    def _fail(self, error: Exception) -> None:
        self._failed = True
        released = isinstance(error, CommError) and "the news that rank" in str(error)
        try:
            if not released:
                self._team.revoke(f"{type(error).__name__}: {error}"[:LONGEST_TEXT])
            self._reports.send(0, FAILURE + varint(released) + _as_text(error))
        except CommError:
            # The master is gone, which `serve` finds out.
            return

    def _renew(self, content: bytes) -> None:
        serial, epoch = varints(content)
        # All answer before anybody makes a communicator: with MPI, that waits for all.
        self._reports.send(0, REPLY + varint(serial))
        self._join(epoch)
        self._rank.renew(self._data)
        self._failed = False


def _as_text(error: BaseException) -> bytes:
    trace = "".join(traceback.format_exception(error))
    return encode((type(error).__name__, str(error)[-LONGEST_TEXT:], trace[-LONGEST_TEXT:]))
