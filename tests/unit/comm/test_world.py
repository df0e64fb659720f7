"""Who started this program, and with how many others; and how it is started."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from caldera.comm import SingleProcess, restarted, world
from caldera.comm.mpi_library import find_launcher, implementation
from caldera.comm.supervision import launch
from caldera.errors import ConfigError


def test_alone_there_is_one_process_and_no_mpi() -> None:
    assert isinstance(world(), SingleProcess)
    assert world() is world()
    # In a process of its own: other tests of this one may have imported mpi4py.
    program = "import sys, caldera.comm as comm; print(comm.world().size, 'mpi4py' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stdout.split() == ["1", "False"], found.stderr


def test_a_restart_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not restarted()
    monkeypatch.setenv("CALDERA_RESTART", "2")
    assert restarted()


@pytest.mark.parametrize(
    ("said", "name", "survives"),
    [
        ("mpiexec (Open MPI) 5.0.11", "Open MPI 5.0.11", True),
        ("mpirun (OpenRTE) 4.1.4", "Open MPI 4.1.4", True),
        ("Open MPI v5.0.11, package: Open MPI root@x, ident: 5.0.11", "Open MPI 5.0.11", True),
        ("HYDRA build details:\n    Version:           4.3.2\n", "MPICH 4.3.2", False),
        ("MPICH Version:      4.3.2\nMPICH Release date: x", "MPICH 4.3.2", False),
        ("MPI VERSION    : CRAY MPICH version 8.1.29.12 (ANL)", "MPICH 8.1.29.12", False),
        ("Intel(R) MPI Library 2021.13 for Linux* OS", "Intel MPI 2021.13", False),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.13 Build 2", "Intel MPI 2021.13", False),
        ("MVAPICH2 Version      :\t2.3.7", "MVAPICH 2.3.7", False),
        ("something else", "unknown MPI", False),
    ],
)
def test_makes_of_mpi_are_recognised(said: str, name: str, survives: bool) -> None:
    found = implementation(said)
    assert str(found) == name
    assert bool(found.survives) == survives


def starter(folder: Path, says: str) -> dict[str, str]:
    """An environment whose mpiexec says that it is of some make."""
    path = folder / "mpiexec"
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return {"PATH": str(folder), "HOME": str(folder)}


@pytest.fixture
def _none_beside_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))


@pytest.mark.usefixtures("_none_beside_python")
class TestLaunch:
    def test_open_mpi(self, tmp_path: Path) -> None:
        environment = starter(tmp_path, "mpiexec (Open MPI) 5.0.11")
        made = launch(4, ["train.py", "--epochs", "2"], environment=environment)
        assert made.command[:3] == [str(tmp_path / "mpiexec"), "-n", "4"]
        assert "--oversubscribe" in made.command
        assert made.command[-4:] == [sys.executable, "train.py", "--epochs", "2"]
        assert made.environment["HOME"] == str(tmp_path)
        assert made.environment["OMPI_MCA_mpi_yield_when_idle"] == "1"
        assert int(made.environment["CALDERA_THREADS"]) >= 1

    def test_ranks_on_other_machines_get_the_variables_they_need(self, tmp_path: Path) -> None:
        environment = starter(tmp_path, "mpiexec (Open MPI) 5.0.11") | {"CALDERA_DATA": "/data"}
        command = launch(2, ["train.py"], hosts="a:1,b:1", environment=environment).command
        sent = [word for flag, word in pairwise(command) if flag == "-x"]
        assert {"CALDERA_DATA", "CALDERA_THREADS", "CALDERA_RESTART"} <= set(sent)
        assert "HOME" not in sent

    def test_another_mpi_gets_no_options_it_does_not_know(self, tmp_path: Path) -> None:
        environment = starter(tmp_path, "HYDRA build details")
        environment["CALDERA_THREADS"] = "3"
        made = launch(2, ["solver", "x"], hosts="a:1,b:1", environment=environment)
        assert made.command[1:] == ["-n", "2", "-hosts", "a:1,b:1", "solver", "x"]
        assert made.environment["CALDERA_THREADS"] == "3"
        with pytest.raises(ConfigError, match=r"ULFM .*--restarts"):
            launch(2, ["train.py"], survive=True, environment=environment)

    def test_the_library_that_mpi4py_is_told_to_load_brings_its_mpiexec(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / "bin").mkdir()
        (tmp_path / "mpich" / "bin").mkdir(parents=True)
        (tmp_path / "mpich" / "lib").mkdir()
        environment = starter(tmp_path / "bin", "mpiexec (Open MPI) 5.0.11")
        mine = starter(tmp_path / "mpich" / "bin", "HYDRA build details:\n    Version:  4.3.2")
        assert find_launcher(environment).implementation.name == "Open MPI"
        for named in ("lib/libmpi.so.12", "lib"):
            environment["MPI4PY_LIBMPI"] = str(tmp_path / "mpich" / named)
            found = find_launcher(environment)
            assert found.path == f"{mine['PATH']}/mpiexec"
            assert str(found.implementation) == "MPICH 4.3.2"

    def test_what_was_said_otherwise_is_kept(self, tmp_path: Path) -> None:
        environment = starter(tmp_path, "mpiexec (Open MPI) 5.0.11")
        environment["OMPI_MCA_mpi_yield_when_idle"] = "0"
        made = launch(2, ["train.py"], environment=environment)
        assert made.environment["OMPI_MCA_mpi_yield_when_idle"] == "0"

    def test_hosts_that_cannot_be_read_are_refused(self) -> None:
        for wrong in ("", "a:x", "a:1,,b:1", ":4"):
            with pytest.raises(ConfigError, match="as in a:4,b:4"):
                launch(2, ["train.py"], hosts=wrong)

    def test_without_mpiexec_the_error_says_what_to_install(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"caldera\[mpi\]"):
            launch(2, ["train.py"], environment={"PATH": str(tmp_path)})
