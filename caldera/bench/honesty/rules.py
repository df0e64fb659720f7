"""Rules 1 to 6 of the keynote's twelve ways to fool the masses, with their verdicts.

Each rule is a function of the claims. The remaining rules are in `more_rules`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean as mean
from statistics import variance

from caldera.bench.honesty.claims import (
    KERNEL,
    STORAGE,
    SUBSET,
    WHOLE,
    ClaimedRun,
    Claims,
    Hardware,
)
from caldera.bench.honesty.literature import published_year

FINE = "fine"
VIOLATED = "violated"
NOT_SHOWN = "not shown"


@dataclass(frozen=True)
class RuleVerdict:
    """Result of a rule: the status of a report, with the reason.

    >>> RuleVerdict(fine("runs train to an accuracy").status, "...").passes
    True
    """

    status: str
    why: str
    sentence: str = ""
    """Sentence that should be added to the report."""
    number: int = 0
    rule: str = ""
    """Short name of the rule, the key in `statements`."""
    way: str = ""
    """The way to fool the masses that the rule looks for."""
    excusable: bool = False
    """True if a statement in the report can excuse it."""

    @property
    def passes(self) -> bool:
        """True if the report needs no addition."""
        return self.status == FINE


def fine(why: str) -> RuleVerdict:
    """The report keeps the rule.

    >>> fine("nothing was scaled").status
    'fine'
    """
    return RuleVerdict(FINE, why)


def violated(why: str, sentence: str, *, excusable: bool = False) -> RuleVerdict:
    """The report's own numbers break the rule.

    >>> violated("only kernels", "Say so.").status
    'violated'
    """
    return RuleVerdict(VIOLATED, why, sentence, excusable=excusable)


def not_shown(why: str, sentence: str) -> RuleVerdict:
    """The report does not say enough.

    >>> not_shown("no hardware", "Name it.").status
    'not shown'
    """
    return RuleVerdict(NOT_SHOWN, why, sentence, excusable=True)


def violated_by(
    runs: Sequence[ClaimedRun], why: str, sentence: str, *, excusable: bool = False
) -> RuleVerdict | None:
    """Return the verdict that these runs break the rule; None without any.

    >>> violated_by([], "only kernels", "Say so.") is None
    True
    """
    return None if not runs else violated(f"{names(runs)}: {why}", sentence, excusable=excusable)


def not_shown_of(runs: Sequence[ClaimedRun], why: str, sentence: str) -> RuleVerdict | None:
    """Return the verdict that the report lacks information on these runs; None without runs.

    >>> not_shown_of([ClaimedRun("a", "s", "w", "network")], "no time", "Give it.").why
    'a: no time'
    """
    return not_shown(f"{names(runs)}: {why}", sentence) if runs else None


LEAST = 0.005
"""Half a per cent of the test samples: less is not called a difference."""


def is_lower(values: Sequence[float], than: Sequence[float]) -> bool:
    """Return True if an accuracy is lower by more than `LEAST` and more than seeds explain.

    >>> is_lower([0.90], [0.92]), is_lower([0.90, 0.94], [0.93, 0.91]), is_lower([0.918], [0.92])
    (True, False, False)
    """
    spread = 2.0 * math.sqrt(_error(values) + _error(than))
    return mean(than) - mean(values) > max(LEAST, spread)


def _error(values: Sequence[float]) -> float:
    """Return the square of the standard error."""
    return variance(values) / len(values) if len(values) > 1 else 0.0


MAKERS = {each: each for each in ("amd", "apple", "google", "intel", "nvidia")} | {
    "epyc": "amd",
    "ryzen": "amd",
    "tesla": "nvidia",
    "tpu": "google",
    "xeon": "intel",
}
"""Makers of hardware by their own names and by names of their products."""
_NOT_MODELS = r"x86_64|aarch64|@.*|\b\d+(?:[- ]cores?| gi?b)\b|\b\d{1,2}(?:x|\b)"
"""Architecture, clock rate, numbers of cores and of devices, and memory."""
SAME_AGE = 2
"""Allowed age difference of hardware in a comparison, in years."""
SAME_EFFORT = 2
"""Allowed ratio between the numbers of tuning runs of two systems."""


def names(runs: Sequence[ClaimedRun]) -> str:
    """Return the names of the runs, the first three in full.

    >>> names([ClaimedRun("a", "s", "w", "network"), ClaimedRun("b", "s", "w", "network")])
    'a, b'
    """
    shown = ", ".join(run.name for run in runs[:3])
    return shown + (f" and {len(runs) - 3} more" if len(runs) > 3 else "")


def accuracy_when_scaling(claims: Claims) -> RuleVerdict:
    """1: an accuracy that is shown on few ranks must be shown, and hold, on many."""
    if not claims.scaled():
        return fine("all runs of a system have the same number of ranks")
    for runs in claims.scaled():
        silent = [run for run in runs if not run.test_accuracy and not run.equal_results]
        base = runs[0].test_accuracy
        if silent and len(silent) < len(runs):
            return violated(
                f"{names(silent)}: no accuracy, though other numbers of ranks have one",
                "Give the test accuracy at every number of ranks.",
            )
        if silent:
            return not_shown(
                f"no accuracy of {runs[0].system} at any number of ranks",
                "Give the test accuracy at every number of ranks, or show that each step has "
                "the result of a single process.",
            )
        for run in runs[1:]:
            if base and run.test_accuracy and is_lower(run.test_accuracy, base):
                return violated(
                    f"{run.name}: {mean(run.test_accuracy):.3f}, where {runs[0].name} reaches "
                    f"{mean(base):.3f}",
                    "Give the time at which every number of ranks reaches the same test accuracy.",
                )
    return fine("the accuracy is shown and holds at every number of ranks")


def test_accuracy(claims: Claims) -> RuleVerdict:
    """2: training is judged by samples that it has not seen; a step by its equal result."""
    training = [run for run in claims.runs if run.trains]
    only_seen = [run for run in training if run.train_accuracy and not run.test_accuracy]
    silent = [run for run in training if not run.test_accuracy and not run.equal_results]
    unequal = [run for run in claims.runs if run.equal_results is False]
    unchecked = [run for run in claims.runs if not run.trains and run.equal_results is None]
    return (
        violated_by(
            only_seen,
            "accuracy on the training data only",
            "Give the accuracy on test data that no choice was made with.",
        )
        or not_shown_of(silent, "no accuracy", "Give the accuracy on test data.")
        or violated_by(
            unequal,
            "the result differs from the reference's",
            "Leave out, or mark, runs whose results are wrong.",
        )
        or not_shown_of(
            unchecked,
            "the result was not compared with a reference",
            "State the reference of the results and their distance from it.",
        )
        or fine("every run has a test accuracy or a result that was compared")
    )


def tuning_counted(claims: Claims) -> RuleVerdict:
    """3: runs that were needed to find the settings belong to the cost."""
    dropped = [
        run
        for run in claims.runs
        if run.attempts > max(len(run.seconds), len(run.test_accuracy), 1)
    ]
    if dropped:
        run = dropped[0]
        shown = max(len(run.seconds), len(run.test_accuracy), 1)
        return violated(
            f"{run.name}: started {run.attempts} times, {shown} are shown",
            "Show every run that was started, not the best.",
        )
    if not any(run.trains for run in claims.runs):
        return fine("no network is trained to the end, so there are no settings to tune")
    tuning = claims.tuning or {}
    silent = [system for system in claims.systems() if system not in tuning]
    unsourced = [name for name, each in tuning.items() if not each.runs and not each.source]
    if silent or unsourced:
        return not_shown(
            f"the origin of the settings of {(silent + unsourced)[0]} is not stated",
            "State the number of runs and the time of the hyper-parameter search for each "
            "system, or the source of the hyper-parameters.",
        )
    most = max(tuning, key=lambda name: tuning[name].runs)
    least = min(tuning, key=lambda name: tuning[name].runs)
    if tuning[most].runs > SAME_EFFORT * max(tuning[least].runs, 1):
        return violated(
            f"{most} was tuned with {tuning[most].runs} runs, {least} with {tuning[least].runs}",
            "Tune every system with the same effort.",
        )
    return fine("the runs that tuned each system are counted")


def equal_hardware(claims: Claims) -> RuleVerdict:
    """4: a comparison with older or specialised hardware proves little."""
    silent = [run for run in claims.runs if run.hardware is None or not run.hardware.name]
    if silent:
        return not_shown(f"{names(silent)}: no hardware", "Name the hardware of every run.")
    for hardware in dict.fromkeys(run.hardware for run in claims.runs if run.hardware is not None):
        misnamed = _misnamed(hardware)
        if misnamed is not None:
            return misnamed
    for runs in claims.workloads():
        kinds = {run.hardware for run in runs if run.hardware is not None}
        if len({run.system for run in runs}) < 2 or len({each.name for each in kinds}) < 2:
            continue
        if len({each.special for each in kinds}) > 1:
            return violated(
                f"{runs[0].workload}: special hardware compared with general-purpose hardware",
                "Compare systems on the same hardware.",
            )
        if not all(each.year for each in kinds):
            return not_shown(
                f"{runs[0].workload}: systems on {len(kinds)} kinds of hardware of unknown age",
                "Give the year of each machine, or compare on the same one.",
            )
        years = [each.year for each in kinds]
        if max(years) - min(years) > SAME_AGE:
            return violated(
                f"{runs[0].workload}: hardware of {min(years)} compared with hardware of "
                f"{max(years)}",
                "Compare systems on hardware of the same age.",
            )
    return fine("systems are compared on the same hardware, or of the same age")


def _misnamed(hardware: Hardware) -> RuleVerdict | None:
    """Compare a name with the machine's own report and the published year."""
    if not hardware.reported:
        return not_shown(
            f"{hardware.name}: the machine's own report is missing",
            "Give the processor or GPU as the machine reports it.",
        )
    claimed, reported = _models(hardware.name), _models(hardware.reported)
    if claimed - reported and (reported - set(MAKERS) or claimed & set(MAKERS) - reported):
        return violated(
            f"called {hardware.name}, but the machine reports {hardware.reported}",
            "Name the hardware that the machine reports.",
        )
    if claimed - reported:
        return not_shown(
            f"{hardware.reported} does not show that it is {hardware.name}",
            "Say how the model is known.",
        )
    year = published_year(hardware.name)
    if year and hardware.year and abs(year - hardware.year) > 1:
        return violated(
            f"{hardware.name} is of {year}, not {hardware.year}", "Give the year of the hardware."
        )
    return None


