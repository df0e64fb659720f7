"""A small report made by hand, for what is done with reports."""

from __future__ import annotations

from caldera.bench.equality import Equality
from caldera.bench.results import Report, ResultEntry

MACHINE = {
    "cpu": "a <processor>",
    "architecture": "abacus64",
    "cores": 2,
    "threads": 2,
    "blas": "beads 1",
    "python": "3",
    "time": "noon",
    "load before": 0.1,
}


def entry(
    framework: str, setting: str, seconds: float, case: str = "net", **more: object
) -> ResultEntry:
    """An entry with three rounds of one time."""
    equal = Equality(first_loss=1e-8, against="torch eager")
    made = ResultEntry("mlp", case, framework, setting, rounds=[[seconds]] * 3, equality=equal)
    for name, value in more.items():
        assert hasattr(made, name)
        setattr(made, name, value)
    return made


def report(*entries: ResultEntry) -> Report:
    """A report of these."""
    return Report(
        machine=dict(MACHINE),
        options={"quick": True},
        missing={"jax": "pip install jax"},
        notes=["a note"],
        versions={"caldera": "1"},
        entries=list(entries),
    )
