"""The functions of a library as plans: prediction and its derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from caldera import op
from caldera.base.arguments import require
from caldera.base.config import settings
from caldera.compiler.lazy import Expr, compile
from caldera.compiler.plan.plan import Plan
from caldera.core.graph import Spec
from caldera.core.tensor.dtype import is_float
from caldera.export.rows import check_rows
from caldera.kernels.native.codegen.matrix_multiply import standalone
from caldera.kernels.native.codegen.target import TARGETS, compiled_for
from caldera.kernels.tuning.database import choosing_for
from caldera.optim import LossScale
from caldera.train.model import Model
from caldera.train.step import StepPlans
from caldera.train.step_graph import main_output
from caldera.train.strategy import SingleProcessStrategy


class FunctionPlan(NamedTuple):
    """A plan for a number of rows, the inputs that a caller passes, and names of the outputs."""

    plan: Plan
    inputs: Mapping[str, Spec]
    outputs: Sequence[str]


Planner = Callable[[int], FunctionPlan]


class FunctionKind(NamedTuple):
    """A function that a library may have: a description, and a maker of plans.

    A function of whole batches accepts only the numbers of rows that it was made for.
    """

    about: str
    planner: Callable[[Model], Planner]
    is_whole: bool = False


NATIVE = "native"
"""The name of this machine as a target."""


@contextmanager
def as_exported(threads: int, target: str = NATIVE) -> Iterator[None]:
    """Context in which plans are compiled, bound and run as they are exported.

    Plans for other processors than this one cannot run.
    """
    other = TARGETS.get(target)
    with (
        standalone(),
        settings.override(threads=threads),
        compiled_for(other),
        choosing_for("" if other is None else target),
    ):
        yield


def prediction_of(model: Model, rows: int) -> tuple[list[Expr], Expr]:
    """Return the inputs of a model for a number of samples, and its main output."""
    inputs, outputs, traced = model.expressions(rows)
    require(
        not traced.updates,
        "export",
        "a network that changes no variables when it predicts",
        ", ".join(each.node.inputs[0].attrs["symbol"].name for each in traced.updates),
        "run this model with Caldera",
    )
    return inputs, main_output(outputs, model.objective)[1]


def check_model(model: Model, rows: int) -> None:
    """Raise an error unless all samples have the same size and are computed independently."""
    plan, inputs, _ = predict_plan(model, max(2, rows))
    check_rows(plan, inputs, partial(prediction_of, model))


def predict_plan(model: Model, rows: int) -> FunctionPlan:
    """Return the plan that predicts for a number of samples."""
    inputs, prediction = prediction_of(model, rows)
    require(
        prediction.shape and prediction.shape[0] == rows,
        "export",
        f"an output with a row for each of {rows} samples",
        f"shape {prediction.shape}",
    )
    return _planned(model, inputs, {"y": prediction})


def vjp_plan(model: Model, rows: int) -> FunctionPlan:
    """Return the plan of the adjoint: dx = J^T dy, for the Jacobian J of each row."""
    inputs, prediction = prediction_of(model, rows)
    dy = op.input("dy", prediction.shape, prediction.dtype)
    wanted = _differentiable("vjp", inputs, prediction)
    found = op.grad(prediction, list(wanted.values()), seed=dy, unused="zero")
    return _planned(model, [*inputs, dy], dict(zip(wanted, found, strict=True)))


def jvp_plan(model: Model, rows: int) -> FunctionPlan:
    """Return the plan of the tangent, dy = J dx: J is the derivative of the adjoint by dy."""
    inputs, prediction = prediction_of(model, rows)
    dy = op.input("dy", prediction.shape, prediction.dtype)
    wanted = _differentiable("jvp", inputs, prediction)
    adjoint = op.grad(prediction, list(wanted.values()), seed=dy, unused="zero")
    given = [op.input(name, each.shape, each.dtype) for name, each in wanted.items()]
    product = sum(
        (op.sum(a * b) for a, b in zip(adjoint, given, strict=True)), start=op.sum(dy) * 0
    )
    tangent = op.grad(product, dy)
    return _planned(model, [*inputs, *given], {"dy": tangent})


def step_planner(model: Model) -> Planner:
    """Return a function for plans of a training step on a whole batch; they share variables."""
    where, expected = "export of step", "a network with weights to train"
    require(model.parameters(), where, expected, "none", "export this model without step")
    halves = model.precision == "float16"
    steps = StepPlans(
        model,
        model.objective,
        model.optimizer,
        (),
        SingleProcessStrategy(),
        loss_scale=LossScale(device=model.device) if halves else None,
        targets=len(model.objective.losses),
    )
    # A bad step is reported to the caller, who may continue; totals over an epoch are not read.
    unread = [steps.bad_step, steps.tally, *steps.training_totals.variables().values()]
    dropped = {each.symbol for each in unread}

    def plan_of(rows: int) -> FunctionPlan:
        program = steps.graph(rows).training()
        assert program.gradients is not None
        assert program.gradients.loss is not None
        updates = [
            each
            for each in program.assignments()
            if each.node.inputs[0].attrs["symbol"] not in dropped
        ]
        made = _planned(model, [], {"loss": program.gradients.loss}, updates)
        inputs = {each.name: each.spec for each in made.plan.symbols if each.role == "input"}
        return made._replace(inputs=dict(sorted(inputs.items())))

    return plan_of


def _differentiable(where: str, inputs: Sequence[Expr], output: Expr) -> dict[str, Expr]:
    """Return the inputs with derivatives, by the names of their derivatives."""
    floats = {f"d{_name(each)}": each for each in inputs if is_float(each.dtype)}
    require(
        floats and is_float(output.dtype),
        f"export of {where}",
        "a network with inputs and an output of floating-point numbers",
        f"{', '.join(str(each.dtype) for each in inputs)} to {output.dtype}",
        "export this model without derivatives",
    )
    return floats if len(inputs) > 1 else {"dx": inputs[0]}


def _name(given: Expr) -> str:
    return str(given.node.attrs["symbol"].name)


def _planned(
    model: Model,
    inputs: Sequence[Expr],
    outputs: Mapping[str, Expr],
    updates: Sequence[Expr] = (),
) -> FunctionPlan:
    found = [*outputs.values(), *updates]
    plan = compile(found, device="cpu", precision=model.precision, remember=False)
    require(
        isinstance(plan, Plan),
        "export",
        "a model on the CPU",
        "layers on several devices",
        hint='move it with model.to("cpu")',
    )
    return FunctionPlan(plan, {_name(each): each.node.spec for each in inputs}, list(outputs))


def _of_rows(plan_of: Callable[[Model, int], FunctionPlan]) -> Callable[[Model], Planner]:
    return lambda model: partial(plan_of, model)


KINDS = {
    "predict": FunctionKind("Compute the outputs of any number of rows.", _of_rows(predict_plan)),
    "vjp": FunctionKind(
        "Compute the adjoint of `predict`, dx = J^T dy, with the Jacobian J of each row.",
        _of_rows(vjp_plan),
    ),
    "jvp": FunctionKind(
        "Compute the tangent of `predict`, dy = J dx, with the Jacobian J of each row.",
        _of_rows(jvp_plan),
    ),
    "step": FunctionKind(
        "Train on one batch with the model's optimizer. A loss that is infinite or NaN is an\n"
        "   error, and leaves the weights as they are.",
        step_planner,
        is_whole=True,
    ),
}
"""The functions that a library may have."""
