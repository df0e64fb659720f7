"""The sums of batch normalisation go into the convolutions before it."""

from __future__ import annotations

import pytest

import caldera as cd
from caldera import op
from caldera.compiler.lazy import Expr
from caldera.compiler.passes.epilogue import norm_epilogue, norm_sums
from caldera.core.graph.ops.normalisation import batch_norm_grad
from caldera.core.graph.ops.product import conv2d_input
from caldera.core.graph.program import Program
from tests.unit.compiler.passes.tools import joined, names

JOINED = ("conv2d_moments", "conv2d_input_norm_reduce", "batch_norm_grad_elementwise")


def _image(name: str, *shape: int) -> Expr:
    return op.var(name, shape, fill=cd.uniform(-1, 1))


class _Net:
    """An image, filters and normalisations of three channels."""

    def __init__(self) -> None:
        self.x = _image("x", 4, 3, 6, 5)
        self.filters = [_image("w" * (i + 1), 3, 3, 3, 3) for i in range(3)]
        self.scales = [_image("scale" + "s" * i, 3) + 2.0 for i in range(3)]
        self.shifts = [_image("shift" + "t" * i, 3) for i in range(3)]

    def convolved(self, x: Expr, i: int) -> Expr:
        return op.conv2d(x, self.filters[i], padding=1)

    def norm(self, x: Expr, i: int) -> Expr:
        y: Expr = op.batch_norm(x, self.scales[i], self.shifts[i])[0]
        return y

    @property
    def variables(self) -> list[Expr]:
        return [self.x, *self.filters]


@pytest.fixture
def net() -> _Net:
    return _Net()


def _joined(*outputs: Expr) -> Program:
    return joined(lambda program: norm_sums(norm_epilogue(program)), outputs, near=1e-4)


def _found(program: Program) -> list[str]:
    return [name for name in names(program) if name in JOINED]


def test_statistics_join_the_convolution(net: _Net) -> None:
    y, mean, variance = op.batch_norm(net.convolved(net.x, 0), net.scales[0], net.shifts[0])
    program = _joined(y, mean, variance)
    assert _found(program) == ["conv2d_moments"]
    assert "batch_norm_inference" in names(program)
    assert _found(_joined(op.relu(y))) == ["conv2d_moments"]
    assert _found(_joined(op.relu(y + net.x))) == ["conv2d_moments"]


def test_what_was_not_convolved_keeps_its_statistics(net: _Net) -> None:
    assert _found(_joined(net.norm(op.exp(net.x), 0))) == []


def test_one_convolution_serves_two_normalisations(net: _Net) -> None:
    x = net.convolved(net.x, 0)
    program = _joined(net.norm(x, 0), net.norm(x, 1), x)
    assert _found(program) == ["conv2d_moments"]


def test_gradients_of_a_residual_block(net: _Net) -> None:
    z = op.relu(net.norm(net.convolved(net.x, 0), 0))
    y = op.relu(net.norm(net.convolved(z, 1), 1))
    last = op.relu(net.norm(net.convolved(y, 2), 2) + z)
    loss = op.sum(net.convolved(last, 1) * net.convolved(last, 0))
    program = _joined(loss, *op.grad(loss, net.variables))
    reduced = [n for n in program.order() if n.op.name == "conv2d_input_norm_reduce"]
    forms = sorted((str(n.attrs["mask"]), n.attrs["added"]) for n in reduced)
    assert forms == [("x", False), ("x", True), ("y", True)]
    assert "batch_norm_relu_grad" not in names(program)


def test_gradients_without_a_relu(net: _Net) -> None:
    y = net.norm(net.convolved(net.x, 0), 0)
    loss = op.sum(op.square(net.convolved(y, 1)))
    program = _joined(loss, *op.grad(loss, net.variables[:2]))
    assert "conv2d_input_norm_reduce" in _found(program)


def test_a_gradient_that_is_read_before_the_mask_stays(net: _Net) -> None:
    """The joined node gives what is behind the relu's mask alone."""
    z = op.relu(net.norm(net.convolved(net.x, 0), 0))
    loss = op.sum(op.square(net.convolved(z, 1)))
    program = _joined(*op.grad(loss, [net.filters[0], z]))
    assert _found(program) == ["conv2d_moments"]


def test_derivatives_of_derivatives_have_no_cycle(net: _Net) -> None:
    z = op.relu(net.norm(net.convolved(net.x, 0), 0))
    loss = op.sum(op.square(net.convolved(z, 1)))
    (slope,) = op.grad(loss, [net.filters[0]])
    again = op.grad(op.sum(op.square(slope)), [net.filters[1]])
    assert _found(_joined(loss, *again))


def test_a_gradient_of_statistics_that_need_it_stays(net: _Net) -> None:
    """What is normalised may come from the very gradient that is summed."""
    how = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}
    g = Expr(conv2d_input(net.x.node, net.filters[0].node, shape=net.x.shape, **how))
    mean, variance = op.mean(g, axis=(0, 2, 3)), op.mean(op.square(g), axis=(0, 2, 3))
    given = (g, op.exp(g), net.scales[0], mean, variance)
    slopes = batch_norm_grad.outputs(*[each.node for each in given], axis=1, eps=0.1)
    assert "conv2d_input_norm_reduce" not in _found(_joined(*map(Expr, slopes)))


def test_where_workspace_is_limited_batches_can_be_cut(net: _Net) -> None:
    def ops() -> set[str]:
        plan = cd.compile(op.sum(net.norm(net.convolved(net.x, 0), 0)))
        return {step.node.op.name for step in plan.schedule.steps}

    assert "conv2d_moments" in ops()
    for limit in ({"workspace_limit": 1 << 20}, {"workspace_total": 1 << 24}):
        with cd.settings.override(**limit):
            assert not ops() & set(JOINED)
