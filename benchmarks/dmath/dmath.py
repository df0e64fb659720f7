"""Distributed algebra beside its peers: product, QR, Cholesky, SVD and FFT of float64, in turns.

    mpiexec -n 16 python benchmarks/dmath/dmath.py --sizes 4096 --operations product --scaling 2048
    mpiexec -n 16 python benchmarks/dmath/dmath.py --sizes 1024 --operations svd,fft --samples a

Every rank computes with one thread. Each library gets the same matrix in the layout it likes best;
what is timed is the operation alone, between two barriers, the slowest rank counts, and the best
and the median of several rounds in which all libraries take their turns. Every result is checked
(residuals of factorisations, a few rows of a product). Libraries that are not installed are left
out; Dask (on threads) and SciPy compute on threads of rank 0, as many as there are ranks, while the
others sleep, and Dask once more on as many processes of its own, with the best of several chunk
sizes.

`caldera` is the algorithm alone, `dmath` what a user calls, `A @ B` with its program and its
kernels (see `dm.spmd`). Of both, the bytes that all ranks send are counted, and compared with the
least that any algorithm can send that begins and ends with one copy of each matrix; `memory` is the
most that a rank had, over its share of what goes in and comes out; `expected` is what `explain()`
says, and how far that is from the median. `tall` is a QR of n x n / 16. `--variants` times each
algorithm for a product that there is, `--blocks` factorisations by panels of each width.
`--samples` names the file that gets every time that was taken.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import Any

from caldera.bench.timing import Stopwatch

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from benchmarks.dmath.dmath_cases import Case, Runner, part_of_product_error, relative, residual
from benchmarks.dmath.dmath_peers import PEERS, installed
from caldera import dmath as dm
from caldera import op
from caldera.comm import Communicator, world
from caldera.compiler.sharding.algorithms import process_grid
from caldera.compiler.sharding.algorithms.axis_exchange import rows_to_columns
from caldera.compiler.sharding.algorithms.product_variants import product_variants
from caldera.compiler.sharding.algorithms.registry import ALGORITHMS
from caldera.compiler.sharding.algorithms.variant import Variant
from caldera.compiler.sharding.calibration import measured_links
from caldera.compiler.sharding.distributions import Rows
from caldera.compiler.sharding.layout import ShardLayout
from caldera.core.graph.node import Spec
from caldera.core.graph.opdef import OPS, parameter

OPERATIONS = ("product", "qr", "tall", "cholesky", "solve", "svd", "fft")
TAKES_TWO = ("product", "solve")
SAMPLES: list[dict[str, Any]] = []
"""Every time that was taken, for `--samples`."""
OP_OF = {"product": "matmul", "tall": "qr"}
OWN = ("caldera", "dmath")
LONG_S = 4.0
"""A run that is measured once, the first time."""


def shape_of(operation: str, n: int) -> tuple[int, int]:
    """Of the matrix that an operation is given."""
    return n, n // 16 if operation == "tall" else n


def matrix(n: int, operation: str) -> np.ndarray:
    """The same on every rank; positive definite where that is needed."""
    a = np.random.default_rng(n).normal(size=shape_of(operation, n))
    if operation == "cholesky":
        a += a.T
        a[np.diag_indices(n)] += 4 * n**0.5
    return a


# --- Caldera


def variant_for(operation: str, n: int, comm: Communicator) -> Variant:
    """The variant that costs least from wherever it wants its inputs, which is free here, as it is
    for the peers."""
    links = measured_links(comm)
    return min(all_variants(operation, n, comm.size), key=lambda each: each.cost.seconds(links))


def all_variants(operation: str, n: int, ranks: int) -> list[Variant]:
    """Those that there are."""
    name = OP_OF.get(operation, operation)
    shape = shape_of(operation, n)
    specs = [Spec(shape, np.dtype(np.float64))] * (2 if operation in TAKES_TWO else 1)
    attrs = {"ta": False, "tb": False} if operation == "product" else {}
    node = OPS[name].node(*[parameter(i, spec) for i, spec in enumerate(specs)], **attrs)
    layouts = [Rows().of(shape, range(ranks)) for _ in specs]
    return ALGORITHMS[name].variants(node, layouts, ranks)


def caldera_case(
    operation: str, a: np.ndarray, comm: Communicator, variant: Variant | None = None
) -> Case:
    """The algorithm alone."""
    if operation == "fft":
        return _fft_case(a, comm)
    name = OP_OF.get(operation, operation)
    variant = variant or variant_for(operation, len(a), comm)
    parts = [layout.part_of(a, comm.rank) for layout in variant.inputs]
    results: list[Any] = []

    def run() -> None:
        results.clear()
        results[:] = ALGORITHMS[name].run(
            parts, variant.inputs, variant.outputs, variant.options, comm
        )

    def check() -> float:
        if operation == "product":
            return _product_error(results[0], variant.outputs[0], a, comm)
        wholes = [
            _whole(part, layout, comm)
            for part, layout in zip(results, variant.outputs, strict=True)
        ]
        return residual(name, a, wholes)

    return run, check


def _product_error(
    part: np.ndarray, layout: ShardLayout, a: np.ndarray, comm: Communicator
) -> float:
    every = [layout.axis_indices(comm.rank, axis) for axis in (0, 1)]
    return part_of_product_error(part, every[0], every[1], a, comm)


def _whole(part: np.ndarray, layout: ShardLayout, comm: Communicator) -> np.ndarray:
    """All of an array on every rank: for checking alone."""
    whole = np.zeros(layout.shape)
    if comm.rank in layout.ranks:
        layout.put(whole, comm.rank, part)
    if not layout.is_replicated:
        comm.Allreduce(whole, whole)
    return whole


def _fft_case(a: np.ndarray, comm: Communicator) -> Case:
    """Two dimensions: slabs, and one transpose."""
    cuts = process_grid.even_cuts(len(a), comm.size)
    part = a[cuts[comm.rank] : cuts[comm.rank + 1]].astype(np.complex128)
    results: list[np.ndarray] = []

    def run() -> None:
        results.clear()
        half = np.fft.fft(part, axis=1)
        results[:] = [np.fft.fft(rows_to_columns(half, cuts, cuts, comm), axis=0)]

    def check() -> float:
        right = np.fft.fft2(a)[:, cuts[comm.rank] : cuts[comm.rank + 1]]
        return relative(results[0], right, len(a))

    return run, check


def dmath_case(operation: str, a: np.ndarray, comm: Communicator) -> Case:
    """What a user calls, every rank running the script."""
    # What was fetched once would cost nothing in the next round.
    dm.spmd(comm).limit_cache(0)
    layouts: tuple[Any, ...] = (dm.Rows(),)
    if operation != "fft":
        layouts = variant_for(operation, len(a), comm).inputs
    given = [dm.array(a, layout=layout) for layout in layouts]
    functions: dict[str, Callable[..., Any]] = {
        "product": op.matmul,
        "qr": dm.qr,
        "tall": dm.qr,
        "cholesky": dm.cholesky,
        "solve": dm.solve,
        "svd": dm.svd,
        "fft": dm.fft2,
    }
    made: list[Any] = []

    def run() -> None:
        made.clear()
        found = functions[operation](*given)
        made[:] = dm.evaluate(list(found) if isinstance(found, tuple) else [found])

    def check() -> float:
        if operation == "product":
            handle = made[0].handle
            part = handle.session._here.part(handle.number).numpy()
            return _product_error(part, handle.layout, a, comm)
        return residual(OP_OF.get(operation, operation), a, [each.numpy() for each in made])

    def expected() -> float:
        found = functions[operation](*given)
        return float((found[0] if isinstance(found, tuple) else found).explain().seconds)

    run.expected = expected  # type: ignore[attr-defined]
    return run, check


# --- measuring


def timed(run: Runner, comm: Communicator) -> float:
    """Seconds of the slowest rank."""
    comm.Barrier()
    start = Stopwatch()
    run()
    taken = np.array([start.wall])
    comm.Allreduce(taken, taken, "max")
    return float(taken[0])


def bytes_sent(run: Runner, comm: Communicator) -> int:
    """What all ranks send together, along the rows and columns of the grid too."""
    grids = process_grid.grids_of(comm)
    every = {id(c): c for g in grids for c in (g.along_row, g.along_column, g.along_layers)}
    every[id(comm)] = comm
    marks = [(each, each.traffic.mark()) for each in every.values()]
    run()
    sent = sum(each.traffic.since(mark).total.bytes_sent for each, mark in marks)
    total = np.array([sent])
    comm.Allreduce(total, total)
    return int(total[0])


def peak_bytes(run: Runner, comm: Communicator) -> int:
    """The most memory that a run takes on a rank beside what was there before it, as a thread sees
    that looks each millisecond: not every kernel forgets its high-water mark when asked."""
    gc.collect()
    before = most = _resident()
    done = Event()

    def look() -> None:
        nonlocal most
        while not done.wait(0.001):
            most = max(most, _resident())

    watcher = Thread(target=look)
    watcher.start()
    run()
    done.set()
    watcher.join()
    found = np.array([max(most, _resident()) - before])
    comm.Allreduce(found, found, "max")
    return int(found[0])


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def least_bytes(n: int, ranks: int) -> float:
    """What all ranks must send for a product, whatever the algorithm and however much memory there
    is, if each has as much of the three matrices as the others (Al Daas et al., 2022)."""
    return 8 * ranks * max(3 * (n**3 / ranks) ** (2 / 3) - 3 * n * n / ranks, 0)


# --- what is printed


def compare(
    operation: str, n: int, chosen: argparse.Namespace, keep: Callable[[], None], comm: Communicator
) -> None:
    """All libraries in turns."""
    a = matrix(n, operation)
    cases = {"caldera": caldera_case(operation, a, comm), "dmath": dmath_case(operation, a, comm)}
    for name in filter(None, chosen.peers.split(",")):
        module, make = PEERS[name]
        made = make(operation, a, comm) if installed(module) else None
        if made is not None:
            cases[name] = made
    turns: dict[str, int] = {}
    times: dict[str, list[float]] = {}
    for name, (run, _) in cases.items():
        # The first makes plans and communicators: it counts only where another would take too long.
        taken = timed(run, comm)
        if name in OWN:
            # The second chooses kernels for good.
            taken = min(taken, timed(run, comm))
        turns[name] = min(chosen.rounds, max(int(chosen.seconds / taken), int(taken < LONG_S)))
        times[name] = [] if turns[name] else [taken]
        note(operation, n, name, times[name])
        keep()
    for turn in range(chosen.rounds):
        for name, (run, _) in cases.items():
            if turn < turns[name]:
                times[name].append(timed(run, comm))
        keep()
    for name, (run, check) in cases.items():
        wrong = check()
        usual = median(times[name])
        line = f"{operation:9} {n:6}  {name:14} {min(times[name]):9.4f} {usual:9.4f}  {wrong:.1e}"
        if name in OWN:
            line += _own_columns(operation, n, run, comm)
        if hasattr(run, "expected"):
            expected = run.expected()
            line += f"  expected {expected:.4f} ({expected / usual - 1:+.0%})"
        if comm.rank == 0:
            print(line, flush=True)


def note(operation: str, n: int, name: str, times: list[float]) -> None:
    """For the file of samples."""
    SAMPLES.append({"operation": operation, "n": n, "library": name, "seconds": times})


def _own_columns(operation: str, n: int, run: Runner, comm: Communicator) -> str:
    sent = bytes_sent(run, comm)
    line = f"  {sent / 1e6:9.2f}"
    if operation == "product" and comm.size > 1:
        share = 3 * 8 * n * n / comm.size
        # What was there before it: both matrices and the product of the last run.
        memory = (peak_bytes(run, comm) + share) / share
        line += f"  {sent / least_bytes(n, comm.size):5.2f}  {memory:5.2f}"
    return line


def blas(n: int, comm: Communicator, *, waiting: bool) -> float:
    """Operations a second of one core while the others wait, or of each while all compute."""
    a = np.random.default_rng(0).normal(size=(n, n))
    multiply = partial(np.matmul, a, a, out=np.empty_like(a))
    work = int if waiting and comm.rank > 0 else multiply
    return 2 * n**3 / min(timed(work, comm) for _ in range(3))


def scaling(n: int, growth: int, rounds: int, comm: Communicator) -> None:
    """Products with as much memory a rank on 1, 2, 4 ... ranks."""
    first = 0.0
    ranks = 1
    while ranks <= comm.size:
        some = comm.Split(0 if comm.rank < ranks else None)
        size = round(n * ranks**0.5 / 16) * 16
        if some is not None:
            run, _ = caldera_case("product", matrix(size, "product"), some)
            times = [timed(run, some) for _ in range(rounds)]
            note("product", size, f"{ranks} ranks", times)
            each = 2 * size**3 / min(times) / ranks
            together = blas(2048, some, waiting=False)
            first = first or each
            if some.rank == 0:
                print(
                    f"{ranks:3} ranks  n {size:6}  {min(times):8.4f} s  {each / 1e9:7.1f} GFLOP/s"
                    f" each  {each / first:5.1%}; {each / together:5.1%} of BLAS on as many cores",
                    flush=True,
                )
        comm.Barrier()
        ranks *= growth


def variants(n: int, rounds: int, comm: Communicator) -> None:
    """Each algorithm for a product of this size."""
    a, rows = matrix(n, "product"), Rows().of((n, n), range(comm.size))
    for variant in product_variants((n, n), (n, n), (False, False), (rows, rows), comm.size, 8):
        run, check = caldera_case("product", a, comm, variant)
        times = [timed(run, comm) for _ in range(rounds)]
        note("product", n, variant.name, times)
        wrong, sent = check(), bytes_sent(run, comm)
        if comm.rank == 0:
            print(
                f"{n:6}  {variant.name:28} {min(times):8.4f} s  {wrong:.0e}  {sent / 1e6:9.2f} MB"
                f"  bound {sent / least_bytes(n, comm.size):.2f}",
                flush=True,
            )


def blocks(n: int, rounds: int, comm: Communicator) -> None:
    """Factorisations by panels of each width, and what is expected of each."""
    links = measured_links(comm)
    for operation in ("cholesky", "solve", "qr"):
        a = matrix(n, operation)
        for variant in all_variants(operation, n, comm.size):
            run, check = caldera_case(operation, a, comm, variant)
            times = [timed(run, comm) for _ in range(rounds + 1)][1:]
            wrong = check()
            note(operation, n, variant.name, times)
            if comm.rank == 0:
                print(
                    f"{n:6}  {operation:9} {variant.name:34} {min(times):8.4f} s  expected"
                    f" {variant.cost.seconds(links):8.4f}  {wrong:.0e}",
                    flush=True,
                )


def main() -> None:
    """Print a line for each operation, size and library."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="256,512")
    parser.add_argument(
        "--operations", default=",".join(OPERATIONS), help="fft:2048 is of that size alone"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10, help="for the rounds of one library")
    parser.add_argument("--scaling", type=int, default=0, help="weak scaling from this size on")
    parser.add_argument("--growth", type=int, default=2, help="times as many ranks at each step")
    parser.add_argument("--variants", type=int, default=0, help="all algorithms for this size")
    parser.add_argument("--blocks", default="", help="panels of each width for these sizes")
    parser.add_argument("--peers", default=",".join(PEERS), help="libraries beside Caldera")
    parser.add_argument("--samples", default="", help="a file for every time that was taken")
    parser.add_argument("--limit", type=float, default=600, help="seconds after which it ends")
    chosen = parser.parse_args()
    # A peer that hangs says where.
    faulthandler.dump_traceback_later(chosen.limit, exit=True)
    comm = world()
    size = 2048 if comm.size > 4 else 1024
    alone, together = (blas(size, comm, waiting=waiting) for waiting in (True, False))
    began = Stopwatch()
    links = measured_links(comm)
    if comm.rank == 0:
        print(f"{comm.size} ranks; {links}, asked for {began.wall:.2f} s")
        print(
            f"BLAS {alone / 1e9:.1f} GFLOP/s on one core, {together / 1e9:.1f}"
            " on each while all compute"
        )
        print(
            "operation     n  library             best    median    error    MB sent  bound memory"
        )

    def keep() -> None:
        """Write what was measured so far, lest a peer that hangs takes it along."""
        if chosen.samples and comm.rank == 0:
            about = {"ranks": comm.size, "blas alone": alone, "blas together": together}
            found = {**about, "links": asdict(links), "samples": SAMPLES}
            Path(chosen.samples).write_text(json.dumps(found, indent=1))

    for name in filter(None, chosen.operations.split(",")):
        operation, _, own = name.partition(":")
        for n in map(int, (own or chosen.sizes).split(",")):
            compare(operation, n, chosen, keep, comm)
    if chosen.variants:
        variants(chosen.variants, chosen.rounds, comm)
    for n in map(int, filter(None, chosen.blocks.split(","))):
        blocks(n, chosen.rounds, comm)
    if chosen.scaling:
        scaling(chosen.scaling, chosen.growth, chosen.rounds, comm)
    keep()


if __name__ == "__main__":
    main()
