"""Consistency of ranks: checks of options and plans, and the broadcast of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np

from caldera.base.config import settings
from caldera.base.plain_data import json_digest
from caldera.comm import Communicator
from caldera.compiler.plan.plan import Plan
from caldera.compiler.sharding.ops import redistribute
from caldera.compiler.sharding.volume import summary
from caldera.core.graph.node import Node
from caldera.core.graph.ops.collective import TOKEN, Message, start
from caldera.errors import CommError, ConfigError
from caldera.kernels.tuning.choose import choices
from caldera.kernels.tuning.database import TuningRecord
from caldera.nn.layer import Layer
from caldera.optim import Optimizer

_imported: WeakKeyDictionary[Communicator, dict[tuple[Path, str], TuningRecord]] = (
    WeakKeyDictionary()
)
"""Kernel choices that rank 0 has already sent: a long run makes many plans and choices."""


def compile_alike(communicator: Communicator, make: Callable[[], Plan]) -> Plan:
    """Return the plan built by `make`, on all ranks with rank 0's kernel choices.

    Ranks that measured separately could choose different kernels, and rounding would make their
    parameters differ. Before the first step, the messages of all plans are compared: a mismatch
    would block every rank.
    """
    if communicator.size == 1:
        return make()
    if communicator.rank == 0:
        plan = make()
        if communicator.in_one_process:
            # All ranks have these choices and must not make them again.
            choices.hold()
            communicator.bcast_object([])
        else:
            communicator.bcast_object(choices.known(_imported.setdefault(communicator, {})))
    else:
        choices.learn(communicator.bcast_object())
        plan = make()
    check_messages(communicator, plan)
    return plan


def check_messages(communicator: Communicator, plan: Plan) -> None:
    """Raise on all ranks unless the messages of their plans match.

    Along each axis of a mesh, communicating ranks have to match. Groups of ranks may have different
    samples, and values of different sizes.
    """
    sent = messages(plan)
    for axis, ranks in communicator.axes.items():
        own = [each for each in sent if f" along {axis} of " in each]
        check_same(ranks, f"collectives of a plan along {axis}", own)
        sent = [each for each in sent if each not in own]
    check_same(communicator, "collectives of a plan", sent)


def messages(plan: Plan) -> list[str]:
    """Return a description of each message that a plan sends, in order.

    >>> import caldera as cd
    >>> from caldera.parallel.consistency import messages
    >>> messages(cd.compile(cd.tensor([1.0]) * 2.0))
    []
    """
    found = []
    for node in (step.node for step in plan.schedule.steps):
        attrs = node.attrs
        if node.op is redistribute:
            found.append(
                f"redistribution along {attrs['axis']} of {attrs['source'].shape} from "
                f"{summary(attrs['source'])} to {summary(attrs['target'])}"
            )
        if node.op is not start:
            continue
        message = attrs["message"]
        if message.is_point_to_point:
            # Only sender and receiver have to agree on the size.
            found.append(f"{message.kind} at {message.peer} along {message.axis}")
            continue
        values = [str(given.spec) for given in node.inputs if given.spec != TOKEN]
        leaves = ""
        if message.leaves is not None:
            values, leaves = [str(node.outputs[1])], f" over a tree of {message.leaves[2]}"
        found.append(f"{message.kind}{leaves} along {message.axis} of {', '.join(values)}")
    return found


def _started(plan: Plan) -> Iterator[tuple[Node, Message]]:
    """Yield the collectives that a plan starts, in order, with their messages."""
    steps = (step.node for step in plan.schedule.steps if step.node.op is start)
    return ((node, node.attrs["message"]) for node in steps)


def check_neighbours(communicator: Communicator, plan: Plan, axis: str) -> None:
    """Raise on all ranks unless sends along an axis match the receives of their destinations.

    >>> import caldera as cd
    >>> from caldera.comm import SingleProcess
    >>> from caldera.parallel.consistency import check_neighbours
    >>> check_neighbours(SingleProcess(), cd.compile(cd.tensor([1.0]) * 2.0), "pipeline")
    """
    if communicator.size == 1:
        return
    here: dict[str, list[str]] = {}
    for node, message in _started(plan):
        if message.is_point_to_point and message.axis == axis:
            here.setdefault(f"{message.kind} {message.peer}", []).append(str(node.outputs[0]))
    everyone = communicator.gather_objects(here)
    ranks = range(communicator.size)
    for sender, receiver in ((a, b) for a in ranks for b in ranks):
        leaving = everyone[sender].get(f"send {receiver}", [])
        arriving = everyone[receiver].get(f"receive {sender}", [])
        if leaving != arriving:
            raise CommError.build(
                f"messages along {axis}",
                expected=f"{arriving} at rank {receiver}",
                got=f"{leaving} from rank {sender}",
                hint="all ranks must make the same model and call fit in the same way",
            )


def check_same(communicator: Communicator, what: str, here: list[str]) -> None:
    """Raise on all ranks unless their lists are equal.

    >>> from caldera.comm import SingleProcess
    >>> from caldera.parallel.consistency import check_same
    >>> check_same(SingleProcess(), "messages", ["sum"])
    """
    if len(set(communicator.gather_objects(json_digest(here)))) == 1:
        return
    everyone: list[list[str]] = communicator.gather_objects(here)
    first = everyone[0]
    other = next(rank for rank, each in enumerate(everyone) if each != first)
    place = next(
        index
        for index in range(max(len(first), len(everyone[other])))
        if first[index : index + 1] != everyone[other][index : index + 1]
    )
    expected, got = (
        " ".join(each[place : place + 1]) or "none" for each in (first, everyone[other])
    )
    raise CommError.build(
        what,
        expected=f"the same on all ranks: number {place} is {expected} on rank 0",
        got=f"{got} on rank {other}",
        hint="all ranks must make the same model and call fit in the same way",
    )


def check_same_setup(communicator: Communicator, given: Mapping[str, object]) -> None:
    """Raise on all ranks unless their training settings are equal."""
    # The number of threads decides in which order long sums are added up.
    known = {**given, "threads": settings.threads}
    check_same(communicator, "ranks", [f"{name}={value}" for name, value in known.items()])


def broadcast_model(communicator: Communicator, model: Layer, optimizer: Optimizer) -> None:
    """Copy rank 0's model and optimizer state to every rank."""
    kept = optimizer.variables() if optimizer.state else []
    known = [*model.parameters(), *model.states(), *kept]
    names = [f"{each.name} {each.shape} {each.dtype.name}" for each in known]
    check_same(communicator, "variables of the model", names)
    for variable in known:
        value = variable.numpy()
        before = value.tobytes()
        flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        communicator.Bcast(flat)
        if flat.tobytes() != before:
            variable.assign(value)


