"""Workers as the bench sees them: started, asked, and ended whatever happens."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from caldera.bench.protocol import END, HELLO, WorkerError, from_line, to_line
from caldera.data.datasets.dataset_cache import ENVIRONMENT, cache_folder

COMMAND = (sys.executable, "-m", "caldera.bench.worker")
_CPU = {"JAX_PLATFORMS": "cpu"}
_CARD = {
    "JAX_PLATFORMS": "cuda",
    # It would take three quarters of the card's memory, which others need as well.
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}
_PIECE = 1 << 16
_END_SECONDS = 5.0


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
        self._process = subprocess.Popen(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            env=dict(environment),
        )  # fmt: skip
        self._received = b""

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """The reply to a request."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(to_line(dict(request)))
            self._process.stdin.flush()
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
        """The error for a process that is no more, with the last thing it said."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        status = self._process.poll()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        if status is not None and status < 0:
            with suppress(ValueError):
                said.append(f"ended by {signal.Signals(-status).name}")
        last = said[-1].strip() if said else f"exit status {status}"
        return WorkerError.build(self.label, got=f"a worker that died: {last}")

    def kill(self) -> None:
        """End it now."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Let it end by itself, and end it if it does not."""
        if self._process.poll() is None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.write(to_line({"do": END}))
                self._process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
        if self._process.poll() is None:
            self.kill()
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
            # Somebody waits for an error to be reported, or pressed Ctrl-C.
            self.kill()
        self.close()


def hello(framework: str, options: Mapping[str, Any], threads: int) -> dict[str, Any]:
    """The first request to a worker."""
    return {"do": HELLO, "framework": framework, "options": dict(options), "threads": threads}


def worker_environment(caches: Path, threads: int, device: str = "cpu") -> dict[str, str]:
    """Variables for a worker: every framework keeps what it compiles below `caches` alone."""
    number = str(threads)
    return {
        **os.environ,
        **(_CPU if device == "cpu" else _CARD),
        "CALDERA_CACHE": str(caches / "caldera"),
        ENVIRONMENT: os.environ.get(ENVIRONMENT) or str(cache_folder()),
        "CALDERA_THREADS": number,
        "OMP_NUM_THREADS": number,
        "OPENBLAS_NUM_THREADS": number,
        "MKL_NUM_THREADS": number,
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "JAX_COMPILATION_CACHE_DIR": str(caches / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
        "CUDA_CACHE_PATH": str(caches / "cuda"),
        "CUPY_CACHE_DIR": str(caches / "cupy"),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_NUM_INTRAOP_THREADS": number,
    }
