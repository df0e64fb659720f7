"""Thread that detects a rank waiting too long, and identifies the missing ranks.

Each rank's watchdog has a separate channel to its peers. When its rank has been stuck in one
message or collective for `settings.stall_s`, it requests the position of all ranks and reports the
missing ranks and the lines they execute. After twice that time it aborts the job if a rank does not
answer (a stopped process or a lost machine), and after ten times in any case. If a rank has left
the program while its peers wait for it, they abort immediately.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from caldera.base.config import settings
from caldera.comm.mpi import MpiCommunicator
from caldera.comm.mpi_library import STALLS_BEFORE_ABORT, finalize_asynchronously, mpi
from caldera.comm.point_to_point import ANY_SOURCE

POLL_S = 0.2
ANSWERS_WITHIN_S = 3.0
SILENT_AFTER_S = 10.0
"""Seconds without an answer after which a rank is lost; watchdogs answer during computation."""
STALLS_BEFORE_SILENCE_COUNTS = 2
GRACE_S = 2.0
"""Seconds that a rank may be stuck after another one has left before that counts as the reason."""
_ASK, _ANSWER, _LEFT = 1, 2, 3
_BENEATH = (str(Path(__file__).parent), str(Path(threading.__file__)), "<frozen ")
"""Files of frames that wait, not of the program."""


class Watchdog:
    """Monitors the communicators of one rank; `channel` is reserved for it."""

    def __init__(self, world: MpiCommunicator, give_up: Callable[[], None]) -> None:
        self._world = world
        self._channel = world.handle.Dup()
        self._give_up = give_up
        self._main = threading.get_ident()
        self._left: dict[int, dict[str, int]] = {}
        self._answers: dict[int, dict[str, Any]] = {}
        self._asked: dict[str, tuple[float, int]] = {}
        self._sending: list[Any] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """At the end of the program, notify all ranks and wait for their end."""
        self._stop.set()
        self._thread.join()
        if MpiCommunicator.has_lost_rank():
            self._wait_for_survivors()
            return
        counts = {each.label: each.collectives for each in MpiCommunicator.instances()}
        try:
            for rank in range(self._world.size):
                if rank != self._world.rank:
                    self._send(rank, _LEFT, counts)
            all_here = self._channel.Ibarrier()
            while not all_here.Test():
                self._read(has_left=True)
                time.sleep(0.005)
        except mpi().Exception:
            # A rank has died since.
            finalize_asynchronously()

    def _wait_for_survivors(self) -> None:
        """MPI exits without synchronisation now; allow sent messages to arrive."""
        newest = max(MpiCommunicator.instances(), key=lambda each: each.generation)
        until = time.monotonic() + GRACE_S
        with suppress(mpi().Exception):
            all_here = newest.handle.Ibarrier()
            while not all_here.Test() and time.monotonic() < until:
                time.sleep(0.005)

    # --- the thread

    def _watch(self) -> None:
        while not self._stop.wait(POLL_S):
            try:
                self._read()
                for communicator in MpiCommunicator.instances():
                    self._look_at(communicator)
            except mpi().Exception:
                return

    def _look_at(self, communicator: MpiCommunicator) -> None:
        blocked = communicator.blocked
        if blocked is None:
            return
        stuck = time.monotonic() - blocked
        if stuck > GRACE_S:
            self._check_for_leavers(communicator)
        stalls = int(stuck / settings.stall_s) if settings.stall_s else STALLS_BEFORE_ABORT
        asked = self._asked.get(communicator.label, (0.0, 0))
        if stalls and asked < (blocked, stalls):
            self._asked[communicator.label] = (blocked, stalls)
            # On a busy machine the first look may come late: it is the first all the same.
            if asked[0] < blocked:
                self._report(communicator, stuck)
            elif stalls >= STALLS_BEFORE_SILENCE_COUNTS:
                self._check_for_silence(communicator)
        if stuck > STALLS_BEFORE_ABORT * settings.stall_s:
            _say(f"{_who(communicator)} stops waiting after {stuck:.0f} s")
            self._give_up()

    def _check_for_leavers(self, communicator: MpiCommunicator) -> None:
        members = communicator.world_ranks()
        gone = [rank for rank in members if rank in self._left]
        hint = "every receive needs a send"
        if communicator.operation:
            begun = communicator.collectives
            gone = [rank for rank in gone if self._left[rank].get(communicator.label, 0) < begun]
            hint = "every rank must call the same collectives"
        elif communicator.peer != ANY_SOURCE:
            gone = [rank for rank in gone if rank == members[communicator.peer]]
        elif len(gone) < communicator.size - 1:
            # Any remaining rank may still send it.
            return
        if gone:
            self._end(communicator, gone, f"has come to the end of the program; {hint}")

    def _end(self, communicator: MpiCommunicator, ranks: list[int], why: str) -> None:
        """Say which ranks one waits for in vain, and give the job up."""
        names = ", ".join(f"rank {rank}" for rank in ranks)
        _say(f"{_who(communicator)} waits in {self._stuck_in(communicator)}, but {names} {why}")
        self._give_up()

    def _stuck_in(self, communicator: MpiCommunicator) -> str:
        return f"{communicator.operation or 'a message'} at {source_location(self._main)}"

    def _ask(self, communicator: MpiCommunicator, seconds: float) -> list[int]:
        """Request the positions of all ranks, wait for answers, and return the requested ranks."""
        members = [rank for rank in communicator.world_ranks() if rank != self._world.rank]
        self._answers = {}
        for rank in members:
            self._send(rank, _ASK, {"label": communicator.label})
        until = time.monotonic() + seconds
        while len(self._answers) < len(members) and time.monotonic() < until:
            self._read()
            time.sleep(0.01)
        return members

    def _check_for_silence(self, communicator: MpiCommunicator) -> None:
        asked = time.monotonic()
        members = self._ask(communicator, SILENT_AFTER_S)
        silent = [rank for rank in members if rank not in self._answers and rank not in self._left]
        # The waiting rank may have continued since.
        if not silent or communicator.blocked is None or communicator.blocked > asked:
            return
        why = "does not answer: it was stopped, or its machine is gone; all ranks are ended"
        self._end(communicator, silent, why)

    def _report(self, communicator: MpiCommunicator, stuck: float) -> None:
        members = self._ask(communicator, ANSWERS_WITHIN_S)
        here = [
            rank
            for rank, said in self._answers.items()
            if said["blocked"] and said["collectives"] == communicator.collectives
        ]
        if any(rank < self._world.rank for rank in here):
            # The missing rank reports it.
            return
        words = [self._whereabouts(rank, communicator, rank in here) for rank in members]
        head = f"{_who(communicator)} has waited {stuck:.0f} s in {self._stuck_in(communicator)}"
        _say("\n".join([head, *words]))

    def _whereabouts(self, rank: int, communicator: MpiCommunicator, waits: bool) -> str:
        said = self._answers.get(rank)
        if rank in self._left:
            where = "has come to the end of the program"
        elif said is None:
            where = "does not answer"
        elif waits:
            where = f"waits as well, at {said['place']}"
        elif communicator.operation and said["collectives"] < communicator.collectives:
            where = f"has not come: it is at {said['place']}"
        else:
            where = f"is at {said['place']}"
        return f"  rank {rank} {where}"

    # --- the channel

    def _send(self, rank: int, tag: int, content: dict[str, Any]) -> None:
        text = np.frombuffer(json.dumps(content).encode(), np.uint8)
        self._sending = [(request, kept) for request, kept in self._sending if not request.Test()]
        self._sending.append((self._channel.Isend(text, rank, tag), text))

    def _read(self, has_left: bool = False) -> None:
        """Receive messages of other watchdogs and answer their requests."""
        while (found := self._next()) is not None:
            rank, tag, content = found
            if tag == _LEFT:
                self._left[rank] = content
            elif tag == _ANSWER:
                self._answers[rank] = content
            else:
                self._send(rank, _ANSWER, self._where(content["label"], has_left))

    def _next(self) -> tuple[int, int, dict[str, Any]] | None:
        status = mpi().Status()
        if not self._channel.Iprobe(status=status):
            return None
        text = np.empty(status.Get_count(), np.uint8)
        rank, tag = status.Get_source(), status.Get_tag()
        self._channel.Recv(text, rank, tag)
        return rank, tag, json.loads(text.tobytes())

    def _where(self, label: str, has_left: bool) -> dict[str, Any]:
        found = next((each for each in MpiCommunicator.instances() if each.label == label), None)
        return {
            "collectives": 0 if found is None else found.collectives,
            "blocked": found is not None and found.blocked is not None,
            "place": "the end of the program" if has_left else source_location(self._main),
        }


def _who(communicator: MpiCommunicator) -> str:
    return f"caldera: rank {communicator.rank} of {communicator.size} ({communicator.label})"


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def source_location(ident: int) -> str:
    """Return the innermost line of the program in a thread's stack, without waiting functions.

    >>> import threading
    >>> source_location(threading.get_ident()).startswith("<doctest")
    True
    """
    innermost = sys._current_frames().get(ident)
    if innermost is None:
        return "ended"
    frames = [frame for frame, _ in traceback.walk_stack(innermost)]
    own = (each for each in frames if not each.f_code.co_filename.startswith(_BENEATH))
    found = next(own, innermost)
    return f"{found.f_code.co_filename}:{found.f_lineno} in {found.f_code.co_name}"
