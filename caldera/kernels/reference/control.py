"""Random numbers, assignment and ops that hold a graph, in NumPy."""

from __future__ import annotations

import numpy as np

from caldera.graph.body import Body
from caldera.graph.opdef import parameter
from caldera.kernels.reference.registry import interpret, reference
from caldera.tensor.dtype import DType
from caldera.tensor.philox import normal, uniform01
from caldera.tensor.shape import Shape, size


def _name(state: np.ndarray) -> tuple[int, int]:
    """Seed and step; an int64 holds the bits of an unsigned seed."""
    seed, step = (int(word) for word in state)
    return seed & (2**64 - 1), step


@reference("random_uniform")
def _random_uniform(
    state: np.ndarray, offset: np.ndarray, *, shape: Shape, dtype: DType, stream: int
) -> np.ndarray:
    seed, step = _name(state)
    return uniform01(seed, step, stream, int(offset), size(shape), dtype).reshape(shape)


@reference("random_normal")
def _random_normal(
    state: np.ndarray, offset: np.ndarray, *, shape: Shape, dtype: DType, stream: int
) -> np.ndarray:
    seed, step = _name(state)
    return normal(seed, step, stream, int(offset), size(shape), dtype).reshape(shape)


@reference("assign")
def _assign(target: np.ndarray, value: np.ndarray) -> np.ndarray:
    return value


@reference("scan")
def _scan(
    *inputs: np.ndarray, body: Body, carries: int, sequences: int, length: int, reverse: bool
) -> tuple[np.ndarray, ...]:
    stand_ins = [parameter(i, spec) for i, spec in enumerate(body.parameters)]
    carry = list(inputs[:carries])
    stacks = inputs[carries : carries + sequences]
    constants = inputs[carries + sequences :]
    results = [np.empty((length, *node.shape), node.dtype) for node in body.outputs[carries:]]
    for t in reversed(range(length)) if reverse else range(length):
        arguments = [*carry, *[stack[t] for stack in stacks], *constants]
        outputs = interpret(body.outputs, dict(zip(stand_ins, arguments, strict=True)))
        carry = outputs[:carries]
        for result, value in zip(results, outputs[carries:], strict=True):
            result[t] = value
    return (*carry, *results)
