"""What `special_kernels.py` puts kernels on trial with: nodes of networks, and of ops they lack.

A node is found as a plan would meet it: the passes have run, images lie channels last, loops are
looked into, and what is only a view of something else does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any

import numpy as np

from caldera import op
from caldera.bench.frameworks.base import built
from caldera.bench.workloads import TrainingCase
from caldera.bench.workloads.sizes import DESIGN_CONVOLUTIONS
from caldera.bench.workloads.training import networks
from caldera.compiler.lazy import Expr
from caldera.compiler.passes.pipeline import optimise
from caldera.compiler.plan.loop import loop_kernel
from caldera.compiler.plan.schedule import Root
from caldera.compiler.plan.scheduling import schedule_steps
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.program import Program, program_of
from caldera.core.tensor.dtype import float32, is_float
from caldera.data import ArrayData
from caldera.kernels.table import TABLE, Kernel, wants_channels_last
from caldera.kernels.tuning.measure import some_numbers
from caldera.train.fit import make_steps

NETWORKS = ("mlp", "lenet5", "resnet20", "googlenet", "gpt", "lstm")
LINALG = frozenset({"solve", "inverse", "slogdet", "cholesky", "qr", "eigh", "svd"})
POSITIONS = frozenset({"gather", "scatter_add", "take_along_axis", "put_along_axis_add"})
LITTLE = 1 << 16
"""Operations and bytes of a loop that takes no time to speak of."""


@dataclass(frozen=True)
class Problem:
    """A node, and where it occurs."""

    where: str
    node: Node

    @property
    def kind(self) -> tuple[Any, ...]:
        """Problems of one kind differ in their sizes alone."""
        node = self.node
        dtypes = tuple(given.dtype.name for given in node.inputs)
        filters: tuple[Any, ...] = ()
        if node.op.name.startswith("conv2d"):
            shape = node.attrs.get("shape") if node.op.name == "conv2d_weight" else None
            sides = (shape or node.inputs[1].shape)[2:]
            how = (node.attrs["stride"], node.attrs["dilation"], node.attrs["groups"] > 1)
            filters = (sides, *how, node.inputs[0].shape[0] == 1)
        if node.op.kind == "elementwise" or node.op.name == "fused":
            # One loop is like the other.
            return (node.op.name if node.op.name in ("cast", "fused") else "loop", dtypes[:1])
        return (node.op.name, dtypes, node.attrs.get("compute"), filters)

    @property
    def work(self) -> int:
        """Operations and bytes."""
        specs = [given.outputs[0] for given in self.node.inputs] + list(self.node.outputs)
        return self.node.op.count_flops(self.node) + sum(spec.nbytes for spec in specs)

    @property
    def shape(self) -> str:
        """Its inputs, to be printed."""
        found = []
        for given in self.node.inputs:
            spec = given.outputs[0]
            found.append("x".join(map(str, spec.shape)) or "scalar")
        if len(found) > 4:
            found = [*found[:3], f"{len(found) - 3} more"]
        dtype = self.node.inputs[0].dtype.name if self.node.inputs else self.node.dtype.name
        compute = self.node.attrs.get("compute")
        return f"{', '.join(found)} {compute or dtype}"


def nodes_of(program: Program, family: str, precision: str | None = None) -> list[Node]:
    """What kernels would have to run for this program."""
    optimised = optimise(
        program,
        has_kernel=lambda name: TABLE.has(name, family),
        precision=precision,
        channels_last=wants_channels_last(family),
    )
    found: dict[Node, None] = {}

    def choose(node: Node) -> Kernel:
        if node.op.name == "scan":
            return loop_kernel(node, choose, _no_constant, family, in_place=False)
        found[node] = None
        return Kernel(node.op.name, family, "any", _no_bind)

    roots = [Root(node, ("output", index)) for index, node in enumerate(optimised.roots)]
    schedule_steps(roots, choose, lambda node: node.attrs.get("symbol"), family=family)
    return list(found)


def _no_constant(node: Node) -> Any:
    raise AssertionError("nothing is bound here")


def _no_bind(call: Any) -> Any:
    raise AssertionError("nothing is bound here")


# --- networks


def training_program(case: TrainingCase, precision: str | None) -> Program:
    """A training step of a network."""
    model = built(case, precision=precision)
    samples = np.zeros((2, *case.shape), np.int64 if case.words else np.float32)
    labels = np.zeros((2, *case.shape) if case.words else 2, np.int64)
    steps = make_steps(model, ArrayData(samples, labels))
    graph = steps.graph(case.batch).training()
    return program_of([each.node for each in steps.strategy.program([graph])])


def network_problems(family: str, names: Sequence[str] = NETWORKS) -> Iterator[Problem]:
    """The nodes of training steps, in the precision in which the device trains them."""
    known = {case.name: case for work in networks() for case in work.cases}
    for name in names:
        case = known[name]
        assert isinstance(case, TrainingCase)
        here = case.on("cuda" if family == "cuda" else "cpu")
        precision = case.precisions[0] if family == "cuda" else None
        for node in nodes_of(training_program(here, precision), family, precision):
            yield Problem(name, node)


# --- ops that these networks lack


_numbers = count()


def _input(*shape: int, dtype: str = "float32") -> Expr:
    return op.input(f"x{next(_numbers)}", shape, dtype)


def _with_gradients(function: Callable[..., Expr], *inputs: Expr) -> list[Expr]:
    """The result, and the gradients of all inputs for a gradient of it that is given."""
    y = function(*inputs)
    given = _input(*y.shape, dtype=y.dtype.name)
    return [y, *op.grad(op.sum(y * given), list(inputs))]


def _convolution(
    x: tuple[int, ...], w: tuple[int, ...], dtype: str = "float32", **how: Any
) -> list[Expr]:
    return _with_gradients(
        lambda images, filters: op.conv2d(images, filters, **how),
        _input(*x, dtype=dtype),
        _input(*w, dtype=dtype),
    )


def _convolutions() -> Iterator[tuple[str, list[Expr]]]:
    for images, channels, height, width, filters, sides, stride, padding in DESIGN_CONVOLUTIONS:
        x, w = (images, channels, height, width), (filters, channels, *sides)
        yield "design table", _convolution(x, w, stride=stride, padding=padding)
    for channels, size, side in ((64, 56, 3), (256, 14, 3), (128, 28, 5)):
        how = {"padding": side // 2, "groups": channels}
        shape = (32, channels, size, size)
        yield "depthwise", _convolution(shape, (channels, 1, side, side), **how)
    for channels, size, side in ((16, 64, 11), (32, 64, 17), (64, 28, 9)):
        shape, w = (16, channels, size, size), (channels, channels, side, side)
        yield "large filters", _convolution(shape, w, padding=side // 2)
    for channels, size, results, side in ((64, 56, 64, 3), (512, 7, 512, 3), (256, 14, 1024, 1)):
        shape, w = (1, channels, size, size), (results, channels, side, side)
        yield "one image", _convolution(shape, w, padding=side // 2)
    yield "groups", _convolution((32, 256, 14, 14), (256, 8, 3, 3), padding=1, groups=32)
    yield "dilated", _convolution((16, 64, 28, 28), (64, 64, 3, 3), padding=2, dilation=2)
    yield "1x1 /2", _convolution((32, 64, 56, 56), (128, 64, 1, 1), stride=2)
    for dtype in ("float64", "bfloat16"):
        for side in (1, 3):
            shape, w = (16, 64, 28, 28), (64, 64, side, side)
            yield "dtypes", _convolution(shape, w, dtype, padding=side // 2)


def _matrices() -> Iterator[tuple[str, list[Expr]]]:
    for dtype in ("float64", "float16", "bfloat16"):
        for m, n, k in ((100, 528, 784), (16, 16, 16), (512, 512, 512)):
            a, b = _input(m, k, dtype=dtype), _input(k, n, dtype=dtype)
            yield "products", [op.matmul(a, b)]
    for m, n, k in ((8, 8, 8), (32, 10, 64), (2, 64, 4096), (32, 32, 20000)):
        yield "products", [op.matmul(_input(m, k), _input(k, n))]
    yield "products", [op.matmul(_input(256, 12, 12), _input(256, 12, 12))]
    for shape in ((512, 16, 16), (32, 64, 64), (512, 512)):
        a = _input(*shape)
        b = _input(*shape[:-1], 8)
        yield "matrices", [op.solve(a, b), op.inverse(a), *op.slogdet(a), op.cholesky(a)]
        yield "matrices", [*op.qr(a), *op.eigh(a), *op.svd(a)]


def _rows() -> Iterator[tuple[str, list[Expr]]]:
    for shape in ((512, 256), (64, 4096), (16, 1000), (4, 1 << 18), (64, 1009)):
        halves = op.rfft(_input(*shape))
        yield (
            "signals",
            [halves, op.irfft(halves, n=shape[-1]), op.fft(op.view_as_complex(_input(*shape, 2)))],
        )
    for shape in ((128, 1000), (8, 1 << 17)):
        x = _input(*shape)
        yield "rows", [op.sort(x, axis=-1), op.cumsum(x, axis=-1)]
    for shape, axis in (((128, 10), 1), ((8192, 64), 1), ((32, 21, 64, 64), 1), ((8, 1 << 17), 1)):
        x = _input(*shape)
        found = [reduce(x, axis=axis) for reduce in (op.argmax, op.argmin, op.max, op.min, op.prod)]
        yield "rows", found
    sizes = ((50_000, 2048, 256), (64, 8192, 256), (1000, 64, 16), (10, 16, 8))
    for words, additions, width in sizes:
        table, places = _input(words, width), _input(additions, dtype="int64")
        yield "embedding", _with_gradients(lambda t, p=places: op.gather(t, p, axis=0), table)
    for shape in ((128, 1000), (16384, 64)):
        x, places = _input(*shape), _input(shape[0], 8, dtype="int64")
        picked = _with_gradients(lambda t, p=places: op.take_along_axis(t, p, axis=1), x)
        yield "rows", picked
    for dtype in ("float16", "bfloat16"):
        yield "conversions", [op.cast(_input(4_000_000), dtype)]
        yield "conversions", [op.cast(_input(4_000_000, dtype=dtype), "float32")]


def _rest() -> Iterator[tuple[str, list[Expr]]]:
    for shape in ((4096, 1000), (128, 10)):
        x = _input(*shape)
        yield "rows", _with_gradients(lambda rows: op.softmax(rows, axis=-1), x)
        yield "rows", _with_gradients(lambda rows: op.log_softmax(rows, axis=-1), x)
        targets = op.softmax(_input(*shape), axis=-1)
        yield "rows", _with_gradients(lambda rows, t=targets: op.cross_entropy(rows, t), x)
    for shape in ((32, 64, 28, 28), (128, 16, 32, 32)):
        x, scale, shift = _input(*shape), _input(shape[1]), _input(shape[1])
        mean, variance = _input(shape[1]), _input(shape[1])
        yield "norms", _with_gradients(lambda x: op.local_response_norm(x), x)
        yield "norms", _with_gradients(lambda *each: op.batch_norm(*each)[0], x, scale, shift)
        yield (
            "norms",
            _with_gradients(lambda *each: op.group_norm(each[0], 8, *each[1:]), x, scale, shift),
        )
        still = op.batch_norm(x, scale, shift, mean, variance)
        yield "norms", [still, op.relu(still)]
        yield "norms", list(op.split(x, 2, axis=1))
        yield "random", [op.random_uniform(shape), op.random_normal(shape)]


def other_problems(family: str) -> Iterator[Problem]:
    """The nodes of ops and sizes that no network here has."""
    for make in (_convolutions, _matrices, _rows, _rest):
        for where, outputs in make():
            for node in nodes_of(program_of([each.node for each in outputs]), family):
                yield Problem(where, node)


# --- choosing some, and their inputs


def chosen(problems: Sequence[Problem], shapes: int, family: str) -> list[Problem]:
    """Up to `shapes` problems of each kind, from the largest to the smallest.

    One of each kind comes before a second of any, and ops of several kernels before others, so that
    a run that is cut short has seen what matters.
    """
    kinds: dict[Any, dict[Any, Problem]] = {}
    for problem in problems:
        if problem.work < LITTLE and (problem.kind[0] in ("cast", "fused", "loop", "sum")):
            continue
        kinds.setdefault(problem.kind, {}).setdefault((problem.work, problem.shape), problem)
    rounds: list[list[Problem]] = [[] for _ in range(shapes)]
    for found in kinds.values():
        ordered = sorted(found.values(), key=lambda problem: -problem.work)
        many = min(shapes, len(ordered))
        places = [round(i * (len(ordered) - 1) / max(many - 1, 1)) for i in range(many)]
        for turn, place in zip(rounds, places, strict=False):
            turn.append(ordered[place])
    for turn in rounds:
        turn.sort(key=lambda problem: len(TABLE.names(problem.node.op.name, family)) < 2)
    return [problem for turn in rounds for problem in turn]


def values_of(node: Node) -> list[np.ndarray] | None:
    """Inputs that mean something to the op: positions that are there, matrices that are regular.

    None where any numbers do.
    """
    if node.op.name not in LINALG and _bound(node) == 1:
        return None
    generator = np.random.default_rng(0)
    found = []
    for given in node.inputs:
        spec = given.outputs[0]
        if node.op.name in LINALG and spec.shape[-1] == spec.shape[-2]:
            found.append(_regular(spec, generator))
        elif is_float(spec.dtype) or spec.dtype.kind == "b":
            found.append(some_numbers(spec.shape, spec.dtype, generator))
        else:
            found.append(generator.integers(0, _bound(node), spec.shape).astype(spec.dtype))
    return found


def _bound(node: Node) -> int:
    """What integers in the inputs of this node have to stay below."""
    if node.op.name in POSITIONS:
        return node.inputs[0].shape[node.attrs["axis"]]
    if node.op.name.startswith("cross_entropy"):
        return min(given.shape[-1] for given in node.inputs if len(given.shape) > 1)
    return 1


def _regular(spec: Spec, generator: np.random.Generator) -> np.ndarray:
    """Symmetric matrices with eigenvalues from 1 to 10, no two of them close."""
    n = spec.shape[-1]
    basis = _orthogonal(n)
    values = np.linspace(1.0, 10.0, n)
    signs = generator.choice([-1.0, 1.0], (*spec.shape[:-2], n, 1))
    columns = basis * signs
    return ((columns * values) @ columns.swapaxes(-1, -2)).astype(spec.dtype or float32)


@cache
def _orthogonal(n: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(n).normal(size=(n, n)))[0]
