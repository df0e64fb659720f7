"""Every kernel of a card against the oracle, on arrays that lie in memory in any way they may."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

import caldera.kernels.cuda  # noqa: F401 - registers its kernels
from caldera.compiler.lazy import Expr, lift
from caldera.core.graph.memory_format import laid_out
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import ITEM, parameter
from caldera.core.graph.program import topological
from caldera.core.memory import Device
from caldera.core.memory.gpus import cupy
from caldera.core.tensor.dtype import BY_NAME, bool_, complex_of
from caldera.errors import DtypeError
from caldera.kernels.cuda.codegen.kernel import KernelLaunch
from caldera.kernels.cuda.elementwise.loop import LoopRunner
from caldera.kernels.cuda.persistent.fusion import span
from caldera.kernels.cuda.runtime.driver import driver
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE, Call, Kernel
from tests.card.emulated import EmulatedCard, EmulatedDriver
from tests.card.guards import guarded_bytes
from tests.unit.kernels.checking import ELSEWHERE, LAYOUTS, compare, is_taken_apart, oracle
from tests.unit.ops.cases import ALL

Arrays = tuple[np.ndarray, ...]
Compare = Callable[[np.ndarray, np.ndarray], None]


# --- memory


def placed(card: Device, array: np.ndarray) -> Any:
    """The array on the card, as far from each multiple of 64 bytes, with the same strides."""
    if isinstance(card, EmulatedCard):
        return array
    if array.size == 0:
        return card.array(card.allocate(1), 0, array.shape, array.dtype)
    low, high = np.lib.array_utils.byte_bounds(array)
    block = card.allocate(high - low + 64)
    raw = (ctypes.c_char * (high - low)).from_address(low)
    card.copy_in(block, low % 64, np.frombuffer(raw, np.uint8), card.stream)
    memory = card.array(block, low % 64, (high - low,), np.dtype(np.uint8))
    start = array.__array_interface__["data"][0] - low
    return type(memory)(array.shape, array.dtype, memory, start, array.strides)


def fetched(card: Device, there: Any, like: np.ndarray) -> np.ndarray:
    """What `placed` put there, as the card's kernels have left it."""
    if isinstance(card, EmulatedCard) or like.size == 0:
        return like
    low, high = np.lib.array_utils.byte_bounds(like)
    there_low = there.__array_interface__["data"][0] - (like.__array_interface__["data"][0] - low)
    here = np.empty(high - low, np.uint8)
    cupy().cuda.runtime.memcpy(here.ctypes.data, there_low, here.nbytes, 2)
    start = like.__array_interface__["data"][0] - low
    return np.ndarray(like.shape, like.dtype, here, start, like.strides)


def spoiled(spec: Spec) -> np.ndarray:
    """Memory that holds nan, or the largest of numbers: what a run before it might have left."""
    memory = guarded_bytes(spec.nbytes, f"an output {spec}")
    if spec.dtype == bool_:
        memory.fill(0x01)
    return laid_out(memory.view(spec.dtype), spec.shape, spec.order)


@dataclass(frozen=True)
class Bound:
    """A kernel bound to arrays on the card, and the outputs on the host."""

    outputs: Arrays
    call: Call
    runner: Any


def bound(card: Device, kernel: Kernel, node: Node, inputs: Arrays) -> Bound:
    """A kernel bound to inputs that are on the card, and to spoiled outputs and workspace."""
    outputs = tuple(spoiled(spec) for spec in node.outputs)
    needed = kernel.workspace(node)
    workspace = guarded_bytes(needed, "the workspace") if needed else None
    there = tuple(placed(card, array) for array in outputs)
    given = tuple(placed(card, array) for array in inputs)
    spare = None if workspace is None else placed(card, workspace)
    made: list[Any] = []
    call = Call(node, there, given, spare)
    card.stream.launch(lambda: made.append(kernel.bind(call)))
    card.stream.synchronize()
    return Bound(outputs, call, made[0])


def run_kernel(card: Device, kernel: Kernel, node: Node, inputs: Arrays, times: int = 1) -> Arrays:
    """The outputs of a kernel on the card."""
    made = bound(card, kernel, node, inputs)
    for _ in range(times):
        card.stream.launch(lambda: made.runner())
    card.stream.synchronize()
    check_memory(kernel, made.call, made.runner)
    return tuple(
        fetched(card, there, like)
        for there, like in zip(made.call.outputs, made.outputs, strict=True)
    )


def prepare(
    card: Device,
    node: Node,
    inputs: Arrays,
    names: Iterable[str] | None = None,
    layouts: Iterable[str] = LAYOUTS,
) -> None:
    """Bind all that `check` will run: a played card compiles everything bound by then at once."""
    if not isinstance(card, EmulatedCard):
        return
    for kernel in TABLE.candidates(node, "cuda"):
        if (names is None or kernel.name in names) and _is_here(card, kernel):
            for layout in layouts:
                arranged = tuple(LAYOUTS[layout](array) for array in inputs)
                # What cannot be bound fails in its own check.
                with suppress(Exception):
                    launches_of(bound(card, kernel, node, arranged).runner)


