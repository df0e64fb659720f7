"""MPICH as well: what differs between makes of MPI is in how they start, end and fail."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from caldera.cli import optional_parts
from caldera.comm.mpi_library import LIBRARY_VARIABLE
from caldera.comm.supervision import launch
from caldera.errors import ConfigError
from tests.mpi.conftest import Job

PREFIX = Path(os.environ.get("CALDERA_MPICH") or Path(sys.prefix) / "mpich")
"""Not in the environment itself, where its mpiexec would take the place of Open MPI's."""


@pytest.fixture
def mpich() -> dict[str, str]:
    """The variables that choose MPICH."""
    if not any((PREFIX / "lib").glob("libmpi.*")):
        pytest.skip(
            f"no MPICH in {PREFIX}: `make tests` puts one into .venv/mpich, or CALDERA_MPICH says "
            "where one is"
        )
    return {LIBRARY_VARIABLE: str(PREFIX / "lib")}


def test_mpich_trains_as_one_process_does_and_keeps_the_contract(
    job: Job, mpich: dict[str, str], tmp_path: Path
) -> None:
    training = ("training", str(tmp_path / "saved"), "data", "usual")
    done = job(2, "several", arguments=(*training, "/", "contract"), **mpich)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "equal: usual" in lines
    assert f"done: {' '.join(training)}" in lines
    assert "kept by 2 ranks" in lines
    assert "given as they are" in lines


def test_it_is_found_with_its_mpiexec(
    mpich: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in mpich.items():
        monkeypatch.setenv(name, value)
    found = {part.name: part.found for part in optional_parts.parts()}
    assert re.fullmatch(r"MPICH \d\S+", found["MPI"])
    assert found["mpiexec"] == f"{found['MPI']} at {PREFIX / 'bin' / 'mpiexec'}"
    with pytest.raises(ConfigError, match=r"ULFM \(Open MPI 5\), got MPICH \d"):
        launch(2, ["train.py"], survive=True)
