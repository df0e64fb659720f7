"""Worker processes that this one starts, on this machine and without MPI."""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Callable

from caldera.base.children import (
    PipedChild,
    exit_text,
    import_path,
    python_module,
    thread_variables,
)
from caldera.base.machine import usable_cores
from caldera.comm.endpoint import Endpoint
from caldera.comm.local_sockets import KEY_BYTES, Listener, gather_links
from caldera.dmath.workers import SocketTeam
from caldera.errors import CommError

START_S = 60.0
"""Until all workers are there; on an idle machine it is one or two seconds."""
END_S = 3.0
"""Workers that have not ended of themselves after so long are killed."""
STATUS_S = 2.0


class Processes:
    """The supervisor of worker processes, and what it says about them.

    The supervisor is a child of this process, and workers are children of it, made by fork: so
    Caldera is loaded once for all of them. It kills them when this process is gone.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pids: dict[int, int] = {}
        self._ended: dict[int, int] = {}
        self._news = threading.Condition()
        self._silent = False
        threads = thread_variables(max(1, usable_cores() // workers))
        set_already = {name: os.environ[name] for name in threads if os.environ.get(name)}
        self._supervisor = PipedChild(
            python_module("caldera.dmath.supervisor"),
            {**os.environ, **threads, **set_already, "PYTHONPATH": import_path(os.environ)},
            # Ctrl-C is for the master, which notifies the workers.
            process_group=0,
        )
        self._reader = threading.Thread(target=self._read, name="supervisor", daemon=True)
        self._reader.start()

    def connect(self) -> Endpoint:
        """Let the workers start, and give the sockets to them."""
        key = secrets.token_bytes(KEY_BYTES)
        listener = Listener(key)
        order = {"workers": self.workers, "port": listener.port, "key": key.hex()}
        try:
            # Through a pipe: arguments and environments of processes can be read by others.
            self._supervisor.send(json.dumps(order).encode() + b"\n")
            links = gather_links(listener, self.workers + 1, START_S, self._check_starting)
        except (CommError, OSError, KeyboardInterrupt) as error:
            self.kill()
            if isinstance(error, OSError):
                raise self._not_started() from error
            raise
        finally:
            listener.close()
        return Endpoint(0, links)

    def pid(self, worker: int) -> int:
        """The number of a worker's process."""
        with self._news:
            self._wait_until(lambda: worker in self._pids, STATUS_S)
            return self._pids.get(worker, 0)

    def status(self, worker: int) -> str:
        """What became of a worker; nothing if it is still there."""
        code = self._ended.get(worker)
        return "" if code is None else exit_text(code)

    def supervisor(self) -> str:
        """What became of the supervisor; nothing if it is still there."""
        code = self._supervisor.poll()
        return "" if code is None else f"(process {self._supervisor.pid}) {exit_text(code)}"

    def first_lost(self) -> int | None:
        """The worker that has not ended as it should, waited for a little."""
        with self._news:
            self._wait_until(lambda: any(self._ended.values()), STATUS_S)
            return next((worker for worker, code in self._ended.items() if code), None)

    def wait(self) -> None:
        """Wait until all have ended; kill those that do not."""
        with self._news:
            self._wait_until(lambda: len(self._ended) == self.workers, END_S)
        self.kill()

    def kill(self) -> None:
        """End all of them now."""
        self._supervisor.end(END_S)
        self._reader.join(END_S)

    def _read(self) -> None:
        """The thread that listens to the supervisor."""
        assert self._supervisor.stdout is not None
        with self._supervisor.stdout as lines:
            for line in lines:
                what, worker, number = line.decode().split()
                with self._news:
                    (self._pids if what == "started" else self._ended)[int(worker)] = int(number)
                    self._news.notify_all()
        with self._news:
            self._silent = True
            self._news.notify_all()

    def _wait_until(self, happened: Callable[[], bool], seconds: float) -> None:
        """Wait for news, unless there will be none."""
        self._news.wait_for(lambda: self._silent or happened(), seconds)

    def _check_starting(self) -> None:
        if self._ended or self._supervisor.poll() is not None:
            raise self._not_started()

    def _not_started(self) -> CommError:
        ended = ", ".join(f"worker {w} {self.status(w)}" for w in list(self._ended))
        return CommError.build(
            "dm.connect",
            expected=f"{self.workers} workers to start",
            got=ended or f"a supervisor that {exit_text(self._supervisor.poll() or 0)}",
            hint="what they have printed says why",
        )


class ProcessTeam(SocketTeam):
    """The master of workers that it has started."""

    def __init__(self, workers: int) -> None:
        self._processes = Processes(workers)
        super().__init__(self._processes.connect())

    def leave(self) -> None:
        super().leave()
        self._processes.wait()

    def end(self) -> None:
        self._processes.kill()

    def who(self, worker: int) -> str:
        named = f"worker {worker} of {self.workers} (process {self._processes.pid(worker)})"
        return f"{named} {self._processes.status(worker)}".rstrip()

    def lost(self) -> str:
        worker = self._processes.first_lost()
        if worker is not None:
            return self.who(worker)
        return f"the supervisor of workers {self._processes.supervisor()}".rstrip()

    def processes(self) -> list[int]:
        return [self._processes.pid(worker) for worker in range(self.workers)]
