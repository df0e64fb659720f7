"""Worker processes as used by the bench: started, sent requests, and always ended.

Requests and replies are JSON objects, one per line.
"""

from __future__ import annotations

import json
import os
import selectors
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from caldera.base.children import (
    END_S,
    PACKAGE_FOLDER,
    PipedChild,
    child_environment,
    end_child,
    exit_status,
    exit_text,
    python_module,
    thread_variables,
)
from caldera.bench.contestants import Contestant
from caldera.data.datasets.dataset_cache import ENVIRONMENT, cache_folder
from caldera.errors import CalderaError

HELLO, PREPARE, MEASURE, LOSSES = "hello", "prepare", "measure", "losses"
CHECK, TRAIN, LEARN, END = "check", "train", "learn", "end"


class WorkerError(CalderaError, RuntimeError):
    """A worker failed, died or took too long.

    >>> issubclass(WorkerError, RuntimeError)
    True
    """


def to_line(message: dict[str, Any]) -> bytes:
    """Return a message as a line.

    >>> to_line({"do": "end"})
    b'{"do": "end"}\\n'
    """
    return json.dumps(message).encode() + b"\n"


def from_line(line: bytes) -> dict[str, Any]:
    """Return the message of a line.

    >>> from_line(b'{"do": "end"}')
    {'do': 'end'}
    """
    try:
        message = json.loads(line)
    except ValueError:
        message = None
    if not isinstance(message, dict):
        raise WorkerError.build(
            "bench",
            expected="a JSON object in a line",
            got=repr(line[:80].decode(errors="replace")),
        )
    return message


COMMAND = python_module("caldera.bench.worker")
_CPU = {"JAX_PLATFORMS": "cpu"}
_CARD = {"JAX_PLATFORMS": "cuda"}
_PIECE = 1 << 16


class WorkerProcess:
    """A worker; use it in a `with` block.

    `ask` sends a request and waits for its reply. A worker that reports an error, dies or takes
    longer than `seconds` raises `WorkerError`; after the last two it is gone.
    """

    def __init__(
        self, label: str, environment: Mapping[str, str], command: Sequence[str] = COMMAND
    ) -> None:
        self.label = label
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close
        self._process = PipedChild(command, environment, stderr=self._errors)
        self._received = b""

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Return the reply to a request."""
        try:
            self._process.send(to_line(dict(request)))
        except OSError:
            raise self._died() from None
        reply = from_line(self._line(str(request["do"]), seconds))
        if "error" in reply:
            raise WorkerError.build(f"{self.label}, {request['do']}", got=reply["error"])
        return reply

    def _line(self, what: str, seconds: float) -> bytes:
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._received:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    self.kill()
                    raise WorkerError.build(
                        f"{self.label}, {what}",
                        expected=f"an answer within {seconds:.0f} s",
                        got="none",
                    )
                piece = os.read(self._process.stdout.fileno(), _PIECE)
                if not piece:
                    raise self._died()
                self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _died(self) -> WorkerError:
        """Return the error for a process that is no more, with the last thing it said."""
        status = exit_status(self._process, END_S)
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        if status is not None and status < 0:
            said.append(exit_text(status))
        last = said[-1].strip() if said else f"exit status {status}"
        return WorkerError.build(self.label, got=f"a worker that died: {last}")

    def kill(self) -> None:
        """End it now."""
        end_child(self._process)

    def close(self) -> None:
        """Ask the process to end, and end it if it does not."""
        if self._process.poll() is None:
            with suppress(OSError):
                self._process.send(to_line({"do": END}))
            self._process.end()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            # Kill it: an error must be reported without delay, or the user pressed Ctrl-C.
            self.kill()
        self.close()


def hello(framework: str, options: Mapping[str, Any], threads: int) -> dict[str, Any]:
    """Return the first request to a worker."""
    return {"do": HELLO, "framework": framework, "options": dict(options), "threads": threads}


def worker_environment(caches: Path, threads: int, device: str = "cpu") -> dict[str, str]:
    """Return environment variables of a worker: all compilation caches are below `caches`."""
    return {
        **os.environ,
        **(_CPU if device == "cpu" else _CARD),
        "CALDERA_CACHE": str(caches / "caldera"),
        ENVIRONMENT: os.environ.get(ENVIRONMENT) or str(cache_folder()),
        **thread_variables(threads),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "JAX_COMPILATION_CACHE_DIR": str(caches / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
        "CUDA_CACHE_PATH": str(caches / "cuda"),
        "CUPY_CACHE_DIR": str(caches / "cupy"),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_NUM_INTRAOP_THREADS": str(threads),
    }


LIMITS = {
    HELLO: 180.0,
    PREPARE: 600.0,
    MEASURE: 900.0,
    LOSSES: 900.0,
    CHECK: 1800.0,
    TRAIN: 86400.0,
    LEARN: 3600.0,
}
"""Seconds that a worker may take to answer."""


class WorkerHandle:
    """Sends requests to a contestant's process, which is started on the first one.

    `limit` is the maximum number of seconds for all replies together (trainings on real data are
    not counted). `data` is a folder with its batches.
    """

    def __init__(
        self,
        contestant: Contestant,
        caches: Path,
        threads: int,
        *,
        limit: float | None = None,
        data: Path | None = None,
    ) -> None:
        self.contestant = contestant
        self.import_s: float | None = None
        self.versions: dict[str, str] = {}
        self._caches = caches
        self._threads = threads
        self._limit = limit
        self._taken = 0.0
        self._options = dict(contestant.options)
        if data is not None:
            self._options["data"] = str(data)
        self._process: WorkerProcess | None = None

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        """Return the reply to a request."""
        if self._process is None:
            self._process = self._started()
            greeting = hello(self.contestant.framework, self._options, self._threads)
            reply = self._within_limit(greeting)
            self.import_s, self.versions = reply["import s"], reply["versions"]
        return self._within_limit({"do": do, **more})

    def _within_limit(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process is not None
        do = request["do"]
        seconds = LIMITS[do]
        if self._limit is None or do == TRAIN:
            return self._process.ask(request, seconds)
        left = self._limit - self._taken
        if left <= 0:
            raise WorkerError.build(
                self.contestant.label,
                expected=f"everything within {self._limit:.0f} s",
                got=f"{self._taken:.0f} s before it could {do}",
                hint="give it more with --limit",
            )
        start = time.monotonic()
        try:
            return self._process.ask(request, min(seconds, left))
        finally:
            self._taken += time.monotonic() - start

    def _started(self) -> WorkerProcess:
        self._caches.mkdir(parents=True, exist_ok=True)
        device = self._options.get("device", "cpu")
        environment = worker_environment(self._caches, self._threads, device)
        folder = self.contestant.sources or PACKAGE_FOLDER
        return WorkerProcess(self.contestant.label, child_environment(environment, folder))

    def close(self) -> None:
        """End the process; the next request starts a new one with the same caches."""
        if self._process is not None:
            self._process.close()
            self._process = None
