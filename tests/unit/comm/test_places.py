"""Places: workers start, end and are stopped, whoever runs them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from caldera.base.children import child_environment
from caldera.comm import hosts
from caldera.comm.listener import EVERYWHERE, KEY_BYTES, LOOPBACK, Listener
from caldera.comm.places import is_cluster, meeting, place_of
from caldera.comm.places.dask_place import DaskPlace
from caldera.comm.places.local import ForkPlace, SupervisedPlace
from caldera.comm.places.mpi_place import MpiPlace
from caldera.comm.places.place import Place
from caldera.comm.places.ray_place import RayPlace
from caldera.comm.places.shared_folder import FolderProof, unseen
from caldera.errors import CommError, ConfigError
from tests.unit.comm.fake_places import Client, Ray

WITHIN_S = 30.0


@pytest.fixture(params=["fork", "dask", "ray"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    made: dict[str, Any] = {
        "fork": ForkPlace,
        "dask": lambda: DaskPlace(Client(3)),
        "ray": lambda: RayPlace(Ray(3), together=False),
    }
    found = made[request.param]()
    yield found
    found.stop()


def _lost(place: Place, count: int) -> Mapping[int, str]:
    until = time.monotonic() + WITHIN_S
    while len(place.lost()) < count:
        assert time.monotonic() < until
        time.sleep(0.005)
    return place.lost()


def test_workers_have_numbers_and_arguments_and_their_ends_are_told(
    place: Place, tmp_path: Path
) -> None:
    def work(number: int, folder: Path, shared: dict[str, int]) -> None:
        (folder / str(number)).write_text(str(shared["x"]))
        if number == 1:
            os._exit(7)
        if number == 2:
            os.kill(os.getpid(), 9)

    numbers = place.start(2, work, [tmp_path, place.share({"x": 5})])
    numbers += place.start(1, work, [tmp_path, place.share({"x": 6})])
    assert numbers == [0, 1, 2]
    lost = _lost(place, 3)
    assert [(tmp_path / str(number)).read_text() for number in numbers] == ["5", "5", "6"]
    assert "7" in lost[1]
    assert "killed" in lost[2] or "died" in lost[2]
    assert place.how(0, 0.0) == lost[0]
    assert place.how(3, 0.0) == ""


def test_a_place_is_stopped_after_the_time_that_workers_are_given(
    place: Place, tmp_path: Path
) -> None:
    def work(number: int) -> None:
        time.sleep(0.2 if number == 0 else 60)
        (tmp_path / str(number)).touch()

    place.start(1, work, [])
    place.start(1, work, [])
    began = time.monotonic()
    place.stop(1)
    place.stop(seconds=WITHIN_S)
    assert time.monotonic() - began < WITHIN_S
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


class MPIPoolExecutor(ThreadPoolExecutor):
    """Stands for mpi4py's: its ranks are threads."""

    num_workers = 2


MPIPoolExecutor.__module__ = "mpi4py.futures.pool"


def test_ranks_of_a_pool_run_workers_and_tell_how_they_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CALDERA_THREADS", "1")
    executor, over = MPIPoolExecutor(2), threading.Event()
    place = place_of(executor, "here", together=True)
    assert isinstance(place, MpiPlace)
    assert (place.capacity(), place.own_processes, place.distributes) == (2, False, False)

    def work(number: int) -> None:
        if number == 1:
            raise ValueError("no table")
        assert number == 0 or over.wait(WITHIN_S)

    place.start(4, work, [])
    assert _lost(place, 2) == {0: "has ended", 1: "raised ValueError: no table"}
    place.stop(3, seconds=0.02)
    over.set()
    place.stop(seconds=WITHIN_S)
    assert place.lost().keys() == {0, 1}
    executor.num_workers = 0
    with pytest.raises(ConfigError, match="got one that was shut down"):
        place_of(executor, "here", together=True)


def test_a_pool_of_ranks_listens_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    place = MpiPlace(MPIPoolExecutor())
    names = [name for name in hosts.host_names() if not hosts.is_loopback(name)]
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "8")
    for local, wanted in (("8", LOOPBACK), ("4", names[0] if names else LOOPBACK)):
        monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", local)
        assert place.host() == wanted


@pytest.mark.parametrize("given", ["mpi", "mpi:2", "mpi:0", "mpi:x"])
def test_a_pool_needs_the_ranks_of_a_program_that_has_them(given: str) -> None:
    with pytest.raises(ConfigError, match=r"mpiexec -n 5 python -m mpi4py\.futures PROGRAM"):
        place_of(given, "here", together=True)


def test_neither_dask_nor_ray_is_imported_before_it_is_used() -> None:
    code = "import sys, caldera.comm.places; print({'distributed', 'ray'} & {*sys.modules})"
    found = subprocess.run(
        [sys.executable, "-P", "-c", code], env=child_environment(), capture_output=True, check=True
    )
    assert found.stdout == b"set()\n"


def test_a_client_is_recognised_by_its_type_and_others_have_a_hint() -> None:
    class Derived(Client):
        pass

    assert is_cluster(Client())
    assert is_cluster(Derived())
    for name in ("SLURMCluster", "LocalCluster"):
        cluster = type(name, (), {"__module__": "dask_jobqueue.slurm"})()
        assert not is_cluster(cluster)
        with pytest.raises(ConfigError, match=r"Client\(cluster\)"):
            place_of(cluster, "here", together=False)
    with pytest.raises(ConfigError, match=r"expected a dask\.distributed\.Client"):
        place_of(8, "here", together=False)
    away = Client()
    away.status = "closed"
    with pytest.raises(ConfigError, match="expected a synchronous Dask client"):
        place_of(away, "here", together=False)


