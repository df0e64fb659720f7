"""Scans: a graph repeated along a sequence, interpreted step by step."""

from __future__ import annotations

import numpy as np

from caldera.core.graph.body import Body
from caldera.core.graph.opdef import parameter
from caldera.kernels.reference.evaluation import interpreter
from caldera.kernels.reference.registry import reference


@reference("scan")
def _scan(
    *inputs: np.ndarray, body: Body, carries: int, sequences: int, length: int, reverse: bool
) -> tuple[np.ndarray, ...]:
    stand_ins = [parameter(i, spec) for i, spec in enumerate(body.parameters)]
    step = interpreter(body.outputs, stand_ins)
    carry = list(inputs[:carries])
    stacks = inputs[carries : carries + sequences]
    constants = inputs[carries + sequences :]
    results = [np.empty((length, *node.shape), node.dtype) for node in body.outputs[carries:]]
    for t in reversed(range(length)) if reverse else range(length):
        outputs = step([*carry, *[stack[t] for stack in stacks], *constants])
        carry = outputs[:carries]
        for result, value in zip(results, outputs[carries:], strict=True):
            result[t] = value
    return (*carry, *results)
