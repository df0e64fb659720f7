"""Cache of recently used plans.

Both the number of plans and the bytes they retain are limited; a dropped plan is built again when
it is requested.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from typing import Any, ClassVar

from caldera.base.formatting import bytes_text
from caldera.compiler.plan.plan import Plan
from caldera.core.graph import Program, Symbol
from caldera.core.memory.devices import add_to_report

MOST_PLANS = 256
MOST_BYTES = 256 << 20
FEWEST = 4
"""Number of plans that are kept regardless of size, so that alternating plans are not rebuilt."""
_BETWEEN_COUNTS = 16
"""Number of plans added before all bytes are counted again.

Counting for each plan takes longer than all other work for a plan.
"""


class RecentPlans:
    """The plans used last, by a key; at most `most` plans that retain at most `most_bytes`."""

    every: ClassVar[weakref.WeakSet[RecentPlans]] = weakref.WeakSet()

    def __init__(self, most: int = MOST_PLANS, most_bytes: int = MOST_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._plans: OrderedDict[Hashable, Callable[[], Plan | None]] = OrderedDict()
        self._counted = 0
        self._uncounted: list[weakref.ref[Plan]] = []
        self._lock = threading.RLock()
        RecentPlans.every.add(self)

    def get(self, key: Hashable) -> Plan | None:
        """Return the plan kept under a key, if it is still there."""
        with self._lock:
            find = self._plans.get(key)
            if find is None:
                return None
            self._plans.move_to_end(key)
            return find()

    def add(self, key: Hashable, plan: Plan) -> None:
        """Keep a plan, and let go of those for which there is no room any more."""
        with self._lock:
            self._keep(key, plan)
            self._uncounted.append(weakref.ref(plan))
            while len(self._plans) > self._most or (
                len(self._plans) > FEWEST and self._are_too_large()
            ):
                self._drop(next(iter(self._plans)))

    def clear(self) -> None:
        """Drop all plans."""
        with self._lock:
            for key in list(self._plans):
                self._drop(key)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Plan]:
        with self._lock:
            found = [find() for find in self._plans.values()]
        return iter([plan for plan in found if plan is not None])

    @property
    def nbytes(self) -> int:
        """Bytes retained by all plans."""
        return sum(plan.held_bytes for plan in self)

    def _are_too_large(self) -> bool:
        """Return True if the plans exceed the byte limit; counted plans may have grown since."""
        if 0 < len(self._uncounted) < _BETWEEN_COUNTS:
            recent = [plan for plan in (find() for find in self._uncounted) if plan is not None]
            if self._counted + sum(plan.held_bytes for plan in recent) <= self._most_bytes:
                return False
        self._counted = self.nbytes
        self._uncounted.clear()
        return self._counted > self._most_bytes

    def _keep(self, key: Hashable, plan: Plan) -> None:
        self._plans[key] = lambda: plan

    def _drop(self, key: Hashable) -> None:
        del self._plans[key]


class SharedPlans(RecentPlans):
    """Plans by their computation, shared by callers that request the same again.

    A plan cannot be requested without the variables and data it reads. Therefore the youngest of
    these keeps it alive and releases it: a plan does not keep unused memory alive.
    """

    def __init__(self, most: int = MOST_PLANS, most_bytes: int = MOST_BYTES) -> None:
        super().__init__(most, most_bytes)
        self._owners: dict[Hashable, weakref.ref[Symbol]] = {}
        self._without_owner: dict[Hashable, object] = {}
        # Written by the collector of garbage, whenever that runs.
        self._gone: deque[Hashable] = deque()

    def add(self, key: Hashable, plan: Plan) -> None:
        with self._lock:
            while self._gone:
                gone = self._gone.popleft()
                if gone in self._plans and self._plans[gone]() is None:
                    self._drop(gone)
            super().add(key, plan)

    def _keep(self, key: Hashable, plan: Plan) -> None:
        if key in self._plans:
            self._drop(key)
        gone = self._gone
        self._plans[key] = weakref.ref(plan, lambda _: gone.append(key))
        symbols = [node.attrs["symbol"] for node in plan.original.order() if "symbol" in node.attrs]
        symbols += [symbol for symbol, _ in plan.original.updates]
        if symbols:
            owner = max(symbols, key=lambda symbol: symbol.serial)
            self._owners[key] = weakref.ref(owner)
            owner.users[key] = plan
        else:
            self._without_owner[key] = plan

    def _drop(self, key: Hashable) -> None:
        super()._drop(key)
        find_owner = self._owners.pop(key, None)
        owner = None if find_owner is None else find_owner()
        kept = self._without_owner if owner is None else owner.users
        kept.pop(key, None)


def program_key(program: Program, communicator: Any) -> Hashable:
    """Return a key for a program that does not hold on to it. It is good as long as the plan is
    there, which does."""
    outputs = tuple(id(node) for node in program.outputs)
    updates = tuple((id(symbol), id(node)) for symbol, node in program.updates)
    return outputs, updates, id(communicator)


def _report() -> str:
    plans = [plan for kept in list(RecentPlans.every) for plan in kept]
    held = bytes_text(sum(plan.held_bytes for plan in plans))
    return f"{len(plans)} plans kept for later, which hold {held}"


add_to_report(_report)
