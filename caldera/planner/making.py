"""From a way to train to the object that does it."""

from __future__ import annotations

from typing import Any

from caldera import parallel
from caldera.comm import Communicator, world
from caldera.errors import ConfigError
from caldera.planner.prediction import Way
from caldera.strategy import Alone, Strategy


def strategy_of(way: Way, ranks: int, communicator: Communicator | None) -> Strategy:
    """The strategy of `caldera.parallel` for a way, if there is one of that name."""
    name, arguments = way.maker
    if not name:
        return Alone()
    found: Any = getattr(parallel, name, None)
    if found is None:
        raise ConfigError.build(
            f"strategy of {way.name}", expected=f"parallel.{name}",
            got="a Caldera that has none", hint="choose another row of the table",
        )  # fmt: skip
    everyone = world() if communicator is None else communicator
    if everyone.size != ranks:
        raise ConfigError.build(
            f"strategy of {way.name}", expected=f"{ranks} ranks, as was planned",
            got=f"{everyone.size}", hint="start as many, or plan for those that are there",
        )  # fmt: skip
    made: Strategy = found(**arguments, communicator=everyone)
    return made
