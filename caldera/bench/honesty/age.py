"""Age of published figures: the code they were measured with, compared with today's kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caldera.base.formatting import table_lines
from caldera.base.plain_data import from_plain
from caldera.bench.honesty.check import read_json
from caldera.bench.results import kernels_digest
from caldera.errors import DataError

HEAD = ("figure", "verdict", "measured", "commit", "kernels")


@dataclass(frozen=True)
class FigureAge:
    """A published figure with its verdict, its date and the version of its code.

    >>> FigureAge("MLP, 16 threads", "faster", "2026-11-18", "e48545b5", "another").state
    'old: changed since'
    """

    figure: str
    verdict: str = ""
    date: str = ""
    commit: str = ""
    kernels: str = ""
    """Digest of the sources of all kernels."""

    @property
    def state(self) -> str:
        """The age in words."""
        if not self.kernels:
            return "unknown"
        return "unchanged" if self.kernels == kernels_digest() else "old: changed since"


def figure_ages(path: Path) -> list[FigureAge]:
    """Return the ages of a results file, or of all figures of a file such as `readme.json`."""
    content = read_json(path)
    try:
        return list(_ages(content, path.name))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DataError.build(
            f"check --age {path}",
            expected='an object with "code" and "machine", or with "rows" and "figures"',
            got=f"{type(error).__name__}: {error}",
        ) from None


def _ages(content: Any, name: str) -> Iterator[FigureAge]:
    if "rows" in content and "figures" in content:
        for figure, source in {**content["rows"], **content["figures"]}.items():
            measured = {"figure": figure.strip("| "), **source.get("measured", {})}
            yield from_plain(FigureAge, measured, name)
    else:
        code, verdict = content["code"], content.get("verdict", "")
        known = {key: code.get(key, "") for key in ("commit", "kernels")}
        date = content["machine"]["time"][:10]
        yield from_plain(
            FigureAge, {"figure": name, "verdict": verdict, "date": date, **known}, name
        )


def age_text(ages: list[FigureAge]) -> str:
    """Return a table of figures with the number of old ones."""
    rows = [(each.figure, each.verdict, each.date, each.commit[:8], each.state) for each in ages]
    old = sum(each.state.startswith("old") for each in ages)
    unknown = sum(not each.kernels for each in ages)
    lines = table_lines([HEAD, *rows], left=range(len(HEAD)))
    return "\n".join(
        [
            *lines,
            f"{old} of {len(ages)} figures are older than the kernels, {unknown} of unknown age",
        ]
    )
