"""From nodes to a plan: the passes, the choice of a device, and the plans already made."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

from caldera.config import settings
from caldera.errors import DeviceError
from caldera.graph.node import Node, Symbol
from caldera.graph.program import Program, program_of
from caldera.kernels import reference  # noqa: F401 - it registers kernels
from caldera.kernels.choose import choices
from caldera.kernels.memory_format import wants_channels_last
from caldera.kernels.table import PRECISION_CHECKS, TABLE, Kernel
from caldera.memory import Device
from caldera.memory import device as find_device
from caldera.passes.collectives import collectives
from caldera.passes.pipeline import optimise
from caldera.passes.structure_cache import StructureCache
from caldera.plan.cache import SharedPlans, program_key
from caldera.plan.memory_limit import room_for
from caldera.plan.plan import Plan

_plans = SharedPlans()
_structures = StructureCache()


def compile_nodes(
    outputs: Sequence[Node],
    updates: Sequence[Node] = (),
    *,
    device: Device | str | int | None = None,
    without: Sequence[str] = (),
    precision: str | None = None,
    communicator: Any = None,
    remember: bool = True,
) -> Plan:
    """The plan for these outputs and assignments: one that exists, or a new one."""
    program = program_of(outputs, updates)
    place = _device_of(program) if device is None else find_device(device)
    TABLE.load("cpu")
    TABLE.load(place.kernels)
    key = (
        program_key(program, communicator), place, tuple(sorted(without)), precision,
        choices.version, settings.memory_limit,
    )  # fmt: skip
    known = _plans.get(key)
    if known is not None:
        return known
    if precision is not None and place.kernels in PRECISION_CHECKS:
        PRECISION_CHECKS[place.kernels](precision)
    several = communicator is not None and communicator.size > 1
    run_passes = partial(
        optimise,
        has_kernel=lambda name: TABLE.has(name, place.kernels),
        without=without,
        precision=precision,
        channels_last=wants_channels_last(place.kernels),
        adds_rows=place.kernels == "cpu",
    )
    # Collectives are numbered as they are written, and only here from nought.
    ordered = collectives(program) if several else program
    how = (place.kernels, TABLE.version, tuple(sorted(without)), precision)
    optimised = _structures.optimised(ordered, how, run_passes)
    # Ranks agree on their kernels when a plan is made. Those of a host are quick to measure.
    soon = not place.is_host and not several

    total = settings.workspace_total

    @cache
    def limits(measure: bool) -> dict[Node, int]:
        if total is None:
            return {}
        return choices.shared_limits(optimised.order(), place.kernels, total, measure=measure)

    def choose(node: Node, *others: Kernel, measure: bool) -> Kernel:
        limit = limits(measure).get(node)
        return choices.kernel(node, place.kernels, others, measure=measure, limit=limit)

    plan = Plan(
        program, optimised, place, partial(choose, measure=not soon),
        choose_well=partial(choose, measure=True) if soon else None,
        in_place="in_place" not in without, communicator=communicator,
        room=room_for(optimised, place),
    )  # fmt: skip
    if remember:
        _plans.add(key, plan)
    return plan


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
    _structures.clear()


def _device_of(program: Program) -> Device:
    """Where the program's variables are; the default device if they are nowhere in particular."""
    found: dict[Device, Symbol] = {}
    host: Device | None = None
    for node in program.order():
        symbol = node.attrs.get("symbol")
        # Inputs and constant arrays go wherever the plan is.
        if symbol is not None and symbol.role in ("variable", "tensor"):
            place = symbol.value.device
            if place.is_host:
                host = place
            else:
                found.setdefault(place, symbol)
    if len(found) > 1:
        places = ", ".join(f"{symbol.name} on {place.name}" for place, symbol in found.items())
        raise DeviceError.build(
            "eval", expected="all variables on one device", got=places,
            hint="move them with .to(device=...), or compile with device=",
        )  # fmt: skip
    return next(iter(found), None) or host or find_device(None)
