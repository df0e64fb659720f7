"""Other libraries of distributed algebra, each given a matrix in the layout it likes best."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.dmath import scalapack
from benchmarks.dmath.dmath_cases import (
    Case,
    first_alone,
    part_of_product_error,
    relative,
    residual,
)
from benchmarks.dmath.dmath_dask import dask_processes_case, dask_threads_case
from caldera.comm import Communicator
from caldera.compiler.sharding.algorithms.process_grid import ProcessGrid, grid_shapes, process_grid
from caldera.compiler.sharding.algorithms.variant import cyclic_layout


def heat_case(operation: str, a: np.ndarray, comm: Communicator) -> Case | None:
    """Heat: rows over the ranks; it has no Cholesky and no full SVD."""
    import heat as ht
    import torch

    torch.set_num_threads(1)
    if operation in ("cholesky", "svd", "solve", "tall"):
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

    def check() -> float:
        if operation == "product":
            made = results[0]
            every = [np.arange(len(a))[each] for each in made.comm.chunk(made.shape, made.split)[2]]
            return part_of_product_error(made.larray.numpy(), every[0], every[1], a, comm)
        return residual(operation, a, [each.numpy() for each in results])

    return run, check


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
        part = results[0].to_local().numpy()
        begins = [
            min(at * -(-len(a) // count), len(a))
            for at, count in zip(mesh.get_coordinate(), mesh.shape, strict=True)
        ]
        every = [
            begin + np.arange(length) for begin, length in zip(begins, part.shape, strict=True)
        ]
        return part_of_product_error(part, every[0], every[1], a, comm)

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
    if scalapack.library_of(comm) is None or operation in ("fft", "tall"):
        return None
    n, block = len(a), 128 if operation == "product" else 64
    rows, columns = grid_shapes(comm.size)[0]
    grid = process_grid(comm, rows, columns)
    layout = cyclic_layout((n, n), block, (rows, columns))
    part = np.ascontiguousarray(layout.part_of(a, comm.rank))
    functions: dict[str, Callable[[], Any]] = {
        "product": lambda: (scalapack.multiply(part, part, (n, n, n), (block,) * 3, grid),),
        "cholesky": lambda: (scalapack.cholesky(part, n, block, grid),),
        "qr": lambda: scalapack.qr(part, n, block, grid),
        "solve": lambda: (_scalapack_solve(part, n, block, grid),),
        "svd": lambda: _scalapack_svd(part, n, block, grid),
    }
    results: list[np.ndarray] = []

    def run() -> None:
        results.clear()
        results[:] = functions[operation]()

    def check() -> float:
        if operation == "product":
            every = [layout.axis_indices(comm.rank, axis) for axis in (0, 1)]
            return part_of_product_error(results[0], every[0], every[1], a, comm)
        wholes = []
        for each in results:
            if each.ndim == 1:
                wholes.append(each)
                continue
            whole = np.zeros((n, n))
            layout.put(whole, comm.rank, each)
            comm.Allreduce(whole, whole)
            wholes.append(whole)
        if operation == "qr":
            wholes[1] = np.triu(wholes[1])
        if operation == "solve":
            # It was given the transpose of the matrix, on both sides.
            return residual(operation, a.T, [wholes[0].T])
        return residual(operation, a, wholes)

    return run, check


def _scalapack_solve(part: np.ndarray, n: int, block: int, grid: ProcessGrid) -> np.ndarray:
    """The transpose of Aᵀ's inverse times Aᵀ: LU with partial pivoting, as many right sides."""
    a, b = part.copy(), part.copy()
    context, failed = scalapack.context_of(grid), ctypes.c_int()
    describe = context.describe(a, (n, n), (block, block))
    pivots = np.empty(n + block, np.int32)
    one, size = ctypes.byref(ctypes.c_int(1)), ctypes.byref(ctypes.c_int(n))
    at = [each.ctypes.data_as(ctypes.c_void_p) for each in (a, pivots, b)]
    context.call(
        "gesv",
        a.dtype,
        size,
        size,
        at[0],
        one,
        one,
        describe,
        at[1],
        at[2],
        one,
        one,
        describe,
        ctypes.byref(failed),
    )
    assert not failed.value
    return b


def _scalapack_svd(
    part: np.ndarray, n: int, block: int, grid: ProcessGrid
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Both factors and the singular values; of the transpose, so the factors change places."""
    a, u, vt, s = part.copy(), np.empty_like(part), np.empty_like(part), np.empty(n)
    context, failed = scalapack.context_of(grid), ctypes.c_int()
    describe = context.describe(a, (n, n), (block, block))
    one, size = ctypes.byref(ctypes.c_int(1)), ctypes.byref(ctypes.c_int(n))
    work, length = np.empty(1), -1
    for _ in range(2):
        # Asked first how much room it needs.
        at = [each.ctypes.data_as(ctypes.c_void_p) for each in (a, s, u, vt, work)]
        context.call(
            "gesvd",
            a.dtype,
            b"V",
            b"V",
            size,
            size,
            at[0],
            one,
            one,
            describe,
            at[1],
            at[2],
            one,
            one,
            describe,
            at[3],
            one,
            one,
            describe,
            at[4],
            ctypes.byref(ctypes.c_int(length)),
            ctypes.byref(failed),
        )
        if length < 0:
            length = int(work[0])
            work = np.empty(max(length, 1))
    assert not failed.value
    return vt, s, u


def scipy_case(operation: str, a: np.ndarray, comm: Communicator) -> Case | None:
    """SciPy in one process, on as many threads as there are ranks; the others wait."""
    import scipy.fft
    import scipy.linalg

    if operation == "tall":
        return None
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
        with first_alone(comm) as first, blas_threads(threads if first else 1):
            if first:
                results[:] = functions[operation]()

    return run, lambda: residual(operation, a, results) if comm.rank == 0 else 0.0


@contextmanager
def blas_threads(count: int) -> Iterator[None]:
    """So many threads for the BLAS of NumPy and of SciPy, and one afterwards."""
    libraries = {
        line.split()[-1]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "openblas" in line
    }
    names = [
        f"{prefix}openblas_set_num_threads{suffix}"
        for prefix in ("scipy_", "")
        for suffix in ("64_", "")
    ]
    setters = [
        getattr(ctypes.CDLL(path), name)
        for path in libraries
        for name in names
        if hasattr(ctypes.CDLL(path), name)
    ]
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
    "dask-threads": ("dask.array", dask_threads_case),
    "dask-processes": ("distributed", dask_processes_case),
    "scipy": ("scipy", scipy_case),
}
"""By name: the module that it needs, and what makes a case of it."""


def installed(module: str) -> bool:
    """Whether a module can be imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
