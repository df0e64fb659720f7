"""Parameter servers and shared memory, as several processes."""

from __future__ import annotations

import os

from .conftest import Job


def test_servers_and_shared_memory_serve_processes(job: Job) -> None:
    # Compiled kernels are kept from run to run.
    done = job(3, "servers", CALDERA_CACHE=os.environ["CALDERA_CACHE"])
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("as it should be")] == [
        f"as it should be: {name}"
        for name in ("synchronous", "bound 0", "stale", "asynchronous", "hogwild")
    ]


def test_an_mpi_without_threads_is_refused(job: Job) -> None:
    done = job(2, "servers", MPI4PY_RC_THREAD_LEVEL="serialized")
    assert done.returncode != 0
    assert "ParameterServer: expected an MPI that several threads may call at once" in done.stderr
