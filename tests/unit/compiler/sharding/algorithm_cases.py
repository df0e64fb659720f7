"""Random cases for the algorithms on ranks: an op, its inputs, their layouts, a number of ranks.

Each is computed in threads and compared with the reference of one process. `python -m
tests.unit.compiler.sharding.algorithm_cases 5000` runs 5,000 cases; an error names the seed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from caldera.comm import Communicator, run_virtual_ranks
from caldera.compiler.sharding.algorithms import axis_exchange, product
from caldera.compiler.sharding.algorithms.registry import ALGORITHMS
from caldera.compiler.sharding.distributions import BlockCyclic, Blocks, Columns, Replicated, Rows
from caldera.compiler.sharding.layout import ShardLayout
from caldera.compiler.sharding.transfer import redistributed
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import OPS, parameter
from caldera.kernels.reference import evaluate

Case = tuple[list[np.ndarray], dict[str, Any]]
FLOATS = (np.float32, np.float64)
NAMES = sorted(name for name in ALGORITHMS if OPS[name].kind != "distributed")
"""Ops that one process can compute, too."""
NUMBERS = (*FLOATS, np.complex64, np.complex128)


def random_cuts(rng: np.random.Generator, length: int, parts: int) -> tuple[int, ...]:
    """Parts of any lengths, also empty ones."""
    return (0, *sorted(rng.integers(0, length + 1, parts - 1).tolist()), length)


def random_layout(rng: np.random.Generator, shape: tuple[int, ...], ranks: int) -> ShardLayout:
    """Any kind of layout."""
    kinds = [
        Rows(cuts=random_cuts(rng, shape[0], ranks)),
        Columns(),
        BlockCyclic(2, grid=(ranks,)),
        Replicated(),
        Blocks(3, 4),
        Rows(ranks=range(ranks - 1, ranks)),
    ]
    return kinds[rng.integers(len(kinds))].of(shape, range(ranks))


def numbers(rng: np.random.Generator, dtype: Any, *shape: int) -> np.ndarray:
    """Normal random numbers, complex ones too."""
    found = rng.normal(size=shape)
    if np.dtype(dtype).kind == "c":
        found = found + 1j * rng.normal(size=shape)
    return found.astype(dtype)


def _along_axis(name: str, rng: np.random.Generator) -> Case:
    dtype, rank = FLOATS[rng.integers(2)], int(rng.integers(1, 4))
    shape = [int(n) for n in rng.integers(1, 40 if rank == 1 else 7, rank)]
    axis, flag = int(rng.integers(rank)), bool(rng.integers(2))
    if name == "fft":
        return [numbers(rng, dtype, *shape, 2)], {"axis": axis, "inverse": flag}
    if name == "irfft":
        n = shape[axis]
        shape[axis] = n // 2 + 1
        return [numbers(rng, dtype, *shape, 2)], {"axis": axis, "n": n}
    if name == "sort":
        x = np.round(numbers(rng, dtype, shape[0] - 1))
        return [x], {"axis": 0, "descending": flag}
    x = numbers(rng, dtype, *shape)
    if name == "top_k":
        return [np.round(x)], {"axis": axis, "k": int(rng.integers(0, shape[axis] + 1))}
    return [x], {"axis": axis} if name == "rfft" else {"axis": axis, "reverse": flag}


def _matrices(name: str, rng: np.random.Generator) -> Case:
    dtype = NUMBERS[rng.integers(4)]
    m, n, k = (int(size) for size in rng.integers(0, 26, 3))
    if name == "matmul":
        ta, tb = (bool(flag) for flag in rng.integers(0, 2, 2))
        a = numbers(rng, dtype, *((k, m) if ta else (m, k)))
        batch = (2,) if rng.random() < 0.2 else ()
        b = numbers(rng, dtype, *batch, *((n, k) if tb else (k, n)))
        return [a, b], {"ta": ta, "tb": tb}
    if name in ("qr", "svd"):
        a = numbers(rng, dtype, m, n)
        if rng.random() < 0.3:
            # Without full rank.
            less = int(rng.integers(0, min(m, n) + 1))
            a = numbers(rng, dtype, m, less) @ numbers(rng, dtype, less, n)
        return [a], {}
    a = numbers(rng, dtype, n, n)
    if name == "cholesky":
        # What is not symmetric has no part in it.
        skew = numbers(rng, dtype, n, n) * (rng.random() < 0.5)
        positive = a @ a.conj().T + np.eye(n) * max(n, 1)
        return [(positive + skew - skew.conj().T).astype(dtype)], {}
    if name == "eigh":
        return [a if rng.random() < 0.8 else np.eye(n, dtype=dtype)], {}
    a = (a + 2 * np.sqrt(n) * np.eye(n)).astype(dtype)
    return [a, numbers(rng, dtype, n, m)] if name == "solve" else [a], {}


def close(found: np.ndarray, wanted: np.ndarray, tolerance: float) -> bool:
    """Whether two arrays are equal but for rounding, by the largest number."""
    assert found.shape == wanted.shape
    limit = tolerance * (1 + np.max(np.abs(wanted), initial=0))
    return bool(np.all(np.abs(found - wanted) <= limit))


def _check_qr(a: np.ndarray, q: np.ndarray, r: np.ndarray, limit: float) -> None:
    assert close(q @ r, a, limit)
    assert close(q.conj().T @ q, np.eye(q.shape[1]), limit)
    assert np.array_equal(r, np.triu(r))
    assert np.all(np.diagonal(r).real >= 0)


def _check_svd(a: np.ndarray, u: np.ndarray, s: np.ndarray, vh: np.ndarray, limit: float) -> None:
    assert close((u * s) @ vh, a, limit)
    assert close(u.conj().T @ u, np.eye(len(s)), limit)
    assert close(vh @ vh.conj().T, np.eye(len(s)), limit)
    assert np.all(np.diff(s) <= 0)


def _check_eigh(a: np.ndarray, w: np.ndarray, v: np.ndarray, limit: float) -> None:
    symmetric = (a + a.conj().T) / 2
    assert close(symmetric @ v, v * w, limit)
    assert close(v.conj().T @ v, np.eye(len(w)), limit)
    assert np.all(np.diff(w) >= 0)


CHECKS: dict[str, Callable[..., None]] = {"qr": _check_qr, "svd": _check_svd, "eigh": _check_eigh}
"""Of what is not unique, or only for matrices of full rank."""


def run_case(seed: int, name: str | None = None) -> None:
    """One case; it raises if the result is wrong."""
    rng = np.random.default_rng(seed)
    names = NAMES
    name = names[rng.integers(len(names))] if name is None else name
    along = name in ("fft", "rfft", "irfft", "sort", "top_k", "cumsum")
    inputs, attrs = (_along_axis if along else _matrices)(name, rng)
    ranks = int(rng.integers(1, 9))
    specs = [Spec(x.shape, x.dtype) for x in inputs]
    node = OPS[name].node(*[parameter(i, spec) for i, spec in enumerate(specs)], **attrs)
    layouts = [random_layout(rng, x.shape, ranks) for x in inputs]
    variants = ALGORITHMS[name].variants(node, layouts, ranks)
    way = variants[rng.integers(len(variants))]

    def work(comm: Communicator) -> list[np.ndarray]:
        parts = [
            redistributed(before.part_of(x, comm.rank), before, after, comm, rank=comm.rank)
            for x, before, after in zip(inputs, layouts, way.inputs, strict=True)
        ]
        return list(ALGORITHMS[name].run(parts, way.inputs, way.outputs, way.options, comm))

    results = run_virtual_ranks(ranks, work)
    found = [
        layout.whole_of([parts[i] for parts in results]) for i, layout in enumerate(way.outputs)
    ]
    _compare(node, inputs, found, f"seed {seed}: {way.name} on {ranks} ranks, {node}")


def _compare(node: Node, inputs: list[np.ndarray], found: list[np.ndarray], what: str) -> None:
    name = node.op.name
    limit = 3e-3 if inputs[0].dtype.char in "fF" else 3e-10
    wanted = evaluate(node, inputs)
    for mine, right in zip(found, wanted, strict=True):
        assert mine.shape == right.shape, what
        assert mine.dtype == right.dtype, what
        if name not in CHECKS:
            assert close(mine, right, limit), what
    if name in CHECKS:
        values = {"svd": 1, "eigh": 0}.get(name)
        try:
            CHECKS[name](inputs[0], *found, limit)
            assert values is None or close(found[values], wanted[values], limit)
        except AssertionError as error:
            raise AssertionError(what) from error


def small_panels(short: int = 12) -> None:
    """Several panels and the algorithm for long signals, for small cases too."""
    axis_exchange.SHORT, product.PANEL_BYTES, product.NARROWEST = short, 512, 3


if __name__ == "__main__":
    small_panels()
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    for seed in range(first, first + int(sys.argv[1])):
        run_case(seed)
    print(f"{sys.argv[1]} cases, none wrong")
