"""The master's side: the pool of workers, and the loop that assigns trials to them.

A trial runs on one worker at a time. If the worker dies or hangs, the trial is sent to another
worker, and later messages of the first are ignored. No result counts twice.
"""

from __future__ import annotations

import selectors
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType, TracebackType
from typing import Any, Self

from caldera.base.arguments import require
from caldera.base.config import settings
from caldera.base.plain_data import decoded
from caldera.errors import CommError
from caldera.search.scheduler import Scheduler
from caldera.search.trial import FAILED, TrialResult, TrialTask, of_all_ranks
from caldera.search.workers.worker import MessageStream

LOST = "lost"
"""Kind of message with which a pool reports a lost worker."""


@dataclass(eq=False)
class PoolMember:
    """A worker: a thread, a process, or the ranks of a trial, each with a separate channel.

    - `task`: the current trial; `outcomes`: results received for it, by channel; `is_stopping`:
      True if the worker was requested to stop the trial.
    - `last_heard`: time of the last message; `last_report`: time of the trial's start or last
      report.
    """

    name: str
    channels: list[MessageStream] = field(default_factory=list)
    task: TrialTask | None = None
    outcomes: dict[MessageStream, TrialResult] = field(default_factory=dict)
    is_stopping: bool = False
    last_heard: float = field(default_factory=time.monotonic)
    last_report: float = field(default_factory=time.monotonic)
    ready: bool = False

    def greet(self, channel: MessageStream) -> None:
        """Mark the member as ready after a greeting on one of its channels."""
        self.ready = True

    def send(self, message: dict[str, Any]) -> None:
        """Send a message to all ranks of the member."""
        for channel in self.channels:
            channel.send(message)

    def begin(self, task: TrialTask) -> None:
        """Assign a trial to the member."""
        self.task, self.outcomes, self.is_stopping = task, {}, False
        self.last_heard = self.last_report = time.monotonic()
        self.send({"kind": "trial", "task": task.to_plain()})


@dataclass(frozen=True)
class WorkerMessage:
    """A worker's message and the channel that received it; `LOST` has no channel."""

    member: PoolMember
    message: dict[str, Any]
    channel: MessageStream | None = None


