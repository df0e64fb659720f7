"""Algorithms on ranks against those of one process: random shapes, ranks, layouts and dtypes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import caldera as cd
from caldera.comm import Communicator, run_virtual_ranks
from caldera.compiler.lazy import lift
from caldera.compiler.lazy.compile import compile_nodes
from caldera.compiler.sharding.algorithms import axis_exchange, product
from caldera.compiler.sharding.algorithms.axis_exchange import (
    ConvolutionWindow,
    halo_exchange,
    move_rows,
)
from caldera.compiler.sharding.algorithms.process_grid import even_cuts, process_grid
from caldera.compiler.sharding.algorithms.product_variants import product_variants, run_matmul
from caldera.compiler.sharding.algorithms.registry import ALGORITHMS, spmd, spmd_attrs
from caldera.compiler.sharding.algorithms.svd import largest_singular
from caldera.compiler.sharding.algorithms.variant import Variant, choose
from caldera.compiler.sharding.distributions import Grid, Rows
from caldera.compiler.sharding.volume import Links
from caldera.core.graph.node import Spec
from caldera.core.graph.opdef import OPS, item, parameter
from caldera.errors import DataError
from tests.unit.compiler.sharding.algorithm_cases import (
    NAMES,
    numbers,
    random_cuts,
    run_case,
    small_panels,
)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    known = ((axis_exchange, "SHORT"), (product, "PANEL_BYTES"), (product, "NARROWEST"))
    for module, name in known:
        monkeypatch.setattr(module, name, getattr(module, name))
    small_panels()


@pytest.mark.parametrize("name", NAMES)
def test_any_op_in_any_layout_on_any_ranks(name: str) -> None:
    for seed in range(7):
        run_case(1000 + seed, name)


def _bytes_sent(comm: Communicator, way: Variant, parts: list[np.ndarray]) -> int:
    layers, rows, columns = way.options[1]
    grid = process_grid(comm, rows, columns, layers)
    ways_to_send = {id(c): c for c in (grid.along_layers, grid.along_row, grid.along_column)}
    marks = [(each, each.traffic.mark()) for each in ways_to_send.values()]
    run_matmul(parts, way.inputs, way.outputs, way.options, comm)
    return sum(each.traffic.since(mark).total.bytes_sent for each, mark in marks)


def test_a_product_sends_what_its_cost_says() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(24, 36)), rng.normal(size=(36, 12))
    given = Grid(2, 3).of(a.shape, range(6)), Grid(2, 3).of(b.shape, range(6))
    for way in product_variants(a.shape, b.shape, (False, False), given, 6, 8):

        def work(comm: Communicator, way: Variant = way) -> int:
            parts = [x.part_of(y, comm.rank) for x, y in zip(way.inputs, (a, b), strict=True)]
            return _bytes_sent(comm, way, parts)

        assert max(run_virtual_ranks(6, work)) == way.cost.bytes, way.name


def test_the_cheapest_product_depends_on_the_shapes() -> None:
    def best(m: int, k: int, n: int) -> str:
        given = Grid(4, 4).of((m, k), range(16)), Grid(4, 4).of((k, n), range(16))
        variants = product_variants((m, k), (k, n), (False, False), given, 16, 8)
        return choose(variants, given, 8, Links()).name

    assert best(8192, 8192, 8192).startswith("SUMMA 4x4")
    assert best(4096, 4096, 8) == "SUMMA 4x4, stationary A"
    assert best(8, 4096, 4096) == "SUMMA 4x4, stationary B"
    # Layers pay where their sums are small beside what is multiplied.
    assert best(512, 65536, 512) in ("inner product", "2.5-D 4x2x2")


def test_uneven_rows_stay_where_they_are() -> None:
    rows = Rows(cuts=(0, 1, 1, 20)).of((20, 5), range(3))
    small = Rows().of((5, 4), range(3))
    variants = product_variants((20, 5), (5, 4), (False, False), (rows, small), 3, 8)
    assert choose(variants, (rows, small), 8, Links()).inputs[0] == rows


def test_no_rank_is_left_waiting_for_a_matrix_that_cannot_be_factorised() -> None:
    def factorise(name: str, a: np.ndarray, *more: np.ndarray) -> None:
        given = [a, *more]
        specs = [parameter(i, Spec(x.shape, x.dtype)) for i, x in enumerate(given)]
        (way,) = ALGORITHMS[name].variants(OPS[name].node(*specs), [], 4)

        def work(comm: Communicator) -> str:
            parts = [x.part_of(y, comm.rank) for x, y in zip(way.inputs, given, strict=True)]
            with pytest.raises(DataError) as error:
                ALGORITHMS[name].run(parts, way.inputs, way.outputs, way.options, comm)
            return str(error.value)

        assert len(set(run_virtual_ranks(4, work))) == 1

    factorise("cholesky", np.diag([1.0] * 9 + [-1.0] + [1.0] * 10))
    factorise("solve", np.ones((7, 7)), np.ones((7, 2)))


def test_the_largest_singular_values_come_with_a_bound() -> None:
    rng = np.random.default_rng(3)
    u, v = (np.linalg.qr(rng.normal(size=(n, 40)))[0] for n in (200, 60))
    s = 0.8 ** np.arange(40)
    a = (u * s) @ v.T
    cuts = random_cuts(rng, 200, 3)

    def work(comm: Communicator, tolerance: float | None = None) -> list[np.ndarray]:
        part = a[cuts[comm.rank] : cuts[comm.rank + 1]]
        return list(largest_singular(part, 200, 4, comm, tolerance=tolerance))

    found = run_virtual_ranks(3, work)
    left = np.concatenate([parts[0] for parts in found])
    assert np.allclose(found[0][1], s[:4], atol=1e-12)
    assert np.allclose((left * found[0][1]) @ found[0][2], (u[:, :4] * s[:4]) @ v[:, :4].T)
    rough = run_virtual_ranks(3, lambda comm: work(comm, 1e-2))[0]
    assert np.all(np.min(np.abs(rough[1][:, None] - s), axis=1) <= rough[3] + 1e-14)


def test_small_singular_values_have_all_their_digits() -> None:
    scales = 10.0 ** -np.arange(0, 24, 2)
    a = np.linalg.qr(np.random.default_rng(5).normal(size=(12, 12)))[0] * scales
    node = OPS["svd"].node(parameter(0, Spec(a.shape, a.dtype)))
    way, *_ = ALGORITHMS["svd"].variants(node, [], 3)

    def work(comm: Communicator) -> np.ndarray:
        part = way.inputs[0].part_of(a, comm.rank)
        return ALGORITHMS["svd"].run([part], way.inputs, way.outputs, way.options, comm)[1]

    found = run_virtual_ranks(3, work)[0]
    kept = scales > 1e-14
    assert np.allclose(found[kept], scales[kept], rtol=1e-2)


@pytest.mark.parametrize("n", [64, 97])
def test_a_long_signal_moves_instead_of_being_gathered(n: int) -> None:
    x = numbers(np.random.default_rng(n), np.complex128, n)
    taken, made = axis_exchange.input_cuts(n, 3), axis_exchange.output_cuts(n, 3)

    def work(comm: Communicator) -> np.ndarray:
        return axis_exchange.fft(x[taken[comm.rank] : taken[comm.rank + 1]], n, comm)

    parts = run_virtual_ranks(3, work)
    assert [len(part) for part in parts] == np.diff(made).tolist()
    assert np.allclose(np.concatenate(parts), np.fft.fft(x), atol=1e-12)


def test_rows_move_to_other_cuts() -> None:
    x = np.arange(20.0).reshape(10, 2)
    before, after = (0, 1, 8, 10), (0, 5, 5, 13)

    def work(comm: Communicator) -> np.ndarray:
        return move_rows(x[before[comm.rank] : before[comm.rank + 1]], before, after, comm)

    found = np.concatenate(run_virtual_ranks(3, work))
    assert np.array_equal(found, np.concatenate((x, np.zeros((3, 2)))))


def test_halos_reach_as_far_as_a_window_sees() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        taps, stride, before, dilation, ranks = (int(n) for n in rng.integers(1, 5, 5))
        window = ConvolutionWindow(int(rng.integers(10, 30)), taps, stride, before, dilation)
        count = (window.length + 2 * before - window.reach) // stride + 1
        if count < 1:
            continue
        cuts, outputs = random_cuts(rng, window.length, ranks), even_cuts(count, ranks)
        wanted = [window.inputs(pair)[0] for pair in pairwise(outputs)]
        x, order = rng.normal(size=(3, window.length)), rng.permutation(ranks).tolist()

        def work(
            comm: Communicator,
            cuts: tuple[int, ...] = cuts,
            wanted: list = wanted,
            x: np.ndarray = x,
            order: list[int] = order,
        ) -> np.ndarray:
            here = order.index(comm.rank)
            own = x[:, cuts[here] : cuts[here + 1]]
            return halo_exchange(own, cuts, wanted, 1, comm, order)

        found = run_virtual_ranks(ranks, work)
        for rank, some in zip(order, wanted, strict=True):
            assert np.array_equal(found[rank], x[:, slice(*some)])


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_an_algorithm_is_a_node_of_a_plan(dtype: type) -> None:
    a = numbers(np.random.default_rng(0), dtype, 12, 7)
    node = OPS["svd"].node(parameter(0, Spec(a.shape, a.dtype)))
    way, *_ = ALGORITHMS["svd"].variants(node, [], 3)

    def work(comm: Communicator) -> list[np.ndarray]:
        part = lift(cd.tensor(way.inputs[0].part_of(a, comm.rank)))
        whole = spmd.node(part, rank=comm.rank, number=0, **spmd_attrs(node, way))
        made = [item(whole, number) for number in range(3)]
        return [each.numpy() for each in compile_nodes(made, communicator=comm).run()]

    results = run_virtual_ranks(3, work)
    u, s, vh = (way.outputs[i].whole_of([each[i] for each in results]) for i in range(3))
    assert np.allclose((u * s) @ vh, a)
