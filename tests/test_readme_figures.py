"""Every figure in README comes from a file of results, and is what that file says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from caldera import bench
from caldera.bench.honesty.age import age_text, figure_ages
from caldera.errors import DataError

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
SOURCES = RESULTS / "readme.json"
"""Sources of figures, by the words around a figure, and of table rows, by the start of a row."""
NO_SAMPLES = "No file with every sample stands behind these figures"
_CODE = re.compile(r"```.*?```|`[^`]*`|^    .*?$|^\|.*?$|\]\([^)]*\)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\([^)]*\)|`[^`]*`")
_TIME = re.compile(r"\d (?:us|ms|s)\b|\d times")
_FRAME = re.compile(r"^\|[-:| ]+\|$|^\| \| |^\| (?:network|task) \|")
"""Header and separator rows of the README's tables."""
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_NUMBER = re.compile(r"(?<![\w.-])\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?(?![\w-]|\.\d)")


def prose(text: str) -> str:
    """README without code, tables and links, in one line."""
    return " ".join(_CODE.sub(" ", text).split())


def figures(text: str) -> list[tuple[str, str]]:
    """Every number of the prose with the words around it; names such as LeNet-5 have none."""
    plain = prose(text)
    return [
        (each.group(), plain[max(0, each.start() - 40) : each.end() + 25])
        for each in _NUMBER.finditer(plain)
    ]


def problems(readme: str, sources: dict[str, Any], results: Path) -> list[str]:
    """Figures without a file, files without the figure, and figures that differ."""
    found, plain, known = [], prose(readme), []
    for words, source in sources["figures"].items():
        if words not in plain:
            found.append(f"{words!r} is no longer in README")
            continue
        given = [each.group() for each in _NUMBER.finditer(words)]
        path = results / source["file"]
        lines = path.read_text().splitlines() if path.is_file() else []
        line = next((each for each in lines if source["line"] in each), None)
        if line is None:
            found.append(f"{words!r}: {source['file']} has no line with {source['line']!r}")
            continue
        known += given
        for shown, exact in zip(given, source["values"], strict=True):
            if not re.search(rf"(?<![\d.]){re.escape(exact)}(?!\d)", line):
                found.append(f"{words!r}: {exact} is not in {line!r}")
            elif not _rounds_to(exact, shown, source.get("scale", 1.0)):
                found.append(f"{words!r}: README says {shown}, {source['file']} says {exact}")
    free = list(sources["no figures"])
    for number, around in figures(readme):
        if number in known:
            known.remove(number)
        elif number in free:
            free.remove(number)
        else:
            found.append(f"{number} has no file of results: ...{around}...")
    return found


def table_problems(readme: str, sources: dict[str, Any], results: Path) -> list[str]:
    """Return the cells with a number that is not in the row's own lines of its file."""
    found, unused = [], dict(sources["rows"])
    for line in readme.splitlines():
        numbers = [each.group() for each in _NUMBER.finditer(_LINK.sub("", line.partition("|")[2]))]
        if not line.startswith("|") or _FRAME.match(line) or not numbers:
            continue
        start = next((each for each in unused if line.startswith(each)), None)
        if start is None:
            found.append(f"{line!r} has no entry in readme.json")
            continue
        source = unused.pop(start)
        lines = (results / source["file"]).read_text().splitlines()
        cells = [
            cell.strip(" *")
            for given in source["lines"]
            for text in lines
            if given in text
            for cell in re.split(r"[|(]", text)
        ]
        for cell in line.strip("| ").split(" | ")[1:]:
            if not any(re.match(rf"{re.escape(cell.split()[0])}(?![\d.])", each) for each in cells):
                found.append(f"{line!r}: {cell} is not in {source['file']}, {source['lines']}")
    return [*found, *(f"{each!r} is no longer in README" for each in unused)]


