"""From nodes to a plan: the passes, the choice of a device, and the plans already made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from caldera.base.config import settings
from caldera.compiler.lazy.device_plan import How, plan_on, structures
from caldera.compiler.plan.cache import SharedPlans, program_key
from caldera.compiler.plan.placement.assign import default_device, homes, is_mixed, place_nodes
from caldera.compiler.plan.placement.costs import MeasuredCosts
from caldera.compiler.plan.placement.parts import parts_of
from caldera.compiler.plan.placement.placed_plan import PlacedPlan
from caldera.compiler.plan.plan import Plan
from caldera.core.graph.node import Node
from caldera.core.graph.pins import pinned
from caldera.core.graph.program import Program, program_of
from caldera.core.memory import Device
from caldera.core.memory import device as find_device
from caldera.errors import DeviceError
from caldera.kernels.choose import choices

_plans = SharedPlans()


def compile_nodes(
    outputs: Sequence[Node],
    updates: Sequence[Node] = (),
    *,
    device: Device | str | int | None = None,
    without: Sequence[str] = (),
    precision: str | None = None,
    communicator: Any = None,
    remember: bool = True,
    sends_from_host: bool = False,
) -> Plan:
    """The plan for these outputs and assignments: one that exists, or a new one.

    With `sends_from_host` all that ranks run together is pinned to the host, where a token keeps
    its order: then a rank's program may have parts on several devices.
    """
    program = program_of(outputs, updates)
    wanted = None if device is None else find_device(device)
    place, may_choose = default_device(program, wanted)
    mixed = is_mixed(program, place)
    key = (
        program_key(program, communicator),
        place,
        tuple(sorted(without)),
        precision,
        choices.version,
        settings.memory_limit,
        # Where what is mixed runs depends on more than its nodes.
        (may_choose, homes(program)) if mixed else None,
    )
    known = _plans.get(key)
    if known is not None:
        return known
    how = How(tuple(sorted(without)), precision, communicator)
    # What is being written meanwhile has nothing to do with it.
    with pinned(None):
        if mixed:
            plan = _placed(program, place, may_choose, how, sends_from_host)
        else:
            plan = plan_on(program, place, how)
    if remember:
        _plans.add(key, plan)
    return plan


def _placed(
    program: Program, place: Device, may_choose: bool, how: How, sends_from_host: bool
) -> Plan:
    """The plan of a program that several devices have a part in."""
    if how.several_ranks and not sends_from_host:
        raise DeviceError.build(
            "compile",
            expected="all of a rank's variables and layers on one device",
            got="some on others",
            hint="with several ranks, leave out device= of layers and "
            "move variables with .move(device)",
        )
    found = place_nodes(program, place, MeasuredCosts() if may_choose else None)
    parts = parts_of(program, found.groups)
    if len(parts) == 1 and not parts[0].relays:
        return plan_on(program, parts[0].device, how)
    return PlacedPlan(program, parts, lambda part, on: plan_on(part, on, how), found.reason)


def forget_plans() -> None:
    """Drop all remembered plans, and with them the memory they hold.

    >>> import caldera as cd
    >>> x = cd.tensor([1.0, 2.0])
    >>> plan = cd.compile(x * 2.0)
    >>> cd.compile(x * 2.0) is plan
    True
    >>> cd.forget_plans()
    >>> cd.compile(x * 2.0) is plan
    False
    """
    _plans.clear()
    structures.clear()