class WorkerPool(ABC):
    """Pool that starts workers, receives messages, drops and ends workers.

    Use it in a `with` block.
    """

    def __init__(self) -> None:
        self.members: list[PoolMember] = []
        self._selector = selectors.DefaultSelector()
        self._of_channel: dict[MessageStream, PoolMember] = {}

    @abstractmethod
    def start(self) -> None:
        """Start the workers, which send a hello message when ready."""

    def drop(self, member: PoolMember, reason: str) -> str:
        """Drop a worker, and start a replacement where possible; return the reason.

        An empty `reason` means that the connection has ended; a pool may know a better one.
        """
        self._forget(member)
        return reason or "its connection has ended"

    def end(self, *, at_once: bool) -> None:
        """End all workers, which are idle; with `at_once` end running trials too."""
        for member in list(self.members):
            if not at_once:
                for message in self._end_messages():
                    member.send(message)
            self._forget(member)
        self._selector.close()

    def _end_messages(self) -> list[dict[str, Any]]:
        """Return the messages that end a worker."""
        return [{"kind": "end"}]

    @property
    def size(self) -> int:
        """Intended number of workers, connected or not."""
        return len(self.members)

    @property
    def is_expecting(self) -> bool:
        """True if workers that were started have not connected yet."""
        return False

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for a message from a worker; return True if there is one.

        No message is consumed, also if the wait is interrupted.
        """
        return bool(self._selector.select(seconds))

    def messages(self) -> list[WorkerMessage]:
        """Return the messages that have come from workers."""
        found: list[WorkerMessage] = []
        for key, _ in self._selector.select(0):
            if isinstance(key.fileobj, MessageStream):
                found += self._receive(key.fileobj)
            else:
                self._accept(key.fileobj)
        return found

    @property
    def idle(self) -> list[PoolMember]:
        """Workers that can accept a trial."""
        return [member for member in self.members if member.ready and member.task is None]

    @property
    def busy(self) -> list[PoolMember]:
        """Workers that are running a trial."""
        return [member for member in self.members if member.task is not None]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end(at_once=error is not None)

    # --- for those who start workers

    def _add(self, member: PoolMember) -> None:
        self.members.append(member)
        for channel in member.channels:
            self._attach(member, channel)

    def _attach(self, member: PoolMember, channel: MessageStream) -> None:
        self._of_channel[channel] = member
        self._selector.register(channel, selectors.EVENT_READ)

    def _forget(self, member: PoolMember) -> None:
        if member in self.members:
            self.members.remove(member)
        member.ready = False
        for channel in member.channels:
            if self._of_channel.pop(channel, None) is not None:
                self._selector.unregister(channel)
            channel.close()

    def _accept(self, link: Any) -> None:
        """Accept the connection of a new process."""
        raise NotImplementedError

    def _receive(self, channel: MessageStream) -> list[WorkerMessage]:
        try:
            messages, reason = channel.read(), ""
        except CommError as error:
            messages, reason = [], str(error)
            channel.closed = True
        found: list[WorkerMessage] = []
        member = self._of_channel[channel]
        for message in messages:
            if message["kind"] == "hello":
                member.greet(channel)
            else:
                member.last_heard = time.monotonic()
                found.append(WorkerMessage(member, message, channel))
        if channel.closed and member in self.members:
            found.append(WorkerMessage(member, {"kind": LOST, "reason": reason}))
        elif channel.closed:
            self._forget(member)
        return found


POLL_S = 1.0
SILENT_STALLS = 2
"""A worker without messages for this multiple of `settings.stall_s` is lost."""
FAILED_STARTS = 3
"""Maximum number of consecutive deaths per worker before any trial has run."""


class Dispatcher:
    """Runs the trials of a scheduler on a pool of workers.

    `retries`: maximum number of restarts of a trial whose worker died or hung. `hung_after`:
    maximum seconds between reports of a trial; without it, a worker hangs when its process does not
    answer.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        pool: WorkerPool,
        *,
        retries: int = 2,
        hung_after: float | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._pool = pool
        self._retries = retries
        self._hung_after = hung_after
        self._poll_s = min(POLL_S, (hung_after or POLL_S) / 4)
        self._losses_of: Counter[int] = Counter()
        self._failed_starts = 0
        self._lost_by = ""
        self._all_lost_since = time.monotonic()
        self._is_exhausted = False
        """Whether the scheduler had nothing to hand out, and nothing has happened since."""

    def run(self, at_end: Callable[[], None] = lambda: None) -> None:
        """Until there are no more trials and none is running; `at_end` is called while the workers
        are still there."""
        with _deferred_interrupts() as interrupts, self._pool:
            size = self._pool.size
            while not (self._is_exhausted and not self._pool.busy):
                self._check_alive(size)
                if size > 1 and not self._pool.idle:
                    self._scheduler.prepare()
                with interrupts.allowed():
                    self._pool.wait(self._poll_s)
                for received in self._pool.messages():
                    self._handle(received)
                self._drop_hung()
                self._assign()
            at_end()

    def _assign(self) -> None:
        for member in self._pool.idle:
            task = None if self._is_exhausted else self._scheduler.next()
            if task is None:
                self._is_exhausted = True
                return
            member.begin(task)

    def _handle(self, received: WorkerMessage) -> None:
        member, message = received.member, received.message
        if member not in self._pool.members:
            # A preceding message has already removed this member.
            return
        if message["kind"] == LOST:
            self._drop(member, message["reason"])
        elif member.task is None or message.get("number") != member.task.number:
            # A heartbeat, or a message about a trial that this worker no longer owns.
            return
        elif message["kind"] == "report":
            self._reported(member, message)
        elif message["kind"] == "result":
            assert received.channel is not None
            member.outcomes[received.channel] = TrialResult.from_plain(message["outcome"])
            if len(member.outcomes) == len(member.channels):
                self._finished(member)

    def _reported(self, member: PoolMember, message: dict[str, Any]) -> None:
        assert member.task is not None
        member.last_report = time.monotonic()
        number = member.task.number
        reason = self._scheduler.report(number, decoded(message["row"]))
        # A method may have waited for that.
        self._is_exhausted = False
        if reason and not member.is_stopping:
            member.is_stopping = True
            member.send({"kind": "stop", "number": number, "reason": reason})

    def _finished(self, member: PoolMember) -> None:
        """All ranks of a trial are done with it. If it failed on one, it failed."""
        found = [member.outcomes[channel] for channel in member.channels]
        outcome = next((each for each in found if each.state == FAILED), found[0])
        member.task = None
        self._failed_starts = 0
        if len(found) > 1:
            conditions = of_all_ranks([each.conditions for each in found])
            outcome = replace(outcome, conditions=conditions)
        self._close(outcome)

    def _close(self, outcome: TrialResult) -> None:
        self._losses_of.pop(outcome.number, None)
        self._scheduler.finish(outcome)
        self._is_exhausted = False

    # --- workers that are gone

    def _check_alive(self, size: int) -> None:
        now, failed = time.monotonic(), self._failed_starts
        if self._pool.members or self._pool.is_expecting:
            self._all_lost_since = now
        # Ranks that only hung may come again.
        silence = SILENT_STALLS * settings.stall_s
        all_lost = bool(silence) and now - self._all_lost_since > silence
        require(
            not all_lost and failed <= FAILED_STARTS * size,
            "search",
            "a worker that lives",
            "none"
            if all_lost
            else f"{failed} that died before they ran anything, the last since {self._lost_by}",
            hint="start the study again to continue it; workers=1 shows the output of a trial",
            error=CommError,
        )

    def _drop_hung(self) -> None:
        now, silence = time.monotonic(), SILENT_STALLS * settings.stall_s
        # Workers that have not connected yet have the same time limit.
        for member in [each for each in self._pool.members if each.task or not each.ready]:
            unheard, unreported = now - member.last_heard, now - member.last_report
            if silence and unheard > silence:
                self._drop(member, f"it sent no message for {unheard:.3g} s")
            elif self._hung_after is not None and member.task and unreported > self._hung_after:
                self._drop(member, f"its trial has not reported for {unreported:.3g} s")

    def _drop(self, member: PoolMember, reason: str) -> None:
        task, member.task = member.task, None
        reason = self._pool.drop(member, reason)
        if task is None:
            # A worker that has run a trial has started.
            self._failed_starts += not member.outcomes
            self._lost_by = reason
            return
        self._losses_of[task.number] += 1
        times = self._losses_of[task.number]
        if times > self._retries:
            spoken = f"begun {times} times, lost with its worker ({member.name}): {reason}"
            self._close(TrialResult(task.number, FAILED, spoken))
        else:
            self._scheduler.again(task.number)
            self._is_exhausted = False


class _Interrupts:
    """Handler that delays Ctrl-C until the master's loop waits between two steps.

    Writes in progress are completed. A second Ctrl-C takes effect immediately.
    """

    _waiting = False
    _came = 0

    def receive(self, number: int, frame: FrameType | None) -> None:
        self._came += 1
        if self._waiting or self._came > 1:
            raise KeyboardInterrupt

    @contextmanager
    def allowed(self) -> Iterator[None]:
        self._waiting = True
        try:
            if self._came:
                raise KeyboardInterrupt
            yield
        finally:
            self._waiting = False


@contextmanager
def _deferred_interrupts() -> Iterator[_Interrupts]:
    interrupts = _Interrupts()
    # Elsewhere Python allows no handlers, and a signal that is ignored stays so.
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None):
        yield interrupts
        return
    before = signal.signal(signal.SIGINT, interrupts.receive)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)
