"""Lazy expressions, connected with plans and tensors: writing, compiling, differentiating."""

from __future__ import annotations

from caldera.compiler.lazy.compile import compile_nodes, forget_plans
from caldera.compiler.lazy.expr import Expr, binary, compare, divide, power, wrap
from caldera.compiler.lazy.lift import as_float, lift, lift_all
from caldera.compiler.lazy.open_sizes import (
    OpenExpr,
    OpenPlan,
    call_later,
    input,
    sizes_open_in,
    takes_open_sizes,
)
from caldera.compiler.lazy.transforms import compile, grad, pinned
from caldera.compiler.lazy.variable import PlanInput as Input
from caldera.compiler.lazy.variable import Variable, var

__all__ = [
    "Expr",
    "Input",
    "OpenExpr",
    "OpenPlan",
    "Variable",
    "as_float",
    "binary",
    "call_later",
    "compare",
    "compile",
    "compile_nodes",
    "divide",
    "forget_plans",
    "grad",
    "input",
    "lift",
    "lift_all",
    "pinned",
    "power",
    "sizes_open_in",
    "takes_open_sizes",
    "var",
    "wrap",
]
