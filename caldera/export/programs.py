"""The functions of an exported model as plans: one plan for each number of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from caldera.base.config import settings
from caldera.compiler.lazy import Expr, compile
from caldera.compiler.plan.plan import Plan
from caldera.core.graph import Spec
from caldera.errors import ConfigError
from caldera.kernels.native.codegen.matrix_multiply import standalone
from caldera.train.model import Model
from caldera.train.step_graph import main_output

PREDICT, VJP, JVP, STEP = "predict", "vjp", "jvp", "step"
FUNCTIONS = (PREDICT, VJP, JVP, STEP)
"""The functions in the order of the table that the runtime reads."""


@dataclass(frozen=True)
class ExportedProgram:
    """The plan of a function for some rows, and the inputs that its caller passes."""

    plan: Plan
    rows: int
    inputs: Mapping[str, Spec]


@contextmanager
def as_exported(threads: int) -> Iterator[None]:
    """Context in which plans are compiled, bound and run as they are exported."""
    with standalone(), settings.override(threads=threads):
        yield


def predict_program(model: Model, rows: int) -> ExportedProgram:
    """Return the prediction for a number of samples."""
    inputs, outputs, _ = model.expressions(rows)
    _, prediction = main_output(outputs, model.objective)
    return _program(model, [prediction], inputs, rows)


def _program(
    model: Model, outputs: Sequence[Expr], inputs: Sequence[Expr], rows: int
) -> ExportedProgram:
    for each in outputs:
        if not each.shape or each.shape[0] != rows:
            raise ConfigError.build(
                "export",
                expected=f"an output with a row for each of {rows} samples",
                got=f"shape {each.shape}",
            )
    plan = compile(list(outputs), device="cpu", precision=model.precision, remember=False)
    if not isinstance(plan, Plan):
        raise ConfigError.build(
            "export",
            expected="a model on the CPU",
            got="layers on several devices",
            hint='move it with model.to("cpu")',
        )
    return ExportedProgram(
        plan, rows, {each.node.attrs["symbol"].name: each.node.spec for each in inputs}
    )