def unclaimed(readme: str, sources: dict[str, Any], results: Path) -> list[str]:
    """Times of the README that are not those of the runs in a file that `caldera check` passes."""
    name = sources["claims"]
    content = json.loads((results / name).read_text())
    found = [
        f"{name}: {each.sentence}"
        for each in bench.check(content).verdicts
        if each.status != "fine"
    ]
    seconds = {run["name"]: run["seconds"][0] for run in content["runs"]}
    found += [
        f"{words!r} is a time without a run in {name}"
        for words in sources["figures"]
        if _TIME.search(words)
    ]
    for line in readme.splitlines():
        start = next((each for each in sources["rows"] if line.startswith(each)), "")
        runs = sources["rows"].get(start, {}).get("runs", ())
        times = line.strip("| ").split(" | ")[1:]
        if not runs and any(_TIME.search(each) for each in times):
            found.append(f"{line!r} has times without a run in {name}")
        for run, time in zip(runs, times, strict=bool(runs)):
            number, unit = time.split()
            if abs(float(number) * _UNITS[unit] / seconds[run] - 1) > 0.005:
                found.append(f"{line!r}: {run} took {seconds[run]} s, not {time}")
    return found


def _rounds_to(exact: str, shown: str, scale: float) -> bool:
    """Whether a number is another one, rounded to as many digits as that has."""
    value, text = float(exact.replace(",", "")) * scale, shown.replace(",", "")
    if "e" in text:
        return float(f"{value:.1e}") == float(text)
    digits = len(text.partition(".")[2])
    return abs(value - float(text)) <= 0.5 * 10**-digits + 1e-9


def test_every_figure_of_the_readme_has_a_file_and_is_what_it_says() -> None:
    readme, sources = (ROOT / "README.md").read_text(), json.loads(SOURCES.read_text())
    found = problems(readme, sources, RESULTS) + table_problems(readme, sources, RESULTS)
    assert not found, "\n".join(found)


def test_a_figure_that_differs_or_has_no_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "r.md").write_text("| mlp | 33.04 us |\n")
    sources = {
        "figures": {"the MLP 33 us": {"file": "r.md", "line": "mlp", "values": ["33.04"]}},
        "no figures": [],
    }
    assert not problems("It takes the MLP 33 us a step.", sources, tmp_path)
    sources["figures"] = {"the MLP 32 us": {"file": "r.md", "line": "mlp", "values": ["33.04"]}}
    assert "README says 32" in problems("the MLP 32 us", sources, tmp_path)[0]
    sources["figures"] = {"the MLP 33 us": {"file": "r.md", "line": "mlp", "values": ["33.01"]}}
    assert "33.01 is not in" in problems("the MLP 33 us", sources, tmp_path)[0]
    sources["figures"] = {}
    assert "33 has no file" in problems("the MLP 33 us on ResNet-50", sources, tmp_path)[0]


def test_every_changed_cell_of_a_table_is_found() -> None:
    readme, sources = (ROOT / "README.md").read_text(), json.loads(SOURCES.read_text())
    for start in sources["rows"]:
        row = next(line for line in readme.splitlines() if line.startswith(start))
        for number in _NUMBER.finditer(row, len(start)):
            for changed in (str(10 * float(number.group())), number.group()[:-1] + "x", "1"):
                line = row[: number.start()] + changed + row[number.end() :]
                assert table_problems(readme.replace(row, line), sources, RESULTS), line
        assert table_problems(readme.replace(row + "\n", ""), sources, RESULTS) == [
            f"{start!r} is no longer in README"
        ]
    new = "| ResNet-18 | 16 | 10 | 5 | 2.0 |"
    assert "has no entry" in table_problems(f"{readme}\n{new}\n", sources, RESULTS)[0]


def test_times_of_the_readme_pass_the_twelve_rules() -> None:
    readme, sources = (ROOT / "README.md").read_text(), json.loads(SOURCES.read_text())
    assert not unclaimed(readme, sources, RESULTS)
    assert "not 31.0 us" in unclaimed(readme.replace("33.0 us", "31.0 us"), sources, RESULTS)[0]
    sources["figures"]["new 12 ms"] = {"values": ["12"]}
    assert "without a run" in unclaimed(readme, sources, RESULTS)[0]