def _models(hardware: str) -> set[str]:
    """Return the makers and model numbers in a name, without counts and clock rate.

    >>> sorted(_models("8x Tesla V100, 512 GB")), sorted(_models("16-core EPYC 7763 @ 2.4 GHz"))
    (['nvidia', 'tesla', 'v100'], ['7763', 'amd', 'epyc'])
    """
    named = re.sub(_NOT_MODELS, "", hardware.lower())
    found = {
        each
        for each in re.findall(r"[a-z0-9]+", named)
        if each in MAKERS or any(map(str.isdigit, each))
    }
    return found | {MAKERS[each] for each in found if each in MAKERS}


def whole_workload(claims: Claims) -> RuleVerdict:
    """5: a kernel that scales is not a training that scales."""
    silent = [run for run in claims.runs if not run.part]
    parts = [run for run in claims.runs if run.part in (KERNEL, SUBSET)]
    scaled = [run for runs in claims.scaled() for run in runs]
    wrong = [run for run in parts if run.trains or run in scaled]
    kept = "parts are labelled as parts, and no total is extrapolated from them"
    return (
        not_shown_of(
            silent,
            "the report does not state whether the whole workload ran",
            "Say whether the whole workload was run, or which part.",
        )
        or violated_by(
            wrong,
            f"a {wrong[0].part} represents {wrong[0].workload}" if wrong else "",
            "Give the time of the whole workload as well, or state that these are parts, "
            "without conclusions for the whole.",
            excusable=True,
        )
        or fine(kept if parts else f"every run is of the {WHOLE}")
    )


def input_counted(claims: Claims) -> RuleVerdict:
    """Check rule 6: the time of a training includes reading the samples."""
    training = [run for run in claims.runs if run.trains]
    if not training:
        return fine("steps and operators: the report makes no claim about training from storage")
    staged = [run for run in training if run.reads and run.reads != STORAGE]
    silent = [run for run in training if not run.reads]
    return (
        violated_by(
            staged,
            f"samples come from {staged[0].reads} while the clock runs" if staged else "",
            "State that samples are in memory, with the loading time, or include reading in "
            "the measured time.",
            excusable=True,
        )
        or not_shown_of(
            silent,
            "the source of the samples is not stated",
            "Say where samples come from while the clock runs.",
        )
        or fine("reading samples is part of the time")
    )
