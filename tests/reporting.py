"""What a run of the tests says at its end, and when it ends.

At its end it says what was skipped and why, and which sources of the card NVIDIA's compiler had to
look at. With several workers, what each has seen is put together, and a worker tells only what the
end needs to know. A run may also be given a time: what it does not reach in it is skipped.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tests import object_cache

ACCEPT = "--accept-card-sources"
SECONDS = "--for-seconds"
WORTH_TELLING = 0.05
"""Seconds after which what came before or after a test may be among what took longest."""
_sources: set[str] = set()
"""The card's sources of the workers that have ended."""
_started = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        ACCEPT, action="store_true", help="list what NVRTC accepts in tests/card/accepted.txt"
    )
    parser.addoption(
        "--compile-card-sources",
        action="store_true",
        help="let NVRTC compile every source of the card, listed or not",
    )
    parser.addoption(SECONDS, type=float, help="skip what is not reached in this time")


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[_started] = time.monotonic()
    if not hasattr(session.config, "workerinput"):
        object_cache.evict()


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Of a test that a worker ran, one message goes to the process that prints, not five: with
    thousands of tests of a few milliseconds, messages took as long as the tests."""
    if not hasattr(item.config, "workerinput"):
        return None
    for report in runtestprotocol(item, nextitem=nextitem, log=False):
        is_test = report.when == "call" or not report.passed
        if is_test or report.duration > WORTH_TELLING:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


def pytest_runtest_setup(item: pytest.Item) -> None:
    limit = item.config.getoption(SECONDS)
    if limit is not None and time.monotonic() - item.config.stash[_started] > limit:
        pytest.skip(f"not reached in {limit:g} s: `make test` runs it")


def pytest_sessionfinish(session: pytest.Session) -> None:
    accepted = sys.modules.get("tests.card.accepted")
    found = accepted.needed if accepted is not None else set()
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["card sources"] = sorted(found)
    else:
        _sources.update(found)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    _sources.update(getattr(node, "workeroutput", {}).get("card sources", ()))


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    skipped = skip_table(report.longrepr for report in terminalreporter.stats.get("skipped", ()))
    if skipped:
        terminalreporter.section("skipped")
        terminalreporter.write_line(skipped)
    if _sources:
        terminalreporter.write_line(_about_sources(config, exitstatus))


def skip_table(places: Any) -> str:
    """How many tests were skipped for which reason, the most frequent first."""
    reasons = Counter(str(place[2]).removeprefix("Skipped: ") for place in places)
    return "\n".join(f"{count:6,}  {reason}" for reason, count in reasons.most_common())


def _about_sources(config: pytest.Config, exitstatus: int) -> str:
    from tests.card import accepted

    unlisted = _sources - accepted.listed()
    if config.getoption(ACCEPT) and exitstatus == 0:
        # A run of some of the tests knows nothing of the sources of the others.
        whole = config.args == ["tests/card"] and not config.getoption("keyword")
        accepted.write_list(_sources if whole else _sources | accepted.listed())
        return f"{len(_sources):,} sources of the card are listed, {len(unlisted):,} of them new"
    if not unlisted:
        return ""
    return (
        f"{len(unlisted):,} of {len(_sources):,} sources of the card are new, and were compiled "
        "with NVRTC too. `make accept-card-sources` lists them, which saves others the time."
    )
