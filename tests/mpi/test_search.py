"""`caldera run -n 3 search.py`: a master, and workers that are ranks."""

from __future__ import annotations

import json
from pathlib import Path

from caldera import search
from caldera.comm.mpi_library import launcher
from tests.mpi.conftest import Job, lines_of_ranks


def test_ranks_run_every_trial_once_and_all_get_the_study(job: Job, tmp_path: Path) -> None:
    # Without ULFM all ranks end when one dies, and `--restarts` goes on with the study.
    survives = bool(launcher().implementation.survives)
    done = job(
        3,
        "searching",
        *(["--survive"] if survives else []),
        arguments=("dies",) if survives else (),
    )
    assert done.returncode == 0, done.stderr
    ran = (tmp_path / "ran").read_text().split()
    assert sorted(map(int, ran)) == list(range(20))
    said = [line.partition(": ")[2] for line in lines_of_ranks(done)]
    assert said.count("20 trials, best {'x': 5}") == 3
    assert said.count("best {'learning_rate': 0.3} after 4") == 3
    assert search.load(tmp_path / "study").counts()["done"] == 2
    survivors = [json.loads(each) for each in said if each.startswith("[")]
    assert survivors == [[float(x) for x in range(10)]] * (2 if survives else 0)
