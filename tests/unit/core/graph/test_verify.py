"""Each way in which a program can be broken is found, and the failure shows where."""

from __future__ import annotations

from typing import Any

import pytest

import caldera as cd
from caldera import op
from caldera.compiler.passes.pipeline import NAMES, optimise
from caldera.core.graph.node import Node, Spec, Symbol, intern
from caldera.core.graph.opdef import ITEM, OPS, Op, item, parameter
from caldera.core.graph.ops.base import assign, constant, input_, variable
from caldera.core.graph.ops.control import fused
from caldera.core.graph.ops.elementwise import add, exp, mul
from caldera.core.graph.program import Body, Program, topological
from caldera.core.graph.verify import MalformedGraphError, verify
from caldera.core.tensor.dtype import float32, float64, int64
from caldera.kernels.table import TABLE

VECTOR = Spec((3,), float32)


def leaf(name: str = "x", spec: Spec = VECTOR, role: str = "variable") -> Node:
    node: Node = variable(symbol=Symbol(name, spec, role))
    return node


def raw(made_of: Op, inputs: tuple[Node, ...], attrs: dict[str, Any], *outputs: Spec) -> Node:
    """A node that no rule has checked, as a faulty pass might make it."""
    node = Node()
    node.op = made_of
    node.inputs = inputs
    node.attrs = attrs
    node.outputs = outputs
    node.pin = None
    node.serial = -1
    return node


def raw_body(parameters: tuple[Spec, ...], *outputs: Node) -> Body:
    body = object.__new__(Body)
    body.parameters = parameters
    body.outputs = outputs
    body._order = tuple(topological(outputs))
    return body


def split(x: Node) -> Node:
    """A node with two outputs."""
    first = parameter(0, x.spec)
    return fused.node(x, body=Body([first], [exp(first), add(first, first)]))


def refused(*roots: Node) -> str:
    with pytest.raises(MalformedGraphError) as caught:
        verify(Program(roots))
    return str(caught.value)


# --- sound programs


def training_step() -> cd.Plan:
    x, w = op.input("x", (4, 3)), op.var("w", (3, 3), fill=cd.identity())

    def step(carry: cd.Expr, row: cd.Expr) -> tuple[cd.Expr, cd.Expr]:
        new = op.tanh(carry @ w + row)
        return new, new * 2.0

    last, _ = op.scan(step, op.broadcast(0.0, (1, 3)), op.reshape(x, (4, 1, 3)))
    loss = op.sum(op.square(last))
    return cd.compile([loss, op.assign(w, w - 0.1 * op.grad(loss, w))])


def test_sound_programs_pass() -> None:
    x = leaf()
    verify(Program((item(split(x), 1), mul(x, x)), ((x.attrs["symbol"], exp(x)),)))
    plan = training_step()
    verify(plan.original)
    verify(plan.optimised)


@pytest.mark.parametrize("without", [(), *[(name,) for name in NAMES]])
def test_passes_leave_programs_sound(without: tuple[str, ...]) -> None:
    program = training_step().original
    optimised = optimise(program, has_kernel=lambda n: TABLE.has(n, "cpu"), without=without)
    verify(optimised, f"all but {without}")


# --- broken nodes


@pytest.mark.parametrize("wrong", [Spec((4,), float32), Spec((3,), float64), Spec((3, 1), float32)])
def test_outputs_must_be_those_the_op_infers(wrong: Spec) -> None:
    message = refused(raw(exp, (leaf(),), {}, wrong))
    assert "its op returns (3,) float32" in message


def test_inputs_must_be_those_the_op_takes() -> None:
    other = leaf("y", Spec((4,), float32))
    assert "shapes that broadcast" in refused(raw(add, (leaf(), other), {}, VECTOR))
    how = {"axis": (0,), "keepdims": True}
    two = raw(OPS["sum"], (leaf(), leaf("y")), how, Spec((1,), float32))
    assert "does not take" in refused(two)
    unknown = raw(OPS["sum"], (leaf(),), how | {"speed": 3}, Spec((1,), float32))
    assert "does not take" in refused(unknown)


def test_attributes_must_be_hashable() -> None:
    node = raw(OPS["sum"], (leaf(),), {"axis": [0], "keepdims": False}, Spec((), float32))
    assert "attribute axis is not hashable" in refused(node)


def test_orders_are_free_as_long_as_they_are_orders() -> None:
    x = leaf()
    verify(Program((intern(exp, (x,), {}, (Spec((3,), float32, (0,)),)),)))
    wrong = intern(exp, (x,), {}, (Spec((3,), float32, (1,)),))
    assert "the order (1,) is no order of its axes" in refused(wrong)


