"""What `inst2vec_kernels.py` chooses for: problems, the ways to solve each, their times and code.

Measured here, taking turns (kernels, threads, unrolling), or read from `results` (the card).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import binding as llvm

from benchmarks.kernels.kernel_problems import nodes_of
from caldera import code, op
from caldera.bench.timing import best_in_turns
from caldera.compiler.lazy import Expr
from caldera.core.graph.memory_format import laid_out
from caldera.core.graph.node import Node
from caldera.core.graph.program import program_of
from caldera.kernels.native.codegen import kernel as kernel_module
from caldera.kernels.native.codegen.emitter import kernel_module as module_of
from caldera.kernels.native.codegen.kernel import ENTRY, NativeKernel
from caldera.kernels.native.codegen.program import NativeRunner
from caldera.kernels.native.codegen.target import target_machine
from caldera.kernels.native.product import packed
from caldera.kernels.native.product.packing import RegisterTile, tile_of
from caldera.kernels.table import TABLE, Call, Kernel
from caldera.kernels.tuning.choice_store import ORACLE
from caldera.kernels.tuning.cost_model import features
from caldera.kernels.tuning.measure import measure, some_numbers

RESULTS = Path(__file__).parents[1] / "results"
OUTSIDE = frozenset({"reference", "its parts", "CuPy"})
_LABEL = r"[-\w.$]+|\"[^\"]*\""
Emitted = tuple[NativeKernel, Any]
"""Native code: what emits it, and the form of its arguments."""


@dataclass
class Way:
    """One of the choices: its time, numbers that are known ahead, the statements of its code."""

    seconds: float
    numbers: list[float]
    words: list[str] = field(default_factory=list)


@dataclass
class Problem:
    """What is to be computed, and the ways to do it, by name."""

    kind: str
    ways: dict[str, Way]
    usual: str
    """What is done without measuring."""
    node: Node | None = None
    group: str = ""
    """Problems of one group are never apart, one in training and the other not."""

    @property
    def best(self) -> float:
        return min(way.seconds for way in self.ways.values())


# --- the code of a kernel


@contextmanager
def noting(found: list[Emitted]) -> Iterator[None]:
    """Note which native code is bound."""
    compiled = kernel_module.compiled

    def noted(build: NativeKernel, **parameters: Any) -> int:
        found.append((build, parameters["form"]))
        return compiled(build, **parameters)

    kernel_module.compiled = noted
    try:
        yield
    finally:
        kernel_module.compiled = compiled


CODE: dict[str, list[code.Function]] = {}
"""The functions of all kernels that were looked at."""


def functions_of(bound: Sequence[Emitted]) -> list[code.Function]:
    """The IR of these kernels, after LLVM has simplified it, as functions of statements."""
    found = []
    for build, form in dict.fromkeys(bound):
        name = f"{build.__module__}.{build.__name__}{form!r}"
        if name not in CODE:
            CODE[name] = code.read_ir(str(_simplified(build, form)))
        found += CODE[name]
    return found


def _simplified(build: NativeKernel, form: Any) -> Any:
    module = llvm.parse_assembly(str(module_of("kernel", lambda k: build(k, form=form))))
    _run_passes(module, unrolling=False)
    return module


def _run_passes(module: Any, unrolling: bool) -> None:
    options = llvm.create_pipeline_tuning_options(speed_level=2 if unrolling else 1)
    options.loop_vectorization = options.slp_vectorization = False
    options.loop_unrolling = unrolling
    passes = llvm.create_pass_builder(target_machine(), options)
    if unrolling:
        # Only the passes over whole modules unroll a loop in part.
        passes.getModulePassManager().run(module, passes)
        return
    for function in module.functions:
        if not function.is_declaration:
            passes.getFunctionPassManager().run(function, passes)


def call_of(node: Node, nbytes: int) -> Call:
    """Memory for a call of this node."""
    random = np.random.default_rng(0)
    inputs = tuple(
        laid_out(some_numbers(spec.shape, spec.dtype, random).ravel(), spec.shape, spec.order)
        for spec in (given.outputs[0] for given in node.inputs)
    )
    outputs = tuple(
        laid_out(np.zeros(int(np.prod(spec.shape)), spec.dtype), spec.shape, spec.order)
        for spec in node.outputs
    )
    return Call(node, outputs, inputs, np.zeros(nbytes, np.uint8) if nbytes else None)


# --- which kernel, on this CPU


def random_nodes(count: int) -> Iterator[Node]:
    """Convolutions with their gradients, products and sums over an axis."""
    random = np.random.default_rng(1)

    def size(low: float, high: float) -> int:
        return int(2 ** random.uniform(low, high))

    for number in range(count):
        if number % 2 == 0:
            side = int(random.choice([1, 3, 3, 5, 7]))
            image, stride = max(side, size(2, 5)), int(random.choice([1, 1, 2]))
            channels, filters = size(0, 6.5), size(2, 6.5)
            x = op.input("x", (size(0, 4.5), channels, image, image))
            w = op.input("w", (filters, channels, side, side))
            y = op.conv2d(x, w, stride=stride, padding=side // 2)
            g = op.input("g", y.shape)
            outputs: list[Expr] = [y, *op.grad(op.sum(y * g), [x, w])]
        elif number % 4 == 1:
            m, n, k = size(1, 9), size(1, 9), size(2, 11)
            outputs = [op.matmul(op.input("a", (m, k)), op.input("b", (k, n)))]
        else:
            outputs = [op.sum(op.input("x", (size(3, 11), size(3, 10))), axis=int(number % 8 == 3))]
        yield from nodes_of(program_of([each.node for each in outputs]), "cpu")


def kernel_problems(count: int, seconds: float) -> Iterator[Problem]:
    """Nodes that several kernels can run, with the time of each."""
    seen = set()
    for node in random_nodes(count):
        kernels = [each for each in TABLE.candidates(node, "cpu") if each.name != ORACLE]
        described = (node.op.name, tuple(given.outputs[0] for given in node.inputs))
        if len(kernels) < 2 or described in seen:
            continue
        seen.add(described)
        times = measure(node, kernels, seconds, thorough=True).times
        ways = {}
        for kernel in kernels:
            if kernel.name in times:
                numbers = features(node, kernel)
                words = _words_of(_emitted(node, kernel))
                ways[kernel.name] = Way(times[kernel.name], numbers, words)
        if len(ways) > 1:
            yield Problem(node.op.name, ways, next(iter(ways)), node, str(described))


def _emitted(node: Node, kernel: Kernel) -> list[Emitted]:
    found: list[Emitted] = []
    with noting(found):
        kernel.bind(call_of(node, kernel.workspace(node)))
    return found


# --- how many threads, and how far unrolled, on this CPU


STEPS: dict[str, Callable[[Expr, Expr], Expr]] = {
    "add": lambda x, y: x + y,
    "multiply": lambda x, y: x * y,
    "relu": lambda x, y: op.relu(x),
    "maximum": op.maximum,
    "divide": lambda x, y: x / (y * y + 1.5),
    "tanh": lambda x, y: op.tanh(x),
    "exp": lambda x, y: op.exp(-x * x),
    "sigmoid": lambda x, y: op.sigmoid(x),
    "log": lambda x, y: op.log(x * x + 1.0),
    "sqrt": lambda x, y: op.sqrt(x * x + 0.5),
    "sin": lambda x, y: op.sin(x),
    "erf": lambda x, y: op.erf(x),
}


def _loops(bodies: int, powers: Sequence[int]) -> Iterator[tuple[int, int, Any, list[Emitted]]]:
    """Fused loops of 2 to 10 operations over several numbers of elements: which body, how many
    elements, a runner bound to memory, and the code that it calls."""
    random = np.random.default_rng(2)
    for body in range(bodies):
        names = random.choice(list(STEPS), random.integers(2, 11))
        for power in powers:
            count = int(2 ** (power + random.uniform(-0.4, 0.4)))
            x, y = op.input("x", (count,)), op.input("y", (count,))
            value = x
            for name in names:
                value = STEPS[name](value, y)
            [node] = nodes_of(program_of([value.node]), "cpu")
            [kernel] = [each for each in TABLE.candidates(node, "cpu") if each.name == "native"]
            emitted: list[Emitted] = []
            with noting(emitted):
                runner = kernel.bind(call_of(node, kernel.workspace(node)))
            yield body, count, runner, emitted


def _words_of(emitted: Sequence[Emitted]) -> list[str]:
    return [word for function in functions_of(emitted) for word in function.words]


def thread_problems(bodies: int, rounds: int) -> Iterator[Problem]:
    """Loops over few and over many elements, on one thread and on two."""
    for body, count, runner, emitted in _loops(bodies, (9, 11, 12, 13, 14, 16)):
        runners = {
            threads: NativeRunner([replace(each, parts=threads) for each in runner.calls])
            for threads in (1, 2)
        }
        seconds, words = raced(runners, rounds), _words_of(emitted)
        ways = {
            f"{threads} threads": Way(seconds[threads], [np.log(count), threads - 1.0], words)
            for threads in runners
        }
        usual = f"{min(2, max(each.parts for each in runner.calls))} threads"
        yield Problem("fused", ways, usual, None, f"body {body}")


def unroll_problems(bodies: int, rounds: int) -> Iterator[Problem]:
    """Loops on one thread, whose rounds LLVM puts together by 1, 2, 4 and 8."""
    entries: dict[Any, dict[int, Any]] = {}
    for body, count, runner, emitted in _loops(bodies, (7, 10, 13)):
        if len(emitted) != 1 or len(runner.calls) != 1:
            continue
        [key] = emitted
        if key not in entries:
            entries[key] = {factor: _unrolled(*key, factor) for factor in FACTORS}
        slots = runner.calls[0].slots
        runners = {
            factor: partial(entry, slots.ctypes.data, 0, 1)
            for factor, entry in entries[key].items()
        }
        seconds, words = raced(runners, rounds), _words_of(emitted)
        ways = {
            f"by {factor}": Way(seconds[factor], [np.log(count), np.log2(factor)], words)
            for factor in FACTORS
        }
        yield Problem("fused", ways, "by 1", None, f"body {body}")


TILES = ((8, 3), (8, 2), (4, 6), (4, 4), (4, 3), (16, 1), (2, 8))
"""Rows and vectors of columns of a result that packed products keep in registers."""


@contextmanager
def tile_in_use(height: int, vectors: int) -> Iterator[None]:
    """Have packed products cut into these tiles."""
    packed.tile_of = lambda dtype: RegisterTile(height, vectors, tile_of(dtype).lanes)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        packed.tile_of = tile_of  # type: ignore[attr-defined]


def tile_problems(count: int, rounds: int) -> Iterator[Problem]:
    """Products of random sizes on one thread, by packed micro-kernels with tiles of each form."""
    random = np.random.default_rng(3)
    usual = tile_of("float32")
    for number in range(count):
        m, n, k = (int(2 ** random.uniform(*each)) for each in ((2, 8.5), (4, 8.5), (4, 9)))
        product = op.matmul(op.input("a", (m, k)), op.input("b", (k, n)))
        [node] = nodes_of(program_of([product.node]), "cpu")
        [kernel] = [each for each in TABLE.candidates(node, "cpu") if each.name == "packed"]
        runners, words = {}, {}
        for tile in TILES:
            emitted: list[Emitted] = []
            with tile_in_use(*tile), noting(emitted):
                call = call_of(node, kernel.workspace(node))
                runner = kernel.bind(call)
            runners[tile] = NativeRunner([replace(each, parts=1) for each in runner.calls])
            runners[tile]()
            wanted = call.inputs[0] @ call.inputs[1]
            np.testing.assert_allclose(call.outputs[0], wanted, rtol=1e-3, atol=1e-3)
            words[tile] = _words_of(emitted)
        seconds = raced(runners, rounds)
        ways = {}
        for height, vectors in TILES:
            width = vectors * usual.lanes
            # What of the last tiles is not there is computed all the same.
            filled = m / (-(-m // height) * height), n / (-(-n // width) * width)
            numbers = [*np.log([m, n, k]), height, vectors, *filled]
            ways[f"{height} x {width}"] = Way(
                seconds[height, vectors], numbers, words[height, vectors]
            )
        yield Problem("matmul", ways, f"{usual.height} x {usual.width}", None, f"size {number}")


FACTORS = (1, 2, 4, 8)
_engines: list[Any] = []


def _unrolled(build: NativeKernel, form: Any, factor: int) -> Any:
    """The entry of this kernel with its loops unrolled by a factor."""
    lines: list[str] = []
    loops: list[str] = []
    seen: set[str] = set()
    for line in str(_simplified(build, form)).splitlines():
        label = re.match(f"({_LABEL}):", line)
        if label:
            seen.add(label.group(1))
        jumps = line.strip().startswith("br ") and re.findall(f"label %({_LABEL})", line)
        if jumps and seen.intersection(jumps):
            number = 9000 + len(loops)
            loops.append(f"!{number} = distinct !{{!{number}, !8999}}")
            line = f"{line.split(', !')[0]}, !llvm.loop !{number}"
        lines.append(line)
    wish = '"llvm.loop.unroll.disable"' if factor == 1 else '"llvm.loop.unroll.count"'
    count = "" if factor == 1 else f", i32 {factor}"
    module = llvm.parse_assembly("\n".join([*lines, *loops, f"!8999 = !{{!{wish}{count}}}"]))
    _run_passes(module, unrolling=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(target_machine().emit_object(module)))
    engine.finalize_object()
    _engines.append(engine)
    return ENTRY(engine.get_function_address("kernel"))


def raced(runners: Mapping[Any, Callable[[], object]], rounds: int) -> dict[Any, float]:
    """Seconds of each, taking turns; the best round counts."""
    return best_in_turns(runners, rounds, 2e-4)


# --- what is recorded of the card


def recorded(path: Path) -> dict[tuple[str, str], dict[str, float]]:
    """Microseconds of every kernel, by op and problem, from a file of results."""
    found: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for line in path.read_text().split("## Each problem")[1].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) < 5 or ": " not in cells[0] or ": step" in cells[0]:
            continue
        name, kernel = cells[0].split(": ", 1)
        found[name, cells[1]][kernel] = float(cells[2].replace(",", ""))
        other, _, its = cells[3].rpartition(" ")
        found[name, cells[1]].setdefault(other, float(its.replace(",", "")))
    return dict(found)


def card_problems() -> Iterator[Problem]:
    """Problems of several kernels on the H200."""
    table = recorded(RESULTS / "kernels-h200.md")
    names = {(name, kernel) for (name, _), row in table.items() for kernel in row}
    places = {each: i for i, each in enumerate(sorted(names))}
    for (name, what), row in table.items():
        ways = {kernel: us * 1e-6 for kernel, us in row.items() if kernel not in OUTSIDE}
        if len(ways) < 2:
            continue
        sizes, dtype = what.split(": ", 1)[1].rsplit(" ", 1)
        shapes = [re.findall(r"\d+", each) for each in sizes.split(", ")[:2]]
        numbers = []
        for shape in [*shapes, ["1"]][:2]:
            row_ = [np.log(float(each)) for each in shape[-4:]]
            numbers += [0.0] * (4 - len(row_)) + row_ + [sum(row_)]
        numbers += [float(dtype == each) for each in ("bfloat16", "tf32", "float32", "float64")]
        found = {}
        for kernel, seconds in ways.items():
            own = [0.0] * len(places)
            own[places[name, kernel]] = 3.0
            found[kernel] = Way(seconds, [*numbers, *own])
        yield Problem(name, found, next(iter(sorted(found))), None, what)
