"""Other libraries of distributed algebra, each given a matrix in the layout it likes best."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from caldera.comm import Communicator
from caldera.sharding.algorithms import scalapack
from caldera.sharding.algorithms.process_grid import grid_shapes, process_grid
from caldera.sharding.algorithms.variant import cyclic_layout

Runner = Callable[[], Any]
Case = tuple[Runner, Callable[[], float]]
"""What is timed, and how far its result is from right."""


def residual(operation: str, a: np.ndarray, found: Sequence[np.ndarray]) -> float:
    """How far a result is from right, relative to the matrix."""
    if operation == "product":
        rows = slice(0, None, max(len(a) // 8, 1))
        return relative(found[0][rows], a[rows] @ a, len(a))
    if operation == "fft":
        return relative(found[0], np.fft.fft2(a), len(a))
    if operation == "solve":
        return float(np.linalg.norm(a @ found[0] - a) / np.linalg.norm(a))
    if operation == "cholesky":
        lower = np.tril(found[0])
        return float(np.linalg.norm(lower @ lower.T - a) / np.linalg.norm(a))
    product = found[0] @ found[1] if operation == "qr" else (found[0] * found[1]) @ found[2]
    return float(np.linalg.norm(product - a) / np.linalg.norm(a))


def relative(found: np.ndarray, right: np.ndarray, n: int) -> float:
    """The largest difference, over how large sums of n terms are."""
    return float(np.max(np.abs(found - right), initial=0) / n)


def heat_case(operation: str, a: np.ndarray, comm: Communicator) -> Case | None:
    """Heat: rows over the ranks; it has no Cholesky and no full SVD."""
    import heat as ht
    import torch

    torch.set_num_threads(1)
    if operation in ("cholesky", "svd", "solve"):
        return None
    given = ht.array(a, split=0)
    functions: dict[str, Callable[[], Any]] = {
        "product": lambda: ht.matmul(given, given),
        "qr": lambda: ht.linalg.qr(given),
        "fft": lambda: ht.fft.fft2(given),
    }
    results: list[Any] = []

    def run() -> None:
        results.clear()
        made = functions[operation]()
        results[:] = list(made) if isinstance(made, tuple) else [made]

    return run, lambda: residual(operation, a, [each.numpy() for each in results])


def dtensor_case(operation: str, a: np.ndarray, comm: Communicator) -> Case | None:
    """PyTorch's DTensor over gloo: a grid of ranks, the left matrix by rows and the right one by
    columns, so that its product moves nothing but what it has to. It has no factorisations."""
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    if operation != "product":
        return None
    torch.set_num_threads(1)
    if not dist.is_initialized():
        path = comm.bcast_object(tempfile.mktemp() if comm.rank == 0 else None)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group(
            "gloo", init_method=f"file://{path}", rank=comm.rank, world_size=comm.size
        )
    rows = max(each for each in range(1, int(comm.size**0.5) + 1) if comm.size % each == 0)
    mesh = dist.device_mesh.init_device_mesh("cpu", (rows, comm.size // rows))
    whole = torch.from_numpy(a)
    given = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
    results: list[Any] = []

    def run() -> None:
        results.clear()
        left = given.redistribute(mesh, [Shard(0), Replicate()])
        right = given.redistribute(mesh, [Replicate(), Shard(1)])
        results.append(left @ right)

    def check() -> float:
        assert isinstance(results[0], DTensor)
        return residual(operation, a, [results[0].full_tensor().numpy()])

    return run, check


def mpi4py_fft_case(operation: str, a: np.ndarray, comm: Communicator) -> Case | None:
    """mpi4py-fft, which has nothing but transforms."""
    if operation != "fft":
        return None
    from mpi4py import MPI
    from mpi4py_fft import PFFT, newDistArray

    plan = PFFT(MPI.COMM_WORLD, a.shape, dtype=np.complex128, axes=(0, 1))
    given = newDistArray(plan, False)
    given[:] = a[given.local_slice()]
    made = newDistArray(plan, True)

    def check() -> float:
        # Its forward transform is divided by the number of elements.
        right = np.fft.fft2(a)[made.local_slice()]
        return relative(made * a.size, right, len(a))

    return lambda: plan.forward(given, made), check


def scalapack_case(operation: str, a: np.ndarray, comm: Communicator) -> Case | None:
    """ScaLAPACK on the squarest grid, in blocks of 128 for products and 64 else."""
    if scalapack.library_of(comm) is None or operation not in ("product", "cholesky", "qr"):
        return None
    n, block = len(a), 128 if operation == "product" else 64
    rows, columns = grid_shapes(comm.size)[0]
    grid = process_grid(comm, rows, columns)
    layout = cyclic_layout((n, n), block, (rows, columns))
    part = np.ascontiguousarray(layout.part_of(a, comm.rank))
    results: list[np.ndarray] = []

    def run() -> None:
        results.clear()
        if operation == "product":
            results.append(scalapack.multiply(part, part, (n, n, n), (block,) * 3, grid))
        elif operation == "cholesky":
            results.append(scalapack.cholesky(part, n, block, grid))
        else:
            results[:] = scalapack.qr(part, n, block, grid)

    def check() -> float:
        wholes = []
        for each in results:
            whole = np.zeros((n, n))
            layout.put(whole, comm.rank, each)
            comm.Allreduce(whole, whole)
            wholes.append(whole)
        if operation == "qr":
            wholes[1] = np.triu(wholes[1])
        return residual(operation, a, wholes)

    return run, check


def dask_case(operation: str, a: np.ndarray, comm: Communicator) -> Case | None:
    """Dask on threads of the first rank; the others wait."""
    if operation == "fft":
        return None
    import dask.array as da

    n = len(a)
    chunk = max(n // max(int(comm.size**0.5), 1), 1)
    tall = operation in ("qr", "svd")
    given = da.from_array(a, chunks=(chunk, n) if tall else (chunk, chunk))
    functions: dict[str, Callable[[], Any]] = {
        "product": lambda: (given @ given,),
        "qr": lambda: da.linalg.qr(given),
        "cholesky": lambda: (da.linalg.cholesky(given, lower=True),),
        "svd": lambda: da.linalg.svd(given),
        "solve": lambda: (da.linalg.solve(given, given),),
    }
    results: list[np.ndarray] = []

    def run() -> None:
        results.clear()
        if comm.rank == 0:
            results[:] = da.compute(*functions[operation](), num_workers=comm.size)

    return run, lambda: residual(operation, a, results) if comm.rank == 0 else 0.0


def scipy_case(operation: str, a: np.ndarray, comm: Communicator) -> Case | None:
    """SciPy in one process, on as many threads as there are ranks; the others wait."""
    import scipy.fft
    import scipy.linalg

    threads = comm.size
    functions: dict[str, Callable[[], Any]] = {
        "product": lambda: (a @ a,),
        "qr": lambda: scipy.linalg.qr(a, mode="economic", check_finite=False),
        "cholesky": lambda: (scipy.linalg.cholesky(a, lower=True, check_finite=False),),
        "solve": lambda: (scipy.linalg.solve(a, a, check_finite=False),),
        "svd": lambda: scipy.linalg.svd(a, full_matrices=False, check_finite=False),
        "fft": lambda: (scipy.fft.fft2(a.astype(complex), workers=threads),),
    }
    results: list[np.ndarray] = []

    def run() -> None:
        results.clear()
        if comm.rank == 0:
            with blas_threads(threads):
                results[:] = functions[operation]()

    return run, lambda: residual(operation, a, results) if comm.rank == 0 else 0.0


@contextmanager
def blas_threads(count: int) -> Iterator[None]:
    """So many threads for the BLAS of NumPy and of SciPy, and one afterwards."""
    libraries = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()
                 if "openblas" in line}  # fmt: skip
    names = [f"{prefix}openblas_set_num_threads{suffix}"
             for prefix in ("scipy_", "") for suffix in ("64_", "")]  # fmt: skip
    setters = [getattr(ctypes.CDLL(path), name) for path in libraries for name in names
               if hasattr(ctypes.CDLL(path), name)]  # fmt: skip
    for each in setters:
        each(count)
    try:
        yield
    finally:
        for each in setters:
            each(1)


PEERS: dict[str, tuple[str, Callable[[str, np.ndarray, Communicator], Case | None]]] = {
    "scalapack": ("caldera", scalapack_case),
    "heat": ("heat", heat_case),
    "dtensor": ("torch.distributed.tensor", dtensor_case),
    "mpi4py-fft": ("mpi4py_fft", mpi4py_fft_case),
    "dask": ("dask.array", dask_case),
    "scipy": ("scipy", scipy_case),
}
"""By name: the module that it needs, and what makes a case of it."""


def installed(module: str) -> bool:
    """Whether a module can be imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