def check_counts(where: str, **counts: object) -> None:
    """Require integers >= 1, or None where an option was left out.

    >>> check_counts("Example", stages=2, data=None)
    >>> check_counts("Example", stages="2")
    Traceback (most recent call last):
    caldera.errors.ConfigError: Example: expected stages >= 1, an integer, got '2'
    """
    for name, count in counts.items():
        is_whole = (
            isinstance(count, int | np.integer) and not isinstance(count, bool) and count >= 1
        )
        if count is not None and not is_whole:
            raise ConfigError.build(where, expected=f"{name} >= 1, an integer", got=repr(count))


def check_choice(where: str, name: str, given: object, choices: Iterable[object]) -> None:
    """Raise an error unless the value is one of the choices.

    >>> check_choice("Example", "start", "old", ["new", "given"])
    Traceback (most recent call last):
    caldera.errors.ConfigError: Example: expected start= 'new' or 'given', got 'old'
    """
    known = list(choices)
    if given not in known:
        expected = f"{name}= " + " or ".join(map(repr, known))
        raise ConfigError.build(where, expected=expected, got=repr(given))


def check_same_options(communicator: Communicator, strategy: object, **options: object) -> None:
    """Raise on all ranks unless they create the same strategy with the same options.

    A strategy calls it before any other communication, because its components send messages.

    >>> from caldera.comm import SingleProcess
    >>> from caldera.parallel.consistency import check_same_options
    >>> check_same_options(SingleProcess(), "any", stages=2)
    """
    name = type(strategy).__name__
    if not isinstance(communicator, Communicator):
        raise ConfigError.build(
            f"parallel.{name}",
            expected="a communicator of caldera.comm",
            got=repr(communicator),
            hint="comm.world() has all ranks, and is taken if none is given",
        )
    written = [f"{option}={value}" for option, value in options.items()]
    check_same(communicator, f"parallel.{name}", [name, *written])
