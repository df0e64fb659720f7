"""`caldera bench --again`: equal runs are called equal, a slower one slower, 19 times of 20."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from caldera.bench.again import (
    FASTER,
    MISSING,
    SLOWER,
    WITHIN,
    compare,
    compare_reports,
    options_of,
    read_report,
)
from caldera.bench.case_runner import Options
from caldera.errors import DataError
from tests.unit.bench.reports import entry, report


def _rounds(random: np.random.Generator, seconds: float, rounds: int, noise: float) -> list:
    """Times as a machine gives them: rounds differ, times in a round less, and some are late."""
    found = []
    for _ in range(rounds):
        level = seconds * np.exp(noise * random.standard_normal())
        times = level * np.exp(0.01 * random.standard_normal(20))
        times[random.random(20) < 0.05] *= 1.5
        found.append(times.tolist())
    return found


@pytest.mark.parametrize(("rounds", "noise"), [(3, 0.005), (7, 0.01), (7, 0.02), (15, 0.03)])
def test_equal_runs_are_equal_and_slower_ones_slower(rounds: int, noise: float) -> None:
    random = np.random.default_rng(rounds)
    verdicts: dict[float, list[str]] = {1.0: [], 1.1: [], 0.9: []}
    for _ in range(60):
        before = _rounds(random, 1.0, rounds, noise)
        for factor, found in verdicts.items():
            after = _rounds(random, factor, rounds, noise)
            found.append(compare("a", before, after).verdict)
    assert verdicts[1.0].count(WITHIN) >= 57
    assert verdicts[1.1].count(SLOWER) >= 57
    assert verdicts[0.9].count(FASTER) >= 57


def test_what_cannot_be_told_is_within_noise() -> None:
    assert compare("one round", [[1.0]], [[2.0]]).verdict == WITHIN
    assert compare("no spread", [[1.0], [1.0]], [[1.0], [1.0]]).verdict == WITHIN
    assert compare("no spread", [[1.0], [1.0]], [[2.0], [2.0]]).verdict == SLOWER
    assert compare("nothing", [], [[2.0]]).verdict == MISSING
    assert "missing" in str(compare("nothing", [], [[2.0]]))


def test_two_reports_are_compared_by_name() -> None:
    before = report(entry("caldera", "strict", 1.0), entry("torch", "eager", 1.0)).to_json()
    after = report(entry("caldera", "strict", 1.2), entry("jax", "jit", 1.0)).to_json()
    found = {each.name: each.verdict for each in compare_reports(before, after)}
    assert found == {
        "mlp net, caldera strict": SLOWER,
        "mlp net, torch eager": MISSING,
        "mlp net, jax jit": MISSING,
    }


def test_options_come_back_and_other_files_are_refused(tmp_path: Path) -> None:
    made = report(entry("caldera", "strict", 1.0))
    made.options = {"works": ["mlp"], "peers": [], "quick": True, "threads": 1}
    path = tmp_path / "r.json"
    path.write_text(json.dumps(made.to_json()))
    assert options_of(read_report(path)) == Options(["mlp"], [], quick=True, threads=1)
    for text in ("{", "[]", "{}", '{"entries": [], "options": 3}'):
        path.write_text(text)
        with pytest.raises(DataError, match="expected a file of caldera bench --json"):
            read_report(path)
    with pytest.raises(DataError, match="No such file"):
        read_report(tmp_path / "none")
