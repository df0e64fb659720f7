"""What a rule says about a report."""

from __future__ import annotations

from dataclasses import dataclass

FINE = "fine"
VIOLATED = "violated"
NOT_SHOWN = "not shown"


@dataclass(frozen=True)
class Verdict:
    """Whether a report keeps a rule.

    >>> Verdict(fine("runs train to an accuracy").status, "...").passes
    True
    """

    status: str
    why: str
    sentence: str = ""
    """What should be added to the report."""
    number: int = 0
    rule: str = ""
    """The short name of the rule, as `statements` has it."""
    way: str = ""
    """The way to fool the masses that the rule looks for."""
    excusable: bool = False
    """Whether a report may do this if it says so."""

    @property
    def passes(self) -> bool:
        """Whether nothing is to be added."""
        return self.status == FINE


def fine(why: str) -> Verdict:
    """The report keeps the rule.

    >>> fine("nothing was scaled").status
    'fine'
    """
    return Verdict(FINE, why)


def violated(why: str, sentence: str, *, excusable: bool = False) -> Verdict:
    """The report's own numbers break the rule.

    >>> violated("only kernels", "Say so.").status
    'violated'
    """
    return Verdict(VIOLATED, why, sentence, excusable=excusable)


def not_shown(why: str, sentence: str) -> Verdict:
    """The report does not say enough.

    >>> not_shown("no hardware", "Name it.").status
    'not shown'
    """
    return Verdict(NOT_SHOWN, why, sentence, excusable=True)
