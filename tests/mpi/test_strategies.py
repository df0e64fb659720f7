"""What holds in threads holds in processes: strategies, compressors and layouts.

All that needs as many ranks is one job, whose parts print what held.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mpi.conftest import Job

Parts = dict[tuple[str, ...], list[str]]
"""Jobs with their arguments (a name of a folder is made a path), and what each one says."""

THREE: Parts = {
    ("training", "saved/", "data"): [
        "equal: usual",
        "equal: ring, small messages",
        "equal: library, no overlap",
        "equal: shards",
        "equal: stage 1",
        "equal: stage 2",
        "equal: stage 3",
    ],
    ("averaging", "averaged/"): [
        "holds: a mean after every step is one process",
        "holds: local goes on to the bit",
        "holds: elastic goes on to the bit",
        "holds: ring goes on to the bit",
        "holds: pairs goes on to the bit",
        "holds: members are runs of one process",
    ],
    ("servers",): [
        f"as it should be: {name}"
        for name in ("synchronous", "bound 0", "stale", "asynchronous", "hogwild")
    ],
    ("compression",): ["the same bits"],
    ("sharding",): ["30 cases on 3 ranks"],
    ("networks", "3", "23"): ["equal: network 3", "equal: network 23"],
}
FOUR: Parts = {
    ("training", "saved/", "model"): ["equal: layers", "equal: both", "equal: samples over all"],
    ("pipeline", "piped/"): [
        "equal: one pipeline",
        "equal: two pipelines",
        "equal: stages of two ranks",
    ],
}
EPOCH = "epoch "


@pytest.mark.parametrize(("ranks", "parts"), [(3, THREE), (4, FOUR)], ids=["3", "4"])
def test_what_holds_in_threads_holds_in_processes(
    job: Job, tmp_path: Path, ranks: int, parts: Parts
) -> None:
    words: list[str] = []
    expected: list[str] = []
    for part, said in parts.items():
        part = tuple(str(tmp_path / each) if each.endswith("/") else each for each in part)
        words += [*part, "/"]
        expected += [*said, f"done: {' '.join(part)}"]
    done = job(ranks, "several", arguments=tuple(words))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if not line.startswith(EPOCH)] == expected
    # One rank speaks for all.
    trained = sum(len(said) for part, said in parts.items() if part[0] == "training")
    assert sum(line.startswith(f"{EPOCH}2/2") for line in lines) == trained
