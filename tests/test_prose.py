"""The English of docs, docstrings, comments and messages gets no worse (see `tools/prose.py`)."""

import json
from pathlib import Path

import pytest

from tools import prose


def test_no_file_gets_harder_to_read() -> None:
    recorded = json.loads(prose.RECORD.read_text())
    worse = {
        name: counts
        for name, counts in prose.measure_all().items()
        if counts.marks > recorded.get(name, 0) and not counts.is_within_limits()
    }
    places = [place for counts in worse.values() for place in counts.places[:8]]
    assert not worse, "\n".join(["rewrite these sentences (tools/prose.py says why):", *places])


def test_the_whole_stays_within_the_limits() -> None:
    for folder in ("caldera", "docs"):
        total = prose.Counts()
        for name, counts in prose.measure_all().items():
            if name.startswith(f"{folder}/"):
                total.add(counts)
        assert total.is_within_limits(), f"{folder}: {total.rates()}, limits {prose.LIMITS}"


@pytest.mark.parametrize(
    ("source", "openings", "phrases", "long"),
    [
        ('"""Return the number of ranks."""\n', 0, 0, 0),
        ('"""What a rank has."""\n', 1, 1, 0),
        ('"""Fine."""\nX = 1\n"""Whether it holds."""\n', 1, 0, 0),
        ("# Nobody asks\n# how many there are.\nx = 1  # type: ignore\n", 0, 3, 0),
        (f'"""Return {"word " * 36}."""\n', 0, 0, 1),
        ('"""Return it.\n\n>>> "nobody knows"\n\'nobody knows\'\n"""\n', 0, 0, 0),
        ('"""Return `what it says`.\n\n| nobody |\n"""\n', 0, 0, 0),
    ],
)
def test_marks_are_counted_in_prose_only(
    tmp_path: Path, source: str, openings: int, phrases: int, long: int
) -> None:
    path = tmp_path / "module.py"
    path.write_text(source)
    counts = prose.measure(path)
    assert (counts.openings, counts.phrases, counts.long) == (openings, phrases, long)


@pytest.mark.parametrize(
    ("source", "messages", "unclear"),
    [
        ('"""What it is."""\nx = "a list of what it takes"\n', 1, 1),
        ('raise ValueError(f"expected {n} of them, got {n:>3} as it is")\n', 1, 1),
        ('raise ValueError("expected an integer, got " + text)\n', 1, 0),
        ('print(f"whether {n} is prime")\n', 1, 1),
        ('key = "nobody"\nname = "in_file"\n', 0, 0),
        ('hint = "call `what is` or pass size="\n', 1, 0),
    ],
)
def test_marks_of_messages_are_counted(
    tmp_path: Path, source: str, messages: int, unclear: int
) -> None:
    path = tmp_path / "module.py"
    path.write_text(source)
    counts = prose.measure(path)
    assert (counts.messages, counts.unclear) == (messages, unclear)


def test_fenced_code_of_pages_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(
        "# Title\n\nTrain a network.\n\n```python\n# nobody knows\n```\n\nIt says no.\n"
    )
    assert [place.split(": ")[1] for place in prose.measure(path).places] == ["says"]