@pytest.mark.parametrize("given", ["dask:tcp://127.0.0.1:1", "ray", "ray:10.0.0.1:6379"])
def test_an_address_asks_for_its_package(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("distributed", "ray"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match="pip install"):
        place_of(given, "here", together=True)


def test_an_address_without_an_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: object, **named: object) -> None:
        raise OSError("timed out")

    monkeypatch.setitem(sys.modules, "distributed", SimpleNamespace(Client=fails))
    played = SimpleNamespace(init=fails, is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "ray", played)
    with pytest.raises(ConfigError, match="got 'dask:tcp://a:1': timed out"):
        place_of("dask:tcp://a:1", "here", together=True)
    with pytest.raises(ConfigError, match="got 'ray://a:1': timed out"):
        place_of("ray://a:1", "here", together=True)


def test_workers_that_run_together_are_spread_over_threads() -> None:
    class Uneven(Client):
        def nthreads(self) -> dict[str, int]:
            return {"a": 4, "b": 2}

    client = Uneven(6)
    place = DaskPlace(client, together=True)
    place.start(3, abs, [])
    assert sorted(map(str, client.bound)) == ["a", "a", "b"]
    assert place.capacity() == 6
    assert not place.distributes
    place.stop()


def test_a_card_is_asked_for_where_the_cluster_has_some(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = Ray(8)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 8.0, "GPU": 2.0})
    place = RayPlace(ray, together=True)
    assert place.capacity() == 2
    place.start(1, os._exit, [])
    assert ray.asked == [{"num_cpus": 1, "num_gpus": 1}]
    place.stop()


def test_the_port_is_on_loopback_unless_workers_may_be_elsewhere() -> None:
    own = hosts.address_towards("192.0.2.1")
    assert DaskPlace(Client()).host() == LOOPBACK
    assert DaskPlace(Client(scheduler="inproc://10.0.0.1/1")).host() == LOOPBACK
    away = Client(scheduler="tcp://192.0.2.1:8786")
    assert DaskPlace(away).host() == own
    assert meeting.listening_address(own, "") == EVERYWHERE
    assert meeting.listening_address(LOOPBACK, "") == LOOPBACK
    assert meeting.listening_address(own, "lo") == LOOPBACK

    class Here(Client):
        def nthreads(self) -> dict[str, int]:
            return {f"tcp://{own}:{number}": 1 for number in range(2)}

    # Workers that run together stay where they are; others may join from another machine.
    here = Here(scheduler=f"tcp://{own}:8786")
    assert DaskPlace(here, together=True).host() == LOOPBACK
    assert DaskPlace(here, together=False).host() == own
    assert RayPlace(Ray(), together=False).host() == LOOPBACK


def test_an_interface_is_named() -> None:
    assert hosts.interface_address("lo") == LOOPBACK
    for name in ("lo7", "x" * 300, "", "\ud800", 5):
        with pytest.raises(ConfigError, match="expected a network interface with an IPv4 address"):
            hosts.interface_address(name)  # type: ignore[arg-type]


def test_who_cannot_be_reached_offers_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((LOOPBACK, 0)) as port:
        offered = {"port": port.getsockname()[1], "key": "00" * KEY_BYTES, "interface": ""}
    offered["hosts"] = [LOOPBACK, "127.0.0.2", "no.such.host.invalid"]
    with pytest.raises(CommError, match="caldera run -n 9 --hosts") as caught:
        meeting.reach(offered, 1, 5.0)
    assert all(host in str(caught.value) for host in offered["hosts"])


def test_the_second_address_counts_if_the_first_has_no_answer() -> None:
    with closing(Listener(bytes(KEY_BYTES))) as listener:
        offered = meeting.offer(listener, LOOPBACK, "lo")
        assert offered["hosts"] == [LOOPBACK]
        offered["hosts"].insert(0, "127.0.0.9")
        found: list[socket.socket] = []
        worker = threading.Thread(target=lambda: found.append(meeting.reach(offered, 4, 20.0)))
        worker.start()
        peer = listener.accept(time.monotonic() + 20)
        worker.join()
        assert peer.number == 4
        assert found[0].getpeername()[0] == LOOPBACK
        for link in (peer.link, *found):
            link.close()


def test_a_folder_is_proven_to_be_the_same(tmp_path: Path) -> None:
    with FolderProof(tmp_path / "study") as proof:
        assert unseen(proof.offered) == ""
        path = Path(proof.offered["path"])
        assert path.is_absolute()
        path.write_text("1" * 1000)
        assert unseen(proof.offered) == "another folder of this name"
        path.unlink()
        assert unseen(proof.offered).startswith("a folder without the file")
        path.parent.rmdir()
        assert unseen(proof.offered).startswith("no such folder")
    assert not list(tmp_path.iterdir())


def test_a_supervisor_that_cannot_load_its_module_is_named() -> None:
    place = SupervisedPlace("caldera.no_such_module", 2)
    place.start(2, abs, [])
    until = time.monotonic() + WITHIN_S
    while not place.lost():
        assert time.monotonic() < until
        time.sleep(0.01)
    assert "ended with its supervisor" in place.lost()[1]
    place.stop()
