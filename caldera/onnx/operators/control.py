"""Branches and loops.

Shapes are fixed in a plan, so a branch or the number of turns of a loop is decided while the model
is written down; what decides it must be known then. `Scan` has a fixed number of turns and becomes
`op.scan`, one body however long it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.errors import DataError
from caldera.onnx.operators.registry import (
    Value,
    axis_of,
    is_known,
    known,
    known_if_possible,
    operator,
)
from caldera.onnx.reading import Graph

MOST_TURNS = 10_000
"""A loop that is longer than this while the model is written down is taken for an endless one."""


def _truth(value: Value) -> bool:
    return value is None or bool(known(value, "a condition").reshape(()))


@operator("If", foreign=True)
def if_(
    condition: Value, *, then_branch: Graph, else_branch: Graph, scope: Any
) -> tuple[Value, ...]:
    """One of two graphs; both, if what decides is fed and their results have the same shapes."""
    if is_known(condition):
        return tuple(scope.run(then_branch if _truth(condition) else else_branch, []))
    yes, no = scope.run(then_branch, []), scope.run(else_branch, [])
    if not all(_are_alike(a, b) for a, b in zip(yes, no, strict=True)):
        known(condition, "a condition")
    return tuple(op.where(condition, a, b) for a, b in zip(yes, no, strict=True))


def _are_alike(a: Value, b: Value) -> bool:
    plain = isinstance(a, Expr | np.ndarray) and isinstance(b, Expr | np.ndarray)
    return plain and a.shape == b.shape and a.dtype == b.dtype


def _stacked(parts: Sequence[Value], axis: int = 0) -> Value:
    if all(is_known(each) for each in parts):
        return np.stack(parts, axis)
    return op.stack(parts, axis)


@operator("Loop", foreign=True)
def loop(
    trips: Value = None, condition: Value = None, *carried: Value, body: Graph, scope: Any
) -> tuple[Value, ...]:
    """The body again and again, written down once for each turn."""
    most = math.inf if trips is None else int(known(trips, "the number of turns").item())
    values = list(carried)
    collected: list[list[Value]] = [[] for _ in body.outputs[1 + len(values) :]]
    turn = 0
    while turn < most and _truth(condition):
        if turn == MOST_TURNS:
            raise DataError.build("onnx Loop", expected=f"at most {MOST_TURNS} turns", got="more")
        given = np.array(turn), np.array(True) if condition is None else condition
        condition, *results = scope.run(body, [*given, *values])
        values = results[: len(values)]
        for held, new in zip(collected, results[len(values) :], strict=True):
            held.append(new)
        turn += 1
    rows = [
        _stacked(held) if held else _no_rows(declared)
        for held, declared in zip(collected, body.outputs[1 + len(values) :], strict=True)
    ]
    return (*values, *rows)


def _no_rows(declared: Any) -> np.ndarray:
    sizes = [size if isinstance(size, int) else 0 for size in declared.shape or ()]
    return np.zeros((0, *sizes), declared.dtype or np.float32)


def _moved(x: Value, source: int, target: int) -> Value:
    """One axis moved to another place."""
    order = [axis for axis in range(len(x.shape)) if axis != source]
    order.insert(target, source)
    return x if source == target else op.transpose(x, order)


@operator("Scan")
def scan(
    *inputs: Value,
    body: Graph,
    num_scan_inputs: int,
    directions: tuple[int, ...] = (),
    scan_input_axes: tuple[int, ...] = (),
    scan_input_directions: tuple[int, ...] = (),
    scan_output_axes: tuple[int, ...] = (),
    scan_output_directions: tuple[int, ...] = (),
    scope: Any,
    opset: int,
) -> tuple[Value, ...]:
    """The body for each index of an axis, with values that go from one to the next."""
    if opset < 9:
        return _scan_batches(inputs[1:], body, num_scan_inputs, directions, scope)
    states, sequences = inputs[:-num_scan_inputs], list(inputs[-num_scan_inputs:])
    for i, each in enumerate(sequences):
        axis = scan_input_axes[i] if scan_input_axes else 0
        moved = _moved(each, axis_of(axis, len(each.shape)), 0)
        turned = scan_input_directions and scan_input_directions[i]
        sequences[i] = known_if_possible(op.flip(moved, 0) if turned else moved)
    results = _run_scan(states, sequences, body, scope)
    for i in range(len(results) - len(states)):
        found = results[len(states) + i]
        if scan_output_directions and scan_output_directions[i]:
            found = op.flip(found, 0)
        axis = scan_output_axes[i] if scan_output_axes else 0
        results[len(states) + i] = _moved(found, 0, axis_of(axis, len(found.shape)))
    return tuple(results)


def _scan_batches(
    inputs: Sequence[Value], body: Graph, count: int, directions: Sequence[int], scope: Any
) -> tuple[Value, ...]:
    """Version 8 had an axis of samples before that of the steps."""
    samples = []
    for i in range(inputs[0].shape[0]):
        parts = [op.gather(each, i) for each in inputs]
        for j, direction in enumerate(directions, len(parts) - count):
            if direction:
                parts[j] = op.flip(parts[j], 0)
        parts = [known_if_possible(each) for each in parts]
        samples.append(_run_scan(parts[:-count], parts[-count:], body, scope))
    return tuple(_stacked(list(each)) for each in zip(*samples, strict=True))


def _run_scan(
    states: Sequence[Value], sequences: Sequence[Value], body: Graph, scope: Any
) -> list[Value]:
    """Along axis 0 of the sequences: the last states, then what was collected."""
    if all(is_known(each) for each in (*states, *sequences)):
        return _run_known_scan(list(states), sequences, body, scope)

    def step(carry: tuple[Expr, ...], given: tuple[Expr, ...]) -> tuple[Any, Any]:
        results = scope.run(body, [*carry, *given])
        return tuple(results[: len(states)]), tuple(results[len(states) :])

    last, collected = op.scan(step, tuple(states), tuple(sequences))
    return [*last, *collected]


def _run_known_scan(
    states: list[Value], sequences: Sequence[Value], body: Graph, scope: Any
) -> list[Value]:
    count = len(states)
    rows: list[list[Value]] = []
    for index in range(sequences[0].shape[0]):
        results = scope.run(body, [*states, *[np.asarray(each[index]) for each in sequences]])
        states = results[:count]
        rows.append(results[count:])
    return [*states, *[_stacked(list(column)) for column in zip(*rows, strict=True)]]
