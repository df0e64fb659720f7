"""`compile` and `grad`: what can be done with a whole expression."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from caldera.base.arguments import checked, refusal
from caldera.compiler.lazy.compile import compile_nodes
from caldera.compiler.lazy.expr import Expr, wrap
from caldera.compiler.lazy.lift import lift
from caldera.compiler.lazy.open_sizes import OpenExpr, OpenPlan
from caldera.compiler.plan.plan import Plan
from caldera.core.graph.differentiate import gradients
from caldera.core.graph.node import pinned as pinned_nodes
from caldera.core.memory import Device, find_device
from caldera.errors import ConfigError


@partial(checked, own_words=True)
def compile(
    outputs: Expr | OpenExpr | Iterable[Any],
    *,
    device: Device | str | int | None = None,
    without: Sequence[str] = (),
    precision: str | None = None,
    communicator: Any = None,
    remember: bool = True,
) -> Plan:
    """Return a plan that computes these expressions together, and performs the assignments.

    A run returns the values of the expressions; assignments only take effect. For inputs with open
    sizes the plan is an `OpenPlan`, with one plan for each size.

    Args:
        outputs: Expressions and assignments.
        device: Device of all unpinned nodes. By default `settings.placement` decides: the device of
            the variables, unless they are on several devices.
        without: Names of passes to leave out (`caldera.compiler.passes`).
        precision: None, "float16" or "bfloat16" for mixed precision, or "tf32" for products that
            tensor cores may round.
        communicator: Communicator of collective operations; by default the world.
        remember: True to cache the plan with its memory, as long as its variables exist.

    Returns:
        The plan; `plan.run(inputs)` computes it.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = op.var("x", (2,), fill=cd.constant(3.0))
    >>> plan = cd.compile([x + 1.0, x * x])
    >>> [tensor.tolist() for tensor in plan.run()]
    [[4.0, 4.0], [9.0, 9.0]]
    """
    if not isinstance(outputs, Expr | OpenExpr | Iterable):
        raise ConfigError.build(
            "compile", expected="an expression or a list of expressions", got=repr(outputs)
        )
    listed = [outputs] if isinstance(outputs, Expr | OpenExpr) else list(outputs)
    if any(isinstance(each, OpenExpr) for each in listed):
        options: dict[str, Any] = {"device": device, "without": without, "precision": precision}
        made = partial(compile, communicator=communicator, remember=False, **options)
        return cast("Plan", OpenPlan(listed, made))
    if communicator is not None and not hasattr(communicator, "Allreduce"):
        raise refusal("compile", "communicator", "a communicator or None", communicator)
    wanted = [lift(each) for each in listed]
    return compile_nodes(
        tuple(node for node in wanted if node.op.name != "assign"),
        tuple(node for node in wanted if node.op.name == "assign"),
        device=device,
        without=without,
        precision=precision,
        communicator=communicator,
        remember=remember,
    )


@checked
@contextmanager
def pinned(device: Device | str | int) -> Iterator[None]:
    """Context manager: operations created inside run on this device, and so do their gradients.

    Inputs from other devices are copied there, planned with the rest of the step. The same
    operations created elsewhere are not affected. Layers are pinned with their `device=`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = op.var("x", (3,), fill=[3.0, 1.0, 2.0], device="loopback")
    >>> with cd.pinned("cpu"):
    ...     y = op.sort(x * 2.0)
    >>> plan = cd.compile(op.exp(y - 6.0) + x, device="loopback")
    >>> [part.device.name for part in plan.parts]
    ['cpu', 'loopback:0']
    >>> float(plan.run()[0][2])
    3.0
    """
    with pinned_nodes(find_device(device).name):
        yield


def grad(
    output: Expr, wrt: Expr | Sequence[Expr], *, seed: Any = None, unused: str = "error"
) -> Any:
    """Return the derivative of a scalar expression with respect to others: again expressions.

    Args:
        output: Expression to differentiate.
        wrt: Expression, or list of expressions, to differentiate with respect to.
        seed: Derivative of some scalar with respect to an output that is not a scalar.
        unused: "error", or "zero" for expressions that the output does not depend on.

    Returns:
        One expression for one, a list for a list.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = op.var("x", (), fill=cd.constant(3.0))
    >>> slope = op.grad(x ** 3, x)
    >>> float(slope), float(op.grad(slope, x))
    (27.0, 18.0)
    """
    single = isinstance(wrt, Expr)
    wanted = [wrt] if isinstance(wrt, Expr) else list(wrt)
    start = None if seed is None else lift(seed, output.dtype)
    found = wrap(gradients(output.node, [each.node for each in wanted], start, unused=unused))
    return found[0] if single else list(found)
