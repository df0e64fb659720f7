"""All tables, figures and numbers of the reference papers, from `papers.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True)
class Figure:
    """A table, figure or number of a paper: reproduced by an experiment, or not with the reason."""

    place: str
    says: str
    experiment: str = ""
    reason: str = ""
    nearest: str = ""
    """The nearest measurement, if there is no experiment."""
    recorded: str = ""
    """Verdict of a measurement that takes too long to repeat, with its file of results."""
    file: str = ""
    evidence: tuple[str, ...] = ()
    """Lines of that file from which the verdict follows."""


@cache
def figures() -> tuple[Figure, ...]:
    """Return all figures in the order of the papers.

    >>> figures()[0].place
    'MagmaDNN, table 1'
    """
    text = (resources.files(__package__) / "papers.toml").read_text("utf-8")
    return tuple(Figure(**each) for each in tomllib.loads(text)["figures"])
