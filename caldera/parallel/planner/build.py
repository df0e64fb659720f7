"""From a way to train to the object that does it."""

from __future__ import annotations

import inspect
from typing import Any

from caldera import parallel
from caldera.comm import Communicator, world
from caldera.compress import Compressor
from caldera.errors import ConfigError
from caldera.parallel.planner.prediction import Way
from caldera.train.strategy import SingleProcessStrategy, Strategy


def build_strategy(way: Way, ranks: int, communicator: Communicator | None) -> Strategy:
    """The strategy of `caldera.parallel` for a way, if there is one of that name."""
    name, arguments = way.maker
    if not name:
        return SingleProcessStrategy()
    where = f"strategy of {way.name}"
    made: Any = getattr(parallel, name, None)
    if made is None:
        raise ConfigError.build(
            where,
            expected=f"parallel.{name}",
            got="a Caldera that has none",
            hint="choose another row of the table",
        )
    others = sorted(set(arguments) - set(inspect.signature(made).parameters))
    if others:
        raise ConfigError.build(
            where,
            expected=f"a parallel.{name} that takes {', '.join(others)}",
            got="one that does not",
            hint=f"make it yourself, for {dict(arguments)}",
        )
    everyone = world() if communicator is None else communicator
    if everyone.size != ranks:
        raise ConfigError.build(
            where,
            expected=f"{ranks} ranks, as was planned",
            got=f"{everyone.size}",
            hint="start as many, or plan for those that are there",
        )
    given = {key: _own(value) for key, value in arguments.items()}
    return made(**given, communicator=everyone)


def _own(value: Any) -> Any:
    """Compressors keep what they have not sent: each strategy has one of its own."""
    return type(value)(**value.arguments()) if isinstance(value, Compressor) else value
