"""Workers of a session that a place runs: processes of this machine, Dask or Ray."""

from __future__ import annotations

import os
import platform
import secrets
import time
from collections.abc import Mapping
from typing import Any

from caldera.comm.endpoint import Endpoint
from caldera.comm.listener import KEY_BYTES, Listener
from caldera.comm.local_sockets import gather_links
from caldera.comm.places.local import SupervisedPlace
from caldera.comm.places.meeting import join_links, listening_address, offer
from caldera.comm.places.place import Place
from caldera.dmath.protocol import service
from caldera.dmath.rank import Rank
from caldera.dmath.workers import RankWorker, SocketTeam
from caldera.errors import CommError, ConfigError

START_S = 60.0
"""Until all workers are there; on an idle machine it is one or two seconds."""
ROOM_S = 20.0
"""Seconds for a cluster to have enough threads: lost workers are replaced within a few seconds."""
END_S = 3.0
"""Workers that have not ended of themselves after so long are killed."""
STATUS_S = 2.0
"""The place may report the reason for a worker's end that long after the end."""
_POLL_S = 0.1


class PlaceTeam(SocketTeam):
    """The master of workers that it has started in a place."""

    def __init__(self, place: Place, workers: int, interface: str = "", seconds: float = START_S):
        self._place = place
        self.workers = workers
        self._names: list[str] = []
        self._wait_for_room()
        host = place.host()
        listener = Listener(secrets.token_bytes(KEY_BYTES), listening_address(host, interface))
        order = offer(listener, host, interface)
        order |= {"size": workers + 1, "own_processes": place.own_processes}
        try:
            place.start(workers, serve, [order])
            links = gather_links(listener, workers + 1, seconds, self._check_starting)
        except BaseException as error:
            place.stop()
            if isinstance(error, OSError):
                raise self._not_started() from error
            raise
        finally:
            listener.close()
        super().__init__(Endpoint(0, links))

    def introduce(self, names: list[str]) -> None:
        """Name the processes of workers, for messages about them."""
        self._names = names

    def leave(self) -> None:
        super().leave()
        self._place.stop(seconds=END_S)

    def end(self) -> None:
        self._place.stop()

    def who(self, worker: int) -> str:
        how = self._place.lost().get(worker)
        named = f"{super().who(worker)} ({self._process(worker)})"
        return named if how is None else f"{named} {how}"

    def lost(self) -> str:
        until = time.monotonic() + STATUS_S
        # The other workers leave when they lose one, and their goodbye may come first.
        while (peer := self._endpoint.lost_peer) is None:
            if time.monotonic() >= until:
                return super().lost()
            time.sleep(_POLL_S / 10)
        how = self._place.how(peer - 1, STATUS_S if self._place.own_processes else _POLL_S)
        return self.who(peer - 1) + ("" if how else " has ended or is out of reach")

    def processes(self) -> list[int]:
        if not isinstance(self._place, SupervisedPlace):
            return []
        return [self._place.process(worker) for worker in range(self.workers)]

    def _process(self, worker: int) -> str:
        if isinstance(self._place, SupervisedPlace):
            return f"process {self._place.process(worker)}"
        return self._names[worker] if self._names else self._place.name

    def _wait_for_room(self) -> None:
        until = time.monotonic() + ROOM_S
        while (there := self._place.capacity()) is not None and there < self.workers:
            if time.monotonic() >= until:
                raise ConfigError.build(
                    "dm.connect",
                    expected=f"capacity for {self.workers} workers: {self._place.name}",
                    got=f"capacity for {there}",
                    hint="connect to fewer, or start more workers there",
                )
            time.sleep(_POLL_S)

    def _check_starting(self) -> None:
        if self._place.lost():
            raise self._not_started()

    def _not_started(self) -> CommError:
        lost = self._place.lost()
        first = next((f"worker {worker} {how}" for worker, how in lost.items()), "no answer")
        others = f" (and {len(lost) - 1} others ended)" if len(lost) > 1 else ""
        return CommError.build(
            "dm.connect",
            expected=f"{self.workers} workers to start",
            got=first + others,
            hint="" if " raised " in first else "their output shows the reason",
        )


def serve(number: int, offered: Mapping[str, Any]) -> None:
    """Serve as one worker of a session until the master ends."""
    own = offered["own_processes"]
    links = join_links(offered, number + 1, offered["size"], START_S)
    endpoint = Endpoint(number + 1, links, lost=_end_without_master if own else None)
    try:
        RankWorker(SocketTeam(endpoint)).serve()
    finally:
        endpoint.close()


def _end_without_master(process: int) -> None:
    if process == 0:
        os._exit(1)


@service
def process_name(rank: Rank) -> str:
    """Return the process and the machine of a rank."""
    return f"process {os.getpid()} on {platform.node()}"
