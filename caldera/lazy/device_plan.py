"""The plan of a program for one device: its passes, its kernels, the memory there is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from caldera.config import settings
from caldera.graph.node import Node
from caldera.graph.program import Program
from caldera.kernels import reference  # noqa: F401 - it registers kernels
from caldera.kernels.choose import choices
from caldera.kernels.memory_format import wants_channels_last
from caldera.kernels.table import PRECISION_CHECKS, TABLE, Kernel
from caldera.memory import Device
from caldera.passes.collectives import collectives
from caldera.passes.pipeline import optimise
from caldera.passes.structure_cache import StructureCache
from caldera.plan.memory_limit import room_for
from caldera.plan.plan import Plan

structures = StructureCache()


@dataclass(frozen=True)
class How:
    """What a plan is made with, whichever device it is for."""

    without: tuple[str, ...]
    precision: str | None
    communicator: Any

    @property
    def several_ranks(self) -> bool:
        """Whether others compute the same, or other parts of it."""
        return self.communicator is not None and self.communicator.size > 1


def plan_on(program: Program, place: Device, how: How) -> Plan:
    """The plan of a program for one device."""
    TABLE.load("cpu")
    TABLE.load(place.kernels)
    precision, several = how.precision, how.several_ranks
    if precision is not None and place.kernels in PRECISION_CHECKS:
        PRECISION_CHECKS[place.kernels](precision)
    run_passes = partial(
        optimise,
        has_kernel=lambda name: TABLE.has(name, place.kernels),
        without=how.without,
        precision=precision,
        channels_last=wants_channels_last(place.kernels),
        adds_rows=place.kernels == "cpu",
    )
    # Collectives are numbered as they are written, and only here from nought.
    ordered = collectives(program) if several else program
    passes = (place.kernels, TABLE.version, how.without, precision)
    optimised = structures.optimised(ordered, passes, run_passes)
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

    return Plan(
        program, optimised, place, partial(choose, measure=not soon),
        choose_well=partial(choose, measure=True) if soon else None,
        in_place="in_place" not in how.without, communicator=how.communicator,
        room=room_for(optimised, place),
    )  # fmt: skip
