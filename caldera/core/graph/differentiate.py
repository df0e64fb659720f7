"""Reverse-mode differentiation, from graph to graph.

The result is a graph of ordinary nodes, so higher derivatives are derivatives of the result, and
passes optimise all graphs alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from caldera.base.arguments import require
from caldera.core.graph import (
    HOLOMORPHIC,
    ITEM,
    Node,
    as_tuple,
    describe,
    items,
    parameter,
    pinned,
    substitute,
    topological,
)
from caldera.core.graph.ops import add, conj, full
from caldera.core.graph.ops.collective import backward_pass
from caldera.core.tensor.dtype import is_complex, is_inexact
from caldera.errors import GradientError, ShapeError


def gradients(
    output: Node, wrt: Sequence[Node], seed: Node | None = None, *, unused: str = "error"
) -> list[Node]:
    """Return the derivative of `output` with respect to each node of `wrt`.

    `output` is a scalar, or has a `seed`: the derivative of some scalar with respect to it.
    `unused` selects the treatment of nodes that `output` does not depend on: "error" or "zero". The
    derivative with respect to a complex number is the derivative for its real part plus i times the
    derivative for its imaginary part.
    """
    require(unused in ("error", "zero"), "op.grad", "unused='error' or 'zero'", repr(unused))
    if not is_inexact(output.dtype):
        raise GradientError.build(
            "op.grad", expected="a floating-point value to differentiate", got=describe(output)
        )
    if seed is None:
        if is_complex(output.dtype):
            raise GradientError.build(
                "op.grad",
                expected="a real value to differentiate",
                got=describe(output),
                hint="apply op.real, op.imag or op.abs, or pass seed=",
            )
        if output.shape != ():
            raise ShapeError.build(
                "op.grad",
                expected="a scalar to differentiate",
                got=describe(output),
                hint="reduce it with op.sum or op.mean, or give seed=",
            )
        seed = full((), 1, output.dtype)
    elif seed.spec.logical != output.spec.logical:
        raise ShapeError.build(
            "op.grad", expected=f"a seed like the output, {output.spec}", got=describe(seed)
        )
    found = accumulate([output], [seed], wrt)
    result = []
    for node, gradient in zip(wrt, found, strict=True):
        if gradient is None:
            if unused != "zero":
                _check_path(output, node)
            gradient = full(node.shape, 0, node.dtype)
        result.append(gradient)
    return result


def accumulate(
    outputs: Sequence[Node], seeds: Sequence[Node | None], wrt: Sequence[Node]
) -> list[Node | None]:
    """For each node of `wrt` the sum of its gradients from all `outputs`; None if none reaches it.

    This is the whole of reverse mode: visit users before inputs, ask each op for its rule, add.
    """
    with backward_pass():
        return _accumulate(outputs, seeds, wrt)


def _accumulate(
    outputs: Sequence[Node], seeds: Sequence[Node | None], wrt: Sequence[Node]
) -> list[Node | None]:
    order = topological(outputs)
    wanted = set(wrt)
    active: set[Node] = set()
    for node in order:
        if node in wanted or any(given in active for given in node.inputs):
            active.add(node)
    gradient: dict[Node, Node] = {}
    for node, seed in zip(outputs, seeds, strict=True):
        if seed is not None:
            _add_to(gradient, node, seed)
    partial: dict[Node, dict[int, Node]] = {}
    for node in reversed(order):
        if node not in active:
            continue
        if node.op is ITEM:
            if node in gradient:
                partial.setdefault(node.inputs[0], {})[node.attrs["index"]] = gradient[node]
            continue
        several = partial.get(node)
        if several is None and node not in gradient:
            continue
        if not any(given in active for given in node.inputs):
            continue
        with pinned(node.pin):
            parts = _apply_rule(node, gradient, several)
        for given, part in zip(node.inputs, parts, strict=True):
            if part is not None and given in active and is_inexact(given.dtype):
                _add_to(gradient, given, part)
    return [gradient.get(node) for node in wrt]


def _apply_rule(
    node: Node, gradient: dict[Node, Node], several: dict[int, Node] | None
) -> tuple[Node | None, ...]:
    g: Any = gradient.get(node)
    y: Any = node
    if len(node.outputs) > 1:
        g = tuple((several or {}).get(index) for index in range(len(node.outputs)))
        y = items(node)
    rule = node.op.gradient_rule
    if rule is not None and node.op.name in HOLOMORPHIC and is_complex(node.dtype):
        parts = rule(conj(g), y, *node.inputs, **node.attrs)
        return tuple(None if part is None else conj(part) for part in parts)
    if rule is not None:
        return rule(g, y, *node.inputs, **node.attrs)
    if node.op.differentiable:
        return _through_parts(node, as_tuple(g))
    raise GradientError.build(
        f"op.{node.op.name}",
        expected="a differentiable op on the way to the variable",
        got=f"{describe(node)}, which has no derivative",
        hint="use op.stop_gradient on its input if that is meant",
    )


def _through_parts(node: Node, seeds: Sequence[Node | None]) -> tuple[Node | None, ...]:
    """Return the gradient of a composite, derived from its decomposition."""
    # Placeholders keep the traversal inside: one input may be computed from another, whose gradient
    # is accumulated later.
    inputs = [parameter(i, given.spec) for i, given in enumerate(node.inputs)]
    slots = [parameter(len(inputs) + i, spec) for i, spec in enumerate(node.outputs)]
    assert node.op.decompose is not None
    parts = as_tuple(node.op.decompose(*inputs, **node.attrs))
    live = [None if seed is None else slot for slot, seed in zip(slots, seeds, strict=True)]
    found = accumulate(parts, live, inputs)
    stand_ins = dict(zip(inputs, node.inputs, strict=True))
    stand_ins |= {s: seed for s, seed in zip(slots, seeds, strict=True) if seed is not None}
    reached = [part for part in found if part is not None]
    written = iter(substitute(reached, stand_ins))
    return tuple(None if part is None else next(written) for part in found)


def _add_to(gradient: dict[Node, Node], node: Node, part: Node) -> None:
    # A wrong shape here would be a broken gradient rule; it must not broadcast into a wrong answer.
    fits = part.spec.logical == node.spec.logical
    assert fits, f"gradient {part.spec} of {describe(node)} does not match"
    gradient[node] = add(gradient[node], part) if node in gradient else part


def _check_path(output: Node, node: Node) -> None:
    """Raise unless a differentiable path exists (a rule may then say that it carries zero)."""
    smooth, reached = {node}, {node}
    stops: dict[str, None] = {}
    for step in topological([output]):
        if any(given in reached for given in step.inputs):
            reached.add(step)
        if any(given in smooth for given in step.inputs):
            carries = any(is_inexact(spec.dtype) for spec in step.outputs)
            if carries and (step.op is ITEM or step.op.differentiable):
                smooth.add(step)
            else:
                stops[f"op.{step.op.name}"] = None
    if output not in reached:
        raise GradientError.build(
            "op.grad",
            expected="variables the expression depends on",
            got=describe(node),
            hint="leave it out, or pass unused='zero'",
        )
    if output not in smooth:
        raise GradientError.build(
            "op.grad",
            expected=f"a differentiable path from {describe(node)}",
            got="only paths through " + ", ".join(stops),
            hint="these have no derivative; pass unused='zero' to take it as zero",
        )
