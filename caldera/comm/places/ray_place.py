"""Workers as actors of a Ray cluster.

Each worker is an actor with one core, and with one GPU where the cluster has any. Ray is imported
when a place of this kind is made.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from caldera.base.registry import optional_import
from caldera.comm.hosts import is_loopback
from caldera.comm.listener import LOOPBACK
from caldera.comm.places.dask_place import run_in_task
from caldera.comm.places.place import Place
from caldera.errors import CalderaError, ConfigError

_COUNTED_FOR_S = 0.5
_START_S = 60.0


class RayPlace(Place):
    """Actors of the Ray cluster that this process is connected to."""

    def __init__(self, ray: Any, *, together: bool, is_own: bool = False) -> None:
        self._ray = ray
        self._actors: dict[int, Any] = {}
        self._ends: dict[Any, int] = {}
        self._lost: dict[int, str] = {}
        self._numbers = itertools.count()
        self._counted = (-_COUNTED_FOR_S, {"CPU": 0.0})
        # Actors that do not run together may join later, from other machines.
        self._stays_here = is_own or together
        self.name = f"Ray at {ray.get_runtime_context().gcs_address}"

    @classmethod
    def at(cls, address: str, where: str, *, together: bool) -> Self:
        """Connect to the cluster at an address, else to a running local one, else start one."""
        ray = optional_import("ray", "ray", where)
        if ray.is_initialized():
            return cls(ray, together=together)
        # "ray://HOST:PORT" is itself an address of Ray.
        full = f"ray:{address}" if address.startswith("//") else address or "auto"
        quietly = {"logging_level": logging.WARNING, "log_to_driver": False}
        is_own = False
        try:
            try:
                ray.init(address=full, **quietly)
            except ConnectionError:
                if address:
                    raise
                ray.init(**quietly)
                is_own = True
        except (OSError, RuntimeError, ValueError) as error:
            raise ConfigError.build(
                where,
                expected="the address of a Ray cluster, such as 'ray:10.0.0.1:6379', or 'ray'",
                got=f"{full!r}: {str(error).splitlines()[0][:200]}",
                hint="start one with: ray start --head",
            ) from None
        return cls(ray, together=together, is_own=is_own)

    def start(
        self, count: int, function: Callable[..., object], arguments: Sequence[Any]
    ) -> list[int]:
        numbers = list(itertools.islice(self._numbers, count))
        kind = self._ray.remote(Actor).options(num_cpus=1, num_gpus=int(bool(self._count("GPU"))))
        for number in numbers:
            actor = self._actors[number] = kind.remote()
            self._ends[actor.run.remote(function, number, *arguments)] = number
        return numbers

    def lost(self) -> Mapping[int, str]:
        if self._ends:
            ended, _ = self._ray.wait(list(self._ends), num_returns=len(self._ends), timeout=0)
            for end in ended:
                number = self._ends.pop(end)
                if self._actors.pop(number, None) is not None:
                    self._report(number, end)
        return self._lost

    def _report(self, number: int, end: Any) -> None:
        try:
            self._ray.get(end, timeout=_START_S)
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause
            kind = "" if isinstance(cause, CalderaError) else f"{type(cause).__name__}: "
            self._lost[number] = f"raised {kind}{cause}"
        except self._ray.exceptions.RayError as error:
            first = next(filter(None, str(error).splitlines()), type(error).__name__)
            self._lost[number] = f"has died ({first.rstrip('.:')})"
        else:
            self._lost[number] = "has ended"

    def stop(self, number: int | None = None, seconds: float = 0.0) -> None:
        if seconds and self._ends:
            self._ray.wait(list(self._ends), num_returns=len(self._ends), timeout=seconds)
        for each in list(self._actors) if number is None else [number]:
            if (actor := self._actors.pop(each, None)) is not None:
                self._ray.kill(actor)
        if number is None:
            self._ends.clear()

    def capacity(self) -> int:
        """Return the number of actors that the cluster has cores, or GPUs, for."""
        cores, cards = self._count("CPU"), self._count("GPU")
        return min(cores, cards) if cards else cores

    def host(self) -> str:
        own = str(self._ray.util.get_node_ip_address())
        nodes = {str(each["NodeManagerAddress"]) for each in self._ray.nodes() if each["Alive"]}
        is_here = is_loopback(own) or (self._stays_here and nodes == {own})
        return LOOPBACK if is_here else own

    def share(self, value: Any) -> Any:
        return self._ray.put(value)

    def _count(self, kind: str) -> int:
        at, known = self._counted
        if time.monotonic() - at >= _COUNTED_FOR_S:
            known = self._ray.cluster_resources()
            self._counted = (time.monotonic(), known)
        return int(known.get(kind, 0))


class Actor:
    """A process of Ray that runs one worker."""

    def run(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call the worker's function, which has one core."""
        run_in_task(1, function, *arguments)
