"""`caldera check` from the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from caldera.base.plain_data import to_plain
from tests.cli.conftest import Caldera
from tests.unit.bench.test_honesty import honest


def test_the_command_says_it_and_gives_a_status(caldera: Caldera, tmp_path: Path) -> None:
    runs = [replace(run, reads="memory") for run in honest().runs]
    staged = replace(honest(), runs=tuple(runs))
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(to_plain(honest())))
    bad.write_text(json.dumps(to_plain(staged)))
    done = caldera("check", good)
    assert done.status == 0, done.out
    assert "15 fine, 0 violated, 0 not shown" in done.out
    done = caldera("check", good, bad)
    assert done.status == 1
    assert "-> State that samples are in memory" in done.out
    found = json.loads(caldera("check", "--json", bad).out)
    assert [each["status"] for each in found[0]["verdicts"]].count("violated") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "expected JSON"),
        ("[]", "expected Claims, got []"),
        ('{"title": "t", "runs": []}', "expected at least one run"),
        ('{"title": "t", "runs": [], "speed": 3}', "another set of keys: speed"),
        ('{"title": "t", "runs": [], "format": "x"}', "format: expected 'caldera claims 1'"),
        ('{"entries": 3, "machine": {}}', "expected a file of caldera bench --json"),
        ('{"entries": [], "machine": {"cpu": "x", "threads": 1}}', "expected a row that counts"),
    ],
)
def test_a_bad_file_is_refused(
    caldera: Caldera,
    tmp_path: Path,
    text: str,
    message: str,
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    done = caldera("check", path)
    assert done.status != 0
    assert message in done.err + done.out


def test_a_file_without_code_has_no_age(caldera: Caldera, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text('{"code": {"kernels": "x"}, "machine": {"time": "2026-11-18 05:00"}}')
    done = caldera("check", "--age", path)
    assert done.status == 0, done.err
    assert "2026-11-18" in done.out
    assert "1 of 1 figures are older than the kernels" in done.out
    path.write_text("[]")
    done = caldera("check", "--age", path)
    assert done.status != 0
    assert 'expected an object with "code" and "machine"' in done.err
