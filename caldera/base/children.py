"""Child processes: their start, their end with the parent, and the reason for their end.

All children of Caldera are started here, and three rules hold for them. Python code that runs as a
child, or as a child of a child, never imports from the current folder (`-P`, PYTHONSAFEPATH): a
file there that has the name of a library would be run. Only `start_program` starts a program named
by a user, without changes. A child does not outlive its parent: Linux sends it a signal
(`end_with_parent`), and on other systems it ends when its pipe or socket to the parent closes. A
child that is ended is also waited for, so none is left as a zombie.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

END_S = 5.0
"""Seconds for a child to end after its pipe is closed; then it is killed."""
PACKAGE_FOLDER = str(Path(__file__).parents[2])
"""The folder from which this process has imported Caldera."""

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.001


def python_module(module: str) -> list[str]:
    """Return the command that runs a module, without the current folder in its import path.

    >>> python_module("json.tool")[1:]
    ['-P', '-m', 'json.tool']
    """
    return [sys.executable, "-P", "-m", module]


def import_path(environment: Mapping[str, str], folder: str = PACKAGE_FOLDER) -> str:
    """Return the PYTHONPATH of an environment with `folder` in front.

    Empty parts, which denote the current folder, are left out.

    >>> import_path({"PYTHONPATH": f"{os.pathsep}a"}, "b") == f"b{os.pathsep}a"
    True
    """
    known = environment.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(filter(None, [folder, *known]))


def child_environment(
    environment: Mapping[str, str] = os.environ, folder: str = PACKAGE_FOLDER
) -> dict[str, str]:
    """Return the environment of a Python child, whose own children have safe paths too.

    >>> child_environment({"PYTHONPATH": "", "LANG": "C"}, "b")
    {'PYTHONPATH': 'b', 'LANG': 'C', 'PYTHONSAFEPATH': '1'}
    """
    return {**environment, "PYTHONPATH": import_path(environment, folder), "PYTHONSAFEPATH": "1"}


def run_program(
    *command: str,
    seconds: float,
    content: bytes = b"",
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes] | None:
    """Run a program to its end; None if it is not there, or has not ended after `seconds`.

    `content` is its standard input.

    >>> run_program(sys.executable, "-P", "-c", "print(6 * 7)", seconds=60).stdout.split()
    [b'42']
    """
    try:
        return subprocess.run(
            command,
            input=content,
            capture_output=True,
            timeout=seconds,
            env=child_environment() if environment is None else dict(environment),
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None


def start_program(
    command: Sequence[str], environment: Mapping[str, str], number: signal.Signals
) -> subprocess.Popen[bytes]:
    """Start a program that the user named; on Linux it receives a signal when this process ends."""
    return subprocess.Popen(
        list(command), env=dict(environment), preexec_fn=end_with_parent(number)
    )


def thread_variables(threads: int) -> dict[str, str]:
    """Return the environment variables that limit a child's thread pools."""
    names = ("CALDERA_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return dict.fromkeys(names, str(threads))


def end_with_parent(number: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """Return a function that a new child calls to receive a signal when its parent ends.

    Linux sends the signal when the thread that started the child ends. Call `end_with_parent` in
    the parent: between fork and exec a child must not load a library.
    """
    parent = os.getpid()
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

    def request_signal() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        # The parent may have ended before the request.
        if os.getppid() != parent:
            os._exit(128 + number)

    return request_signal


@dataclass(eq=False)
class ForkedChild:
    """A copy of this process, with the interface of `subprocess.Popen`."""

    pid: int
    returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while the child runs."""
        if self.returncode is None:
            try:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                # Other code of this process has waited for it.
                self.returncode = 0
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, up to `timeout` seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if until is not None and time.monotonic() >= until:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(_POLL_S)
        return status

    def kill(self) -> None:
        """Send SIGKILL to a child that runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def fork_child(run: Callable[[], None]) -> ForkedChild:
    """Fork a child that calls `run` and exits, with status 1 after an exception."""
    # Text that waits in a buffer would be written by both processes.
    sys.stdout.flush()
    sys.stderr.flush()
    request_signal = end_with_parent()
    pid = os.fork()
    if pid:
        return ForkedChild(pid)
    status = 1
    try:
        request_signal()
        run()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        # Without the exit handlers of the program that was copied.
        os._exit(status)


class PipedChild(subprocess.Popen[bytes]):
    """A child that reads requests from a pipe and writes replies to another."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        stderr: IO[bytes] | None = None,
        process_group: int | None = None,
    ) -> None:
        super().__init__(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**environment, "PYTHONSAFEPATH": "1"},
            process_group=process_group,
        )

    def send(self, line: bytes) -> None:
        """Write a request; an OSError if the child has closed its end."""
        assert self.stdin is not None
        self.stdin.write(line)
        self.stdin.flush()

    def end(self, seconds: float = END_S) -> None:
        """Close the pipe of requests, and kill the child if it still runs after `seconds`."""
        assert self.stdin is not None
        with suppress(OSError):
            self.stdin.close()
        end_child(self, seconds)


def exit_status(child: ForkedChild | subprocess.Popen[bytes], seconds: float) -> int | None:
    """Return a child's exit status; None if it still runs after `seconds`."""
    with suppress(subprocess.TimeoutExpired):
        return child.wait(max(0.0, seconds))
    return None


def end_child(child: ForkedChild | subprocess.Popen[bytes], seconds: float = 0.0) -> None:
    """Wait up to `seconds` for a child's end, then kill it."""
    if exit_status(child, seconds) is None:
        child.kill()
        child.wait()


def exit_text(status: int) -> str:
    """Return the clause that describes an exit status.

    >>> exit_text(3), exit_text(-9)
    ('ended with status 3', 'was killed by SIGKILL')
    """
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
