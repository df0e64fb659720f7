"""Whatever passes do to a random graph, it computes what the plain one does."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from caldera.compiler.passes.constants import value_of
from caldera.compiler.passes.lower import lower
from caldera.compiler.passes.pipeline import NAMES, passes
from caldera.compiler.plan.plan import Plan
from caldera.core.graph.node import Node
from caldera.core.graph.opdef import ITEM
from caldera.core.graph.program import Program, topological
from caldera.core.graph.verify import verify
from caldera.core.memory import device
from caldera.core.tensor.dtype import float32, float64
from caldera.kernels.native.elementwise import loop
from caldera.kernels.native.reduction import reduce
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE, Kernel
from tests.unit.compiler.passes.graphs import Graph, graphs
from tests.unit.compiler.passes.tools import compute, product_flops, program_for

TOLERANCE = {float32: 1e-5, float64: 1e-12}
common = settings(
    max_examples=24,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
any_graph = st.one_of(graphs(float32), graphs(float64))


def plain(graph: Graph, program: Program) -> list[np.ndarray]:
    """Outputs and new values of variables, node by node with the oracle."""
    values = {variable.node: array for variable, array in graph.variables.items()}
    return compute(program.roots, values)


def choose(node: Node) -> Kernel:
    return TABLE.candidates(node, "cpu")[0]


def planned(program: Program, without: tuple[str, ...]) -> Plan:
    optimised = program
    verify(program, after="nothing")
    has_kernel = partial(TABLE.has, family="cpu")
    for name, run in passes(has_kernel, frozenset(without), channels_last=True):
        before, optimised = optimised, run(optimised)
        if optimised != before:
            verify(optimised, after=name)
    return Plan(program, optimised, device("cpu"), choose, in_place="in_place" not in without)


def differs(actual: np.ndarray, expected: np.ndarray, tolerance: float) -> np.ndarray:
    """Where two results differ: beyond the tolerance, in NaN and infinities, in the sign of 0."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    if actual.dtype.kind != "f":
        return actual != expected
    close = np.isclose(actual, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    zero = (actual == 0) & (expected == 0)
    return ~close | (zero & (np.signbit(actual) != np.signbit(expected)))


def is_shaky(graph: Graph, program: Program, output: int, tolerance: float) -> np.ndarray:
    """Where an output hangs on the last bits of what it comes from, as 1 / (a - b) may."""
    first = plain(graph, program)[output]
    result = np.zeros(first.shape, bool)
    for seed in range(3):
        again = shaken(graph, program.roots[output], tolerance / 10, seed)
        result |= differs(again, first, tolerance / 10)
    return result


def shaken(graph: Graph, root: Node, by: float, seed: int) -> np.ndarray:
    """The value of a node when each result on the way is a little off."""
    generator = np.random.default_rng(seed)
    (root,) = lower(Program((root,)), has_kernel=lambda name: False).roots
    results = {variable.node: (array,) for variable, array in graph.variables.items()}
    for node in topological([root]):
        if node in results:
            continue
        if node.op is ITEM:
            results[node] = (results[node.inputs[0]][node.attrs["index"]],)
        elif node.op.name == "array":
            results[node] = (value_of(node),)
        else:
            with np.errstate(all="ignore"):
                exact = evaluate(node, [results[given][0] for given in node.inputs])
                results[node] = tuple(
                    (each * (1 + by * generator.uniform(-1, 1, each.shape))).astype(each.dtype)
                    if each.dtype.kind == "f" and node.inputs
                    else each
                    for each in exact
                )
    return results[root][0]


def check(graph: Graph, *variants: tuple[str, ...]) -> None:
    """What is computed without these passes, or without those, is what the plain graph computes."""
    program = program_for(graph)
    expected = plain(graph, program)
    for without in variants:
        try:
            check_without(without, graph, program, expected)
        except Exception as problem:
            problem.add_note(f"without the passes {without}")
            raise


def check_without(
    without: tuple[str, ...], graph: Graph, program: Program, expected: list[np.ndarray]
) -> None:
    plan = planned(program, without)
    updated = [symbol for symbol, _ in program.updates]
    tolerance = TOLERANCE[graph.dtype]
    # Twice: a second run must not see anything of the first.
    for _ in range(2):
        results = [tensor.numpy() for tensor in plan.run()]
        results += [symbol.value.numpy() for symbol in updated]
        for index, (actual, right) in enumerate(zip(results, expected, strict=True)):
            wrong = differs(actual, right, tolerance)
            if wrong.any():
                wrong &= ~is_shaky(graph, program, index, tolerance)
            assert not wrong.any(), f"output {index}:\n{actual}\nshould be\n{right}"
        for variable, array in graph.variables.items():
            if variable.symbol not in updated:
                np.testing.assert_array_equal(variable.numpy(), array)
            variable.assign(array)
    assert plan.arena_bytes <= plan.naive_bytes
    assert product_flops(plan.optimised) <= product_flops(program)


def all_but(*names: str) -> tuple[str, ...]:
    return tuple(name for name in NAMES if name not in names)


@pytest.fixture(params=["large", "small"])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fused loops in one piece, and shared by several workers."""
    if request.param == "small":
        for name in ("LIGHT_SHARE", "HEAVY_SHARE"):
            monkeypatch.setattr(loop, name, 2)
        monkeypatch.setattr(reduce, "LONGEST_ROW", 2)
        monkeypatch.setattr(reduce, "MOST_ROWS", 2)
    return


# Every second pass for a graph, from the first or from the second on: a plan is made for each.
@common
@given(graph=any_graph, first=st.integers(0, 1))
def test_each_pass_alone(graph: Graph, first: int) -> None:
    check(graph, *[all_but(name) for name in ("none", *NAMES)[first::2]])


@common
@given(graph=any_graph, first=st.integers(0, 1))
def test_all_passes_but_one(graph: Graph, first: int) -> None:
    check(graph, *[(name,) for name in NAMES[first::2]])


@pytest.mark.usefixtures("block")
@settings(common, max_examples=100)
@given(graph=any_graph)
def test_all_passes_together(graph: Graph) -> None:
    check(graph, ())
