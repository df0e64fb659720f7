"""Ranks of an experiment: processes where there is an mpiexec, threads where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from caldera.bench.reproduce.rank_work import WORKS, Options
from caldera.comm import run_virtual_ranks
from caldera.comm.mpi_library import find_launcher, library
from caldera.comm.processes import launch
from caldera.errors import CommError

PROCESSES, THREADS = "processes", "threads of one process"
_LIMIT_S = 900.0


def run_ranks(work: str, ranks: int, asked: Sequence[Options]) -> tuple[list[Any], str]:
    """What the first rank found for each of the options, one after the other; and what ranks were.

    Every rank computes with one thread, so that numbers of ranks can be compared.
    """
    if ranks > 1 and not (find_launcher() and library()):
        done = run_virtual_ranks(ranks, lambda each: [WORKS[work](each, o) for o in asked])
        return done[0], THREADS
    with tempfile.TemporaryDirectory(prefix="caldera-ranks-") as folder:
        file = Path(folder) / "found.json"
        program = [
            sys.executable,
            "-m",
            "caldera.bench.reproduce.rank_work",
            work,
            json.dumps(list(asked)),
            str(file),
        ]
        environment = {**os.environ, "CALDERA_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        if ranks > 1:
            job = launch(ranks, program, environment=environment)
            program, environment = job.command, job.environment
        try:
            done_there = subprocess.run(
                program,
                env=environment,
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise CommError.build(
                f"{work} on {ranks} ranks", expected=f"an end within {_LIMIT_S:g} s", got="none"
            ) from None
        if done_there.returncode or not file.exists():
            said = done_there.stderr.strip().splitlines()[-1:] or ["nothing"]
            raise CommError.build(
                f"{work} on {ranks} ranks",
                expected="a result",
                got=said[0],
                hint="does `caldera run -n 2` work here?",
            )
        return json.loads(file.read_text(encoding="utf-8")), PROCESSES