def check_memory(kernel: Kernel, call: Call, runner: Any) -> None:
    """Launches use the memory of their call, and besides it what their kernel says it shares: else
    they could not run beside others."""
    spare = () if call.workspace is None else (call.workspace,)
    allowed = [span(array) for array in (*call.inputs, *call.outputs, *spare)]
    for launch in launches_of(runner):
        for array in (each for each in launch._kept if isinstance(each, np.ndarray)):
            first, last = span(array)
            assert first == last or any(a <= first and last <= b for a, b in allowed), (
                f"{kernel.name} of {kernel.op}: {launch.name} uses memory of its own"
            )
        # Blocks that wait for each other need room for all of them.
        assert launch._launch == driver().launch or kernel.shares, f"{kernel.name} of {kernel.op}"
        if isinstance(driver(), EmulatedDriver):
            assert launch._function.globals <= kernel.shares, f"{kernel.name} of {kernel.op} shares"


def launches_of(runner: Any) -> list[KernelLaunch]:
    """What a runner launches, as far as these are our own kernels."""
    if isinstance(runner, LoopRunner):
        return [runner.launch]
    return [each for each in getattr(runner, "calls", ()) if isinstance(each, KernelLaunch)]


# --- the check


def same_bits(output: np.ndarray, right: np.ndarray) -> None:
    """Equal to the last bit."""
    assert output.dtype == right.dtype
    assert output.tobytes() == right.tobytes(), (output, right)


def check(
    card: Device,
    node: Node,
    inputs: Arrays,
    names: Iterable[str] | None = None,
    by: Compare = compare,
    layouts: Iterable[str] = LAYOUTS,
) -> set[str]:
    """Run all kernels that can run this node, in all layouts; their names."""
    checked = set()
    prepare(card, node, inputs, names, layouts)
    for kernel in TABLE.candidates(node, "cuda"):
        if (names is not None and kernel.name not in names) or not _is_here(card, kernel):
            continue
        for layout in layouts:
            arranged = tuple(LAYOUTS[layout](array) for array in inputs)
            dense = tuple(np.array(array, order="C") for array in arranged)
            with np.errstate(all="ignore"):
                expected = oracle(node, dense)
            try:
                results = run_kernel(card, kernel, node, arranged, times=2)
                for result, right in zip(results, expected, strict=True):
                    by(result, right)
                for array, before in zip(arranged, dense, strict=True):
                    assert array.tobytes() == before.tobytes()
            except Exception as problem:
                problem.add_note(f"{node.op.name}: {kernel.name}, {layout}, {node}")
                raise
        checked.add(kernel.name)
    return checked


def _is_here(card: Device, kernel: Kernel) -> bool:
    """Kernels of NVIDIA's libraries need a real card."""
    return not isinstance(card, EmulatedCard) or not kernel.name.startswith("cu")


# --- nodes


def nodes_of_cases(ops: set[str], dtype: str) -> Iterator[tuple[Node, Arrays]]:
    """The distinct nodes of these ops in all cases, in this dtype, with what they read there.

    Of complex numbers are those of parts of this dtype, and of ops whose kernels meet them.
    """
    wanted = BY_NAME[dtype]
    seen: set[Any] = set()
    for case in (case for case in ALL if case.op not in ELSEWHERE):
        kinds = {"f": wanted, "c": complex_of(wanted)}
        arrays = [a.astype(kinds.get(a.dtype.kind, a.dtype)) for a in case.inputs]
        try:
            result = case.function(*[Expr(lift(array)) for array in arrays])
        except DtypeError:
            continue
        several = result if isinstance(result, tuple | list) else (result,)
        order = topological([each.node for each in several])
        if not any(node.op.name in ops for node in order):
            continue
        values: dict[Node, Arrays] = {}
        for node in order:
            symbol = node.attrs.get("symbol")
            if symbol is not None:
                values[node] = (symbol.value.numpy(),)
            elif node.op is ITEM:
                values[node] = (values[node.inputs[0]][node.attrs["index"]],)
            else:
                inputs = tuple(values[given][0] for given in node.inputs)
                with np.errstate(all="ignore"):
                    values[node] = evaluate(node, inputs)
                key = (
                    node.op.name,
                    repr(sorted(node.attrs.items())),
                    tuple(given.spec for given in node.inputs),
                )
                if node.op.name in ops and key not in seen and not is_taken_apart(node):
                    seen.add(key)
                    yield node, inputs


def stand_ins(*arrays: np.ndarray) -> list[Node]:
    """Nodes with the shapes and dtypes of arrays."""
    return [parameter(i, Spec(a.shape, a.dtype)) for i, a in enumerate(arrays)]


def check_cases(card: Device, ops: set[str], dtype: str) -> set[str]:
    """Check the nodes of these ops in all cases, in all layouts, in float32; of other dtypes every
    third node and one of each op, dense. The ops found."""
    found = set()
    chosen = []
    layouts = LAYOUTS if dtype == "float32" else ("dense",)
    for number, (node, inputs) in enumerate(nodes_of_cases(ops, dtype)):
        if dtype == "float32" or number % 3 == 0 or node.op.name not in found:
            chosen.append((node, inputs))
            prepare(card, node, inputs, layouts=layouts)
        found.add(node.op.name)
    for node, inputs in chosen:
        assert check(card, node, inputs, layouts=layouts)
    return found
