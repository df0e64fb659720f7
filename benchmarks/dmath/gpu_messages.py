"""Messages between ranks with GPUs: the route that is taken, whether results are right, the times.

    python benchmarks/dmath/gpu_messages.py --ranks 2 [--out gpu-messages-h200.md]

With fewer GPUs than ranks these share them, and messages pass through pinned host memory, or from
GPU memory where MPI supports that; with a GPU for each rank it is NCCL, and `mpi` rows show MPI
beside it. One rank measures NCCL alone, whose collectives are then copies on the GPU.

Sums, gathers, exchanges and messages of GPU buffers are compared with NumPy's, and redistributions
and products of matrices with those of one process. The rate is that of a rank's buffer.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import caldera as cd
from caldera import dmath as dm
from caldera.bench.timing import Stopwatch
from caldera.comm import Communicator, NcclCommunicator, SingleProcess, world
from caldera.comm.supervision import launch
from caldera.core.memory.gpus import card_count, own_card

SIZES = (1 << 12, 1 << 18, 1 << 24)
"""Bytes of a buffer."""
REPEATS = 20


class Buffer:
    """Memory on the GPU."""

    def __init__(self, values: np.ndarray) -> None:
        self._device = cd.device(f"cuda:{own_card()}")
        self._block = self._device.allocate(values.nbytes)
        self._device.copy_in(self._block, 0, values, self._device.stream)
        self._device.stream.synchronize()
        self.there = self._device.array(self._block, 0, values.shape, values.dtype)

    def numpy(self) -> np.ndarray:
        """Return a copy of the values."""
        here = np.empty(self.there.shape, self.there.dtype)
        self._device.copy_out(here, self._block, 0, here.nbytes, self._device.stream)
        self._device.stream.synchronize()
        return here


def operations(comm: Communicator, count: int) -> dict[str, tuple[Callable[[], Any], Any]]:
    """Return calls on GPU buffers, each with a function that checks the result."""
    ranks, part = comm.size, max(1, count // comm.size)
    values = [np.arange(part * ranks, dtype=np.float32) % 97 + rank for rank in range(ranks)]
    mine = Buffer(values[comm.rank])
    total, whole = Buffer(np.zeros(part * ranks, "float32")), Buffer(np.zeros_like(values[0]))
    own, swapped = Buffer(values[comm.rank][:part]), Buffer(np.zeros_like(values[0]))
    arrived = Buffer(np.zeros_like(values[0]))
    left, right = (comm.rank - 1) % ranks, (comm.rank + 1) % ranks
    pieces = slice(comm.rank * part, (comm.rank + 1) * part)
    return {
        "Allreduce": (
            lambda: comm.Allreduce(mine.there, total.there),
            lambda: np.array_equal(total.numpy(), sum(values)),
        ),
        "Allgather": (
            lambda: comm.Allgather(own.there, whole.there),
            lambda: np.array_equal(whole.numpy(), np.concatenate([v[:part] for v in values])),
        ),
        "Alltoall": (
            lambda: comm.Alltoall(mine.there, swapped.there),
            lambda: np.array_equal(swapped.numpy(), np.concatenate([v[pieces] for v in values])),
        ),
        "Sendrecv": (
            lambda: comm.Sendrecv(mine.there, right, arrived.there, left),
            lambda: np.array_equal(arrived.numpy(), values[left]),
        ),
    }


def rows_of(comm: Communicator) -> list[list[Any]]:
    """Return the route, the operation, the bytes, the median time and whether it was right."""
    found = []
    for nbytes in SIZES:
        for name, (call, is_right) in operations(comm, nbytes // 4).items():
            times = []
            for _ in range(REPEATS):
                comm.Barrier()
                began = time.perf_counter()
                call()
                times.append(time.perf_counter() - began)
            right = all(comm.gather_objects(bool(is_right())))
            route = comm.route("cuda:0") if name != "Sendrecv" else _of_messages(comm)
            found.append([route, comm.size, name, nbytes, statistics.median(times), right])
    return found


def _of_messages(comm: Communicator) -> str:
    return str(comm.on_host.route("cuda:0"))


def matrices() -> list[list[Any]]:
    """Compare matrices on GPUs with NumPy's; the first rank is the master."""
    draw, found = np.random.default_rng(0), []
    a, b = (draw.normal(size=(1500, 1500)) for _ in range(2))
    with dm.connect(device="cuda") as session:
        x, y = dm.array(a, layout=dm.Rows()), dm.array(b, layout=dm.Columns())
        cases: dict[str, tuple[Callable[[], dm.Array], np.ndarray]] = {
            "dmath product": (lambda: x @ y, a @ b),
            "dmath rows to columns": (lambda: (x + 1.0).to(layout=dm.Columns()), a + 1.0),
        }
        for name, (make, expected) in cases.items():
            right = np.allclose(make().numpy(), expected, rtol=1e-9, atol=1e-9)
            # Compiled before it is timed.
            make().eval().sum().item()
            watch = Stopwatch()
            for _ in range(REPEATS):
                made = make().eval()
            # The host does not wait for a GPU.
            made.sum().item()
            seconds = watch.wall / REPEATS
            found.append([make().explain().route, session.ranks, name, a.nbytes, seconds, right])
    return found


def work(what: str) -> None:
    """Run one part as a rank; rank 0 prints the rows."""
    everyone: Communicator = world()
    if what == "nccl":
        found = rows_of(NcclCommunicator(SingleProcess(), card=own_card()))
    elif what == "matrices":
        found = matrices()
    else:
        found = rows_of(everyone)
        if isinstance(everyone, NcclCommunicator):
            found += rows_of(everyone.host)
    if everyone.rank == 0:
        print(json.dumps(found), flush=True)


def main() -> None:
    """Start each part and print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--ranks", type=int, default=2)
    options.add_argument("--out", type=Path)
    options.add_argument("--work", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.work:
        work(given.work)
        return
    if not card_count():
        sys.exit("gpu_messages: expected a GPU, got none")
    lines = [
        f"{given.ranks} ranks, {card_count()} GPU(s)",
        "",
        "| route | ranks | operation | bytes | time | rate | right |",
        "|---|---|---|---|---|---|---|",
    ]
    for what, ranks in (("nccl", 1), ("ranks", given.ranks), ("matrices", given.ranks + 1)):
        program = [__file__, "--work", what]
        command, environment = [sys.executable, *program], dict(os.environ)
        if ranks > 1:
            job = launch(ranks, program)
            command, environment = job.command, job.environment
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            lines.append(
                f"| {what} | {ranks} | failed: {done.stderr.splitlines()[-1][:200]} | | | | |"
            )
            print(done.stderr, file=sys.stderr)
            continue
        for route, count, name, nbytes, seconds, right in json.loads(done.stdout.splitlines()[-1]):
            times = f"{1e6 * seconds:.0f} us | {nbytes / seconds / 1e9:.2f} GB/s"
            lines.append(f"| {route} | {count} | {name} | {nbytes} | {times} | {right} |")
    page = "\n".join(lines) + "\n"
    print(page)
    if given.out is not None:
        given.out.write_text(page)


if __name__ == "__main__":
    main()
