"""Nodes of networks on which `special_kernels.py` puts kernels on trial, and their inputs.

A node is found as a plan would meet it: the passes have run, images lie channels last, loops are
looked into, and what is only a view of something else does not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from caldera.bench.frameworks.base import built
from caldera.bench.workloads import TrainingCase
from caldera.bench.workloads.training import networks
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
CODED = ("int8", "few_bits", "dequantise")
"""Beginnings of the names of ops on weights of a few bits."""
LITTLE = 1 << 16
"""Operations and bytes of a loop that takes no time to speak of."""


@dataclass(frozen=True)
class Problem:
    """A node, and where it occurs."""

    where: str
    node: Node

    def kind(self, family: str) -> tuple[Any, ...]:
        """Problems of one kind have the same dtypes and candidates, and differ in their sizes."""
        node = self.node
        dtypes = tuple(given.dtype.name for given in node.inputs)
        if node.op.name == "fused":
            # One loop is like the other.
            return (node.op.name, dtypes[:1])
        names = {each.name for each in TABLE.kernels(node.op.name, family) if each.supports(node)}
        return (node.op.name, dtypes, node.attrs.get("compute"), frozenset(names))

    @property
    def is_little_loop(self) -> bool:
        """True for a loop that takes no time to speak of."""
        is_loop = self.node.op.kind == "elementwise" or self.node.op.name in ("fused", "sum")
        return is_loop and self.work < LITTLE

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
    """Return the nodes of a program that kernels compute."""
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


# --- choosing some, and their inputs


def chosen(
    problems: Sequence[Problem], shapes: int, family: str, most_work: float = np.inf
) -> list[Problem]:
    """Up to `shapes` problems of each kind, from the largest to the smallest.

    One of each kind comes before a second of any, and ops of several kernels before others, so that
    a run that is cut short has seen what matters.
    """
    kinds: dict[Any, dict[Any, Problem]] = {}
    for problem in problems:
        if problem.work <= most_work and not problem.is_little_loop:
            found = kinds.setdefault(problem.kind(family), {})
            found.setdefault((problem.work, problem.shape), problem)
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
    is_coded = node.op.name.startswith(CODED)
    if node.op.name not in LINALG and _bound(node) == 1 and not is_coded:
        return None
    generator = np.random.default_rng(0)
    found = []
    for given in node.inputs:
        spec = given.outputs[0]
        if node.op.name in LINALG and spec.shape[-1] == spec.shape[-2]:
            found.append(_regular(spec, generator))
        elif is_float(spec.dtype) or spec.dtype.kind == "b":
            found.append(some_numbers(spec.shape, spec.dtype, generator))
        elif is_coded:
            found.append(generator.integers(-100, 100, spec.shape).astype(spec.dtype))
        else:
            found.append(generator.integers(0, _bound(node), spec.shape).astype(spec.dtype))
    return found


def _bound(node: Node) -> int:
    """Return the exclusive upper bound of integer inputs of a node."""
    if node.op.name in POSITIONS:
        return node.inputs[0].shape[node.attrs["axis"]]
    if node.op.name.startswith("ctc"):
        return 20
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
