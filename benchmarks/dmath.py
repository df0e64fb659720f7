"""Distributed algebra beside its peers: product, QR, Cholesky, SVD and FFT of float64, in turns.

    mpiexec -n 16 python benchmarks/dmath.py --sizes 1024,4096,8192

Every rank computes with one thread. Each library gets the same matrix in the layout it likes best;
what is timed is the operation alone, between two barriers, the slowest rank counts, and the best of
several rounds in which all libraries take their turns. Every result is checked (residuals of
factorisations, a few rows of a product), and the bytes that Caldera's ranks send are counted. Heat
and mpi4py-fft are left out where they are not installed; Dask computes on threads of rank 0, as
many as there are ranks, while the others wait.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from caldera.comm import Communicator, world
from caldera.graph.node import Spec
from caldera.graph.opdef import OPS, parameter
from caldera.sharding.algorithms import process_grid
from caldera.sharding.algorithms.cost import Machine
from caldera.sharding.algorithms.exchange import rows_to_columns
from caldera.sharding.algorithms.registry import ALGORITHMS
from caldera.sharding.algorithms.variant import Variant
from caldera.sharding.distributions import Rows

Runner = Callable[[], Any]
OPERATIONS = ("product", "qr", "cholesky", "svd", "fft")
OP_OF = {"product": "matmul", "fft": "fft"}


def matrix(n: int, operation: str) -> np.ndarray:
    """The same on every rank; positive definite where that is needed."""
    a = np.random.default_rng(n).normal(size=(n, n))
    return a @ a.T / n + np.eye(n) if operation == "cholesky" else a


# --- Caldera


def variant_for(operation: str, n: int, ranks: int) -> Variant:
    """The variant that costs least from wherever it wants its inputs."""
    name = OP_OF.get(operation, operation)
    shape = (n, n)
    specs = [Spec(shape, np.dtype(np.float64))] * (2 if operation == "product" else 1)
    attrs = {"ta": False, "tb": False} if operation == "product" else {}
    node = OPS[name].node(*[parameter(i, spec) for i, spec in enumerate(specs)], **attrs)
    layouts = [Rows().of(shape, range(ranks)) for _ in specs]
    variants = ALGORITHMS[name].variants(node, layouts, ranks)
    # Where inputs lie is free here, as it is for the peers.
    return min(variants, key=lambda each: each.cost.seconds(Machine()))


def caldera_runner(operation: str, n: int, comm: Communicator) -> tuple[Runner, Runner]:
    """What is timed, and what checks it."""
    if operation == "fft":
        return _caldera_fft(n, comm)
    name = OP_OF.get(operation, operation)
    variant = variant_for(operation, n, comm.size)
    a = matrix(n, operation)
    parts = [layout.part_of(a, comm.rank) for layout in variant.inputs]
    results: list[Any] = []

    def run() -> None:
        results[:] = ALGORITHMS[name].run(
            parts, variant.inputs, variant.outputs, variant.options, comm
        )

    def check() -> float:
        wholes = [
            _whole(part, layout, comm)
            for part, layout in zip(results, variant.outputs, strict=True)
        ]
        return residual(operation, a, wholes)

    return run, check


def _whole(part: np.ndarray, layout: Any, comm: Communicator) -> np.ndarray:
    """All of an array on every rank: for checking alone."""
    whole = np.zeros(layout.shape)
    if comm.rank in layout.ranks:
        layout.put(whole, comm.rank, part)
    if not layout.is_replicated:
        comm.Allreduce(whole, whole)
    return whole


def _caldera_fft(n: int, comm: Communicator) -> tuple[Runner, Runner]:
    """Two dimensions: slabs, and one transpose."""
    cuts = process_grid.even_cuts(n, comm.size)
    whole = matrix(n, "fft").astype(np.complex128)
    part = np.ascontiguousarray(whole[cuts[comm.rank] : cuts[comm.rank + 1]])
    results: list[np.ndarray] = []

    def run() -> None:
        half = np.fft.fft(part, axis=1)
        results[:] = [np.fft.fft(rows_to_columns(half, cuts, cuts, comm), axis=0)]

    def check() -> float:
        right = np.fft.fft2(whole)[:, cuts[comm.rank] : cuts[comm.rank + 1]]
        return float(np.max(np.abs(results[0] - right), initial=0) / np.max(np.abs(whole)) / n)

    return run, check


def residual(operation: str, a: np.ndarray, found: list[np.ndarray]) -> float:
    """How far a result is from right, relative to the matrix."""
    if operation == "product":
        rows = slice(0, None, max(len(a) // 8, 1))
        return float(np.max(np.abs(found[0][rows] - a[rows] @ a)) / np.max(np.abs(a)) / len(a))
    if operation == "cholesky":
        lower = np.tril(found[0])
        return float(np.linalg.norm(lower @ lower.T - a) / np.linalg.norm(a))
    product = found[0] @ found[1] if operation == "qr" else (found[0] * found[1]) @ found[2]
    return float(np.linalg.norm(product - a) / np.linalg.norm(a))


# --- peers


def heat_runner(operation: str, n: int, comm: Communicator) -> tuple[Runner, Runner] | None:
    """Heat: rows over the ranks; it has no Cholesky and no full SVD."""
    import heat as ht
    import torch

    torch.set_num_threads(1)
    if operation in ("cholesky", "svd"):
        return None
    a = matrix(n, operation)
    given = ht.array(a, split=0)
    functions: dict[str, Callable[[], Any]] = {
        "product": lambda: ht.matmul(given, given),
        "qr": lambda: ht.linalg.qr(given),
        "fft": lambda: ht.fft.fft2(given),
    }
    results: list[Any] = []

    def run() -> None:
        made = functions[operation]()
        results[:] = list(made) if isinstance(made, tuple) else [made]

    def check() -> float:
        wholes = [each.numpy() for each in results]
        if operation == "fft":
            return float(np.max(np.abs(wholes[0] - np.fft.fft2(a))) / np.max(np.abs(a)) / n)
        return residual(operation, a, wholes)

    return run, check


def mpi4py_fft_runner(operation: str, n: int, comm: Communicator) -> tuple[Runner, Runner] | None:
    """mpi4py-fft, which has nothing but transforms."""
    if operation != "fft":
        return None
    from mpi4py import MPI
    from mpi4py_fft import PFFT, newDistArray

    plan = PFFT(MPI.COMM_WORLD, (n, n), dtype=np.complex128, axes=(0, 1))
    given = newDistArray(plan, False)
    whole = matrix(n, "fft")
    given[:] = whole[given.local_slice()]
    made = newDistArray(plan, True)

    def check() -> float:
        # Its forward transform is divided by the number of elements.
        right = np.fft.fft2(whole)[made.local_slice()]
        return float(np.max(np.abs(made * n * n - right), initial=0) / np.max(np.abs(whole)) / n)

    return lambda: plan.forward(given, made), check


def dask_runner(operation: str, n: int, comm: Communicator) -> tuple[Runner, Runner] | None:
    """Dask on threads of the first rank; the others wait."""
    if operation == "fft":
        return None
    import dask.array as da

    a = matrix(n, operation)
    chunk = max(n // max(int(comm.size**0.5), 1), 1)
    tall = operation in ("qr", "svd")
    given = da.from_array(a, chunks=(chunk, n) if tall else (chunk, chunk))
    functions: dict[str, Callable[[], Any]] = {
        "product": lambda: (given @ given,),
        "qr": lambda: da.linalg.qr(given),
        "cholesky": lambda: (da.linalg.cholesky(given, lower=True),),
        "svd": lambda: da.linalg.svd(given),
    }
    results: list[np.ndarray] = []

    def run() -> None:
        if comm.rank == 0:
            results[:] = da.compute(*functions[operation](), num_workers=comm.size)

    return run, lambda: residual(operation, a, results) if comm.rank == 0 else 0.0


PEERS: dict[str, tuple[str, Callable[[str, int, Communicator], tuple[Runner, Runner] | None]]] = {
    "heat": ("heat", heat_runner),
    "mpi4py-fft": ("mpi4py_fft", mpi4py_fft_runner),
    "dask": ("dask.array", dask_runner),
}


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


# --- taking turns


def timed(run: Runner, comm: Communicator) -> float:
    """Seconds of the slowest rank."""
    comm.Barrier()
    start = perf_counter()
    run()
    taken = np.array([perf_counter() - start])
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


def main() -> None:
    """Print a line for each operation, size and library."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="256,512")
    parser.add_argument("--operations", default=",".join(OPERATIONS))
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    comm = world()
    if comm.rank == 0:
        print(f"{comm.size} ranks\noperation     n  library      seconds  residual  MB sent")
    with threadpool_limits(1):
        for operation in chosen.operations.split(","):
            for n in map(int, chosen.sizes.split(",")):
                _compare(operation, n, chosen.rounds, comm)


def _compare(operation: str, n: int, rounds: int, comm: Communicator) -> None:
    runners = {"caldera": caldera_runner(operation, n, comm)}
    for name, (module, make) in PEERS.items():
        made = make(operation, n, comm) if _installed(module) else None
        if made is not None:
            runners[name] = made
    best = dict.fromkeys(runners, float("inf"))
    for round_ in range(rounds + 1):
        for name, (run, _) in runners.items():
            taken = timed(run, comm)
            # The first makes plans and communicators.
            best[name] = min(best[name], taken) if round_ else best[name]
    for name, (run, check) in runners.items():
        wrong = check()
        sent = bytes_sent(run, comm) / 1e6 if name == "caldera" else float("nan")
        if comm.rank == 0:
            print(f"{operation:9} {n:6}  {name:10} {best[name]:9.4f}  {wrong:.1e}  {sent:8.2f}")


if __name__ == "__main__":
    main()
