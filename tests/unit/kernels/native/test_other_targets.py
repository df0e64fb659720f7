"""Kernels for processors other than this one: all of them compile, and those run that can."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import numpy as np
import pytest

from caldera.base.config import settings
from caldera.core.graph.memory_format import laid_out
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import as_tuple, parameter
from caldera.core.graph.ops.activation import softmax
from caldera.core.graph.ops.epilogue import conv2d_moments
from caldera.core.graph.ops.product import matmul
from caldera.core.tensor.dtype import BY_NAME
from caldera.kernels.native import families  # noqa: F401 - registers its kernels
from caldera.kernels.native.codegen.emitter import F32, natural_lanes
from caldera.kernels.native.codegen.target import host_target
from caldera.kernels.native.product import amx
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE, Call, Kernel
from caldera.kernels.tuning.correctness import compare, tolerance_of
from caldera.kernels.tuning.measure import some_numbers
from tests.unit.kernels.native.convolution.cases import convolution_nodes
from tests.unit.kernels.native.other_targets import building_for, runs_here


def _product(dtype: str, rows: int = 20, terms: int = 30, columns: int = 50) -> Node:
    left, right = (Spec(shape, BY_NAME[dtype]) for shape in ((rows, terms), (terms, columns)))
    node: Node = matmul(parameter(0, left), parameter(1, right), ta=False, tb=False)
    return node


def _nodes() -> Iterator[tuple[str, Node]]:
    """A kernel by its name and what it runs: one of each way to use vectors."""
    yield "packed", _product("float32")
    yield "packed", _product("float64")
    yield "tiles", _product("float16", 4, 30, 40)
    forward, *_ = convolution_nodes((2, 16, 6, 6), (16, 16, 3, 3), padding=((1, 1), (1, 1)))
    yield "direct", forward
    yield "winograd 2x2", forward
    forward, *_ = convolution_nodes((4, 16, 16, 16), (16, 16, 3, 3), padding=((1, 1), (1, 1)))
    # Sums of what is written are taken on the way.
    image, *_ = as_tuple(conv2d_moments.outputs(*forward.inputs, **forward.attrs))
    yield "winograd 2x2", image.inputs[0]
    for few in convolution_nodes((2, 1, 9, 20), (6, 1, 5, 5), padding=((2, 2), (2, 2))):
        # Narrow vectors are filled by channels.
        if any(kernel.name == "planes" for kernel in TABLE.candidates(few, "cpu")):
            yield "planes", few
    node: Node = softmax(parameter(0, Spec((6, 37), BY_NAME["float32"])), axis=1)
    yield "native", node


def _kernel(node: Node, name: str) -> Kernel:
    return next(each for each in TABLE.candidates(node, "cpu") if each.name == name)


def _array(spec: Spec, values: np.ndarray | None = None) -> np.ndarray:
    memory = np.zeros(spec.size + 64, spec.dtype)
    start = (-memory.ctypes.data % 64) // spec.dtype.itemsize
    array: np.ndarray = laid_out(memory[start : start + spec.size], spec.shape, spec.order)
    if values is not None:
        array[...] = values
    return array


def _run(name: str, node: Node, *, is_called: bool) -> None:
    draw = np.random.default_rng(0)
    specs = [given.outputs[0] for given in node.inputs]
    inputs = tuple(_array(each, some_numbers(each.shape, each.dtype, draw)) for each in specs)
    outputs = tuple(_array(each) for each in node.outputs)
    kernel = _kernel(node, name)
    workspace = _array(Spec((kernel.workspace(node),), np.dtype(np.uint8)))
    runner = kernel.bind(Call(node, outputs, inputs, workspace))
    if is_called:
        runner()
        for found, right in zip(outputs, evaluate(node, inputs), strict=True):
            compare(found, right, tolerance_of(node, found.dtype))


@pytest.mark.parametrize("name", ["sse2", "avx2", "avx512", "neon"])
def test_kernels_of_every_instruction_set(name: str) -> None:
    with settings.override(threads=1), building_for(name):
        for kernel, node in _nodes():
            _run(kernel, node, is_called=runs_here(name))


def test_tile_registers_compile_on_machines_without_them() -> None:
    may = patch.object(amx, "has_amx", lambda: True)
    with settings.override(threads=1), building_for("amx"), may:
        _run("amx", _product("bfloat16", 32, 64, 32), is_called=False)


def test_this_machine_is_itself_again() -> None:
    node = _product("float32")
    kernel = _kernel(node, "packed")
    here, taken = host_target(), kernel.workspace(node)
    with building_for("sse2"):
        assert natural_lanes(F32) == 4
    assert (natural_lanes(F32), kernel.workspace(node)) == (here.lanes(4), taken)
    _run("packed", node, is_called=True)
