"""Compilation of nodes to a plan: device selection, passes, kernels and the cache of plans.

A plan is made for one device and its available memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from caldera.base.config import DEFAULT_WORKSPACE, settings
from caldera.compiler.passes.collectives import collectives
from caldera.compiler.passes.pipeline import narrowed, optimise
from caldera.compiler.passes.precision import HALF_NAMES
from caldera.compiler.passes.structure_cache import StructureCache
from caldera.compiler.passes.weight_updates import weight_copies
from caldera.compiler.plan.cache import SharedPlans, program_key
from caldera.compiler.plan.memory_limit import room_for
from caldera.compiler.plan.operands import WeightCopies, copy_on
from caldera.compiler.plan.placement.assign import (
    MeasuredCosts,
    default_device,
    homes,
    is_mixed,
    place_nodes,
)
from caldera.compiler.plan.placement.parts import parts_of
from caldera.compiler.plan.placement.placed_plan import PlacedPlan
from caldera.compiler.plan.plan import Plan
from caldera.core.graph import Node, Program, Symbol, detached, pinned, program_of
from caldera.core.graph.ops.base import cast, variable
from caldera.core.memory import Device, find_device
from caldera.errors import DeviceError
from caldera.kernels import reference  # noqa: F401 - it registers kernels
from caldera.kernels.table import PRECISION_CHECKS, TABLE, Kernel, wants_channels_last
from caldera.kernels.tuning.choose import choices
from caldera.kernels.workspace import shared_limits

structures = StructureCache()


@dataclass(frozen=True)
class CompileOptions:
    """Settings of a plan that do not depend on its device."""

    without: tuple[str, ...]
    precision: str | None
    communicator: Any

    @property
    def several_ranks(self) -> bool:
        """True if further ranks compute the same, or other parts of the same computation."""
        return self.communicator is not None and self.communicator.size > 1


def plan_on(program: Program, place: Device, options: CompileOptions) -> Plan:
    """Return the plan of a program for one device."""
    TABLE.load("cpu")
    TABLE.load(place.kernels)
    precision, several = options.precision, options.several_ranks
    if precision is not None and place.kernels in PRECISION_CHECKS:
        PRECISION_CHECKS[place.kernels](precision)
    # Collectives are numbered as they are written, and only here from nought.
    ordered = collectives(program) if several else program
    originals: dict[Symbol, Symbol] = {}
    # Where memory is short, a cast that can be made again is better than one that stays.
    if precision in (*HALF_NAMES, "float8") and not place.is_host and settings.memory_limit is None:
        ordered, originals = weight_copies(
            narrowed(ordered, precision, options.without), partial(copy_on, place)
        )
        precision = None
    without = options.without
    if settings.workspace_total is not None or settings.workspace_limit < DEFAULT_WORKSPACE:
        # The batch of a convolution with sums cannot be split.
        without = (*without, "norm_sums")
    run_passes = partial(
        optimise,
        has_kernel=lambda name: TABLE.has(name, place.kernels),
        without=without,
        precision=precision,
        channels_last=wants_channels_last(place.kernels),
        adds_rows=place.kernels == "cpu",
    )
    passes = (place.kernels, TABLE.version, without, precision)
    optimised = structures.optimised(ordered, passes, run_passes)
    # Ranks agree on their kernels when a plan is compiled. Host kernels are quick to measure.
    soon = not place.is_host and not several
    choose = _kernel_chooser(optimised, place)
    return Plan(
        program,
        optimised,
        place,
        partial(choose, measure=not soon),
        choose_well=partial(choose, measure=True) if soon else None,
        in_place="in_place" not in options.without,
        communicator=options.communicator,
        room=room_for(optimised, place),
        copies=_weight_copies(originals, place, options) if originals else None,
    )


def _kernel_chooser(program: Program, place: Device) -> Callable[..., Kernel]:
    """Return the function that selects a node's kernel, with the workspace limits of a program.

    Kernels fixed now stay fixed when the plan selects again.
    """
    total, fixed = settings.workspace_total, choices.fixed

    @cache
    def limits(measure: bool) -> dict[Node, int]:
        if total is None:
            return {}
        return shared_limits(
            choices, program.order(), place.kernels, total, measure=measure, fixed=fixed
        )

    chosen: dict[Hashable, Kernel] = {}

    def choose(node: Node, *others: Kernel, measure: bool) -> Kernel:
        limit = limits(measure).get(node)
        # Layers repeat, and a choice depends only on the shapes of the inputs, unless an input is a
        # movement and may have any memory layout.
        is_alone = others or any(given.op.kind == "movement" for given in node.inputs)
        key = None if is_alone else (detached(node), limit, measure)
        if key in chosen:
            return chosen[key]
        kernel = choices.kernel(
            node, place.kernels, others, measure=measure, limit=limit, fixed=fixed
        )
        if key is not None:
            chosen[key] = kernel
        return kernel

    return choose


def _weight_copies(
    originals: Mapping[Symbol, Symbol], place: Device, options: CompileOptions
) -> WeightCopies:
    made = tuple(
        (copy, cast(variable(symbol=symbol), copy.spec.dtype)) for copy, symbol in originals.items()
    )
    return WeightCopies(
        originals, plan_on(Program((), made), place, CompileOptions(options.without, None, None))
    )


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
    """Return the plan for these outputs and assignments: one that exists, or a new one.

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
        # The placement of a mixed program depends on more than its nodes.
        (may_choose, homes(program)) if mixed else None,
    )
    known = _plans.get(key)
    if known is not None:
        return known
    options = CompileOptions(tuple(sorted(without)), precision, communicator)
    # The caller's pin does not apply to nodes created during compilation.
    with pinned(None):
        if mixed:
            plan = _placed_plan(program, place, may_choose, options, sends_from_host)
        else:
            plan = plan_on(program, place, options)
    if remember:
        _plans.add(key, plan)
    return plan


def _placed_plan(
    program: Program,
    place: Device,
    may_choose: bool,
    options: CompileOptions,
    sends_from_host: bool,
) -> Plan:
    """Return the plan of a program that several devices have a part in."""
    if options.several_ranks and not sends_from_host:
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
        return plan_on(program, parts[0].device, options)
    return PlacedPlan(program, parts, lambda part, on: plan_on(part, on, options), found.reason)


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