def test_a_second_node_of_the_same_structure_is_found() -> None:
    x = leaf()
    kept = exp(x)
    assert "another node of the same structure" in refused(raw(exp, (x,), {}, VECTOR))
    verify(Program((kept,)))


def test_an_op_must_be_the_registered_one() -> None:
    imitation = Op("exp", lambda x: x, "elementwise")
    assert "not the one registered as 'exp'" in refused(raw(imitation, (leaf(),), {}, VECTOR))


# --- several outputs


def test_items_must_exist() -> None:
    both = split(leaf())
    assert "only 2 outputs" in refused(raw(ITEM, (both,), {"index": 2}, VECTOR))
    assert "only 2 outputs" in refused(raw(ITEM, (both,), {"index": -1}, VECTOR))
    wrong = Spec((3,), int64)
    assert "output 1 is (3,) float32" in refused(raw(ITEM, (both,), {"index": 1}, wrong))


def test_items_are_of_nodes_with_several_outputs() -> None:
    assert "one output" in refused(raw(ITEM, (leaf(),), {"index": 0}, VECTOR))
    assert "one input and an index" in refused(raw(ITEM, (), {"index": 0}, VECTOR))


def test_several_outputs_are_never_read_as_one() -> None:
    both = split(leaf())
    assert "reads all outputs of op.fused" in refused(raw(exp, (both,), {}, VECTOR))
    assert "several outputs" in refused(both)


# --- arguments and bodies


def test_arguments_stay_inside_bodies() -> None:
    assert "outside" in refused(exp(parameter(0, VECTOR)))
    traced: Node = input_(symbol=Symbol("carry", VECTOR, "parameter"))
    assert "outside" in refused(exp(traced))


def test_arguments_are_those_of_the_body() -> None:
    second = fused.node(leaf(), body=raw_body((VECTOR,), exp(parameter(1, VECTOR))))
    assert "only 1 arguments" in refused(second)
    other = Spec((3,), float64)
    wrong = fused.node(leaf(), body=raw_body((VECTOR,), exp(parameter(0, other))))
    assert "argument 0 is (3,) float32" in refused(wrong)


def test_bodies_read_nothing_from_outside() -> None:
    body = raw_body((VECTOR,), add(parameter(0, VECTOR), leaf("w")))
    message = refused(fused.node(leaf(), body=body))
    assert "from outside" in message
    assert "in the body of op.fused" in message


def test_a_fault_deep_inside_is_found() -> None:
    inner = raw_body((VECTOR,), raw(exp, (parameter(0, VECTOR),), {}, Spec((9,), float32)))
    argument = parameter(0, VECTOR)
    outer = raw_body((VECTOR,), fused.node(argument, body=inner))
    message = refused(fused.node(leaf(), body=outer))
    assert "in the body of op.fused: in the body of op.fused: its op returns (3,)" in message


def test_results_of_a_body_are_single_values() -> None:
    body = raw_body((VECTOR,), split(parameter(0, VECTOR)))
    message = refused(raw(fused, (leaf(),), {"body": body}, VECTOR))
    assert "does not take these inputs and attributes" in message


# --- updates


def test_assignments_are_on_the_program() -> None:
    x = leaf()
    assert "updates belong to the program" in refused(add(assign(x, exp(x)), x))


def test_updates_fit_their_variables() -> None:
    x, wide = leaf(), leaf("wide", Spec((3,), float64))
    symbol = x.attrs["symbol"]
    with pytest.raises(MalformedGraphError, match="another shape or dtype"):
        verify(Program((), ((symbol, exp(wide)),)))
    with pytest.raises(MalformedGraphError, match="a second new value"):
        verify(Program((), ((symbol, exp(x)), (symbol, mul(x, x)))))
    with pytest.raises(MalformedGraphError, match="no variable"):
        verify(Program((), ((Symbol("x", VECTOR, "input"), exp(x)),)))


# --- the message


def test_a_failure_shows_the_neighbourhood() -> None:
    x = leaf("weights")
    wrong = raw(mul, (x, constant(2.0, float32)), {}, Spec((7,), float32))
    reader = raw(exp, (wrong,), {}, Spec((7,), float32))
    with pytest.raises(MalformedGraphError) as caught:
        verify(Program((reader,)), after="simplify")
    message = str(caught.value)
    assert message.startswith("malformed graph: after simplify: its op returns (3,) float32")
    assert "node      #-1 mul(weights, 2.0) (7,) float32" in message
    assert "input" in message
    assert "weights (3,) float32" in message
    assert "read by   #-1 exp(mul(…)) (7,) float32" in message