def judged(readme: str, sources: dict[str, Any]) -> list[str]:
    """Return the figures whose verdict is missing or contradicts the README's own times."""
    found = []
    for start, source in {**sources["rows"], **sources["figures"]}.items():
        measured = source.get("measured", {})
        if measured.keys() != {"verdict", "date", "commit", "kernels"}:
            found.append(f"{start!r} needs a verdict, date, commit and digest of the kernels")
        row = next((line for line in readme.splitlines() if line.startswith(start)), "")
        cells = [float(each) for each in _NUMBER.findall(row[len(start) :])]
        ours, theirs = cells[:2] if source.get("runs") else reversed(cells[:2] or [0, 0])
        if cells and (measured.get("verdict") == "faster") != (ours < theirs):
            found.append(f"{start!r} is called {measured.get('verdict')}: {row}")
    return found


def test_figures_of_the_readme_have_a_verdict_and_the_code_they_were_measured_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readme, sources = (ROOT / "README.md").read_text(), json.loads(SOURCES.read_text())
    assert not judged(readme, sources)
    assert "is called faster" in judged(readme.replace("161 | 111", "110 | 111"), sources)[0]
    ages = figure_ages(SOURCES)
    assert len(ages) == len(sources["rows"]) + len(sources["figures"])
    monkeypatch.setattr("caldera.bench.honesty.age.kernels_digest", lambda: ages[0].kernels)
    assert ages[0].state == "unchanged"
    monkeypatch.setattr("caldera.bench.honesty.age.kernels_digest", lambda: "another")
    assert {each.state for each in ages} == {"old: changed since"}
    assert f"{len(ages)} of {len(ages)} figures are older" in age_text(ages)
    (old,) = figure_ages(RESULTS / "levels-x86_64.json")
    assert (old.date, old.state) == ("2026-11-16", "unknown")
    assert "0 of 1 figures are older than the kernels, 1 of unknown age" in age_text([old])


def test_the_age_of_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text(json.dumps({"code": {"commit": None}, "machine": {"time": "2026-11-19"}}))
    with pytest.raises(DataError, match="commit"):
        figure_ages(file)


OLDER = {"workload"}
"""Files of before the bench wrote the shapes of weights."""
NOT_KEPT = {
    "bench-formulas-x86_64.json": {"peers"},
    "levels-gpt-x86_64.json": {"peers"} | OLDER,
    "levels-networks-x86_64.json": OLDER,
    "levels-resnet20-x86_64.json": {"peers"} | OLDER,
}
"""Rules that recorded files break: three were run with --no-compile."""


def test_files_of_the_bench_among_the_results_pass_the_rules_but_for_known_ones() -> None:
    checked = {}
    for path in sorted(RESULTS.glob("*.json")):
        content = json.loads(path.read_text())
        if isinstance(content, list):
            continue
        if "entries" in content or content.get("format", "").startswith("caldera claims"):
            found = bench.check(content).verdicts
            checked[path.name] = {each.rule for each in found if each.status != "fine"}
    assert {name: rules for name, rules in checked.items() if rules} == NOT_KEPT
    assert len(checked) > len(NOT_KEPT)


def test_every_file_of_results_says_where_its_samples_are() -> None:
    """A table names the file of samples that it comes from, or says that there is none."""
    silent = []
    for path in sorted([*RESULTS.glob("*.md"), *RESULTS.glob("*.txt")]):
        text = path.read_text()
        named = [name for name in re.findall(r"[\w-]+\.json", text) if (RESULTS / name).is_file()]
        if not named and NO_SAMPLES not in text:
            silent.append(path.name)
    assert not silent, (
        f"{silent}: keep the samples beside it and name that file, or say: {NO_SAMPLES}: "
        "`caldera check` cannot read them."
    )
