"""The keynote's twelve ways to fool the masses and three more, looked for in a file of results.

`claims` is the format, also built from files of `caldera bench --json`. `rules` and `more_rules`
judge a report, by the published sizes in `literature` too, and `check` applies them.
"""

from __future__ import annotations

from caldera.bench.honesty.check import Findings, check
from caldera.bench.honesty.claims import ClaimedRun as Run
from caldera.bench.honesty.claims import Claims, Hardware, Tuning
from caldera.bench.honesty.rules import FINE, NOT_SHOWN, VIOLATED
from caldera.bench.honesty.rules import RuleVerdict as Verdict

__all__ = [
    "FINE",
    "NOT_SHOWN",
    "VIOLATED",
    "Claims",
    "Findings",
    "Hardware",
    "Run",
    "Tuning",
    "Verdict",
    "check",
]
