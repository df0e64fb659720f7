"""The worker's side: take a trial, run it, say what became of it, and the next one.

The main thread runs trials. A second one listens: it hears that a trial should stop while that
still trains, says every second that the worker lives, and ends the process if its master is gone.
"""

from __future__ import annotations

import queue
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from caldera.base.plain_data import encoded
from caldera.search.job import Job
from caldera.search.trial import Row, Task
from caldera.search.workers.channel import Channel
from caldera.train.strategy import SingleProcessStrategy, Strategy

BEAT_S = 1.0
"""How often a worker says that it lives."""


class TrialAbandoned(BaseException):
    """Raised within a trial whose master does not wait for it any more.

    No `Exception`, so that a trial which survives its errors does not survive this.
    """


class Worker:
    """Serves one channel until the master ends it or is gone.

    - `alone`: what happens when the master is gone while a trial runs; a process ends itself, since
      nobody wants what it computes.
    """

    def __init__(
        self,
        channel: Channel,
        job: Job,
        *,
        strategy: Strategy | None = None,
        name: str = "",
        alone: Callable[[], None] = lambda: None,
    ) -> None:
        self._channel = channel
        self._job = job
        self._strategy = strategy or SingleProcessStrategy()
        self._name = name
        self._alone = alone
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._reasons: dict[int, str] = {}
        self._last_words: list[dict[str, Any]] = []
        self._has_ended = False
        """Whether the master has said that there are no more trials."""
        # To wake the listener up when the worker leaves by itself.
        self._bell, self._ear = socket.socketpair()

    def serve(self, **hello: Any) -> list[dict[str, Any]] | None:
        """Run trials until there are no more; the master's last words, or None if it gave this
        worker up or is gone."""
        listener = threading.Thread(target=self._listen, name=f"{self._name} listens", daemon=True)
        listener.start()
        self._channel.send({"kind": "hello", **hello})
        try:
            while (task := self._tasks.get()) is not None:
                self._run(task)
        finally:
            self._bell.close()
            listener.join()
            self._ear.close()
            self._channel.close()
        return self._last_words if self._has_ended else None

    def _run(self, task: Task) -> None:
        try:
            outcome = self._job.run(task, self._report, self._strategy)
        except TrialAbandoned:
            return
        self._channel.send({"kind": "result", "number": task.number, "outcome": outcome.to_plain()})

    def _report(self, number: int, row: Row) -> str:
        """What a trial calls after each step. It does not wait for an answer: the decision about a
        step is there at the next one, or later."""
        if self._strategy.communicator.rank == 0:
            self._channel.send({"kind": "report", "number": number, "row": encoded(row)})
        if self._channel.closed:
            if not self._strategy.is_distributed:
                raise TrialAbandoned
            # The other ranks have to hear of it: `fit` stops all of them together.
            return "given to another worker"
        return self._reasons.get(number, "")

    # --- the listener

    def _listen(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._channel, selectors.EVENT_READ)
            selector.register(self._ear, selectors.EVENT_READ)
            beat = time.monotonic() + BEAT_S
            while not self._channel.closed:
                ready = [key.fileobj for key, _ in selector.select(beat - time.monotonic())]
                if self._ear in ready:
                    return
                if ready:
                    for message in self._channel.read():
                        self._take(message)
                # Not for every message: each beat wakes the master up.
                if time.monotonic() >= beat:
                    self._channel.send({"kind": "beat"})
                    beat = time.monotonic() + BEAT_S
        self._tasks.put(None)
        if not self._has_ended:
            self._alone()

    def _take(self, message: dict[str, Any]) -> None:
        if message["kind"] == "trial":
            task = Task.from_plain(message["task"])
            # The same trial may come again, after another worker has died with it.
            self._reasons.pop(task.number, None)
            self._tasks.put(task)
        elif message["kind"] == "stop":
            self._reasons[int(message["number"])] = str(message["reason"])
        elif message["kind"] == "word":
            self._last_words.append(message["word"])
        elif message["kind"] == "end":
            self._has_ended = True
            self._tasks.put(None)
