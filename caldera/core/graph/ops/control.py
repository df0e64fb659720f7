"""Ops that hold a graph: `fused` (a body that runs in one pass), `scan` (a loop over an axis)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from caldera.core.graph import (
    ITEM,
    OPS,
    Body,
    Node,
    Nodes,
    Spec,
    as_tuple,
    composite,
    items,
    op,
    parameter,
    refuse_dtype,
    refuse_shape,
    topological,
)
from caldera.core.graph.differentiate import accumulate
from caldera.core.graph.ops import add, full, matmul, reshape, transpose
from caldera.core.tensor.dtype import is_inexact


@op(
    "fused",
    kind="control",
    flops=lambda node: sum(part.op.count_flops(part) for part in node.attrs["body"].order()),
)
def fused(*inputs: Spec, body: Body) -> tuple[Spec, ...]:
    """Return the outputs of `body`, computed in one pass over the data. Made by passes."""
    if inputs != body.parameters:
        refuse_shape(f"inputs {', '.join(str(spec) for spec in body.parameters)}")
    return tuple(node.spec for node in body.outputs)


fused.decompose = lambda *inputs, body: body(*inputs)


@op("scan", kind="control")
def scan(
    *inputs: Spec, body: Body, carries: int, sequences: int, length: int, reverse: bool
) -> tuple[Spec, ...]:
    """Loop: `body(carry…, x_t…, constant…) -> (carry…, y_t…)` for each index t of the sequences.

    Inputs are the first carries, the sequences (stacked along axis 0) and the constants; outputs
    are the last carries and the y_t stacked along axis 0. `reverse` runs t from the end; y_t is
    still stored at index t.
    """
    per_step = []
    for i, spec in enumerate(inputs):
        if carries <= i < carries + sequences:
            if spec.shape[:1] != (length,):
                refuse_shape(f"sequences of {length} steps along axis 0", got=str(spec))
            spec = Spec(spec.shape[1:], spec.dtype)
        per_step.append(spec)
    if tuple(per_step) != body.parameters:
        refuse_shape(f"inputs that a step takes as {', '.join(map(str, body.parameters))}")
    for before, after in zip(body.parameters[:carries], body.outputs[:carries], strict=True):
        if before != after.spec:
            refuse_dtype(
                f"a step that returns its carry as {before}",
                got=str(after.spec),
                hint="cast or reshape the carry inside the step",
            )
    stacked = [Spec((length, *node.shape), node.dtype) for node in body.outputs[carries:]]
    return (*body.parameters[:carries], *stacked)


@scan.flops
def _(node: Node) -> int:
    body: Body = node.attrs["body"]
    return int(node.attrs["length"]) * sum(part.op.count_flops(part) for part in body.order())


@scan.gradient
def _(
    g: Node | tuple[Node | None, ...],
    y: Node | Nodes,
    *inputs: Node,
    body: Body,
    carries: int,
    sequences: int,
    **how: Any,
) -> tuple[Node | None, ...]:
    """Run the loop again the other way, with the derivative of the body as its body."""
    given = as_tuple(g)
    loop = y if isinstance(y, Node) else y[0].inputs[0]
    first_constant = carries + sequences
    parameters = body.arguments()
    seeds = [parameter(len(parameters) + i, node.spec) for i, node in enumerate(body.outputs)]
    live = [
        seed if is_inexact(seed.dtype) and (i < carries or given[i] is not None) else None
        for i, seed in enumerate(seeds)
    ]
    carried = [i for i in range(carries) if is_inexact(parameters[i].dtype)]
    gradients = _of_step(body, live, parameters, carried)
    emitted = [i for i in gradients if carries <= i < first_constant]
    factored, reduced, summed = _of_constants(gradients, emitted, first_constant)
    factors = [factor for i in factored for factor in gradients[i].inputs]
    sums = [
        parameter(len(parameters) + len(seeds) + i, parameters[k].spec)
        for i, k in enumerate(summed)
    ]
    outputs = [gradients[i] for i in carried]
    outputs += [add(total, gradients[k]) for total, k in zip(sums, summed, strict=True)]
    outputs += [gradients[i] for i in emitted] + factors
    outputs += [gradients[i].inputs[0] for i in reduced]
    if not outputs:
        return (None,) * len(inputs)
    saved = _residuals(outputs, body, parameters[:carries])
    history = _history(saved, loop)
    fed = [(seeds[i], part) for i, part in enumerate(given) if i >= carries and part is not None]
    along = [*zip(parameters, inputs, strict=True)][carries:first_constant]
    along += [*zip(saved, history, strict=True), *[pair for pair in fed if pair[0] in live]]
    starts = [_or_zeros(given[i], parameters[i].spec) for i in carried]
    starts += [_or_zeros(None, total.spec) for total in sums]
    arguments = [seeds[i] for i in carried] + sums
    arguments += [step for step, _ in along] + parameters[first_constant:]
    results = scan.outputs(
        *starts,
        *[stack for _, stack in along],
        *inputs[first_constant:],
        body=Body(arguments, outputs),
        carries=len(starts),
        sequences=len(along),
        length=how["length"],
        reverse=not how["reverse"],
    )
    stacks = iter(results)
    gradient = {i: next(stacks) for i in [*carried, *summed, *emitted]}
    for i in factored:
        gradient[i] = _product_over_steps(next(stacks), next(stacks), gradients[i])
    for i in reduced:
        gradient[i] = _sum_over_steps(next(stacks), gradients[i])
    return tuple(gradient.get(i) for i in range(len(inputs)))


def _of_step(
    body: Body, seeds: Sequence[Node | None], parameters: Sequence[Node], carried: Sequence[int]
) -> dict[int, Node]:
    """Return the gradient of each parameter that has one; carries have one, maybe of zeros."""
    found = accumulate(body.outputs, seeds, parameters)
    zeros = {i: full(parameters[i].shape, 0, parameters[i].dtype) for i in carried}
    return {i: part for i, part in enumerate(found) if part is not None} | {
        i: zero for i, zero in zeros.items() if found[i] is None
    }


def _of_constants(
    gradients: Mapping[int, Node], emitted: Sequence[int], first_constant: int
) -> tuple[list[int], list[int], list[int]]:
    """The constants by how the terms of each step are added: as products, as sums, in the loop.

    A constant's gradient is a sum over all steps. Where each term is a product of two matrices, the
    whole sum is one large product of the stacked factors, made after the loop. So is a sum over
    rows of something that is stacked anyway (a bias).
    """
    constants = {i: node for i, node in gradients.items() if i >= first_constant}
    factored = [i for i, node in constants.items() if node.op is matmul and len(node.shape) == 2]
    stacked = {factor for i in factored for factor in constants[i].inputs}
    stacked |= {gradients[i] for i in emitted}
    reduced = [
        i for i, node in constants.items() if node.op.name == "sum" and node.inputs[0] in stacked
    ]
    return factored, reduced, [i for i in constants if i not in (*factored, *reduced)]


def _or_zeros(node: Node | None, spec: Spec) -> Node:
    return full(spec.shape, 0, spec.dtype) if node is None else node


def with_body(loop: Node, body: Body, *more: Node) -> Node:
    """Return the loop with another body, which takes `more` constants."""
    return loop.op.node(*loop.inputs, *more, **{**loop.attrs, "body": body})


def _product_over_steps(a: Node, b: Node, step: Node) -> Node:
    """Return the sum over t of the products `step` of a[t] and b[t], as one product."""
    ta, tb = step.attrs["ta"], step.attrs["tb"]
    return matmul(_joined(a, ta), _joined(b, not tb), **step.attrs)


def _sum_over_steps(stack: Node, step: Node) -> Node:
    """Return the sum over t of the sums `step` of stack[t], as one sum."""
    axes = (0, *(axis + 1 for axis in step.attrs["axis"]))
    total = step.op.node(stack, axis=axes, keepdims=False)
    return reshape(total, step.shape)


def _joined(stack: Node, inner_first: bool) -> Node:
    """(t, inner, n) as (t inner, n), or (t, n, inner) as (n, t inner)."""
    t, rows, columns = stack.shape
    if inner_first:
        return reshape(stack, (t * rows, columns))
    return reshape(transpose(stack, (1, 0, 2)), (rows, t * columns))


def _residuals(outputs: Sequence[Node], body: Body, carry: Sequence[Node]) -> list[Node]:
    """Return the values of the forward step that the backward step needs.

    They are the initial carries and the results of expensive ops; cheap ones are recomputed. Where
    only one cheap op reads a result, the output of that op is stored instead, so that its other
    inputs are not needed.
    """
    forward = set(topological(body.outputs))
    carries = set(carry)

    def is_kept(node: Node) -> bool:
        # Several results are stored separately, without the results used by the forward step.
        maker = node.inputs[0] if node.op is ITEM else node
        made = maker in forward and bool(node.inputs) and maker.op.kind not in _CHEAP
        return node in carries or (made and len(node.outputs) == 1)

    users = _readers(outputs, is_kept)
    kept = {_used_as(node, users, forward, set(outputs)) for node in users if is_kept(node)}
    return [node for node in _readers(outputs, kept.__contains__) if node in kept]


_CHEAP = ("elementwise", "movement")


def _readers(outputs: Sequence[Node], stop: Callable[[Node], bool]) -> dict[Node, list[Node]]:
    """Return the nodes that outputs depend on, with their users.

    Nodes below a `stop` node are not visited.
    """
    found: dict[Node, list[Node]] = {node: [] for node in outputs}
    stack = list(found)
    while stack:
        node = stack.pop()
        if stop(node):
            continue
        for given in dict.fromkeys(node.inputs):
            if given not in found:
                found[given] = []
                stack.append(given)
            found[given].append(node)
    return found


def _used_as(
    node: Node, users: Mapping[Node, Sequence[Node]], forward: set[Node], outputs: set[Node]
) -> Node:
    """Return the last of a chain of element-wise ops that are the only users of a node."""
    while node not in outputs and len(users[node]) == 1:
        (user,) = users[node]
        if user not in forward or user.op.kind != "elementwise" or user.outputs != node.outputs:
            break
        node = user
    return node


@composite("with_gradient")
def with_gradient(*inputs: Node, results: int, count: int, backward: Body) -> Nodes:
    """Return the first inputs, of which there are `results`.

    `backward` has gradients for the next ones.

    It computes them from the gradients of the results, the results, these inputs, of which there
    are `count`, and constants: one for each input of floating-point numbers.
    """
    return inputs[:results]


@with_gradient.gradient
def _(
    g: Any, y: Any, *inputs: Node, results: int, count: int, backward: Body
) -> tuple[Node | None, ...]:
    values = as_tuple(y)
    seeds = [_or_zeros(seed, value.spec) for seed, value in zip(as_tuple(g), values, strict=True)]
    found = iter(backward(*seeds, *values, *inputs[results:]))
    own = [next(found) if is_inexact(x.dtype) else None for x in inputs[results:][:count]]
    return (*[None] * results, *own, *[None] * (len(inputs) - results - count))


def _history(saved: Sequence[Node], loop: Node) -> list[Node]:
    """Return the values of `saved` at every step, from a second forward loop.

    A pass merges this loop with the first one. Where the first returns all values, it is reused.
    """
    body, carries = loop.attrs["body"], loop.attrs["carries"]
    place = {node: carries + i for i, node in enumerate(body.outputs[carries:])}
    extra = [node for node in saved if node not in place]
    place |= {node: len(body.outputs) + i for i, node in enumerate(extra)}
    stacks = items(with_body(loop, body.with_outputs((*body.outputs, *extra))))
    return [stacks[place[node]] for node in saved]


def close_over(arguments: Sequence[Node], outputs: Sequence[Node]) -> Nodes:
    """Return the outer nodes that a traced body reads: they become constants of the loop."""
    inside = set(arguments)
    # Constants, also seen in a larger shape: every body has its own, so that they fuse.
    everywhere: set[Node] = set()
    order = topological(outputs)
    for node in order:
        if any(given in inside for given in node.inputs):
            inside.add(node)
        elif node.op in _IN_EVERY_BODY and all(given in everywhere for given in node.inputs):
            everywhere.add(node)
    outer: dict[Node, None] = {}
    for node in (*[given for step in order if step in inside for given in step.inputs], *outputs):
        if node not in inside and node not in everywhere:
            outer[node] = None
    return tuple(outer)


_IN_EVERY_BODY = frozenset({OPS["constant"], OPS["iota"], OPS["broadcast_to"]})
